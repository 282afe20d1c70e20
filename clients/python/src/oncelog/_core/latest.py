"""The last committed value of each key: what a table view shows. PURE.

    a record with a value   the key has that value
    one without (null)      a tombstone: the key is not there any more
    one without a key       belongs to no key: it is counted

A transaction's part in a partition is shown whole: what came of it is *held* until its last record
is there, of each key the last value only. Where a transaction ends is known by what follows it, or
because nothing more can be read.

Which of two values of one key is the last is known within a partition: the later offset. Keys lie
in one partition, but for records that were sent to a partition by name, and topics that were given
more partitions. Where one lies in several, the value counts that became readable last, by the
clocks of the leaders (then: of the higher partition), so that two tables agree, in whatever order
they have read. So that an older value does not come back behind a tombstone that was read before
it, removed keys are remembered while there are several partitions: until all that could be read
when they were removed has been.

Invariant: bytes_held counts all that is remembered, with what Python needs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from oncelogpb import errors

# What Python needs of one key beside its bytes and those of its value: measured up to 190.
ENTRY_BYTES: Final = 256

# When a value became readable (milliseconds since 1970), and in which partition.
Stamp = tuple[int, int]
Keys = Sequence[bytes | None]
Values = Sequence[bytes | None]


class Rows(Protocol):
    """Records of one partition that became readable together."""

    def keys_and_values(self) -> tuple[Keys, Values]:
        """As many of both."""
        ...


class _Held:
    """What came of a transaction that is not whole yet."""

    __slots__ = ("first_offset", "last", "size", "staged", "stamp", "tx_id", "without_key")

    def __init__(self, tx_id: int, stamp: Stamp, first_offset: int) -> None:
        self.tx_id = tx_id
        self.stamp = stamp
        self.first_offset = first_offset
        # Not decoded yet: most transactions have one batch in a partition.
        self.last: Rows | None = None
        # Of what came before it, by key.
        self.staged: dict[bytes, bytes | None] = {}
        self.size = 0
        self.without_key = 0

    def add(self, rows: Rows) -> None:
        if self.last is not None:
            self._stage(*self.last.keys_and_values())
        self.last = rows

    def _stage(self, keys: Keys, values: Values) -> None:
        staged = self.staged
        for key, value in zip(keys, values, strict=True):
            if key is None:
                self.without_key += 1
                continue
            if key in staged:
                self.size -= len(staged[key] or b"")
            else:
                self.size += ENTRY_BYTES + len(key)
            self.size += len(value or b"")
            staged[key] = value


class _Removed:
    """Keys that are not there any more, and since when."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Stamp] = {}
        # Those of before the last `mark`.
        self._marked: dict[bytes, Stamp] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._by_key) + len(self._marked)

    def get(self, key: bytes) -> Stamp | None:
        found = self._by_key.get(key)
        return self._marked.get(key) if found is None else found

    def put(self, key: bytes, stamp: Stamp) -> None:
        self.discard(key)
        self._by_key[key] = stamp
        self.size += ENTRY_BYTES + len(key)

    def discard(self, key: bytes) -> None:
        for those in (self._by_key, self._marked):
            if those.pop(key, None) is not None:
                self.size -= ENTRY_BYTES + len(key)

    def mark(self) -> None:
        self._marked.update(self._by_key)
        self._by_key.clear()

    def forget_marked(self) -> None:
        self._forget(self._marked, list(self._marked))

    def forget_of(self, partition: int) -> None:
        for those in (self._by_key, self._marked):
            self._forget(those, [key for key, stamp in those.items() if stamp[1] == partition])

    def _forget(self, those: dict[bytes, Stamp], keys: Iterable[bytes]) -> None:
        for key in keys:
            del those[key]
            self.size -= ENTRY_BYTES + len(key)


class Latest:
    """Of one topic."""

    def __init__(self, memory_bytes_max: int) -> None:
        self._memory_bytes_max = memory_bytes_max
        # By key: its value, and since when.
        self.entries: dict[bytes, tuple[bytes, Stamp]] = {}
        self._held: dict[int, _Held] = {}
        self._removed = _Removed()
        self._size = 0
        # The topic has several partitions.
        self.remembers_removed = False
        # Records without a key, which no table can show.
        self.without_key = 0
        # Is told the keys of what is shown, some of them None.
        self.on_changed: Callable[[Iterable[bytes | None]], object] | None = None

    @property
    def bytes_held(self) -> int:
        return self._size + self._removed.size + sum(held.size for held in self._held.values())

    @property
    def removed_count(self) -> int:
        """Removed keys that are remembered."""
        return len(self._removed)

    def shown_up_to(self, partition: int, position: int) -> int:
        """`position`: all below it was added. All below the result is shown."""
        held = self._held.get(partition)
        return position if held is None else held.first_offset

    def add(
        self,
        partition: int,
        rows: Rows,
        *,
        tx_id: int,
        time_ms: int,
        first_offset: int,
        is_last: bool,
    ) -> None:
        """The next records of a partition, of one transaction, or plain ones (tx_id 0). `is_last`:
        nothing of it follows. Raises TooLarge: this table is of no use any more."""
        held = self._held.get(partition)
        if held is not None and held.tx_id != tx_id:
            self._show(partition)
            held = None
        if held is None and (is_last or not tx_id):
            self._apply((time_ms, partition), *rows.keys_and_values())
        else:
            if held is None:
                held = self._held[partition] = _Held(tx_id, (time_ms, partition), first_offset)
            held.add(rows)
            if is_last:
                self._show(partition)
        self._require_room()

    def end(self, partition: int) -> None:
        """Nothing follows there of the transaction that was added last."""
        if partition in self._held:
            self._show(partition)

    def drop(self, partition: int) -> None:
        """All that was added of it lies before the first record that is kept: it was deleted."""
        self._held.pop(partition, None)
        self._removed.forget_of(partition)
        gone = [key for key, (_, stamp) in self.entries.items() if stamp[1] == partition]
        for key in gone:
            value, _ = self.entries.pop(key)
            self._size -= ENTRY_BYTES + len(key) + len(value)
        self._tell(gone)

    def mark_removed(self) -> None:
        """Those that are remembered now: `forget_removed` is about them."""
        self._removed.mark()

    def forget_removed(self) -> None:
        """All that could be read at the last `mark_removed` was added."""
        self._removed.forget_marked()

    def clear(self) -> None:
        """Lets go of everything."""
        self.entries.clear()
        self._held.clear()
        self._removed = _Removed()
        self._size = 0

    # ------------------------------------------------------------------------------------- inside

    def _show(self, partition: int) -> None:
        """What is held of it is whole."""
        held = self._held.pop(partition)
        self.without_key += held.without_key
        self._apply(held.stamp, list(held.staged), list(held.staged.values()))
        if held.last is not None:
            self._apply(held.stamp, *held.last.keys_and_values())

    def _apply(self, stamp: Stamp, keys: Keys, values: Values) -> None:
        entries, partition = self.entries, stamp[1]
        grown = 0
        for key, value in zip(keys, values, strict=True):
            if key is None:
                self.without_key += 1
                continue
            before = entries.get(key)
            if before is None:
                if self._removed and self._is_removed_since(key, stamp):
                    continue
                if value is not None:
                    entries[key] = value, stamp
                    grown += ENTRY_BYTES + len(key) + len(value)
                elif self.remembers_removed:
                    self._removed.put(key, stamp)
            elif before[1][1] != partition and before[1] > stamp:
                # Of a partition that is read later than that one was.
                continue
            elif value is not None:
                entries[key] = value, stamp
                grown += len(value) - len(before[0])
            else:
                del entries[key]
                grown -= ENTRY_BYTES + len(key) + len(before[0])
                if self.remembers_removed:
                    self._removed.put(key, stamp)
        self._size += grown
        self._tell(keys)

    def _is_removed_since(self, key: bytes, stamp: Stamp) -> bool:
        """What was removed later is forgotten here, where this is later still."""
        removed = self._removed.get(key)
        if removed is None:
            return False
        if removed[1] != stamp[1] and removed > stamp:
            return True
        self._removed.discard(key)
        return False

    def _tell(self, keys: Iterable[bytes | None]) -> None:
        if self.on_changed is not None:
            self.on_changed(keys)

    def _require_room(self) -> None:
        if self.bytes_held > self._memory_bytes_max:
            raise errors.TooLarge(
                f"{len(self.entries)} keys with their values, and what else is remembered for the "
                f"table, take {self.bytes_held} bytes of memory, above memory_bytes_max = "
                f"{self._memory_bytes_max}: give it more, or read the topic with a consumer",
                limit="memory_bytes_max",
            )

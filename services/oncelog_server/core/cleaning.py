"""Which records of a committed log stay when it is compacted (docs/adr/0074). PURE.

    offset    0    1    2    3    4    5    6   X        cleaned to X = 7, tombstones to T = 4
    record    a=1  b=1  b=-  a=2  c=-  a=3  d=1          `-`: a tombstone, a key without a value
    stays      .    .    .    .   c=-  a=3  d=1          b=-  is below T, c=- is not

A log that is *cleaned to (X, T)*, T <= X, has of the records below X those that no later record
below X supersedes, without the tombstones below T; from X on it has all. Records keep their
offsets.

Invariants:
  * that is a function of the records, of X and of T: it does not matter in which passes it came
    about, so two replicas that are cleaned to the same (X, T) are equal, record by record;
  * the last record of a key stays (I33), but for a tombstone below T;
  * a record without a key is superseded by none and supersedes none, whatever its value is.

Left out: how a block is taken apart and put together (`core/settling.Settler`), where blocks stand
(`runtime/storage/data_cleaning`), when it is done (`runtime/replica/compacting`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

# Of a key: two keys with the same one would be taken for one key.
DIGEST_BYTES: Final = 16
# A slot of the map: digest, and offset + 1 (0: free).
SLOT_BYTES: Final = DIGEST_BYTES + 8
# Of its slots so many are used at most: 3 of 4. Above that, looking for a free one takes long.
USED_OF_SLOTS: Final = (3, 4)

_DIGEST: Final = Struct("<QQ")


class Keyed(NamedTuple):
    """What of a block's records decides which of them stay."""

    # Of each record; None: it has no key.
    keys: Sequence[bytes | None]
    # Numbers of the records that have a key and no value, ascending.
    tombstones: Sequence[int]


class LastOffsets:
    """By key, the offset of its last record in a range: a map of digests, in an open-addressed
    table of a fixed size.

    Its memory is `max_bytes` at most, and is taken at once: SLOT_BYTES a slot.
    """

    def __init__(self, *, max_bytes: int, keys_wanted: int) -> None:
        """`keys_wanted`: there will be no more, so no more memory is of use."""
        used, of = USED_OF_SLOTS
        self._slots = max(of, min(max_bytes // SLOT_BYTES, keys_wanted * of // used + 1))
        # It takes so many keys.
        self.keys_max = self._slots * used // of
        self._count = 0
        self._low = array("Q", (0,)) * self._slots
        self._high = array("Q", (0,)) * self._slots
        # Offset + 1.
        self._behind = array("Q", (0,)) * self._slots

    def __len__(self) -> int:
        return self._count

    def add(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> int:
        """Of records in offset order, behind all that were added before. Returns how many of them
        it took: fewer than there are where it is full."""
        low, high, behind, slots = self._low, self._high, self._behind, self._slots
        unpack, count, keys_max = _DIGEST.unpack, self._count, self.keys_max
        for number, key in enumerate(keys):
            if key is None:
                continue
            one, two = unpack(blake2b(key, digest_size=DIGEST_BYTES).digest())
            slot = one % slots
            while behind[slot] and not (low[slot] == one and high[slot] == two):
                slot = slot + 1 if slot + 1 < slots else 0
            if not behind[slot]:
                if count == keys_max:
                    self._count = count
                    return number
                count += 1
                low[slot], high[slot] = one, two
            behind[slot] = offsets[number] + 1
        self._count = count
        return len(keys)

    def staying(
        self,
        keyed: Keyed,
        offsets: Sequence[int],
        numbers: range,
        *,
        tombstones_below: int,
    ) -> list[int]:
        """Of the records with these numbers, those that stay: of their keys it knows the last
        records below X, and none at or above X."""
        low, high, behind, slots = self._low, self._high, self._behind, self._slots
        unpack, keys = _DIGEST.unpack, keyed.keys
        gone = {it for it in keyed.tombstones if offsets[it] < tombstones_below}
        stay: list[int] = []
        for number in numbers:
            key = keys[number]
            if key is None:
                stay.append(number)
                continue
            one, two = unpack(blake2b(key, digest_size=DIGEST_BYTES).digest())
            slot = one % slots
            while behind[slot] and not (low[slot] == one and high[slot] == two):
                slot = slot + 1 if slot + 1 < slots else 0
            if behind[slot] <= offsets[number] + 1 and number not in gone:
                stay.append(number)
        return stay


class Cleanness(NamedTuple):
    """What was taken out of a log. Offsets."""

    # What a later record below this superseded is gone.
    compacted_to: int = 0
    # No tombstone at or above was taken out; those below may go at any time, or are gone.
    tombstones_to: int = 0
    # Whatever was taken out was superseded by a record below this.
    holes_below: int = 0
    # Tombstones below are gone, all of them. Where blocks came from another replica, which says of
    # its own no more than what may be gone, that is less than `tombstones_to`.
    dropped_to: int = 0

    def with_records(self, first: int) -> Cleanness:
        """Once what is appended from `first` on has all of its records."""
        return Cleanness(
            min(self.compacted_to, first),
            min(self.tombstones_to, first),
            self.holes_below,
            min(self.dropped_to, first),
        )

    def with_part(self, there: Cleanness, *, first: int, end: int) -> Cleanness | None:
        """Of this log, which ends at `first`, once [first, end) comes from another replica's.

        None: that must not be. A tombstone may be gone there of which an older record is left here,
        which would come back.
        """
        dropped_to = min(there.tombstones_to, end)
        if dropped_to > first and self.compacted_to < dropped_to:
            return None
        tombstones_to = min(self.tombstones_to, max(there.tombstones_to, first))
        return Cleanness(
            min(self.compacted_to, max(there.compacted_to, first)),
            max(tombstones_to, dropped_to) if dropped_to > first else tombstones_to,
            max(self.holes_below, there.holes_below),
            min(self.dropped_to, max(there.dropped_to, first)),
        )

    def with_part_inside(self, there: Cleanness, *, first: int, end: int) -> Cleanness | None:
        """As `with_part`, of a log that goes on behind `end`.

        None also where a tombstone behind may be gone here of which an older record comes.
        """
        if self.tombstones_to > first and there.compacted_to < self.tombstones_to:
            return None
        joined = self.with_part(there, first=first, end=end)
        if joined is None:
            return None
        return joined._replace(tombstones_to=max(self.tombstones_to, joined.tombstones_to))

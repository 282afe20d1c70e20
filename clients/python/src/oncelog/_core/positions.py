"""Where a consumer stands in each partition, and what it may commit.

Per partition there are three numbers:

    fetch      next offset to ask a leader for (what was prefetched lies between position and fetch)
    position   next offset to give to the user
    base       position at the last commit, rewind, seek or start: where the open transaction began

and `from`, what the group must have committed for the next commit to be ours: an offset, NONE, or
ANY after a seek. After a commit that is decided but perhaps not visible yet, `after`
names that transaction, so that the next one of the same producer may chain on it.

Invariants:
- base <= position <= fetch, but for a seek, which sets all three;
- a commit covers [base, position); an abort sets position and fetch back to base, so what was read
  in the aborted transaction is read again (I21);
- a partition whose positions are unknown (an outcome in doubt, a lost race) gives nothing to anyone
  until `start` was told what the group has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from oncelog._core.routing import PartitionKey
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, types_pb2


class Origin(Enum):
    """Of a `from` that is no offset."""

    # The group has committed nothing in this partition.
    NONE = "none"
    # Not checked: the user sought.
    ANY = "any"


class After(NamedTuple):
    """A decided commit on whose pending offsets the next one may chain."""

    producer_id: int
    tx_id: int


@dataclass(slots=True)
class Place:
    """One partition. See the module."""

    fetch: int
    position: int
    base: int
    since: int | Origin
    after: After | None = None
    paused: bool = False


class Progress(NamedTuple):
    """What one commit says about one partition: [base, to)."""

    partition: PartitionKey
    base: int
    to: int


class Positions:
    """All partitions of one consumer."""

    def __init__(self, assigned: Iterable[PartitionKey]) -> None:
        self.assigned = tuple(assigned)
        # Those that were assigned later: they are read from their first record on, wherever the
        # reading of the others began.
        self._added: set[PartitionKey] = set()
        self._places: dict[PartitionKey, Place] = {}
        self._paused: set[PartitionKey] = set()
        # Raised by every change that makes prefetched batches worthless.
        self.edition = 0

    def unknown(self) -> list[PartitionKey]:
        """Partitions that need `start`."""
        return [partition for partition in self.assigned if partition not in self._places]

    def assign(self, added: Iterable[PartitionKey]) -> None:
        """Partitions that came to a topic while it is read; they need `start`."""
        fresh = [partition for partition in added if partition not in self.assigned]
        self.assigned += tuple(fresh)
        self._added.update(fresh)

    def is_added(self, partition: PartitionKey) -> bool:
        """It came while its topic was read: nothing of it may be skipped."""
        return partition in self._added

    def start(self, partition: PartitionKey, position: int, since: int | Origin) -> None:
        """Where to begin, and what the group has committed there."""
        self._require_assigned(partition)
        self._places[partition] = Place(position, position, position, since)
        self.edition += 1

    def fetchable(self) -> list[tuple[PartitionKey, int]]:
        """What to ask leaders for: (partition, next offset), without what is paused."""
        return [
            (partition, place.fetch)
            for partition, place in self._places.items()
            if partition not in self._paused
        ]

    def fetched(self, partition: PartitionKey, next_offset: int) -> None:
        """Records below next_offset are prefetched."""
        place = self._places[partition]
        assert next_offset >= place.fetch, "a leader goes forward"
        place.fetch = next_offset

    def given(self, partition: PartitionKey, next_offset: int) -> None:
        """Records below next_offset were handed to the user."""
        place = self._places[partition]
        assert place.position <= next_offset <= place.fetch, "given what was prefetched, once"
        place.position = next_offset

    def position(self, partition: PartitionKey) -> int | None:
        """None: not known yet."""
        self._require_assigned(partition)
        place = self._places.get(partition)
        return None if place is None else place.position

    def fetch_position(self, partition: PartitionKey) -> int | None:
        place = self._places.get(partition)
        return None if place is None else place.fetch

    def seek(self, partition: PartitionKey, offset: int) -> None:
        """The next commit's `from` is ANY."""
        self.start(partition, offset, Origin.ANY)

    def pause(self, partition: PartitionKey) -> None:
        self._require_assigned(partition)
        self._paused.add(partition)
        self.edition += 1

    def resume(self, partition: PartitionKey) -> None:
        self._require_assigned(partition)
        self._paused.discard(partition)
        self.edition += 1

    def is_paused(self, partition: PartitionKey) -> bool:
        return partition in self._paused

    def progress(self) -> list[Progress]:
        """What a commit now would cover; nothing for partitions that did not move."""
        return [
            Progress(partition, place.base, place.position)
            for partition, place in self._places.items()
            if place.position != place.base
        ]

    def standing(self) -> list[Progress]:
        """What the group has committed, as far as this consumer knows, as steps from there to
        there."""
        return [
            Progress(partition, place.since, place.since)
            for partition, place in self._places.items()
            if isinstance(place.since, int)
        ]

    def offsets(
        self, progress: Iterable[Progress], *, producer_id: int, view: types_pb2.View.ValueType
    ) -> list[offset_manager_pb2.OffsetCommit]:
        """The wire form of a commit. `producer_id` 0: a plain commit, which cannot chain."""
        return [self._offset(item, producer_id, view) for item in progress]

    def committed(self, progress: Iterable[Progress], after: After | None) -> None:
        """The commit is decided. `after` None: it is visible, or it was plain."""
        for partition, _, to in progress:
            place = self._places.get(partition)
            if place is not None:
                place.base, place.since, place.after = to, to, after

    def sent(self, partition: PartitionKey, to: int, after: After | None) -> None:
        """A commit that named this offset itself (not `progress`) is decided: the group has it."""
        place = self._places.get(partition)
        if place is not None:
            place.since, place.after = to, after
            if place.base <= to <= place.position:
                place.base = to

    def unfetch(self) -> None:
        """What was prefetched and not given is dropped: it will be asked for again."""
        for place in self._places.values():
            place.fetch = place.position

    def since(self, partition: PartitionKey) -> int | Origin | None:
        """What the group must have committed for the next commit to be ours; None: not known."""
        place = self._places.get(partition)
        return None if place is None else place.since

    def after(self, partition: PartitionKey) -> After | None:
        """On whose pending offset the next commit may chain."""
        place = self._places.get(partition)
        return None if place is None else place.after

    def rewind(self) -> None:
        """To where the open transaction began, in every partition."""
        for place in self._places.values():
            if place.fetch != place.base:
                self.edition += 1
            place.position = place.fetch = place.base

    def forget(self, partitions: Iterable[PartitionKey] | None = None) -> None:
        """Positions are unknown: the group must be asked again."""
        for partition in list(self._places) if partitions is None else list(partitions):
            self._places.pop(partition, None)
        self.edition += 1

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        for partition, place in self._places.items():
            assert partition in self.assigned
            assert place.base <= place.position <= place.fetch

    def _offset(
        self, item: Progress, producer_id: int, view: types_pb2.View.ValueType
    ) -> offset_manager_pb2.OffsetCommit:
        place = self._places[item.partition]
        commit = offset_manager_pb2.OffsetCommit(
            partition=item.partition.wire(), to_offset=item.to, view=view
        )
        if place.since is Origin.NONE:
            commit.from_none = True
        elif place.since is Origin.ANY:
            commit.from_any = True
        else:
            commit.from_offset = place.since
            if place.after is not None and place.after.producer_id == producer_id:
                commit.after_tx_id = place.after.tx_id
        return commit

    def _require_assigned(self, partition: PartitionKey) -> None:
        if partition not in self.assigned:
            raise errors.InvalidArgument(
                f"partition {partition.number} of that topic is not assigned to this consumer",
                field="partition",
            )


def start_of(
    committed: offset_manager_pb2.CommittedOffset, fallback: Mapping[PartitionKey, int]
) -> tuple[int, int | Origin]:
    """Position and `from` of a partition: what the group committed, else the fallback."""
    if committed.HasField("offset"):
        return committed.offset, committed.offset
    return fallback[PartitionKey.of(committed.partition)], Origin.NONE

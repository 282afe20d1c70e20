"""Where a consumer stands in each partition, and what it may commit.

Per partition there are three numbers:

    fetch      next offset to ask a leader for (what was prefetched lies between position and fetch)
    position   next offset to give to the user
    base       position at the last commit, rewind, seek or start: where the open transaction began;
               a commit that is on its way counts, and is taken back where it is refused

and `from`, what the group must have committed for the next commit to be ours: an offset, NONE, or
ANY after a seek; and what must stand beside that offset, for two may start from one and leave
it where it is (ADR 63). After a commit that is decided but perhaps not visible yet, `after`
names that transaction, so that the next one of the same producer may chain on it. Who gives whole
transactions over several partitions has given some *beyond* a position, too (`_core/beyond`).

Invariants:
- base <= position <= fetch, but for a seek, which sets all three;
- a commit covers [base, position), and what was given beyond; an abort sets all of it back to what
  it was at base, so what was read in the aborted transaction is read again (I21);
- a partition whose positions are unknown (an outcome in doubt, a lost race) gives nothing to anyone
  until `start` was told what the group has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from oncelog._core.beyond import Beyond
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
    # Given beyond `position`, and beyond `base`.
    beyond: Beyond = ()
    base_beyond: Beyond = ()
    # The metadata that the group has beside `since`; None: not known, and not checked.
    beside: str | None = None
    # Those of the last commit that was asked for.
    asked: str | None = None
    # It began at the first record that was kept, and nothing was given since.
    is_at_first: bool = False
    # The last commit of it that is on its way, one of several; None: there is none.
    ahead: Ahead | None = None


@dataclass(slots=True)
class Ahead:
    """What one commit that is on its way has moved: each of its partitions as it was before."""

    before: list[tuple[PartitionKey, Place, Place]] = field(default_factory=list)
    # Of those that the next commit of them has moved, too: as they were before that one.
    behind: dict[PartitionKey, Place] = field(default_factory=dict)


class Progress(NamedTuple):
    """What one commit says about one partition: [base, to), and what was given beyond."""

    partition: PartitionKey
    base: int
    to: int
    beyond: Beyond = ()


class Positions:
    """All partitions of one consumer."""

    def __init__(self, assigned: Iterable[PartitionKey]) -> None:
        # In the order in which they were assigned.
        self._assigned = dict.fromkeys(assigned)
        # Those that were assigned later: they are read from their first record on, wherever the
        # reading of the others began.
        self._added: set[PartitionKey] = set()
        self._places: dict[PartitionKey, Place] = {}
        self._paused: set[PartitionKey] = set()
        # Those that shall go to another one.
        self._withheld: set[PartitionKey] = set()
        # Where it began in partitions of which the group had committed nothing, until it has: who
        # asks again, or goes back, must not skip what was written since.
        self._began: dict[PartitionKey, int] = {}
        # How many commits of each are on their way.
        self._ahead: dict[PartitionKey, int] = {}
        # Of those of which the last poll gave something: the position before that, and what was
        # given beyond it.
        self._before_last: dict[PartitionKey, tuple[int, Beyond]] = {}
        # Grows with every change that makes prefetched batches of a partition worthless.
        self.edition = 0
        # Of each partition: what it was at its last change.
        self._editions: dict[PartitionKey, int] = {}

    @property
    def assigned(self) -> tuple[PartitionKey, ...]:
        return tuple(self._assigned)

    def unknown(self) -> list[PartitionKey]:
        """Partitions that need `start`."""
        return [partition for partition in self._assigned if partition not in self._places]

    def assign(self, partitions: Iterable[PartitionKey]) -> None:
        """These, too; they need `start`."""
        self._assigned.update(dict.fromkeys(partitions))

    def assign_added(self, partitions: Iterable[PartitionKey]) -> None:
        """Partitions that came to a topic while it is read; they need `start`."""
        fresh = [partition for partition in partitions if partition not in self._assigned]
        self.assign(fresh)
        self._added.update(fresh)

    def revoke(self, partitions: Iterable[PartitionKey]) -> None:
        """They are another one's now: nothing of them is given or committed any more. The others
        are read on as if nothing had happened."""
        for partition in partitions:
            self._require_assigned(partition)
            del self._assigned[partition]
            self._places.pop(partition, None)
            self._added.discard(partition)
            self._began.pop(partition, None)
            self._paused.discard(partition)
            self._withheld.discard(partition)
            self._editions.pop(partition, None)
            self._before_last.pop(partition, None)
            self.edition += 1

    def is_added(self, partition: PartitionKey) -> bool:
        """It came while its topic was read: nothing of it may be skipped."""
        return partition in self._added

    def began_at(self, partition: PartitionKey) -> int | None:
        """Where it began, of a partition of which the group had committed nothing."""
        return self._began.get(partition)

    def start(
        self,
        partition: PartitionKey,
        position: int,
        since: int | Origin,
        beyond: Beyond = (),
        beside: str | None = None,
        *,
        is_at_first: bool = False,
    ) -> None:
        """Where to begin, and what the group has committed there, with its metadata.
        `is_at_first`: that is the first record that is kept, for the group has committed none."""
        self._require_assigned(partition)
        if since is Origin.NONE:
            self._began.setdefault(partition, position)
        self._places[partition] = Place(
            position,
            position,
            position,
            since,
            beyond=beyond,
            base_beyond=beyond,
            beside=beside,
            is_at_first=is_at_first,
        )
        self._before_last.pop(partition, None)
        self._changed(partition)

    def fetchable(self) -> list[tuple[PartitionKey, int]]:
        """What to ask leaders for: (partition, next offset), without what is paused."""
        return [
            (partition, place.fetch)
            for partition, place in self._places.items()
            if partition not in self._paused and partition not in self._withheld
        ]

    def editions(self) -> dict[PartitionKey, int]:
        """Of all that is fetchable. Another number than before: what was prefetched of this
        partition is worthless."""
        return {partition: self._editions[partition] for partition, _ in self.fetchable()}

    def fetched(self, partition: PartitionKey, next_offset: int) -> None:
        """Records below next_offset are prefetched."""
        place = self._places[partition]
        assert next_offset >= place.fetch, "a leader goes forward"
        place.fetch = next_offset

    def require_plain(self) -> None:
        """Raises InvalidArgument, as `given` would of one of the partitions that are read now. For
        who takes from several: before anything is taken."""
        for partition, place in self._places.items():
            if place.beyond and not self.is_paused(partition):
                raise _was_read_across()

    def poll_begins(self) -> None:
        """What was given before is processed."""
        self._before_last.clear()

    def given(self, partition: PartitionKey, next_offset: int) -> None:
        """Records below next_offset were handed to the user. Raises InvalidArgument where some that
        follow were before: they would be given twice."""
        place = self._places[partition]
        if place.beyond:
            raise _was_read_across()
        assert place.position <= next_offset <= place.fetch, "given what was prefetched, once"
        self._before_last.setdefault(partition, (place.position, place.beyond))
        place.position = next_offset
        place.is_at_first = False

    def given_across(self, partition: PartitionKey, next_offset: int, beyond: Beyond) -> None:
        """Records below next_offset were handed to the user, and beyond it what `beyond` says."""
        place = self._places[partition]
        assert place.position <= next_offset <= place.fetch, "given what was prefetched, once"
        self._before_last.setdefault(partition, (place.position, place.beyond))
        place.position, place.beyond = next_offset, beyond
        place.is_at_first = False

    def beyond(self, partition: PartitionKey) -> Beyond:
        """What was given of it beyond its position."""
        place = self._places.get(partition)
        return () if place is None else place.beyond

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

    def seek_across(self, partition: PartitionKey, offset: int) -> None:
        """As `seek`, by who gives transactions over several partitions: where it goes forward, what
        was given behind `offset` stays given, and is given again where it was not committed and is
        rewound (ADR 64)."""
        before = self._places.get(partition)
        self.seek(partition, offset)
        if before is not None and offset > before.position:
            place = self._places[partition]
            place.beyond = _behind(offset, before.beyond)
            place.base_beyond = _behind(offset, before.base_beyond)

    def is_at_first(self, partition: PartitionKey, offset: int) -> bool:
        """It is to begin at the first record that is kept, which was this one when it asked, and
        nothing was given since."""
        place = self._places.get(partition)
        return place is not None and place.is_at_first and place.position == offset

    def begin_later(self, partition: PartitionKey, to: int) -> None:
        """What is kept begins at `to` by now: nobody has begun before it."""
        self._began.pop(partition, None)
        self.start(partition, to, self._places[partition].since, is_at_first=True)

    def skip(self, partition: PartitionKey, to: int) -> None:
        """What lies before `to` was deleted. The next commit covers it, as if it had been given;
        who rewinds stands before it again."""
        place = self._places[partition]
        assert to > place.position, "a gap lies behind the position"
        place.position = place.fetch = to
        place.is_at_first = False
        place.beyond = _behind(to, place.beyond)
        self._changed(partition)

    def pause(self, partition: PartitionKey) -> None:
        self._require_assigned(partition)
        self._paused.add(partition)
        self._changed(partition)

    def resume(self, partition: PartitionKey) -> None:
        self._require_assigned(partition)
        self._paused.discard(partition)
        self._changed(partition)

    def withhold(self, partitions: Iterable[PartitionKey]) -> None:
        """Of these, and only these, nothing more is given: another one shall have them. What was
        given may be committed still."""
        withheld = {partition for partition in partitions if partition in self._assigned}
        for partition in sorted(withheld ^ self._withheld):
            self._changed(partition)
        self._withheld = withheld

    def is_paused(self, partition: PartitionKey) -> bool:
        """Nothing of it is given now: the user wants it so, or another one shall have it."""
        return partition in self._paused or partition in self._withheld

    def progress(self, *, without_last: bool = False) -> list[Progress]:
        """What a commit now would cover; nothing for partitions that did not move. `without_last`:
        not what the last poll gave."""
        steps = []
        for partition, place in self._places.items():
            to = place.position, place.beyond
            if without_last:
                to = self._before_last.get(partition, to)
            base = place.base, place.base_beyond
            # A part of what was given last may be committed already.
            if to != base and to[0] >= base[0]:
                steps.append(Progress(partition, place.base, *to))
        return steps

    def progress_to(self, offsets: Mapping[PartitionKey, int]) -> list[Progress]:
        """What a commit of these offsets covers, of what was given. Their partitions are started.
        Raises InvalidArgument."""
        for partition, to in offsets.items():
            place = self._places[partition]
            if place.beyond or place.base_beyond:
                raise errors.InvalidArgument(
                    f"offset {to} of partition {partition.number} does not say what was given "
                    "beyond it of whole transactions: call commit without offsets",
                    field="offsets",
                )
            position = place.position
            if not 0 <= to <= position:
                raise errors.InvalidArgument(
                    f"offset {to} of partition {partition.number} is not in 0 to {position}, the "
                    "next one that will be given: what was not given is skipped by seek",
                    field="offsets",
                )
        return [
            Progress(partition, self._places[partition].base, to)
            for partition, to in offsets.items()
        ]

    def standing(self, view: types_pb2.View.ValueType) -> list[offset_manager_pb2.OffsetCommit]:
        """What the group has committed, as far as this consumer knows, as plain commits from there
        to there, which change nothing."""
        commits = []
        for partition, place in self._places.items():
            if isinstance(place.since, int):
                step = Progress(partition, place.since, place.since)
                commits.append(self._offset(step, 0, view))
                commits[-1].metadata = place.beside or ""
        return commits

    def offsets(
        self, progress: Iterable[Progress], *, producer_id: int, view: types_pb2.View.ValueType
    ) -> list[offset_manager_pb2.OffsetCommit]:
        """The wire form of a commit. `producer_id` 0: a plain commit, which cannot chain."""
        return [self._offset(item, producer_id, view) for item in progress]

    def asks(self, partition: PartitionKey, metadata: str) -> None:
        """A commit is asked for, which puts this beside its offset."""
        self._places[partition].asked = metadata

    def committed(self, progress: Iterable[Progress], after: After | None) -> None:
        """The commit is decided. `after` None: it is visible, or it was plain."""
        for partition, _, to, beyond in progress:
            self._began.pop(partition, None)
            place = self._places.get(partition)
            if place is not None:
                place.base, place.since, place.after = to, to, after
                place.base_beyond = beyond
                place.beside, place.asked = place.asked, None

    # ------------------------------------------------------------------------ several on their way

    def go_ahead(self, progress: Iterable[Progress]) -> Ahead:
        """The commit of this was sent, as one of several: the next one begins where it ends. What
        it chains on, its coordinator knows. `arrived` or `take_back` follow, in the order in which
        they were sent, or backwards."""
        ahead = Ahead()
        for partition, _, to, beyond in progress:
            place = self._places.get(partition)
            if place is None:
                continue
            before = replace(place)
            ahead.before.append((partition, place, before))
            if place.ahead is not None:
                place.ahead.behind[partition] = before
            place.base, place.since, place.after = to, to, None
            place.base_beyond = beyond
            place.beside, place.asked = place.asked, None
            place.ahead = ahead
            self._ahead[partition] = self._ahead.get(partition, 0) + 1
        return ahead

    def arrived(self, ahead: Ahead, after: After | None) -> None:
        """It is decided: committed. As `committed`."""
        for partition, place, _ in ahead.before:
            self._is_ahead_no_more(partition)
            self._began.pop(partition, None)
            # Where one was sent behind it, that is what taking the other one back goes back to.
            now = place if place.ahead is ahead else ahead.behind.get(partition)
            if now is not None:
                now.after, now.ahead = after, None
        # What comes behind it may know it still, and would keep all that came before.
        ahead.before.clear()
        ahead.behind.clear()

    def take_back(self, ahead: Ahead) -> None:
        """It was refused, the last one first: its partitions are where they were before it. What
        was begun anew meanwhile, or is another one's, is left alone. `rewind` is due then."""
        for partition, place, before in reversed(ahead.before):
            self._is_ahead_no_more(partition)
            if self._places.get(partition) is place:
                place.base, place.since, place.after = before.base, before.since, before.after
                place.base_beyond, place.beside = before.base_beyond, before.beside
                place.ahead = before.ahead
                self._changed(partition)

    def is_ahead(self, partition: PartitionKey) -> bool:
        """A commit of it is on its way."""
        return partition in self._ahead

    def _is_ahead_no_more(self, partition: PartitionKey) -> None:
        self._ahead[partition] -= 1
        if not self._ahead[partition]:
            del self._ahead[partition]

    def sent(
        self, partition: PartitionKey, to: int, after: After | None, beside: str | None = None
    ) -> None:
        """A commit that named this offset itself (not `progress`) is decided: the group has it."""
        place = self._places.get(partition)
        if place is not None:
            place.since, place.after, place.beside = to, after, beside
            if place.base <= to <= place.position:
                place.base = to

    def unfetch(self, partitions: Iterable[PartitionKey]) -> None:
        """What was prefetched of them and not given is dropped: it will be asked for again."""
        for partition in partitions:
            place = self._places.get(partition)
            if place is not None:
                place.fetch = place.position

    def since(self, partition: PartitionKey) -> int | Origin | None:
        """What the group must have committed for the next commit to be ours; None: not known."""
        place = self._places.get(partition)
        return None if place is None else place.since

    def beside(self, partition: PartitionKey) -> str | None:
        """What must stand beside that."""
        place = self._places.get(partition)
        return None if place is None or not isinstance(place.since, int) else place.beside

    def after(self, partition: PartitionKey) -> After | None:
        """On whose pending offset the next commit may chain."""
        place = self._places.get(partition)
        return None if place is None else place.after

    def rewind(self) -> None:
        """To where the open transaction began, in every partition."""
        self._before_last.clear()
        for partition, place in self._places.items():
            if place.fetch != place.base or place.beyond != place.base_beyond:
                self._changed(partition)
            place.position = place.fetch = place.base
            place.beyond = place.base_beyond

    def forget(self, partitions: Iterable[PartitionKey] | None = None) -> None:
        """Positions are unknown: the group must be asked again."""
        for partition in list(self._places) if partitions is None else list(partitions):
            self._places.pop(partition, None)
            self._changed(partition)

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        for partition, place in self._places.items():
            assert partition in self._assigned
            assert partition in self._editions
            assert place.base <= place.position <= place.fetch

    def _changed(self, partition: PartitionKey) -> None:
        self.edition += 1
        self._editions[partition] = self.edition

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
            if place.beside is not None:
                commit.from_metadata = place.beside
            if place.after is not None and place.after.producer_id == producer_id:
                commit.after_tx_id = place.after.tx_id
        return commit

    def _require_assigned(self, partition: PartitionKey) -> None:
        if partition not in self._assigned:
            raise errors.InvalidArgument(
                f"partition {partition.number} of that topic is not assigned to this consumer",
                field="partition",
            )


def _behind(offset: int, beyond: Beyond) -> Beyond:
    return tuple((at, to) for at, to in beyond if to > offset)


def _was_read_across() -> errors.InvalidArgument:
    return errors.InvalidArgument(
        "this group was read by transactions(across=True), which has given transactions behind the "
        "group's position: go on that way until all before them is given and committed, or seek",
        field="across",
    )


def start_of(
    committed: offset_manager_pb2.CommittedOffset, fallback: Mapping[PartitionKey, int]
) -> tuple[int, int | Origin]:
    """Position and `from` of a partition: what the group committed, else the fallback."""
    if committed.HasField("offset"):
        return committed.offset, committed.offset
    return fallback[PartitionKey.of(committed.partition)], Origin.NONE

"""The offset manager's machine for one partition of `__consumer_offsets`. PURE.

    command                    records                         what decides
    CommitOffsets              OffsetsCommitted                `Group.needs_plain`
    CommitTransactionOffsets   OffsetsPending                  `Fences`, `Group.needs_pending`
    WriteMarkers               TransactionMarked per marker    `participant.marker_walk`
    HearVerdicts               TransactionDropped              the coordinator's verdicts
    FetchOffsets, ListGroups   -                               reads: the reply waits for the HW
    DeleteGroup                GroupsForgotten                 refused while anything is pending
    Tick                       GroupsForgotten, ProducersForgotten   retention (`core.age`)

An offset is checked and locked when it becomes pending, so a marker is never refused for what it
carries. What this machine owes: a question about each transaction that stays open here
(`participant.questions`).

Leaves out: group membership (a later version).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar, assert_never

import msgspec

from oncelog_server.core.age import AgeWatch, TimePassed
from oncelog_server.core.frame import At
from oncelog_server.core.ids import JournalOffset, PartitionId, ProducerId
from oncelog_server.core.machine import (
    NOTHING_SAVED,
    Decision,
    EpochStart,
    Instant,
    Snapshot,
    Tick,
    refuse,
)
from oncelog_server.offset_manager.commands import (
    Command,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    FetchedOffset,
    FetchedOffsets,
    FetchOffsets,
    GroupSummary,
    ListGroups,
    OffsetCommit,
    Read,
    View,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.markers import MarkedOffsets
from oncelog_server.offset_manager.records import (
    GroupsForgotten,
    OffsetsCommitted,
    OffsetsPending,
    ProducersForgotten,
    Record,
    TransactionDropped,
    TransactionMarked,
    Why,
)
from oncelog_server.offset_manager.state import State
from oncelog_server.participant.commands import (
    FINAL_VERDICTS,
    Heard,
    HearVerdicts,
    Question,
    WriteMarkers,
)
from oncelog_server.participant.marker_walk import walk
from oncelog_server.participant.questions import Questions
from oncelogpb.errors import (
    InvalidArgument,
    LimitExceeded,
    NotFound,
    OncelogError,
    PendingTransaction,
    ProducerMismatch,
)
from oncelogpb.ids import show_id

K = TypeVar("K")
V = TypeVar("V")

# Groups or producers that one Tick forgets at most, so that no turn of the loop is long.
FORGOTTEN_PER_TICK_MAX: Final = 100
# How long a new leader listens for signs of life before it forgets groups, at most.
LISTENS_MS_MAX: Final = 60 * 60 * 1000

_DECODER: Final = msgspec.msgpack.Decoder(State)


class OffsetManagerMachine:
    """See the module. One per partition of `__consumer_offsets`."""

    def __init__(self, config: OffsetManagerConfig) -> None:
        self._config = config
        self._state = State()
        self._questions = self._fresh_questions()
        # Volatile.
        self._watch = AgeWatch()
        # While nobody led, the living were not heard: a new leader listens for so long before it
        # forgets a group. Consumers give several signs of life in that time.
        self._listens_ms = min(config.group_retention_ms // 2, LISTENS_MS_MAX)

    @property
    def next_offset(self) -> JournalOffset:
        return self._state.next_offset

    @next_offset.setter
    def next_offset(self, offset: JournalOffset) -> None:
        self._state.next_offset = offset

    @property
    def open_transactions(self) -> int:
        """For the gauge."""
        return len(self._state.open)

    @property
    def oldest_began_ms(self) -> int | None:
        """Of the open transactions; for the gauge."""
        oldest = next(iter(self._state.open.values()), None)
        return None if oldest is None else oldest.began_ms

    @property
    def groups(self) -> int:
        """For the gauge."""
        return len(self._state.groups)

    def recent_groups(self) -> Iterator[tuple[str, Group]]:
        """Those that changed last come first. For who looks on; changed by `apply` alone."""
        return reversed(self._state.groups.items())

    @property
    def producers(self) -> int:
        """For the gauge."""
        return len(self._state.fences)

    # -------------------------------------------------------------------------------- decide

    def decide(self, command: Command, now: Instant) -> Decision[Record]:
        try:
            return self._decide(command, now)
        except OncelogError as refusal:
            return refuse(refusal)

    def _decide(self, command: Command, now: Instant) -> Decision[Record]:
        match command:
            case CommitOffsets():
                return self._commit(command)
            case CommitTransactionOffsets():
                return self._commit_in_transaction(command)
            case WriteMarkers():
                return self._write_markers(command)
            case HearVerdicts(verdicts):
                return self._hear(verdicts)
            case FetchOffsets():
                return Decision((), self._fetch(command))
            case ListGroups(names):
                return Decision((), self._list(names))
            case DeleteGroup(name):
                return self._delete(name)
            case Tick():
                return Decision(list(self._expire(now)))
        assert_never(command)

    def _commit(self, command: CommitOffsets) -> Decision[Record]:
        group = self._group_for_commit(command.group)
        steps = tuple(step for step in command.offsets if group.needs_plain(step))
        if not steps:
            return Decision()
        if command.unfit is not None:
            if all(group.has_taken(step) for step in steps):
                # A sign of life that finds no room: all stands as it asks.
                return Decision()
            raise command.unfit
        self._require_room(group, steps)
        return Decision([OffsetsCommitted(command.group, steps)])

    def _commit_in_transaction(self, command: CommitTransactionOffsets) -> Decision[Record]:
        tx_id, producer_id = command.tx_id, command.producer_id
        if self._holds_already(command):
            return Decision()
        fenced = self._state.fences.refusal(
            tx_id=tx_id, producer_id=producer_id, generation=command.generation
        )
        if fenced is not None:
            raise fenced
        self._require_owner(command)
        group = self._group_for_commit(command.group)
        steps = tuple(
            step for step in command.offsets if group.needs_pending(step, tx_id, producer_id)
        )
        if not steps:
            return Decision()
        if command.unfit is not None:
            raise command.unfit
        self._require_room(group, steps)
        record = OffsetsPending(tx_id, producer_id, command.generation, command.group, steps)
        return Decision([record])

    def _holds_already(self, command: CommitTransactionOffsets) -> bool:
        """Its own, each of them: the answer was lost."""
        opened = self._state.open.get(command.tx_id)
        group = self._state.groups.get(command.group)
        if opened is None or group is None:
            return False
        if not opened.is_of(command.producer_id, command.generation):
            return False
        return all(group.holds(step, command.tx_id) for step in command.offsets)

    def _require_owner(self, command: CommitTransactionOffsets) -> None:
        """The first call under a TxId says whose it is."""
        opened = self._state.open.get(command.tx_id)
        if opened is None:
            limit = self._config.open_transactions_max
            if len(self._state.open) >= limit:
                raise LimitExceeded(
                    f"{limit} transactions hold pending offsets in this partition of "
                    "__consumer_offsets; end some (see `oncelog tx list`), or raise "
                    "offset_manager.open_transactions_max",
                    limit="open_transactions_max",
                )
            self._require_known(command.producer_id)
        elif not opened.is_of(command.producer_id, command.generation):
            raise ProducerMismatch(
                f"transaction {show_id(command.tx_id)} belongs to another producer or generation; "
                "use the producer that began it",
                tx_id=command.tx_id,
            )

    def _require_known(self, producer_id: ProducerId) -> None:
        fences, limit = self._state.fences, self._config.producers_max
        if producer_id not in fences and len(fences) >= limit:
            raise LimitExceeded(
                f"this partition of __consumer_offsets remembers {limit} producers; reuse names, "
                "or raise offset_manager.producers_max",
                limit="producers_max",
            )

    def _require_room(self, group: Group, steps: Sequence[OffsetCommit]) -> None:
        limit = self._config.offsets_per_group_max
        held = len(group.committed) + len(group.pending)
        if held + len(steps) <= limit:
            return
        new = {step.partition for step in steps}.difference(group.committed, group.pending)
        if new and len({*group.committed, *group.pending}) + len(new) > limit:
            raise LimitExceeded(
                f"the group has offsets of {limit} partitions; use several groups, or raise "
                "offset_manager.offsets_per_group_max",
                limit="offsets_per_group_max",
            )

    def _group_for_commit(self, name: str) -> Group:
        group = self._state.groups.get(name)
        if group is not None:
            return group
        limit = self._config.groups_max
        if len(self._state.groups) >= limit:
            raise LimitExceeded(
                f"this partition of __consumer_offsets holds {limit} groups; delete some (`oncelog "
                "offsets delete`), or raise offset_manager.groups_max",
                limit="groups_max",
            )
        return Group()

    def _write_markers(self, command: WriteMarkers) -> Decision[Record]:
        marked = MarkedOffsets(command, open_=self._state.open)
        return walk(command, order=self._state.order, fences=self._state.fences, marked=marked)

    def _hear(self, verdicts: Iterable[Heard]) -> Decision[Record]:
        """Local aborts: they neither move nor obey the PREPARE offset."""
        dropped = {
            heard.tx_id: TransactionDropped(heard.tx_id, heard.verdict.value)
            for heard in verdicts
            if heard.verdict in FINAL_VERDICTS
            and (opened := self._state.open.get(heard.tx_id)) is not None
            and opened.is_of(heard.producer_id, heard.generation)
        }
        return Decision(tuple(dropped.values()), len(dropped))

    def _fetch(self, command: FetchOffsets) -> FetchedOffsets:
        group = self._state.groups.get(command.group, Group())
        partitions = command.partitions or tuple(group.partitions())
        offsets = [_fetched(group, partition, command) for partition in partitions]
        last_commits = sorted(group.last_commits.items()) if command.with_last_commits else ()
        return FetchedOffsets(offsets, last_commits)

    def group_names(self) -> list[str]:
        """All, in no order; also those whose first offsets are not durable yet."""
        return list(self._state.groups)

    def _list(self, names: Iterable[str]) -> tuple[GroupSummary, ...]:
        return tuple(
            GroupSummary(
                name,
                len(group.committed),
                len(group.pending),
                max((committed.time_ms for committed in group.committed.values()), default=0),
            )
            for name in sorted(names)
            if (group := self._state.groups.get(name)) is not None
        )

    def _delete(self, name: str) -> Decision[Record]:
        group = self._state.groups.get(name)
        if group is None:
            raise NotFound(f"no group {name!r} has offsets here; `oncelog offsets list` shows all")
        if group.pending:
            partition = next(iter(group.pending))
            raise PendingTransaction(
                f"group {name!r} has pending offsets of transaction "
                f"{show_id(group.holder(partition))}; delete it when that has ended",
                tx_id=group.holder(partition),
            )
        return Decision([GroupsForgotten((name,), Why.DELETED)])

    def _expire(self, now: Instant) -> Iterator[Record]:
        """Both dictionaries stand in the order of their last change. By the journal's age: a clock
        that jumps must not make the living look silent. Nor must a time without leader: groups are
        listened for first."""
        state = self._state
        aged_ms = state.age.at(now.wall_ms)
        if self._watch.wants_record and (state.groups or len(state.fences)):
            yield TimePassed()
        before = aged_ms - self._config.group_retention_ms
        listened = self._watch.led_ms(now) >= self._listens_ms
        groups = _until(state.groups, lambda group: not listened or group.changed_ms > before)
        idle = tuple(name for name in groups if not state.groups[name].pending)
        if idle:
            yield GroupsForgotten(idle, Why.EXPIRED)
        before = aged_ms - self._config.producer_retention_ms
        producers = list(islice(state.fences.silent_since(before), FORGOTTEN_PER_TICK_MAX))
        busy = {opened.producer_id for opened in state.open.values()} if producers else set()
        gone = tuple(ProducerId(known) for known in producers if known not in busy)
        if gone:
            yield ProducersForgotten(gone)

    # --------------------------------------------------------------------------------- apply

    def apply(self, record: Record | EpochStart, at: At) -> None:
        state = self._state
        if isinstance(record, TimePassed):
            state.age.passed(at.time_ms)
            self._watch.wants_record = False
        else:
            state.age.saw(at.time_ms)
        match record:
            case EpochStart():
                self._watch = AgeWatch()
                self._questions.inherited()
            case OffsetsCommitted():
                state.commit(record, at.time_ms)
            case OffsetsPending():
                if record.tx_id not in state.open:
                    self._questions.opened(record.tx_id)
                state.hold(record, at)
            case TransactionMarked():
                state.mark(record, at.time_ms)
            case TransactionDropped():
                state.drop(record, at.time_ms)
            case GroupsForgotten():
                state.forget_groups(record)
            case ProducersForgotten():
                state.forget_producers(record)
            case TimePassed():
                pass
            case _:
                assert_never(record)
        state.next_offset = JournalOffset(at.offset + 1)

    # -------------------------------------------------------------------------- volatile, owed

    def seen(self, signal: object, now: Instant) -> None:
        if isinstance(signal, Tick):
            self._watch.look(self._state.age, now)
            return
        self._questions.seen(signal, now.monotonic_ms)

    def owed(self, below: JournalOffset) -> Sequence[Question]:
        """Questions that are due now, about transactions whose first offsets are below the HW."""
        return self._questions.due(below)

    def _fresh_questions(self) -> Questions:
        """Volatile."""
        return Questions(
            self._state.open,
            after_ms=self._config.question_after_ms,
            again_ms=self._config.question_again_ms,
        )

    # ------------------------------------------------------------------------ snapshot, check

    def snapshot(self, rows_saved: Mapping[str, int] = NOTHING_SAVED) -> Snapshot:
        return Snapshot(msgspec.msgpack.encode(self._state), {})

    def restore(self, state: bytes, tables: Mapping[str, bytes]) -> None:
        self._state = _DECODER.decode(state)
        self._questions = self._fresh_questions()

    @property
    def is_at_rest(self) -> bool:
        """There are few of these, and each has something that expires."""
        return False

    def check(self) -> None:
        """Asserts the invariants of State, Group and Fences."""
        self._state.check()


# ------------------------------------------------------------------------------------- leaves


def _fetched(group: Group, partition: PartitionId, command: FetchOffsets) -> FetchedOffset:
    """Raises InvalidArgument (another view), then PendingTransaction (stable)."""
    stored = group.view_of(partition)
    if stored is not None and stored is not command.view:
        raise InvalidArgument(
            f"the offset of partition {partition} is of the {stored.name} view; ask for that",
            field="view",
            stored=stored.name,
        )
    holder = group.holder(partition)
    if holder and command.read is Read.STABLE:
        raise PendingTransaction(
            f"transaction {show_id(holder)} holds a pending offset of partition {partition}; "
            "try again when it has ended",
            tx_id=holder,
            topic_id=partition.topic_id.hex(),
            partition=partition.number,
        )
    committed = group.committed.get(partition)
    if committed is None:
        return FetchedOffset(partition, None, stored or View.COMMITTED, "", 0, holder)
    step: OffsetCommit = committed.step
    return FetchedOffset(partition, step.to, step.view, step.metadata, committed.time_ms, holder)


def _until(entries: Mapping[K, V], is_young: Callable[[V], bool]) -> list[K]:
    """Keys of the oldest entries, up to the first young one, at most FORGOTTEN_PER_TICK_MAX."""
    keys: list[K] = []
    for key, value in islice(entries.items(), FORGOTTEN_PER_TICK_MAX):
        if is_young(value):
            break
        keys.append(key)
    return keys

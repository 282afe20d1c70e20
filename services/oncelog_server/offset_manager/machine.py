"""The offset manager's machine for one partition of `__consumer_offsets`. PURE.

    command                    records                         what decides
    CommitOffsets              OffsetsCommitted                `decide_commit`
    CommitTransactionOffsets   OffsetsPending                  `decide_commit`
    WriteMarkers               TransactionMarked per marker    `participant.marker_walk`
    HearVerdicts               TransactionDropped              the coordinator's verdicts
    Heartbeat                  PartitionsReleased, MembershipChanged   `decide_membership`
    LeaveGroup, RemoveMember   MembershipChanged               `decide_membership`
    FetchOffsets, ListGroups   -                               `reading`
    DescribeGroup              -                               `reading`
    DeleteGroup                GroupsForgotten                 `decide_unused`
    ResetOffsets               OffsetsReset                    `decide_unused`
    ClaimGroup, ReleaseGroup   GroupClaimed, ClaimsEnded       `decide_claim`
    Tick                       MembershipChanged, ClaimsEnded, GroupsAlive,
                               GroupsForgotten, ProducersForgotten   `decide_time`

An offset is checked and locked when it becomes pending, so a marker is never refused for what it
carries. What this machine owes: a question about each transaction that stays open here
(`participant.questions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, assert_never

import msgspec

from oncelog_server.core.age import AgeWatch, TimePassed
from oncelog_server.core.frame import At
from oncelog_server.core.ids import JournalOffset
from oncelog_server.core.machine import (
    NOTHING_SAVED,
    Decision,
    EpochStart,
    Instant,
    Snapshot,
    Tick,
    refuse,
    rest_ms,
)
from oncelog_server.offset_manager.commands import (
    ClaimGroup,
    ClaimHeard,
    Command,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DescribeGroup,
    FetchOffsets,
    Heartbeat,
    LeaveGroup,
    ListGroups,
    MemberHeard,
    OutgrownTopic,
    ReleaseGroup,
    RemoveMember,
    ResetOffsets,
    TopicsSeen,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_claim import decide_claim, decide_release
from oncelog_server.offset_manager.decide_commit import decide_commit, decide_pending
from oncelog_server.offset_manager.decide_membership import (
    decide_heartbeat,
    decide_leave,
    decide_remove,
    membership_of,
)
from oncelog_server.offset_manager.decide_time import decide_tick
from oncelog_server.offset_manager.decide_unused import decide_delete, decide_reset
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.liveness import Liveness
from oncelog_server.offset_manager.markers import MarkedOffsets
from oncelog_server.offset_manager.membership import Membership
from oncelog_server.offset_manager.outgrown import Outgrown
from oncelog_server.offset_manager.reading import describe, fetch, list_groups
from oncelog_server.offset_manager.records import (
    ClaimsEnded,
    GroupClaimed,
    GroupsAlive,
    GroupsForgotten,
    Member,
    MembershipChanged,
    OffsetsCommitted,
    OffsetsPending,
    OffsetsReset,
    PartitionsReleased,
    ProducersForgotten,
    Record,
    TransactionDropped,
    TransactionMarked,
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
    OncelogError,
)

_DECODER: Final = msgspec.msgpack.Decoder(State)


class OffsetManagerMachine:
    """See the module. One per partition of `__consumer_offsets`."""

    def __init__(self, config: OffsetManagerConfig) -> None:
        self._config = config
        self._state = State()
        self._questions = self._fresh_questions()
        # Volatile.
        self._watch = AgeWatch()
        self._liveness = Liveness()
        self._claims = Liveness()
        self._outgrown = Outgrown()
        # Since this machine was made; for the counter.
        self.memberships_changed = 0

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

    @property
    def members(self) -> int:
        """Of all groups of this partition."""
        return len(self._liveness)

    def membership(self, group: str) -> Membership:
        """For who has to know which topics it knows; changed by `apply` alone."""
        return membership_of(self._state, group)

    def outgrown(self, group: str) -> list[OutgrownTopic]:
        """Its topics of which it may not have all partitions, as far as this process has seen."""
        return list(self._outgrown.of(group, self.membership(group)))

    @property
    def partitions_left_out(self) -> int:
        """Of outgrown topics, of all groups; for the gauge."""
        return sum(
            topic.partitions - topic.shared_out
            for group in self._outgrown.groups()
            for topic in self.outgrown(group)
        )

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
                return decide_commit(self._state, self._config, command)
            case CommitTransactionOffsets():
                return decide_pending(self._state, self._config, command)
            case WriteMarkers():
                return self._write_markers(command)
            case HearVerdicts(verdicts):
                return self._hear(verdicts)
            case FetchOffsets():
                return Decision((), fetch(self._state, command))
            case ListGroups(names):
                return Decision((), list_groups(self._state, names))
            case DeleteGroup(name):
                return decide_delete(self._state, name)
            case ResetOffsets():
                return decide_reset(self._state, self._config, command)
            case Heartbeat():
                return decide_heartbeat(
                    self._state, self._config, command, members_here=self.members
                )
            case ClaimGroup():
                return decide_claim(self._state, self._config, command)
            case ReleaseGroup():
                return decide_release(self._state, command)
            case LeaveGroup():
                return decide_leave(self._state, command)
            case RemoveMember():
                return decide_remove(self._state, command)
            case DescribeGroup(name):
                described = describe(self._state, self._liveness, self._claims, name, now)
                return Decision((), described._replace(outgrown=tuple(self.outgrown(name))))
            case Tick():
                return decide_tick(
                    self._state,
                    self._config,
                    watch=self._watch,
                    liveness=self._liveness,
                    claims=self._claims,
                    now=now,
                )
        assert_never(command)

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

    def group_names(self) -> list[str]:
        """All, in no order; also those whose first offsets are not durable yet."""
        return list(self._state.groups)

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
                self._liveness = Liveness()
                self._claims = Liveness()
                self._outgrown = Outgrown()
                for name, group in state.groups.items():
                    self._listen_to(name, group.members())
                    for claim in group.claims.values():
                        self._claims.is_member(name, claim.claim_id, claim.timeout_ms)
                self._questions.inherited()
            case OffsetsCommitted():
                state.commit(record, at.time_ms)
            case OffsetsReset():
                state.reset(record, at.time_ms)
            case OffsetsPending():
                if record.tx_id not in state.open:
                    self._questions.opened(record.tx_id)
                state.hold(record, at)
            case TransactionMarked():
                state.mark(record, at.time_ms)
            case TransactionDropped():
                state.drop(record, at.time_ms)
            case MembershipChanged():
                self.memberships_changed += 1
                state.change_members(record, at)
                for gone in record.gone:
                    self._liveness.is_gone(record.group, gone.member_id)
                self._listen_to(record.group, record.members)
            case PartitionsReleased():
                state.release(record, at)
            case GroupClaimed(group_name, claim):
                state.claim(record)
                self._claims.is_member(group_name, claim.claim_id, claim.timeout_ms)
            case ClaimsEnded(group_name, claim_ids):
                state.end_claims(record)
                for claim_id in claim_ids:
                    self._claims.is_gone(group_name, claim_id)
            case GroupsAlive():
                state.keep_alive(record)
            case GroupsForgotten():
                state.forget_groups(record)
                for name in record.groups:
                    self._outgrown.forget(name)
            case ProducersForgotten():
                state.forget_producers(record)
            case TimePassed():
                pass
            case _:
                assert_never(record)
        state.next_offset = JournalOffset(at.offset + 1)

    # -------------------------------------------------------------------------- volatile, owed

    def seen(self, signal: object, now: Instant) -> None:
        match signal:
            case Tick():
                self._watch.look(self._state.age, now)
                self._liveness.look(now.monotonic_ms)
                self._claims.look(now.monotonic_ms)
            case MemberHeard(group, member_id):
                self._liveness.heard(group, member_id, now.monotonic_ms)
            case ClaimHeard(group, claim_id):
                self._claims.heard(group, claim_id, now.monotonic_ms)
            case TopicsSeen(group):
                self._outgrown.seen(signal, self.membership(group))
            case _:
                self._questions.seen(signal, now.monotonic_ms)

    def _listen_to(self, group: str, members: Iterable[Member]) -> None:
        for member in members:
            self._liveness.is_member(group, member.member_id, member.session_timeout_ms)

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

    def needed_from(self) -> JournalOffset:
        """Nothing: offsets, groups and what is pending stand whole in the state."""
        return self.next_offset

    def wanted_from(self) -> JournalOffset:
        return self.next_offset

    def slots_from(self) -> JournalOffset:
        return self.next_offset

    def settled(self) -> None:
        """It has no committed log."""

    def snapshot(self, rows_saved: Mapping[str, int] = NOTHING_SAVED) -> Snapshot:
        return Snapshot(msgspec.msgpack.encode(self._state), {})

    def restore(self, state: bytes, tables: Mapping[str, bytes]) -> None:
        self._state = _DECODER.decode(state)
        self._questions = self._fresh_questions()

    @property
    def rests_ms(self) -> int:
        """Sessions of members run only while each Tick comes (`liveness`); groups without members,
        and producers, are forgotten after days."""
        runs = self._state.open or self._questions.held or len(self._liveness) or len(self._claims)
        if runs:
            return 0
        return rest_ms(self._config.group_retention_ms, self._config.producer_retention_ms)

    def check(self) -> None:
        """Asserts the invariants of State, Group, Membership, Fences and Liveness."""
        self._state.check()
        self._liveness.check()
        self._claims.check()

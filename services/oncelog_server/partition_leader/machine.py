"""One partition of a topic: what is appended, what a marker exposes, what readers see in which
order. PURE.

    batch ──► plain? ───────────────────────────► committed log, at its append
       │
       └────► of a transaction ──► pending ──► COMMITTED marker ──► committed log, at the marker
                                     │  ▲                           (exactly what the manifest
                                     │  │                           counts; surplus is dropped)
                                     │  └─ asked about until it ends
                                     ├────► ABORTED marker, or a final verdict ──► dropped
                                     └────► COMMITTED, but not what the manifest says ──► DAMAGED
                                                                     ──► Resolve ──► exposed |
                                                                     dropped
    committed log, in front ◄── deleted ── LogStart ◄── settings, age, size, or an operator

Invariants (with `check`, in tests after each step):
  * committed offsets are dense, and the records of one transaction contiguous (I9, I14);
  * nothing of a TxId is accepted after its marker (I20), a transaction is exposed whole or not
    (I3);
  * a transaction that is open holds back nobody: no read and no marker looks at other open ones
    (I8).

Left out: how what is readable is settled (`settling`), and what of it is compacted away: only how
far is known here (`compaction`); when the disk gets back what was deleted (`needed_from` says what
may go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

import msgspec

from oncelog_server.core.age import JournalAge
from oncelog_server.core.frame import At, ControlCode, Frame, FrameKind
from oncelog_server.core.ids import JournalOffset, LeaderEpoch, Offset, journal_partition_of
from oncelog_server.core.machine import (
    NOTHING_SAVED,
    Decision,
    EpochStart,
    Instant,
    Settled,
    Snapshot,
    Tick,
    refuse,
)
from oncelog_server.participant.commands import (
    FINAL_VERDICTS,
    Exposed,
    HearVerdicts,
    Question,
    WriteMarkers,
    WriterPart,
)
from oncelog_server.participant.fences import Fences
from oncelog_server.participant.marker_order import MarkerOrder
from oncelog_server.participant.marker_walk import walk
from oncelog_server.participant.questions import Questions
from oncelog_server.partition_leader import compaction, markers, retention
from oncelog_server.partition_leader.admission import produce
from oncelog_server.partition_leader.commands import (
    Cleaned,
    Command,
    Configure,
    Durable,
    Produce,
    Resolution,
    Resolve,
    Settings,
    Truncate,
)
from oncelog_server.partition_leader.committed_log import COMMITTED_TABLE, CommittedLog, DumpedLog
from oncelog_server.partition_leader.compaction import CompactionState, CompactionWatch
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.damage import Damage, DumpedDamage
from oncelog_server.partition_leader.exposures import Exposures
from oncelog_server.partition_leader.journal_points import (
    JournalPoint,
    Needed,
    find_journaled,
    find_point,
    needed,
)
from oncelog_server.partition_leader.pending import DumpedTransaction, OpenTransaction, Pending
from oncelog_server.partition_leader.pending import dump as dump_transaction
from oncelog_server.partition_leader.pending import load as load_transaction
from oncelog_server.partition_leader.records import (
    CompactionPoint,
    LogStart,
    MarkerWritten,
    Record,
    Resolved,
    TimePassed,
)
from oncelog_server.partition_leader.retention import AgeMarks
from oncelog_server.partition_leader.sequences import PlainProducer, PlainSequences
from oncelogpb.errors import OncelogError
from oncelogpb.ids import show_id

# Old producers are forgotten at the first frame after so much of the journal's age: a point that is
# the same on every replica and in every replay, and that no clock which jumps can bring about.
SWEEP_EVERY_MS: Final = 60 * 60 * 1000


class DumpedMachine(msgspec.Struct, frozen=True, array_like=True):
    """The state of a snapshot."""

    next_offset: JournalOffset
    next_sweep_ms: int
    committed: DumpedLog
    plain: list[tuple[int, PlainProducer]]
    fences: Fences
    order: MarkerOrder
    exposures: Exposures
    open: list[DumpedTransaction]
    damage: DumpedDamage
    age: JournalAge = msgspec.field(default_factory=JournalAge)
    settings: Settings = Settings()
    marks: AgeMarks = msgspec.field(default_factory=AgeMarks)
    compaction: CompactionState = msgspec.field(default_factory=CompactionState)


_DECODER: Final = msgspec.msgpack.Decoder(DumpedMachine)


class PartitionMachine:
    """See the module. Tables of transitions: `decide` and `apply`."""

    def __init__(self, config: PartitionLeaderConfig | None = None) -> None:
        self.config = config or PartitionLeaderConfig()
        self.next_offset = JournalOffset(0)
        self.committed = CommittedLog()
        self.pending = Pending()
        self.plain = PlainSequences()
        self.fences = Fences()
        self.order = MarkerOrder()
        self.exposures = Exposures()
        self.damage = Damage()
        self.age = JournalAge()
        self._next_sweep_ms = 0
        # The lower one of that and of the next mark.
        self._next_look_ms = 0
        self.marks = AgeMarks()
        self.compaction = CompactionState()
        self._configured(Settings())
        # Volatile.
        self._watch = retention.Watch()
        self._cleaning = CompactionWatch()
        self._questions = Questions(
            self.pending.open,
            after_ms=self.config.question_after_ms,
            again_ms=self.config.question_again_ms,
        )

    # ------------------------------------------------------------------------------------- decide

    def decide(self, command: Command, now: Instant) -> Decision[Record]:
        if isinstance(command, Produce):
            return produce(self, command)
        if isinstance(command, WriteMarkers):
            return self._write_markers(command)
        if isinstance(command, HearVerdicts):
            return self._hear_verdicts(command)
        if isinstance(command, Resolve):
            return self._resolve(command)
        if isinstance(command, Tick):
            return self._due()
        if isinstance(command, Configure):
            return retention.configure(self.settings, command.settings)
        if isinstance(command, Truncate):
            return retention.truncate(self.committed, command.before)
        assert_never(command)

    def _due(self) -> Decision[Record]:
        """At a Tick."""
        goes = retention.due(self.settings, self._watch, self.marks, self.age, self.committed)
        point = compaction.due(
            self.compaction,
            self.settings,
            self._cleaning,
            self.age,
            start_offset=self.committed.start_offset,
            end_offset=self.committed.end_offset,
        )
        return Decision((*goes.records, *point)) if point else goes

    def _write_markers(self, command: WriteMarkers) -> Decision[Record]:
        marked = markers.MarkedPartition(
            command,
            open_=self.pending.open,
            exposures=self.exposures,
            damage=self.damage,
            end_offset=self.committed.end_offset,
        )
        return walk(command, order=self.order, fences=self.fences, marked=marked)

    def _hear_verdicts(self, command: HearVerdicts) -> Decision[Record]:
        """A local abort: neither moves nor obeys the PREPARE offset."""
        final = {
            heard.tx_id: MarkerWritten(
                heard.tx_id, heard.producer_id, heard.generation, ControlCode.ABORTED
            )
            for heard in command.verdicts
            if heard.verdict in FINAL_VERDICTS
            and self._held_by(heard.tx_id, heard.producer_id, heard.generation) is not None
        }
        return Decision(tuple(final.values()), len(final))

    def _held_by(self, tx_id: int, producer_id: int, generation: int) -> OpenTransaction | None:
        held = self.pending.open.get(tx_id)
        return held if held is not None and held.is_of(producer_id, generation) else None

    def _resolve(self, command: Resolve) -> Decision[Record]:
        answer = self.damage.resolvable(command.tx_id, command.resolution)
        if isinstance(answer, OncelogError):
            return refuse(answer)
        if answer is not None:
            return Decision((), answer)
        count = self.damage.records(command.tx_id, command.resolution)
        return Decision((Resolved(command.tx_id, command.resolution),), count)

    # -------------------------------------------------------------------------------------- apply

    def apply(self, record: Record | EpochStart, at: At) -> None:
        before_ms = self.age.aged_ms
        aged_ms = self.age.saw(at.time_ms, self._step_ms)
        if aged_ms >= self._next_look_ms:
            self._aged(before_ms, aged_ms)
        if isinstance(record, Frame):
            if record.kind is FrameKind.ONE_SHOT:
                self._apply_one_shot(record, at)
            elif record.tx_id:
                self._apply_pending(record, at)
            else:
                self._apply_plain(record, at)
            self.next_offset = JournalOffset(at.offset + record.record_count)
            return
        if isinstance(record, MarkerWritten):
            self._apply_marker(record, at)
        elif isinstance(record, Resolved):
            self._apply_resolved(record, at)
        elif isinstance(record, EpochStart):
            self._questions.inherited()
        elif isinstance(record, LogStart):
            self.committed.begin_at(record.offset, moved_at=at.offset)
            self.marks.forget_below(record.offset)
        elif isinstance(record, Settings):
            if retention.step_ms(record) < self._step_ms:
                self.marks.begin_anew(aged_ms, self.committed.end_offset)
                self.compaction.begin_anew(aged_ms)
            self._configured(record)
        elif isinstance(record, TimePassed):
            self.age.aged_ms = max(aged_ms, before_ms + record.passed_ms)
            by_ms = self.age.aged_ms - before_ms
            self.marks.time_passed(since_offset=record.since_offset, by_ms=by_ms)
            self.compaction.time_passed(by_ms)
        elif isinstance(record, CompactionPoint):
            self.compaction.reached(record, aged_ms)
        else:
            assert_never(record)
        self.next_offset = JournalOffset(at.offset + 1)

    def _apply_plain(self, frame: Frame, at: At) -> None:
        offset = self._append_exposed(frame, at)
        aged_ms = self.age.aged_ms
        self.plain.remember(frame, journal_offset=at.offset, offset=offset, aged_ms=aged_ms)

    def _apply_pending(self, frame: Frame, at: At) -> None:
        self.fences.saw(frame.producer_id, frame.generation, self.age.aged_ms)
        if self.pending.append(frame, at):
            self._questions.opened(frame.tx_id)

    def _apply_one_shot(self, frame: Frame, at: At) -> None:
        self._end(frame.tx_id, frame.producer_id, frame.generation)
        offset = self._append_exposed(frame, at)
        self.order.committed(
            journal_partition_of(frame.tx_id),
            LeaderEpoch(frame.writer),
            prepare_offset=JournalOffset(frame.base_sequence),
        )
        self.exposures.remember(frame.tx_id, (Exposed(0, offset, frame.record_count),))

    def _append_exposed(self, frame: Frame, at: At) -> Offset:
        return self.committed.append_frame(
            at.offset,
            record_count=frame.record_count,
            payload_bytes=len(frame.payload),
            max_timestamp_us=frame.max_timestamp_us,
            time_ms=at.time_ms,
        )

    def _apply_marker(self, marker: MarkerWritten, at: At) -> None:
        held = self._end(marker.tx_id, marker.producer_id, marker.generation)
        journal_partition = journal_partition_of(marker.tx_id)
        if marker.control is ControlCode.ABORTED:
            if marker.prepare_offset:
                self.order.saw(journal_partition, marker.coordinator_epoch)
            return
        exposed: tuple[Exposed, ...] = ()
        if marker.control is ControlCode.DAMAGED:
            self.damage.add(marker.tx_id, held, marker.parts)
        elif held is not None:
            exposed = self._expose(held, marker.parts, at)
        self.order.committed(
            journal_partition, marker.coordinator_epoch, prepare_offset=marker.prepare_offset
        )
        self.exposures.remember(marker.tx_id, exposed)

    def _end(self, tx_id: int, producer_id: int, generation: int) -> OpenTransaction | None:
        """A marker of this TxId: nothing of it is accepted any more (I20). Returns what its
        producer holds here."""
        aged_ms = self.age.aged_ms
        self.fences.ended(producer_id, generation, tx_id, aged_ms)
        held = self.pending.open.pop(tx_id, None)
        if held is None or held.is_of(producer_id, generation):
            return held
        # Somebody else had written under this TxId: neither of them may go on, and what was written
        # is dropped, for it is no part of what the marker is about.
        self.fences.ended(held.producer_id, held.generation, tx_id, aged_ms)
        return None

    def _expose(
        self, held: OpenTransaction, parts: Sequence[WriterPart], at: At
    ) -> tuple[Exposed, ...]:
        """Exactly what these parts count, in this order; what else was written is dropped."""
        found = tuple(markers.exposures_of(held, parts, end_offset=self.committed.end_offset))
        for part in found:
            if part.record_count:
                columns = held.writers[part.writer].until(part.record_count)
                self.committed.expose(columns, exposed_at=at.offset, time_ms=at.time_ms)
        return found

    def _apply_resolved(self, record: Resolved, at: At) -> None:
        count = self.damage.records(record.tx_id, record.resolution)
        held, parts = self.damage.parts[record.tx_id]
        if record.resolution is Resolution.EXPOSE and held is not None:
            # All that there is of it: that is what the operator decided, whatever was counted.
            whole = [WriterPart(part.writer, held.writers[part.writer].records) for part in parts]
            self._expose(held, whole, at)
        self.damage.resolved(record.tx_id, record.resolution, count)

    def _configured(self, settings: Settings) -> None:
        self.settings = settings
        self._step_ms = retention.step_ms(settings)

    def _aged(self, before_ms: int, aged_ms: int) -> None:
        """What this frame brings is younger than what was there before."""
        end_offset = self.committed.end_offset
        if aged_ms >= self.marks.next_ms:
            self.marks.saw(before_ms=before_ms, aged_ms=aged_ms, end_offset=end_offset)
        if aged_ms >= self._next_sweep_ms:
            self._sweep(aged_ms)
        self._next_look_ms = min(self._next_sweep_ms, self.marks.next_ms)

    def _sweep(self, aged_ms: int) -> None:
        old_ms = aged_ms - self.config.producer_expiry_ms
        self.plain.forget_before(old_ms)
        self.fences.forget(list(self.fences.silent_since(old_ms)))
        self._next_sweep_ms = aged_ms + SWEEP_EVERY_MS

    # ------------------------------------------------------------------------- questions, positions

    def seen(self, signal: object, now: Instant) -> None:
        if isinstance(signal, Tick):
            # Questions have a look of their own.
            state = self.compaction
            waiting = state.waiting if state.is_waiting and self.settings.is_compacted else 0
            self._watch.look(self.settings, self.age, self.committed, now, waiting=waiting)
            self._cleaning.look(state, self.settings, now.monotonic_ms)
            self.committed.pack()
            return
        if isinstance(signal, Cleaned):
            self._cleaning.cleaned_below = signal.below
            return
        if isinstance(signal, Durable):
            self.committed.drop(signal.high_watermark)
            return
        self._questions.seen(signal, now.monotonic_ms)

    def owed(self, below: JournalOffset) -> Sequence[Question]:
        """Questions that are due now, about transactions whose first batch is below the HW."""
        return self._questions.due(below)

    def first_open_position(self) -> JournalOffset | None:
        """Journal offset of the earliest batch that is open, or damaged and not resolved."""
        positions = (self.pending.first_open_position(), self.damage.first_position())
        return min((position for position in positions if position is not None), default=None)

    def needed(self) -> Needed:
        return needed(self.committed, self.pending, self.damage, self.next_offset)

    def needed_from(self) -> JournalOffset:
        return self.needed().position

    def wanted_from(self) -> JournalOffset:
        return self.needed().position

    def slots_from(self) -> JournalOffset:
        return self.next_offset

    def settled(self) -> Settled:
        first_open = self.first_open_position()
        return Settled(
            begin=self.committed.start_offset,
            end=self.committed.end_offset,
            pending_from=self.next_offset if first_open is None else first_open,
            wanted=self.settings.is_settled,
            auto=self.settings.is_auto,
            short_lived=self.settings.is_short_lived,
            compaction=self.compaction.told(self.settings),
        )

    def find_point(self, offset: int, high_watermark: int) -> JournalPoint:
        """See `journal_points`."""
        return find_point(
            self.committed,
            offset,
            first_open=self.first_open_position(),
            high_watermark=high_watermark,
        )

    def find_journaled(self, offset: int, *, log_start: int, high_watermark: int) -> int:
        """See `journal_points`."""
        return find_journaled(
            self.committed, offset, log_start=log_start, high_watermark=high_watermark
        )

    # ------------------------------------------------------------------------- check and snapshots

    @property
    def rests_ms(self) -> int:
        if self.pending.open or self._questions.held:
            return 0
        return retention.rests_ms(self.settings, self.committed)

    def check(self) -> None:
        self.committed.check(self.next_offset)
        self.marks.check(self.committed.end_offset)
        self.compaction.check(self.committed.end_offset)
        self.pending.check(self.next_offset)
        self.plain.check()
        self.fences.check()
        for tx_id in self.pending.open:
            # Being below the highest ended one is no proof: a prepared transaction may be.
            assert tx_id not in self.damage.parts, f"{show_id(tx_id)} is open and damaged"
            exposed = self.exposures.of(tx_id)
            assert not exposed, f"{show_id(tx_id)} is open after its marker (I20)"

    def snapshot(self, rows_saved: Mapping[str, int] = NOTHING_SAVED) -> Snapshot:
        dumped = DumpedMachine(
            self.next_offset,
            self._next_sweep_ms,
            self.committed.dump(),
            self.plain.dump(),
            self.fences,
            self.order,
            self.exposures,
            [dump_transaction(transaction) for transaction in self.pending.open.values()],
            self.damage.dump(),
            self.age,
            self.settings,
            self.marks,
            self.compaction,
        )
        table = self.committed.table(rows_saved.get(COMMITTED_TABLE, 0))
        return Snapshot(msgspec.msgpack.encode(dumped), {COMMITTED_TABLE: table})

    def restore(self, state: bytes, tables: Mapping[str, bytes]) -> None:
        """Into a fresh machine."""
        dumped = _DECODER.decode(state)
        self.next_offset = dumped.next_offset
        self._next_sweep_ms = dumped.next_sweep_ms
        self.committed.load(dumped.committed, tables.get(COMMITTED_TABLE, b""))
        self.plain.load(dumped.plain)
        self.fences = dumped.fences
        self.order = dumped.order
        self.exposures = dumped.exposures
        self.pending.open.update((one.tx_id, load_transaction(one)) for one in dumped.open)
        self.damage.load(dumped.damage)
        self.age = dumped.age
        self.marks = dumped.marks
        self.compaction = dumped.compaction
        self._next_look_ms = min(dumped.next_sweep_ms, dumped.marks.next_ms)
        self._configured(dumped.settings)

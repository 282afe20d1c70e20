"""Words of the partition leader's stories.

    plain x1 0+3 3+1          plain producer x1: batches of 3 records at sequence 0, of 1 at 3 send
    t5 p1 0+2 w=7        transaction t5 (journal partition 0, offset 5; t2:5 is of partition 2),
                              producer p1 (generation 1; p1.2 is generation 2), writer 7 (default 0)
    markers commit@9/t5/p1/0*5,7*3 abort@12/t6/p1 oneshot@14/t14/p1/3  [epoch=1] [jp=0]
                              PREPARE offset / TxId / producer / writer*records, or records
    resolve t5 drop|expose    an operator ends a damaged part
    look, questions, asked, answered, moved, verdict              see tests/golden/asking.py
    read [committed|uncommitted|raw] [from=0] [bytes=1000000]     what a reader gets, up to the HW
    state                     ends and open transactions
    busy MS                   for so long x9 writes a record every six hours, which is not shown
    settings VERSION MS BYTES [copy|reference] [compact=MS] [lag=MS]
                              what the topic's settings say: retention.ms, retention.bytes, and
                              where it is compacted delete.retention.ms
    cleaned OFFSET            the leader's own data log is cleaned below
    compaction                how far all agree that it is compacted, and from where time is counted
    truncate OFFSET           an operator deletes what lies below
    durable                   the machine hears of the HW, and lets go of rows that nobody sees
    point OFFSET              where a reader of the journal begins who gives the same from there on
    needed                    from where on the journal is needed, and by what
    since TIME                offset from which a committed read by time starts

Options of a batch: time=MICROSECONDS of its latest record (0), bytes=SIZE of its payload (10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oncelog_server.core.frame import Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import (
    PLAIN_PRODUCER_BIT,
    Generation,
    JournalOffset,
    LeaderEpoch,
    Offset,
    ProducerId,
    TxId,
    Writer,
    compose_generation,
    compose_tx_id,
    is_plain,
    journal_offset_of,
    journal_partition_of,
)
from oncelog_server.participant import commands as p
from oncelog_server.partition_leader import commands as c
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import (
    CompactionPoint,
    LogStart,
    MarkerWritten,
    PartitionCodec,
    Record,
    Resolved,
    TimePassed,
)
from oncelogpb.ids import show_generation
from tests.golden.asking import AskingDriver
from tests.golden.host import HOUR_MS, MachineHost

# Small enough for stories to reach.
CONFIG = PartitionLeaderConfig(
    open_transactions_max=3, batches_per_part_max=4, writers_per_transaction_max=3, producers_max=4
)


class PartitionDriver(AskingDriver):
    """See the module."""

    # Records that x9 has written.
    _busy_records = 0

    @property
    def machine(self) -> PartitionMachine:
        machine = self.host.machine
        assert isinstance(machine, PartitionMachine)
        return machine

    def run(self, verb: str, words: Sequence[str], options: dict[str, str]) -> str:
        line = " ".join([verb, *words, *(f"{k}={v}" for k, v in options.items())])
        match verb:
            case "plain" | "send":
                return self.submit(c.Produce(_batches(verb, words, options)), line)
            case "markers":
                return self.submit(_markers(words, options), line)
            case "resolve":
                return self.submit(c.Resolve(_tx(words[0]), c.Resolution(words[1])), line)
            case "settings":
                return self.submit(c.Configure(_settings(words, options)), line)
            case "truncate":
                return self.submit(c.Truncate(Offset(int(words[0]))), line)
        shown = self.ask(verb, words, options, line)
        return shown if shown is not None else self._watch(verb, words, options)

    def parse_tx(self, word: str) -> TxId:
        return _tx(word)

    def parse_who(self, word: str) -> tuple[ProducerId, Generation]:
        return _producer(word)

    def held_for(self, tx_id: TxId) -> tuple[ProducerId, Generation]:
        held = self.machine.pending.open.get(tx_id)
        if held is None:
            return ProducerId(0), Generation(0)
        return ProducerId(held.producer_id), Generation(held.generation)

    def show_question(self, question: p.Question) -> str:
        return f"{show_tx(question.tx_id)} {_who(question)} +{question.bytes_received} bytes"

    def _watch(self, verb: str, words: Sequence[str], options: dict[str, str]) -> str:
        match verb:
            case "read":
                view = words[0] if words else "committed"
                start, limit = int(options.get("from", 0)), int(options.get("bytes", 1_000_000))
                return self._read(view, start, limit)
            case "since":
                end = self.machine.committed.readable_end(self.host.high_watermark)
                return str(self.machine.committed.since(int(words[0]), below=end))
            case "durable":
                self.host.signal(c.Durable(self.host.high_watermark))
                return ""
            case "cleaned":
                self.host.signal(c.Cleaned(int(words[0])))
                return ""
            case "compaction":
                return self._compaction()
            case "point":
                point = self.machine.find_point(int(words[0]), self.host.high_watermark)
                return f"earliest {point.earliest} iterator {point.iterator} given {point.given}"
            case "needed":
                needed = self.machine.needed()
                whose = (
                    "" if needed.transaction is None else f" {show_tx(needed.transaction.tx_id)}"
                )
                return f"from @{needed.position}: {needed.by.value}{whose}"
            case "state":
                return self._state()
            case "busy":
                return self._busy(int(words[0]))
        raise ValueError(f"no verb {verb!r}")

    def _compaction(self) -> str:
        state, told = self.machine.compaction, self.machine.settled().compaction
        waits = f", {state.waiting} waits" if state.is_waiting else ""
        return (
            f"{'wanted, ' if told.wanted else ''}below {told.compacted_below}, "
            f"tombstones below {told.tombstones_below}{waits}"
        )

    def _busy(self, ms: int) -> str:
        while ms:
            step_ms = min(ms, 6 * HOUR_MS)
            ms -= step_ms
            self.host.pass_time(step_ms)
            self.submit(c.Produce(_batches("plain", ["x9", f"{self._busy_records}+1"], {})), "busy")
            self._busy_records += 1
        return ""

    def show_record(self, record: Record) -> str:
        if isinstance(record, Frame):
            return show_frame(record)
        if isinstance(record, MarkerWritten):
            origin = (
                f"prepare={record.prepare_offset} epoch={record.coordinator_epoch}"
                if record.prepare_offset
                else "decided here"
            )
            parts = "".join(f" {part.writer}*{part.record_count}" for part in record.parts)
            return f"{record.control.name} {show_tx(record.tx_id)} {_who(record)} {origin}{parts}"
        if isinstance(record, LogStart):
            return f"LOG_START {record.offset}"
        if isinstance(record, TimePassed):
            return f"TIME_PASSED {record.passed_ms}"
        if isinstance(record, c.Settings):
            limits = f"{record.retention_ms} ms {record.retention_bytes} bytes"
            copies = "" if record.is_auto else f" {record.materialization.name.lower()}"
            if record.is_compacted:
                copies += f" compact {record.delete_retention_ms} {record.min_compaction_lag_ms} ms"
            return f"SETTINGS {record.version}: {limits}{copies}"
        if isinstance(record, CompactionPoint):
            tombstones = f"tombstones below {record.tombstones_below}"
            return f"COMPACTED below {record.compacted_below}, {tombstones}"
        assert isinstance(record, Resolved)
        return f"RESOLVED {show_tx(record.tx_id)} {record.resolution.value}"

    def show_reply(self, reply: Any) -> str:
        if isinstance(reply, p.MarkersWritten):
            shown = [_show_result(result) for result in reply.results]
            if reply.refusal is not None:
                shown.append(self.show(reply.refusal))
            return "; ".join(shown)
        if reply is None:
            return ""
        if isinstance(reply, c.Truncated):
            start = f"{reply.start_before} to {reply.start_after}"
            return f"start {start}, {reply.record_count} records, {reply.payload_bytes} bytes"
        if isinstance(reply, tuple):
            return "; ".join(
                _show_placed(r) if isinstance(r, c.Placed) else self.show(r) for r in reply
            )
        return f"{reply}"

    def _read(self, view: str, start: int, max_bytes: int) -> str:
        below = self.host.high_watermark
        if view == "committed":
            return self._read_committed(start, max_bytes)
        lines = []
        for stored in self.host.frames:
            if not start < stored.end <= below:
                continue
            if stored.frame.kind in (FrameKind.DATA, FrameKind.ONE_SHOT):
                lines.append(f"@{stored.at.offset} {show_frame(stored.frame)}")
            elif view == "raw":
                record = self.host._decode(stored)
                shown = (
                    self.show_record(record)
                    if stored.frame.kind is not FrameKind.EPOCH_START
                    else "EPOCH"
                )
                lines.append(f"@{stored.at.offset} {shown}")
        return "\n".join(lines) or "nothing"

    def _read_committed(self, start: int, max_bytes: int) -> str:
        log = self.machine.committed
        end = log.readable_end(self.host.high_watermark)
        first = log.readable_start(self.host.high_watermark)
        if start < first:
            return f"start {first}"
        stretches = log.stretches(start, below=end, max_bytes=max_bytes, max_entries=100)
        lines = [f"end {end}"]
        for stretch in stretches:
            for stored in self._frames(stretch.journal_offset, stretch.record_count):
                first = stretch.first_offset + stored.at.offset - stretch.journal_offset
                lines.append(
                    f"{first}..{first + stored.frame.record_count} {show_frame(stored.frame)}"
                )
        return "\n".join(lines)

    def _frames(self, journal_offset: int, record_count: int) -> list[StoredFrame]:
        end = journal_offset + record_count
        return [s for s in self.host.frames if s.end > journal_offset and s.at.offset < end]

    def _state(self) -> str:
        machine = self.machine
        open_ = " ".join(show_tx(tx_id) for tx_id in machine.pending.open) or "none"
        damaged = " ".join(show_tx(tx_id) for tx_id in machine.damage.parts) or "none"
        end = machine.committed.readable_end(self.host.high_watermark)
        begin = machine.committed.start_offset
        deleted = f"start {begin}, {machine.committed.total_bytes} bytes, " if begin else ""
        return (
            f"{deleted}readable {end} of {machine.committed.end_offset}, open: {open_}, "
            f"damaged: {damaged}, first open position {machine.first_open_position()}"
        )


def make() -> PartitionDriver:
    host = MachineHost(lambda: PartitionMachine(CONFIG), PartitionCodec())
    host.settle = lambda machine, end: machine.committed.drop(end)
    return PartitionDriver(host)


# --------------------------------------------------------------------------------------- reading


def _settings(words: Sequence[str], options: dict[str, str]) -> c.Settings:
    version, retention_ms, retention_bytes = (int(word) for word in words if not word.isalpha())
    named = {it.name.lower(): it for it in c.Materialization}
    held = named[words[-1] if words[-1].isalpha() else "auto"]
    settings = c.Settings(version, retention_ms, retention_bytes, held)
    if "compact" not in options:
        return settings
    return msgspec.structs.replace(
        settings,
        is_compacted=True,
        delete_retention_ms=int(options["compact"]),
        min_compaction_lag_ms=int(options.get("lag", 0)),
    )


def _tx(word: str) -> TxId:
    partition, _, offset = word.removeprefix("t").rpartition(":")
    return compose_tx_id(int(partition or 0), int(offset))


def _producer(word: str) -> tuple[ProducerId, Generation]:
    if word.startswith("x"):
        return ProducerId(PLAIN_PRODUCER_BIT | int(word[1:])), Generation(0)
    number, _, counter = word.removeprefix("p").partition(".")
    return ProducerId(int(number)), compose_generation(1, int(counter or 1))


def _batches(verb: str, words: Sequence[str], options: dict[str, str]) -> tuple[Frame, ...]:
    tx_id = _tx(words[0]) if verb == "send" else TxId(0)
    words = words[1:] if verb == "send" else words
    producer_id, generation = _producer(words[0])
    return tuple(
        Frame(
            FrameKind.DATA,
            b"." * int(options.get("bytes", 10)),
            record_count=int(count),
            producer_id=producer_id,
            generation=generation,
            writer=int(options.get("w", 0)),
            base_sequence=int(base),
            tx_id=tx_id,
            max_timestamp_us=int(options.get("time", 0)),
        )
        for base, count in (word.split("+") for word in words[1:])
    )


def _markers(words: Sequence[str], options: dict[str, str]) -> p.WriteMarkers:
    return p.WriteMarkers(
        int(options.get("jp", 0)),
        LeaderEpoch(int(options.get("epoch", 1))),
        tuple(_marker(word) for word in words),
    )


def _marker(word: str) -> p.Marker:
    kind, _, rest = word.partition("@")
    prepare, tx, producer, *content = rest.split("/")
    producer_id, generation = _producer(producer)
    outcome = p.Outcome.ABORTED if kind == "abort" else p.Outcome.COMMITTED
    parts: tuple[p.WriterPart, ...] = ()
    batch = None
    if kind == "oneshot":
        batch = Frame(
            FrameKind.ONE_SHOT,
            b"." * 10,
            record_count=int(content[0]),
            producer_id=producer_id,
            generation=generation,
            tx_id=_tx(tx),
        )
    elif content:
        pairs = (part.split("*") for part in content[0].split(","))
        parts = tuple(p.WriterPart(Writer(int(writer)), int(count)) for writer, count in pairs)
    return p.Marker(
        _tx(tx), JournalOffset(int(prepare)), outcome, producer_id, generation, parts, batch
    )


# --------------------------------------------------------------------------------------- showing


def show_tx(tx_id: int) -> str:
    partition = journal_partition_of(tx_id)
    return f"t{partition}:{journal_offset_of(tx_id)}" if partition else f"t{tx_id}"


def _who(record: Any) -> str:
    if is_plain(record.producer_id):
        return f"x{record.producer_id & ~PLAIN_PRODUCER_BIT}"
    return f"p{record.producer_id}.{show_generation(record.generation).partition('.')[2]}"


def show_frame(frame: Frame) -> str:
    batch = f"{frame.base_sequence}+{frame.record_count}"
    if frame.kind is FrameKind.ONE_SHOT:
        return (
            f"ONE_SHOT {show_tx(frame.tx_id)} {_who(frame)} {frame.record_count} records "
            f"prepare={frame.base_sequence} epoch={frame.writer}"
        )
    if not frame.tx_id:
        return f"plain {_who(frame)} {batch}"
    writer = f" w={frame.writer}" if frame.writer else ""
    return f"{show_tx(frame.tx_id)} {_who(frame)} {batch}{writer}"


def _show_placed(placed: c.Placed) -> str:
    offset = "" if placed.offset is None else f" offset {placed.offset}"
    return f"@{placed.journal_offset}{offset}{' repeat' if placed.duplicate else ''}"


def _show_result(result: p.MarkerResult) -> str:
    exposed = "".join(
        f" w{e.writer} {e.first_offset}..{e.first_offset + e.record_count}"
        + (f" surplus={e.surplus_records}" if e.surplus_records else "")
        for e in result.exposed
    )
    return f"{show_tx(result.tx_id)} {result.status.value}{exposed}"

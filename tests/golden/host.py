"""Drives one machine in memory as `runtime/replica/driver` drives it over a journal: for golden
scripts and for properties.

Each record goes through the role's codec and gets its place; replies are shown when the high
watermark covers them; `check()` runs after every step. At the end of a script the machine is built
twice more, by replay of all frames and from a snapshot in the middle, and must be the same (I35).

Verbs that every role's scripts know:

    hold            from now on the high watermark (HW) stays where it is
    sync [OFFSET]   moves the HW, to the log end by default, and shows the replies it covers
    release         sync, and after every command from now on
    pass MS         lets time pass, then ticks
    idle MS         the same in steps of an hour, each with its tick
    jump MS         sets the wall clock ahead, or back; no time passes
    tick            ticks
    failover        another leader, from a snapshot at the HW and the frames behind it: a later
                    epoch, timers and sessions forgotten
    crash           another leader, by replay alone, that never got what is above the HW
    # ...           a remark inside a block
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from oncelog_server.core.frame import At, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.machine import (
    Codec,
    EpochStart,
    Instant,
    Machine,
    Needs,
    Projection,
    Snapshot,
    Table,
    Tick,
    needs_of,
)
from oncelogpb.errors import OncelogError
from oncelogpb.ids import parse_id
from tests.golden.remembered import remembered
from tests.golden.unchanged import decide, look_at

# 2026-01-01T00:00:00Z: wall clock at the start of every script.
WALL_START_MS: Final = 1_767_225_600_000
# So that nobody takes one clock for the other.
MONOTONIC_START_MS: Final = 1_000
HOUR_MS: Final = 60 * 60 * 1000
# How many prefixes of a script's journal a machine is restored after.
RESTORES_MAX: Final = 20


class Parked(NamedTuple):
    """A reply that waits for the high watermark."""

    end: int
    label: str
    reply: object


class MachineHost:
    """One replica of one partition, in memory. `epoch` 1 begins at once."""

    def __init__(
        self,
        fresh: Callable[[], Machine[Any, Any, Any]],
        codec: Codec[Any],
        projection: Projection[Any] | None = None,
    ) -> None:
        self._fresh = fresh
        self._codec = codec
        self.projection = projection
        # Lets go of what a machine keeps for readers alone; all is durable.
        self.settle: Callable[[Any, JournalOffset], None] = lambda machine, end: None
        self.frames: list[StoredFrame] = []
        self.machine = fresh()
        self.epoch = LeaderEpoch(0)
        self.high_watermark = JournalOffset(0)
        self.now = Instant(MONOTONIC_START_MS, WALL_START_MS)
        self._parked: list[Parked] = []
        self._projected = 0
        self._needs = Needs()
        self.begin_epoch()

    @property
    def log_end(self) -> JournalOffset:
        """That the next frame gets."""
        return self.frames[-1].end if self.frames else JournalOffset(0)

    @property
    def ready(self) -> bool:
        """Ready: the HW covers the EPOCH_START of this epoch."""
        starts = (
            s.at.offset for s in reversed(self.frames) if s.frame.kind is FrameKind.EPOCH_START
        )
        return self.high_watermark > next(starts)

    # ------------------------------------------------------------------------------ the main verb

    def submit(self, command: object, label: str = "") -> Sequence[tuple[At, Any]]:
        """decide and apply; the reply is parked until `sync` covers it. What was recorded."""
        assert self.ready, "LOADING: sync first"
        decision = decide(self.machine, command, self.now)
        recorded = [(self._append(record), record) for record in decision.records]
        self._parked.append(Parked(self.log_end, label, decision.reply))
        return recorded

    def signal(self, signal: object) -> None:
        """machine.seen: changes volatile state only."""
        before = self.machine.snapshot()
        self.machine.seen(signal, self.now)
        assert self.machine.snapshot() == before, "seen changes nothing that is replicated"
        look_at(self.machine, self.high_watermark)

    def tick(self) -> Sequence[tuple[At, Any]]:
        if not self.ready:
            return ()
        # Nor does it turn timers that nobody has turned before.
        decide(self.machine, Tick(), self.now)
        self.signal(Tick())
        recorded = self.submit(Tick(), "tick")
        # Nobody waits for a tick's answer.
        self._parked.pop()
        return recorded

    def sync(self, to: int | None = None) -> list[Parked]:
        """Moves the HW; the replies it covers, in the order they were decided."""
        to = self.log_end if to is None else to
        assert self.high_watermark <= to <= self.log_end, f"cannot move the HW to {to}"
        self.high_watermark = JournalOffset(to)
        self._project()
        covered = [parked for parked in self._parked if parked.end <= to]
        self._parked = [parked for parked in self._parked if parked.end > to]
        return covered

    def take_parked(self) -> tuple[int, object]:
        """The last reply, for a test that parks it by itself: the HW that releases it, and it."""
        parked = self._parked.pop()
        return parked.end, parked.reply

    def pass_time(self, ms: int) -> None:
        self.now = Instant(self.now.monotonic_ms + ms, self.now.wall_ms + ms)

    def idle(self, ms: int) -> list[tuple[At, Any]]:
        """Lets time pass in steps of an hour, each with its tick. What was recorded."""
        recorded: list[tuple[At, Any]] = []
        while ms:
            step_ms = min(ms, HOUR_MS)
            ms -= step_ms
            self.pass_time(step_ms)
            recorded += self.tick()
        return recorded

    def jump(self, ms: int) -> None:
        """Of the wall clock."""
        self.now = Instant(self.now.monotonic_ms, self.now.wall_ms + ms)

    # -------------------------------------------------------------------------------- leadership

    def begin_epoch(self) -> None:
        """The first frame of an epoch. The HW covers it with the next sync."""
        self.epoch = LeaderEpoch(self.epoch + 1)
        self._append(EpochStart())
        if self.epoch == 1:
            self.sync()

    def failover(self, *, lose_tail: bool) -> list[Parked]:
        """Another leader replays the journal. What was parked gets no answer: returned."""
        durable = [s for s in self.frames if s.at.offset < self.high_watermark]
        if lose_tail:
            self.frames = durable
            self.machine = self.replay(durable)
            self._needs = needs_of(self.machine)
        else:
            # What a snapshot leaves out is missed here, by whoever asks the new leader for it.
            self.machine = self._restored(durable)
            self.replay(self.frames[len(durable) :], onto=self.machine)
        lost, self._parked = self._parked, []
        self.begin_epoch()
        return lost

    def _restored(self, frames: Sequence[StoredFrame]) -> Machine[Any, Any, Any]:
        """A machine from a snapshot."""
        snapshot = self.replay(frames).snapshot()
        machine = self._fresh()
        machine.restore(snapshot.state, {name: t.rows for name, t in snapshot.tables.items()})
        machine.check()
        return machine

    def replay(
        self, frames: Sequence[StoredFrame], onto: Machine[Any, Any, Any] | None = None
    ) -> Machine[Any, Any, Any]:
        machine = self._fresh() if onto is None else onto
        for stored in frames:
            machine.apply(self._decode(stored), stored.at)
            machine.check()
        return machine

    # ------------------------------------------------------------------------------------- checks

    def check_replay(self) -> None:
        """I35: replay, and restore in the middle plus replay, give the state of the live one."""
        self.settle(self.machine, self.log_end)
        live, in_memory = self.machine.snapshot(), remembered(self.machine)
        replay = self.replay(self.frames)
        assert replay.snapshot() == live, "I35: replay gives another state"
        self.settle(replay, self.log_end)
        assert remembered(replay) == in_memory, "I35: replay builds another machine"
        step = max(1, len(self.frames) // RESTORES_MAX)
        for middle in (*range(0, len(self.frames), step), len(self.frames)):
            restored = self._restored(self.frames[:middle])
            self.replay(self.frames[middle:], onto=restored)
            assert restored.snapshot() == live, (
                f"I35: restored after {middle} frames gives another state"
            )
            self.settle(restored, self.log_end)
            assert remembered(restored) == in_memory, (
                f"I35: a snapshot of {middle} frames leaves out what the machine remembers"
            )
        self._check_rows_saved()

    def _check_rows_saved(self) -> None:
        """What is saved already is left out of a snapshot, and nothing else."""
        whole = self.machine.snapshot()
        for name, table in whole.tables.items():
            rows = len(table.rows) // table.row_bytes
            assert table.first_row == table.begin_row
            for saved in {0, rows // 2, rows}:
                number = table.first_row + saved
                rest = self.machine.snapshot({name: number})
                left = table.rows[saved * table.row_bytes :]
                after = Table(table.row_bytes, number, left, table.begin_row)
                assert rest == Snapshot(whole.state, {**whole.tables, name: after})

    # -------------------------------------------------------------------------------------- parts

    def _append(self, record: Any) -> At:
        if isinstance(record, EpochStart):
            frame = Frame(FrameKind.EPOCH_START)
        else:
            frame = self._codec.encode(record)
            assert self._codec.encode(self._codec.decode(frame)) == frame, "the codec loses things"
        last_ms = self.frames[-1].at.time_ms if self.frames else 0
        at = At(self.log_end, self.epoch, max(last_ms, self.now.wall_ms))
        self.frames.append(StoredFrame(frame, at))
        # As the driver: live, a machine is given the record itself, not what was decoded.
        before = front(self.machine)
        self.machine.apply(record, at)
        assert self.machine.next_offset == self.log_end, "next_offset must follow the journal"
        _require_no_way_back(before, front(self.machine), self.log_end)
        look_at(self.machine, self.high_watermark)
        self._look_at_needs()
        return at

    def _look_at_needs(self) -> None:
        """Of the front of the log, after each record."""
        before, self._needs = self._needs, needs_of(self.machine)
        gone_back = any(now < then for now, then in zip(self._needs, before, strict=True))
        assert not gone_back, f"what is needed never goes back: {before}, then {self._needs}"

    def _decode(self, stored: StoredFrame) -> Any:
        if stored.frame.kind is FrameKind.EPOCH_START:
            return EpochStart()
        return self._codec.decode(stored.frame)

    def _project(self) -> None:
        for stored in self.frames:
            if self._projected <= stored.at.offset < self.high_watermark:
                self._projected = stored.end
                record = self._decode(stored)
                if self.projection is not None and not isinstance(record, EpochStart):
                    self.projection.project(record, stored.at)


class Front(NamedTuple):
    """What a machine says of the front of its journal."""

    needed_from: JournalOffset
    wanted_from: JournalOffset
    slots_from: JournalOffset


def front(machine: Machine[Any, Any, Any]) -> Front:
    return Front(machine.needed_from(), machine.wanted_from(), machine.slots_from())


def _require_no_way_back(before: Front, after: Front, log_end: int) -> None:
    """What a replica has let go of once, it cannot be asked for again."""
    assert all(old <= new for old, new in zip(before, after, strict=True)), (
        f"what is read again never goes back: {before}, then {after}"
    )
    assert after.wanted_from <= after.needed_from <= log_end
    assert after.slots_from <= log_end


class HostDriver(abc.ABC):
    """The common verbs. A role's `driver.py` adds its own in `run` and prints in its own words."""

    def __init__(self, host: MachineHost) -> None:
        self.host = host
        self._holding = False

    @abc.abstractmethod
    def run(self, verb: str, words: Sequence[str], options: dict[str, str]) -> str:
        """One command of the role: usually `return self.submit(command, line)`."""

    @abc.abstractmethod
    def show_record(self, record: Any) -> str:
        """ "" is left out: time that passed."""

    @abc.abstractmethod
    def show_reply(self, reply: Any) -> str:
        """Of a reply that is not an error. "" prints nothing."""

    def execute(self, line: str) -> str:
        verb, words, options = parse_line(line)
        match verb:
            case "hold":
                self._holding = True
                return ""
            case "release":
                self._holding = False
                return self._sync(None)
            case "sync":
                return self._sync(int(words[0]) if words else None)
            case "pass":
                self.host.pass_time(int(words[0]))
                return self._recorded(self.host.tick())
            case "idle":
                return self._recorded(self.host.idle(int(words[0])))
            case "jump":
                self.host.jump(int(words[0]))
                return ""
            case "tick":
                return self._recorded(self.host.tick())
            case "failover" | "crash":
                return self._failover(lose_tail=verb == "crash")
        return self.run(verb, words, options)

    def finish(self) -> None:
        self.host.check_replay()

    def submit(self, command: object, label: str) -> str:
        """Submits; prints what was recorded and, when the HW covers it, the reply."""
        if not self.host.ready:
            return f"{label} -> LOADING"
        return self._recorded(self.host.submit(command, label))

    def _recorded(self, recorded: Sequence[tuple[At, Any]]) -> str:
        shown = [(at.offset, self.show_record(record)) for at, record in recorded]
        lines = [f"@{offset} {text}" for offset, text in shown if text]
        if not self._holding:
            lines.append(self._replies(self.host.sync()))
        return "\n".join(line for line in lines if line)

    def _sync(self, to: int | None) -> str:
        replies = self._replies(self.host.sync(to))
        return "\n".join(line for line in (f"HW {self.host.high_watermark}", replies) if line)

    def _replies(self, parked: Sequence[Parked]) -> str:
        shown = ((item.label, self.show_parked(item)) for item in parked)
        return "\n".join(f"{label} -> {text}" for label, text in shown if text)

    def show_parked(self, item: Parked) -> str:
        return self.show(item.reply)

    def show(self, reply: Any) -> str:
        if isinstance(reply, OncelogError):
            details = "".join(
                f" {name}={_in_scripts(name, value)}"
                for name, value in sorted(reply.metadata.items())
            )
            return f"{reply.reason}{details}"
        return self.show_reply(reply)

    def _failover(self, *, lose_tail: bool) -> str:
        lost = self.host.failover(lose_tail=lose_tail)
        lines = [f"{parked.label} -> no answer" for parked in lost if parked.label]
        lines.append(f"@{self.host.log_end - 1} EPOCH_START {self.host.epoch}")
        if not self._holding:
            lines.append(self._replies(self.host.sync()))
        return "\n".join(line for line in lines if line)


def _in_scripts(name: str, value: str) -> str:
    """Ids as the scripts name them: small numbers, of the front of journal partition 0."""
    return str(parse_id(value)) if name in ("tx_id", "producer_id") else value


def parse_line(line: str) -> tuple[str, list[str], dict[str, str]]:
    """`verb word word key=value` in its three kinds of parts."""
    verb, *rest = line.split()
    words = [word for word in rest if "=" not in word]
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return verb, words, options

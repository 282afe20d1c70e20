"""A partition with three replicas, an etcd and three disks, as the explorer sees them: every step
that a process, etcd, a disk or the network can take next, and what must hold after each.

The processes are the real pure classes: `in_sync`, `following`, `follower`, and the rules of
elections (`leadership.rules`). What is modelled is what they talk to: a log is a list of entries of
which a prefix is synced, etcd one key with a revision, the network acknowledgements and
compare-and-sets that arrive late or never.

Left out: the bytes and their damage (tests/unit/storage), snapshots, more than one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from oncelog_server.core.ids import Incarnation, JournalOffset, LeaderEpoch, PartitionId, TopicId
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState
from oncelog_server.runtime.leadership.rules import (
    Fitness,
    History,
    Ruling,
    fitness,
    judge,
    make_bid,
)
from oncelog_server.runtime.replica.follower import Follower, Read, Room
from oncelog_server.runtime.replica.following import Acknowledge, Ask, Cut, Following, WentBack
from oncelog_server.runtime.replica.in_sync import InSync, IsrChange, Why
from oncelog_server.runtime.target import Candidate
from tests.unit.replica.parts import Bounds, Entry, Log, Process, Rules, Violation, copy_of

NODES: Final = ("a", "b", "c")
PARTITION: Final = PartitionId(TopicId(bytes(16)), 0)
MIN_INSYNC_REPLICAS: Final = 2
LAG_MS: Final = 1
# When a laggard is looked for: everybody else has just given a sign of life.
LATE_MS: Final = 10
RECOVERY_EPOCHS: Final = 100
# More than there ever is on its way.
ROOM_BYTES: Final = 1 << 30
# More than there are epochs to ask about.
ROUNDS_MAX: Final = 9

Step = tuple[Any, ...]


class Cas(NamedTuple):
    """A compare-and-set of the ISR that has not reached etcd."""

    boot: str
    compared_revision: int
    new: PartitionState


class Ack(NamedTuple):
    """An acknowledgement on its way. Only the last of a replica in an epoch is kept."""

    leader_boot: str
    node: str
    incarnation: Incarnation
    epoch: int
    synced_end: int


class World:
    """One state. `steps` names what can happen next, `take` does it on a copy."""

    def __init__(self, bounds: Bounds, rules: Rules, *, eager: tuple[str, ...] = ()) -> None:
        self.rules = rules
        self.left = bounds
        # Kinds of steps that happen at once where they can: fewer orders to look at.
        self.eager = eager
        self.revision = 1
        self.state = PartitionState(replicas=NODES)
        # By revision, from 1: for those who look at what is old.
        self.history: tuple[PartitionState, ...] = (self.state,)
        self.boots: frozenset[str] = frozenset()
        self.in_flight: tuple[Cas, ...] = ()
        self.acks: frozenset[Ack] = frozenset()
        # What was shown or acknowledged, by position; and who led which epoch.
        self.shown: tuple[Entry, ...] = ()
        self.leaders: tuple[tuple[int, str], ...] = ()
        self.values = 0
        # Processes that a node had, and incarnations.
        self.runs = dict.fromkeys(NODES, 0)
        self.names = dict.fromkeys(NODES, 1)
        self.logs = {node: Log(Incarnation(f"{node}1".encode())) for node in NODES}
        self.processes: dict[str, Process | None] = dict.fromkeys(NODES)
        for node in NODES:
            self._start(node)

    # ------------------------------------------------------------------------------ copy and key

    def copy(self) -> World:
        """Logs and processes are shared until a step is about to change them (`_change`)."""
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        other.logs, other.processes = dict(self.logs), dict(self.processes)
        other.runs, other.names = dict(self.runs), dict(self.names)
        return other

    def key(self) -> int:
        return hash(
            (
                self.revision,
                self.state,
                self.boots,
                frozenset(self.in_flight),
                self.acks,
                tuple([self.logs[node].key() for node in NODES]),
                tuple([p and p.key() for p in map(self.processes.get, NODES)]),
                self.shown,
                self.left,
            )
        )

    def _change(self, node: str) -> tuple[Process, Log]:
        """Process and log of a node, to be changed."""
        before = self.processes[node]
        assert before is not None
        log = self.logs[node] = self.logs[node].copy()
        process = self.processes[node] = before.copy()
        if process.following is not None:
            process.following._log = log
        return process, log

    def _run(self, boot: str) -> Process | None:
        """The process of that boot, while it is there."""
        process = self.processes.get(boot[:1])
        return process if process is not None and process.boot == boot else None

    def _leader_of(self, process: Process) -> InSync | None:
        """The book of whom it follows, as long as that run leads that epoch."""
        leader = self._run(process.leader_boot)
        if leader is None or leader.in_sync is None or process.supply is None:
            return None
        if leader.in_sync.epoch != process.supply.epoch:
            return None
        process.supply._log = self.logs[leader.boot[:1]]
        return leader.in_sync

    def _spend(self, what: str) -> None:
        self.left = self.left._replace(**{what: getattr(self.left, what) - 1})

    # -------------------------------------------------------------------------------- what can be

    def steps(self) -> list[Step]:
        """Names of steps, with their arguments. Some of them turn out to change nothing."""
        found = list(self._possible())
        at_once = [step for step in found if step[0] in self.eager]
        return at_once[:1] or found

    def _possible(self) -> Iterator[Step]:
        for number in range(len(self.in_flight)):
            yield "etcd_answers", number
            yield "etcd_answers_nobody", number
        for ack in sorted(self.acks):
            yield "ack_arrives", ack
        for node in NODES:
            process = self.processes[node]
            if process is None:
                yield "start", node
            elif process.in_sync is not None:
                yield from self._steps_of_leader(node, process, process.in_sync)
                yield from self._steps_of_any(node)
            else:
                yield from self._steps_of_other(node, process)
                yield from self._steps_of_any(node)

        if self.left.recoveries:
            for first, second in ("ab", "ac", "bc"):
                yield "recover", first, second

    def _steps_of_any(self, node: str) -> Iterator[Step]:
        process, log = self.processes[node], self.logs[node]
        assert process is not None
        unsynced = log.log_end > log.synced_end
        if unsynced:
            yield "sync", node
        if not process.lease_valid:
            yield "regain", node
        if not self.left.crashes:
            return
        yield "crash", node, "clean"
        if unsynced:
            yield "crash", node, "torn"
        if self.left.rots and log.synced_end:
            yield "crash", node, "rot"
        if self.left.wipes:
            yield "crash", node, "wipe"

    def _steps_of_leader(self, node: str, process: Process, book: InSync) -> Iterator[Step]:
        if self.revision > process.past.seen_revision:
            yield "look", node
        elif book.in_flight:
            # What a leader does after a timeout.
            yield "look_again", node
        if self.left.appends and book.passed_epoch_start and book.has_enough(0):
            yield "append", node
        if self.left.changes:
            for laggard in (b"", *sorted(book.isr | book._progress.keys())):
                if self._wanted(book, laggard) is not None:
                    yield "ask_etcd", node, laggard
        if self.left.failed_syncs and self.logs[node].log_end > self.logs[node].synced_end:
            yield "fail_sync", node
        if self.left.lapses and process.lease_valid:
            yield "lapse", node

    def _steps_of_other(self, node: str, process: Process) -> Iterator[Step]:
        leader = self.state.leader
        if leader is None or leader.boot_id not in self.boots:
            if self.left.elections and process.lease_valid:
                yield "stand", node
        elif leader.boot_id == process.boot:
            yield "settle", node
        elif process.leader_boot != leader.boot_id or process.following is None:
            yield "follow", node, self.revision
        if not self.rules.reads_before_it_follows:
            for revision in range(2, self.revision):
                yield "follow", node, revision
        book = self._leader_of(process)
        if book is not None and process.following is not None and process.supply is not None:
            if isinstance(process.supply.next_step(tail_start=0), Read):
                yield "copy", node
            elif book.high_watermark > process.following.high_watermark:
                yield "hear", node
            if self.logs[node].log_end > self.logs[node].synced_end:
                yield "sign_of_life", node

    def take(self, step: Step) -> World:
        """The state after it. Raises Violation."""
        after = self.copy()
        getattr(after, f"_{step[0]}")(*step[1:])
        after._look_at_what_is_shown()
        return after

    # ---------------------------------------------------------------------------------- processes

    def _start(self, node: str) -> None:
        self.runs[node] += 1
        boot = f"{node}{self.runs[node]}"
        # The key of the run before is removed by the one that has the directory now.
        self.boots = frozenset(b for b in self.boots if b[0] != node) | {boot}
        self.processes[node] = Process(boot, History())
        if not self.rules.restart_ends_the_epoch:
            self._lead_on(node)

    def _lead_on(self, node: str) -> None:
        """What no process does: it goes on in its epoch after a restart, as etcd names its node."""
        leader = self.state.leader
        starts = [i for i, e in enumerate(self.logs[node].entries) if e.epoch == self.state.epoch]
        if leader is None or leader.node_id != node or not starts:
            return
        process, log = self._change(node)
        process.boot = leader.boot_id
        self.boots |= {process.boot}
        process.past.win(self.state, self.revision)
        self._lead(node, process, log, starts[0])

    def _crash(self, node: str, how: str) -> None:
        if how != "clean" or self.left.crashes:
            self._spend("crashes")
        process, log = self._change(node)
        noted = log.synced_end
        if not self.rules.synced_end_is_own:
            noted = min(noted, process.known_high_watermark)
        kept = log.log_end if how == "torn" else log.synced_end
        if how == "rot":
            self._spend("rots")
            kept -= 1
        if how == "wipe":
            self._spend("wipes")
            kept, log.behind = 0, ()
        log.recover(kept)
        damaged = how == "wipe" or log.log_end < noted
        if damaged and self.rules.damage_takes_an_incarnation:
            self.names[node] += 1
            name = self.names[node] if self.rules.incarnations_are_fresh else 2
            log.incarnation = Incarnation(f"{node}{name}".encode())
        self.processes[node] = None
        if self.rules.restart_ends_the_epoch:
            self.boots -= {process.boot}

    def _sync(self, node: str) -> None:
        process, log = self._change(node)
        log.sync()
        if process.in_sync is not None:
            process.in_sync.synced(log.synced_end, now_ms=0)
        elif process.following is not None:
            self._send(node, process, process.following.synced())

    def _fail_sync(self, node: str) -> None:
        self._spend("failed_syncs")
        process, log = self._change(node)
        log.cut(log.synced_end, synced=True)
        if self.rules.failed_sync_resigns:
            self._step_down(process)

    def _step_down(self, process: Process) -> None:
        process.high_watermark = process.known_high_watermark
        process.in_sync = None
        process.past.leave()

    def _lapse(self, node: str) -> None:
        """Its lease ran out. It knows, by its own deadline, before etcd does."""
        self._spend("lapses")
        process, _ = self._change(node)
        process.lease_valid = False
        self.boots -= {process.boot}

    def _regain(self, node: str) -> None:
        process, _ = self._change(node)
        self.boots |= {process.boot}
        if self.rules.new_lease_is_checked and process.in_sync is not None:
            self._compare(process)
        process.lease_valid = True

    # ------------------------------------------------------------------------------ what etcd says

    def _judge(self, process: Process) -> Ruling:
        leader = self.state.leader
        return judge(
            self.state,
            self.revision,
            process.past,
            own_boot=process.boot,
            leader_lives=leader is not None and leader.boot_id in self.boots,
        )

    def _look(self, node: str) -> None:
        """A leader sees the partition as etcd has it."""
        process, _ = self._change(node)
        self._compare(process)

    _look_again = _look

    def _compare(self, process: Process) -> None:
        assert process.in_sync is not None
        if self._judge(process) is Ruling.STEP_DOWN:
            self._step_down(process)
        else:
            process.in_sync.state_seen(self.revision, members(self.state))
        process.past.see(self.state, self.revision)

    def _write(self, state: PartitionState) -> None:
        self.revision += 1
        self.state = state
        self.history += (state,)

    def _settle(self, node: str) -> None:
        """etcd names this run in an epoch that it does not lead."""
        process, log = self._change(node)
        ruling = self._judge(process)
        if ruling is Ruling.RESIGN:
            self._write(msgspec.structs.replace(self.state, leader=None))
        elif ruling is Ruling.ADOPT:
            fit = log.incarnation.hex() in self.state.isr
            if fit and log.last_epoch < self.state.epoch:
                process.past.win(self.state, self.revision)
                self._begin(node, process, log)

    def _stand(self, node: str) -> None:
        process, log = self._change(node)
        candidate = Candidate(log.incarnation, log.last_epoch)
        if self._judge(process) is not Ruling.STAND:
            return
        if fitness(self.state, candidate) is not Fitness.FIT:
            return
        bid = make_bid(
            PARTITION,
            self.state,
            self.revision,
            leader=LeaderValue(node, process.boot, node, 0),
            incarnation=log.incarnation,
        )
        self._require_all_shown(node)
        self._spend("elections")
        self._write(bid.new)
        process.past.win(bid.new, self.revision)
        self._begin(node, process, log)

    def _recover(self, *asked: str) -> None:
        """etcd is lost: all restart, and of the replicas that were asked the longest log wins."""
        self._spend("recoveries")
        intact = [node for node in asked if self.names[node] == 1]
        if len(intact) < 1 + len(NODES) - MIN_INSYNC_REPLICAS:
            return
        self.in_flight = ()
        for node in NODES:
            if self.processes[node] is not None:
                self._crash(node, "clean")
        self.boots = frozenset()
        for node in NODES:
            self._start(node)
        winner = max(intact, key=lambda node: (self.logs[node].last_epoch, self.logs[node].log_end))
        isr = (self.logs[winner].incarnation.hex(),)
        epoch = self.state.epoch + RECOVERY_EPOCHS
        self._write(msgspec.structs.replace(self.state, isr=isr, leader=None, epoch=epoch))
        self._require_all_shown(winner)

    def _require_all_shown(self, node: str) -> None:
        entries = self.logs[node].entries
        if entries[: len(self.shown)] != self.shown:
            raise Violation(f"{node} is elected with {entries}, but {self.shown} was shown")

    def _begin(self, node: str, process: Process, log: Log) -> None:
        epoch = self.state.epoch
        if any(led == epoch and boot != process.boot for led, boot in self.leaders):
            raise Violation(f"epoch {epoch} has two leaders")
        self.leaders += ((epoch, process.boot),)
        log.append(Entry(epoch, 0))
        self._lead(node, process, log, log.log_end - 1)

    def _lead(self, node: str, process: Process, log: Log, epoch_start: int) -> None:
        process.in_sync = InSync(
            own=log.incarnation,
            node=node,
            epoch=self.state.epoch,
            epoch_start=epoch_start,
            isr=members(self.state),
            revision=self.revision,
            min_insync_replicas=MIN_INSYNC_REPLICAS,
            replica_lag_ms=LAG_MS,
            now_ms=0,
            inherited=process.known_high_watermark,
        )
        process.following = process.supply = None
        process.in_sync.synced(log.synced_end, now_ms=0)

    def _wanted(self, book: InSync, laggard: bytes) -> IsrChange | None:
        """What a leader asks for where only `laggard` has fallen behind."""
        if not laggard:
            return book.next_change(0)
        later = copy_of(book)
        # However much it has: its dialog may just have ended.
        later._level.pop(Incarnation(laggard), None)
        for member, progress in book._progress.items():
            if member != laggard:
                later._progress[member] = progress._replace(caught_up_ms=LATE_MS)
        change = later.next_change(LATE_MS)
        if change is None or (change.why, change.who) == (Why.LAGS, laggard):
            return change
        return change if change.why is Why.SETTLE and laggard not in book.isr else None

    def _ask_etcd(self, node: str, laggard: bytes) -> None:
        self._spend("changes")
        process, _ = self._change(node)
        assert process.in_sync is not None
        book = process.in_sync
        change = self._wanted(book, laggard)
        assert change is not None
        isr = tuple(member.hex() for member in change.isr)
        new = msgspec.structs.replace(self.history[book.revision - 1], isr=isr)
        book.change_sent(change, compared_revision=book.revision)
        self.in_flight += (Cas(process.boot, book.revision, new),)

    def _etcd_answers_nobody(self, number: int) -> bool:
        cas = self.in_flight[number]
        self.in_flight = self.in_flight[:number] + self.in_flight[number + 1 :]
        if self.rules.revisions_are_compared and cas.compared_revision != self.revision:
            return False
        if self.history[cas.compared_revision - 1] != self.state:
            return False
        self._write(cas.new)
        return True

    def _etcd_answers(self, number: int) -> None:
        boot = self.in_flight[number].boot
        done = self._etcd_answers_nobody(number)
        leader = self._run(boot)
        if done and leader is not None and leader.in_sync is not None:
            self._look(boot[:1])

    # ---------------------------------------------------------------------------- leader, follower

    def _append(self, node: str) -> None:
        self._spend("appends")
        _, log = self._change(node)
        self.values += 1
        log.append(Entry(log.last_epoch, self.values))

    def _follow(self, node: str, revision: int) -> None:
        """Opens a dialog with the leader that etcd named at `revision`, up to where they agree."""
        process, log = self._change(node)
        state = self.history[revision - 1]
        if revision < process.past.seen_revision or state.leader is None:
            return
        leader = self._run(state.leader.boot_id)
        process.past.see(state, revision)
        if leader is None or leader.in_sync is None or leader.in_sync.epoch != state.epoch:
            return
        process.high_watermark = process.known_high_watermark
        process.following = process.supply = None
        epoch = LeaderEpoch(state.epoch)
        try:
            following = Following(epoch, log, high_watermark=process.high_watermark)
        except WentBack:
            return
        leader_node = leader.boot[:1]
        leader, leader_log = self._change(leader_node)
        assert leader.in_sync is not None
        leader.in_sync.opened(log.incarnation, node=node, now_ms=0)
        supply = Follower(epoch, leader_log, stream=Room(ROOM_BYTES), catch_up=Room(ROOM_BYTES))
        process.following, process.supply, process.leader_boot = following, supply, leader.boot
        said: object = following.ask()
        rounds = 0
        while isinstance(said, Ask):
            if (rounds := rounds + 1) > ROUNDS_MAX:
                raise Violation(f"{node} and {leader_node} never agree where their logs part")
            answer = supply.asked(said)
            assert answer is not None
            said = following.answered(answer)
            if isinstance(said, Cut):
                log.cut(said.end, synced=self.rules.cuts_are_synced)
                said = following.was_cut()
        assert isinstance(said, Acknowledge)
        supply.acknowledged(said)
        self._send(node, process, said)

    def _send(self, node: str, process: Process, ack: Acknowledge | None) -> None:
        if ack is not None:
            incarnation = self.logs[node].incarnation
            new = Ack(process.leader_boot, node, incarnation, ack.epoch, ack.synced_end)
            self.acks = frozenset(old for old in self.acks if old[:4] != new[:4]) | {new}

    def _ack_arrives(self, ack: Ack) -> None:
        self.acks -= {ack}
        leader = self._run(ack.leader_boot)
        if leader is None or leader.in_sync is None:
            return
        leader, _ = self._change(leader.boot[:1])
        assert leader.in_sync is not None
        leader.in_sync.acknowledged(
            ack.incarnation, node=ack.node, epoch=ack.epoch, synced_end=ack.synced_end, now_ms=0
        )

    def _copy(self, node: str) -> None:
        """The next frame, and the HW with it."""
        process, log = self._change(node)
        book = self._leader_of(process)
        assert book is not None
        assert process.following is not None
        assert process.supply is not None
        read = process.supply.next_step(tail_start=0)
        assert isinstance(read, Read)
        entry = self.logs[process.leader_boot[:1]].entries[read.from_offset]
        process.supply.sent(JournalOffset(read.from_offset + 1), 1, tail_start=0)
        if process.following.takes(LeaderEpoch(book.epoch)):
            log.append(entry)
        process.following.heard(book.high_watermark)

    def _sign_of_life(self, node: str) -> None:
        """Followers acknowledge now and then, also when nothing new is synced."""
        process, _ = self._change(node)
        assert process.following is not None
        self._send(node, process, process.following.acknowledge())

    def _hear(self, node: str) -> None:
        process, _ = self._change(node)
        book = self._leader_of(process)
        assert book is not None
        assert process.following is not None
        process.following.heard(book.high_watermark)

    # ------------------------------------------------------------------------------ what must hold

    def _look_at_what_is_shown(self) -> None:
        running = [(node, p) for node, p in self.processes.items() if p is not None]
        for node, process in running:
            self._show(node, process.known_high_watermark)
        for node, process in running:
            book = process.in_sync
            if book is None or not process.lease_valid or not book.passed_epoch_start:
                continue
            if book.high_watermark < len(self.shown):
                raise Violation(f"{node} answers from an old state: {self.shown} was shown")

    def _show(self, node: str, end: int) -> None:
        entries = self.logs[node].entries[:end]
        both = min(len(entries), len(self.shown))
        if entries[:both] != self.shown[:both]:
            raise Violation(f"{node} shows {entries}, but {self.shown} was shown")
        if len(entries) <= both:
            return
        self.shown = entries
        # What a node has lost since it acknowledged counts as held.
        holding = [
            other
            for other, log in self.logs.items()
            if self.names[other] > 1 or (log.synced_end >= end and log.entries[:end] == entries)
        ]
        if len(holding) < MIN_INSYNC_REPLICAS:
            raise Violation(f"{node} shows {entries}, which only {holding} have synced")


def members(state: PartitionState) -> tuple[Incarnation, ...]:
    return tuple(Incarnation(bytes.fromhex(member)) for member in state.isr)

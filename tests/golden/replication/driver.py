"""Stories about three replicas of one partition, `a`, `b` and `c`: elections, cuts, ISR changes,
leases. The world is the explorer's (tests/unit/replica/world.py): real pure classes over an
abstract etcd, disks and a network.

    stand a             it stands in the election             append a    a record at the leader
    follow b            whom etcd names now                   follow b 2  named at revision 2
    copy b              the next frame, and the HW with it    hear b      the HW alone
    sync a              its disk has all that was appended    fail_sync a the disk fails instead
    ack b               its last acknowledgement arrives      sign_of_life b
    ask a [c]           for the ISR that it wants; `c` lags   look a      it sees what etcd has
    etcd                the oldest compare-and-set arrives    lost        ... and its answer is lost
    crash a clean|torn|rot|wipe, start a                      lapse a, regain a: its lease
    settle a            etcd names it, and it did not know    quiet       all of that until it rests
    logs a=1,2 b=1,3    before anything else: what disks hold, as epochs

What changed is printed: etcd's key, and of each replica what it does and its log. `S1` is the
EPOCH_START of epoch 1, `1.7` the record number 7 in it; behind `|` nothing is synced. A step that
cannot be taken says so. Promises are checked after every step, and break the story.
"""

from __future__ import annotations

from tests.unit.replica.parts import Bounds, Entry, Rules
from tests.unit.replica.starts import quiet, with_logs
from tests.unit.replica.world import NODES, Step, World

PLENTY = Bounds(
    elections=9,
    appends=9,
    changes=9,
    crashes=9,
    rots=9,
    wipes=9,
    failed_syncs=9,
    lapses=9,
    recoveries=9,
)


class ReplicationDriver:
    """One story."""

    def __init__(self) -> None:
        self._world = World(PLENTY, Rules())
        self._shown = _lines(self._world)

    def execute(self, line: str) -> str:
        verb, *words = line.split()
        if verb == "logs":
            logs = {word[0]: tuple(map(int, word[2:].split(","))) for word in words}
            self._world = with_logs(logs, PLENTY, Rules())
        elif verb == "quiet":
            self._world = quiet(self._world)
        else:
            before = self._world
            try:
                step = self._step(verb, words)
            except LookupError:
                return f"{line} -> cannot"
            self._world = before.take(step)
            if self._world.key() == before.key():
                return f"{line} -> changes nothing"
        return self._changes()

    def finish(self) -> None:
        """Each step was checked."""

    def _step(self, verb: str, words: list[str]) -> Step:
        """Raises LookupError where nothing of that kind can be."""
        world = self._world
        node = words[0] if words else ""
        match verb:
            case "etcd" | "lost":
                kind = "etcd_answers" if verb == "etcd" else "etcd_answers_nobody"
                return self._possible(kind, 0)
            case "ack":
                return "ack_arrives", {ack.node: ack for ack in sorted(world.acks)}[node]
            case "ask":
                laggard = world.logs[words[1]].incarnation if len(words) > 1 else b""
                return self._possible("ask_etcd", node, laggard)
            case "follow" if len(words) > 1:
                return "follow", node, int(words[1])
            case "follow":
                return "follow", node, world.revision
            case _:
                return self._possible(verb, *words)

    def _possible(self, *step: object) -> Step:
        if step not in self._world.steps():
            raise LookupError(step)
        return step

    def _changes(self) -> str:
        before, self._shown = self._shown, _lines(self._world)
        return "\n".join(line for line in self._shown if line not in before)


def _lines(world: World) -> list[str]:
    state = world.state
    isr = " ".join(bytes.fromhex(member).decode() for member in state.isr) or "nobody"
    leader = "nobody" if state.leader is None else state.leader.boot_id
    etcd = f"etcd: revision {world.revision}, epoch {state.epoch}, leader {leader}, ISR {isr}"
    on_the_way = [f"etcd hears later: {len(world.in_flight)}"] if world.in_flight else []
    return [etcd, *on_the_way, *(_replica(world, node) for node in NODES)]


def _replica(world: World, node: str) -> str:
    log, process = world.logs[node], world.processes[node]
    frames = [
        f"{entry.epoch}.{entry.value}" if entry.value else f"S{entry.epoch}"
        for entry in log.entries
    ]
    frames.insert(log.synced_end, "|")
    written = " ".join(frames)
    if process is None:
        return f"{node}: dead, as {log.incarnation.decode()}: {written}"
    does = "stands by"
    if process.in_sync is not None:
        ready = "leads" if process.in_sync.passed_epoch_start else "loads"
        does = f"{ready} {process.in_sync.epoch}"
        if not process.in_sync.has_enough(0):
            does += ", too few in sync"
    elif process.following is not None:
        does = f"follows {process.leader_boot}"
    if not process.lease_valid:
        does += ", without a lease"
    hw = process.known_high_watermark
    return f"{node}: {process.boot} {does}, as {log.incarnation.decode()}: {written} HW {hw}"


def _frame(entry: Entry) -> str:
    return f"{entry.epoch}.{entry.value}" if entry.value else f"S{entry.epoch}"


def make() -> ReplicationDriver:
    return ReplicationDriver()

"""Moments of a run that tests are after, as marks: a coordinator that falls between a decision and
its markers, a leader that moves, an answer held back by a cut.

What a plan names shall also happen: `broken_promises` says of a run which of it never did. Such a
run shows less than its plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from oncelog_server.core.roles import COORDINATOR, PARTITION_LEADER
from oncelog_server.runtime.etcd.keys import PARTITIONS, decode_partition, partition_of_key
from oncelog_server.runtime.etcd.port import Put
from tests.simulation.disk import Survived
from tests.simulation.marks import Marks, Reached
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from oncelog_server.runtime.replica.driver import Driver
    from tests.simulation.world import Process, World

MOMENT: Final = "moment"

SEVERAL_LEAD: Final = "one topic led by several nodes"
LEADER_MOVED: Final = "a leader moved to another node"
REDIRECTED: Final = "a redirect was given"
REDIRECT_FOLLOWED: Final = "a redirect was followed"
FELL_OWING: Final = "a coordinator fell while markers were owed"
FELL_OWED: Final = "a participant fell while markers were owed to it"
CUT_OWING: Final = "a coordinator and a participant were cut apart while markers were owed"
TORN: Final = "a write was torn"
LOST: Final = "unsynced writes were lost"
STRUCK: Final = "a fault happened in the middle of a step"
CUT_MET: Final = "a connection was refused by a cut"
REQUEST_HELD: Final = "a request was held back by a cut"
REPLY_HELD: Final = "a reply was held back by a cut"
RESET_AFTER: Final = "a connection broke after a request"
RESET_BEFORE: Final = "a connection broke before a reply"
WATCH_STALE: Final = "a watch was behind"
WATCH_GAP: Final = "a watch missed what was compacted"
WRITE_UNANSWERED: Final = "the answer to a compare-and-set was lost"
LEASE_LOST: Final = "a lease ended under a living process"
LEASES_TOGETHER: Final = "two leases ended at the same time"
WALL_JUMPED: Final = "a wall clock jumped"
CLOCK_DRIFTED: Final = "a clock ran fast or slow"
PREPARED_MOVED: Final = "a partition of a coordinator moved while it owed markers"
OPEN_MOVED: Final = "a leader moved while transactions were open there"
ISR_UNANSWERED: Final = "the answer to a change of the ISR was lost, or it was applied late"
ISR_SETTLED: Final = "a change of the ISR was settled whose answer was lost"
ISR_SHRANK: Final = "a replica that lagged left the ISR"
ISR_REPLACED: Final = "an incarnation left the ISR for a newer one of its node"
NEW_JOINED: Final = "a new incarnation of a node joined the ISR"
JOINER_FELL: Final = "a replica fell that was not in sync yet"
JOIN_CUT_OFF: Final = "a replica fell while its joining was asked for"
LOG_CUT: Final = "a log was cut"
COPY_FAILED: Final = "a follower could not write"
SEVERAL_IN_FLIGHT: Final = "a producer had several transactions in flight"
LARGE_IN_FLIGHT: Final = "a producer filled a transaction while a large one was on its way"
TAKEN_BACK_TOGETHER: Final = "several transactions in flight were taken back"
TABLE_LOOKED: Final = "a table was looked at"
TABLE_REMOVED: Final = "a key was removed"
DISK_LOST: Final = "a disk was lost"
DISK_OLDER: Final = "an older disk came back"
ROTTED: Final = "a bit of a journal flipped"
COPIED_ANEW: Final = "a damaged log was copied anew"
DATA_ROTTED: Final = "a bit of what was settled flipped"
DATA_LOST: Final = "a file of what was settled was lost"
DATA_REFUSED: Final = "what a replica had settled was refused at the end"
ROT_HIDDEN: Final = "a bit flipped where no start looks"
ETCD_REBUILT: Final = "etcd was rebuilt from data directories"
ETCD_BROUGHT_BACK: Final = "etcd came back, for a recovery would have been in doubt"
ROT_READ: Final = "nobody had read what rotted before the end"
REVOKED_IN_A_TRANSACTION: Final = "a member was told to let go while its transaction was open"
REVOKED_WHILE_PENDING: Final = "a partition with pending offsets was revoked"
COMMITTED_BEFORE_LETTING_GO: Final = "what a member must let go was committed before it did"
ZOMBIE_FENCED: Final = "a commit of who lost its partitions was refused"
STATIC_RETURN: Final = "a process took over a static member's place"
MEMBER_EXPIRED: Final = "a member was silent for its session"
GENERATION_OUTLIVED: Final = "a member committed under a generation of before a failover"
START_MOVED: Final = "a committed log began later than before"
START_MOVED_OPEN: Final = "a committed log began later than before while a transaction was open"
LEADER_TRIMMED: Final = "a leader's journal went in front"
COPY_TRIMMED: Final = "a follower's journal went in front"
TRIMMED_OPEN: Final = "a leader's journal went in front while a transaction was open"
COORDINATOR_TRIMMED: Final = "a coordinator's journal went in front"
OFFSETS_TRIMMED: Final = "an offset manager's journal went in front"
BEHIND_THE_START: Final = "a journal went in front while a follower was behind where it begins"
PASSED_OVER: Final = "a reader passed over what was deleted"
TOLD_DELETED: Final = "a reader was told that its records were deleted"
TRUNCATED: Final = "an operator truncated a partition"
LEADER_SETTLED: Final = "a leader settled records"
COPY_SETTLED: Final = "a follower settled records"
SETTLED_OPEN: Final = "a leader settled records while an older transaction was open"
SETTLED_TRIMMED: Final = "a journal went in front of what can be read"
SETTLED_READ: Final = "records were read whose frames were gone"
SETTLED_DELETED: Final = "settled records were deleted"
MATERIALIZATION_CHANGED: Final = "an operator changed what is settled"
UNIT_READ: Final = "a transaction of a settled topic was read"
LEADER_COMPACTED: Final = "a leader compacted its data log"
COPY_COMPACTED: Final = "a follower compacted its data log"
COMPACTED_OPEN: Final = "a leader compacted its data log while a transaction was open"
COMPACTED_DELETED: Final = "records were deleted from a data log that is compacted"
POINT_JOURNALED: Final = "a compaction point was journaled"
TOMBSTONES_GONE: Final = "tombstones were taken out"
COMPACTION_CHANGED: Final = "an operator changed whether a topic is compacted"
HOLES_READ: Final = "a reader passed over what was taken out"
SCAN_JUDGED: Final = "a compacted topic was read to its end"
TABLE_JUDGED: Final = "a table of a compacted topic was compared with what was committed"
KEYLESS_REFUSED: Final = "a record without a key was refused"

MOMENTS: Final = (
    SEVERAL_IN_FLIGHT,
    LARGE_IN_FLIGHT,
    TAKEN_BACK_TOGETHER,
    LEADER_COMPACTED,
    COPY_COMPACTED,
    COMPACTED_OPEN,
    COMPACTED_DELETED,
    POINT_JOURNALED,
    TOMBSTONES_GONE,
    COMPACTION_CHANGED,
    HOLES_READ,
    SCAN_JUDGED,
    TABLE_JUDGED,
    KEYLESS_REFUSED,
    LEADER_SETTLED,
    COPY_SETTLED,
    SETTLED_OPEN,
    SETTLED_TRIMMED,
    SETTLED_READ,
    SETTLED_DELETED,
    MATERIALIZATION_CHANGED,
    UNIT_READ,
    START_MOVED,
    START_MOVED_OPEN,
    LEADER_TRIMMED,
    COPY_TRIMMED,
    TRIMMED_OPEN,
    COORDINATOR_TRIMMED,
    OFFSETS_TRIMMED,
    BEHIND_THE_START,
    PASSED_OVER,
    TOLD_DELETED,
    TRUNCATED,
    REVOKED_IN_A_TRANSACTION,
    REVOKED_WHILE_PENDING,
    COMMITTED_BEFORE_LETTING_GO,
    ZOMBIE_FENCED,
    STATIC_RETURN,
    MEMBER_EXPIRED,
    GENERATION_OUTLIVED,
    SEVERAL_LEAD,
    LEADER_MOVED,
    REDIRECTED,
    REDIRECT_FOLLOWED,
    FELL_OWING,
    FELL_OWED,
    CUT_OWING,
    TORN,
    LOST,
    STRUCK,
    CUT_MET,
    REQUEST_HELD,
    REPLY_HELD,
    RESET_AFTER,
    RESET_BEFORE,
    WATCH_STALE,
    WATCH_GAP,
    WRITE_UNANSWERED,
    LEASE_LOST,
    LEASES_TOGETHER,
    WALL_JUMPED,
    CLOCK_DRIFTED,
    PREPARED_MOVED,
    OPEN_MOVED,
    ISR_UNANSWERED,
    ISR_SETTLED,
    ISR_SHRANK,
    ISR_REPLACED,
    NEW_JOINED,
    JOINER_FELL,
    JOIN_CUT_OFF,
    LOG_CUT,
    COPY_FAILED,
    DISK_LOST,
    DISK_OLDER,
    ROTTED,
    COPIED_ANEW,
    DATA_ROTTED,
    DATA_LOST,
    DATA_REFUSED,
    ROT_HIDDEN,
    ROT_READ,
    ETCD_REBUILT,
    ETCD_BROUGHT_BACK,
)
# Why a leader changed the ISR, where that is a moment.
ISR_CHANGES: Final[Mapping[object, str]] = {
    "settle": ISR_SETTLED,
    "lags": ISR_SHRANK,
    "replaced": ISR_REPLACED,
}

# What a fault or an application of a plan promises, besides that it is tried: one mark of these.
_Any = Sequence[tuple[str, str]]
_FENCED: Final = (("reason", "PRODUCER_FENCED"),)
PROMISES: Final[Mapping[str, _Any]] = {
    "power": ((MOMENT, LOST), (MOMENT, TORN)),
    "strike": ((MOMENT, STRUCK),),
    "sever": ((MOMENT, CUT_MET),),
    "one way": ((MOMENT, REQUEST_HELD), (MOMENT, REPLY_HELD)),
    "ring": ((MOMENT, CUT_MET), (MOMENT, REQUEST_HELD)),
    "split": ((MOMENT, CUT_MET), (MOMENT, REQUEST_HELD)),
    "breaking calls": ((MOMENT, RESET_AFTER), (MOMENT, RESET_BEFORE)),
    "stale watch": ((MOMENT, WATCH_STALE),),
    "watch gap": ((MOMENT, WATCH_GAP),),
    "unanswered writes": ((MOMENT, WRITE_UNANSWERED),),
    "unanswered ISR": ((MOMENT, ISR_UNANSWERED),),
    "lease": ((MOMENT, LEASE_LOST),),
    "wall clock": ((MOMENT, WALL_JUMPED),),
    "lost disk": ((MOMENT, DISK_LOST),),
    "older disk": ((MOMENT, DISK_OLDER),),
    "rot": ((MOMENT, ROTTED),),
    "rotten blocks": ((MOMENT, DATA_ROTTED), (MOMENT, DATA_LOST)),
    "lost etcd": ((MOMENT, ETCD_REBUILT), (MOMENT, ETCD_BROUGHT_BACK)),
    "twins": _FENCED,
    "hopper": _FENCED,
    "pipeline": ((MOMENT, SEVERAL_IN_FLIGHT),),
    "keeper": ((MOMENT, START_MOVED),),
    "settler": ((MOMENT, LEADER_SETTLED),),
    "tabler": ((MOMENT, TABLE_LOOKED), (MOMENT, TABLE_REMOVED)),
    "compactor": ((MOMENT, LEADER_COMPACTED),),
}


def broken_promises(plan: Plan, reached: Reached) -> list[str]:
    """What the plan says and the run never reached."""
    broken = [f"fault {name}" for name in plan.faults if name not in reached.get("fault", ())]
    for name in (*plan.faults, *plan.applications):
        promised = PROMISES.get(name, ())
        if promised and not any(mark in reached.get(kind, ()) for kind, mark in promised):
            broken.append(f"{name}: {' or '.join(mark for _, mark in promised)}")
    return broken


class Moments:
    """Of one world: it looks at the processes when something happens to them."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Who was elected last, by partition.
        self._leaders: dict[str, str] = {}
        # Of processes that fell: what their partitions, by name, were in the middle of.
        self._in_the_middle: dict[str, str] = {}
        # Nodes, by partition, that were in sync under some incarnation.
        self._joined: dict[tuple[str, str], str] = {}
        # When a lease ended last, and whose.
        self._lease_lost: tuple[float, str] = (-1.0, "")

    @property
    def _marks(self) -> Marks:
        return self._world.marks

    def add(self, moment: str) -> None:
        self._marks.add(MOMENT, moment)

    def reported(self, name: str, event: str, fields: Mapping[str, object]) -> None:
        """By the process of that name."""
        if event == "elected":
            self._elected(name, str(fields["partition"]))
        elif event == "lease lost":
            self.add(LEASE_LOST)
            now_s = self._world.loop.now_s
            if self._lease_lost[0] == now_s and self._lease_lost[1] != name:
                self.add(LEASES_TOGETHER)
            self._lease_lost = now_s, name
        elif event == "log is damaged, it is copied anew":
            self.add(COPIED_ANEW)
        elif event == "log cut":
            self.add(LOG_CUT)
        elif event.startswith("write failed, "):
            self._write_failed(name, str(fields["partition"]))
        elif event == "replicas in sync":
            self._isr_changed(fields)

    def _write_failed(self, name: str, partition: str) -> None:
        followed = self._world.copies.followed(name)
        if any(str(replica.partition) == partition for replica in followed):
            self.add(COPY_FAILED)

    def _isr_changed(self, fields: Mapping[str, object]) -> None:
        if (moment := ISR_CHANGES.get(fields["why"])) is not None:
            self.add(moment)
        elif fields["why"] == "join":
            who = str(fields["who"])
            joined = str(fields["partition"]), self._world.copies.whose(who)
            if self._joined.setdefault(joined, who) != who:
                self.add(NEW_JOINED)
            self._joined[joined] = who

    def _elected(self, name: str, partition: str) -> None:
        if self._leaders.setdefault(partition, name) != name:
            self.add(LEADER_MOVED)
            self._leaders[partition] = name
            if (moment := self._in_the_middle.pop(partition, None)) is not None:
                self.add(moment)
        topic = partition.rpartition("/")[0]
        if any(
            leader != name and other.rpartition("/")[0] == topic
            for other, leader in self._leaders.items()
        ):
            self.add(SEVERAL_LEAD)

    def falls(self, name: str) -> None:
        """The process of that name, in this step."""
        if self._owed(lambda coordinator, _: coordinator.name == name):
            self.add(FELL_OWING)
        if self._owed(lambda _, participant: participant.name == name):
            self.add(FELL_OWED)
        process = self._world.processes[name]
        for replica in process.node.led_replicas():
            self._in_the_middle.pop(str(replica.partition), None)
            if process.role == COORDINATOR and replica.machine.owed(replica.high_watermark):
                self._in_the_middle[str(replica.partition)] = PREPARED_MOVED
            elif process.role == PARTITION_LEADER and replica.machine.pending.open:
                self._in_the_middle[str(replica.partition)] = OPEN_MOVED
        for replica in self._world.copies.followed(name):
            self._follower_falls(replica)

    def _follower_falls(self, replica: Driver) -> None:
        state = self._world.copies.state(replica.partition)
        incarnation = replica.journal.incarnation
        if state is None or incarnation.hex() in state.isr:
            return
        self.add(JOINER_FELL)
        for other in self._world.copies.replicas(replica.partition):
            leads = other.driver._epochs.leadership
            book = None if leads is None else leads.followers.book
            if book is not None and incarnation in book.counted:
                self.add(JOIN_CUT_OFF)

    def unanswered(self, puts: Iterable[Put]) -> None:
        """A compare-and-set of etcd: its answer was lost, or it is applied later."""
        for put in puts:
            if put.key.startswith(PARTITIONS):
                state = self._world.copies.state(partition_of_key(put.key))
                if state is not None and state.epoch == decode_partition(put.value).epoch:
                    self.add(ISR_UNANSWERED)

    def power_lost(self, survived: Collection[Survived]) -> None:
        """By a disk: what became of its unsynced writes."""
        if Survived.PART in survived:
            self.add(TORN)
        if Survived.NOT in survived:
            self.add(LOST)

    def cut(self, ways: Sequence[tuple[str, str]]) -> None:
        """Nothing goes these ways from this step on."""
        both = {*ways, *((to, source) for source, to in ways)}
        if self._owed(lambda owing, owed: (owing.name, owed.name) in both):
            self.add(CUT_OWING)

    def _owed(self, wanted: Callable[[Process, Process], bool]) -> bool:
        """A coordinator owes markers to a participant, for one such pair that is wanted."""
        processes = self._world.processes.values()
        return any(
            wanted(owing, owed) and self._owes(owing, owed)
            for owing in processes
            if owing.role == COORDINATOR
            for owed in processes
            if owed.role != COORDINATOR
        )

    @staticmethod
    def _owes(owing: Process, owed: Process) -> bool:
        partitions = [replica.partition for replica in owed.node.led_replicas()]
        return any(
            replica.machine.state.deliveries.backlog(partition)[0]
            for replica in owing.node.led_replicas()
            for partition in partitions
        )

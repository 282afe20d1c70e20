"""The outside, as the roles see it: small interfaces, fulfilled by `runtime/`, or by
fakes on a virtual-time loop in `tests/simulation`.

Roles import nothing of `runtime/`: they are given these.
"""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple, Protocol, TypeVar

from oncelog_server.core.access import Need, Pattern, Rule
from oncelog_server.core.block import Block
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import BootId, JournalOffset, LeaderEpoch, PartitionId, TopicId
from oncelog_server.core.machine import Instant
from oncelog_server.core.quotas import Quota
from oncelogpb.errors import CorruptLog, NotLeader, OncelogError

# ---------------------------------------------------------------------------------------- clock


class Clock(Protocol):
    def now(self) -> Instant: ...


# ---------------------------------------------------------------------------------------- slots


class Slots(Protocol):
    """Fixed-size slots addressed by journal offset, in files beside the journal. They go to the
    disk before each snapshot; what is lost is written again by replay."""

    def write(self, offset: int, slot: bytes) -> None:
        """Can be read from now on. Never fails for the disk."""
        ...

    def read(self, offset: int) -> bytes | None:
        """None where nothing was written."""
        ...


# --------------------------------------------------------------------------- cluster and peers


class Address(NamedTuple):
    """Who leads something, and where."""

    node_id: str
    boot_id: BootId
    host: str
    port: int
    epoch: int


class TopicInfo(NamedTuple):
    name: str
    topic_id: TopicId
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    created_ms: int
    # How often it was altered: of two memories of a topic, the higher is the newer.
    version: int = 0


class PartitionInfo(NamedTuple):
    partition: PartitionId
    replicas: Sequence[str]
    isr: Sequence[str]
    leader: Address | None
    epoch: int
    # Epoch of the last unclean election; 0 for none.
    unclean_epoch: int = 0
    # While replicas are moved: those that were added, and the nodes where all of them shall be.
    adding: Sequence[str] = ()
    target: Sequence[str] = ()
    # Of the last change of any of this; 0: not known.
    revision: int = 0


class NodeInfo(NamedTuple):
    node_id: str
    boot_id: BootId
    host: str
    port: int
    roles: Sequence[str]
    version: str
    # Where it stands (`node.rack`): replicas of one partition belong into different ones. Empty: it
    # does not say.
    rack: str = ""
    # When this run of it began, wall clock, milliseconds; 0: it does not say.
    started_ms: int = 0
    # What callers from outside connect to (`node.advertise_external`); "": they cannot.
    external_host: str = ""
    external_port: int = 0
    # It is about to stop: it stands in no election, and leaves the replicas in sync.
    leaving: bool = False


class ClusterMetadata(Protocol):
    """This process's view of etcd: never ahead of it, usually a few ms behind."""

    cluster_id: bytes

    def leader_of(self, partition: PartitionId) -> Address | None: ...

    def topic(self, name: str) -> TopicInfo | None: ...

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None: ...

    def topics(self) -> Sequence[TopicInfo]:
        """By name, without the control topics."""
        ...

    def partition(self, partition: PartitionId) -> PartitionInfo | None: ...

    def nodes(self) -> Sequence[NodeInfo]: ...

    async def is_gone(self, topic_id: TopicId) -> bool:
        """True only if etcd says, by a linearizable read, that the topic was deleted. Raises
        Unavailable where etcd does not answer."""
        ...

    async def gone(self, topic_ids: Collection[TopicId], *, timeout_ms: int) -> Collection[TopicId]:
        """Those of them of which etcd says in time what `is_gone` asks. Of others nothing is known:
        they are not in it."""
        ...

    async def exists(self, partition: PartitionId) -> bool:
        """False only if etcd says, by a linearizable read, that there is no such partition: it
        never was, or its topic was deleted. Raises Unavailable where etcd does not answer."""
        ...

    def etcd_status(self) -> tuple[int, bool]:
        """Newest revision seen, and whether etcd is reachable now."""
        ...


class TopicStore(Protocol):
    """Changes of topic metadata, in etcd. Raises TopicExists, UnknownTopic, Unavailable, ..."""

    async def create(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> TopicInfo:
        """Returns when this process's ClusterMetadata shows it."""
        ...

    async def alter(
        self, name: str, configs: Mapping[str, str], *, partitions: int = 0
    ) -> TopicInfo:
        """`partitions`: how many there shall be, at least as many as there are; 0: as many."""
        ...

    async def delete(self, name: str, only: TopicId | None = None) -> TopicId:
        """`only`: not another topic that has this name by now."""
        ...


class StoredRule(NamedTuple):
    """A rule, and who added it when."""

    rule: Rule
    added_by: str
    # Wall clock, milliseconds.
    added_ms: int


class StoredQuota(NamedTuple):
    """A quota, and who set it when."""

    quota: Quota
    added_by: str
    added_ms: int


class AccessStore(Protocol):
    """Rules and quotas, in etcd. Each change happens whole or not at all, means the same when it is
    repeated, and returns when this process shows it. Raises TooLarge, LimitExceeded,
    UnknownOutcome. `by` is the identity of who asks for it."""

    def rules(self) -> Sequence[StoredRule]: ...

    def quotas(self) -> Sequence[StoredQuota]: ...

    async def add_rules(self, rules: Sequence[Rule], *, by: str) -> int:
        """How many are new."""
        ...

    async def remove_rules(self, rules: Sequence[Rule]) -> int:
        """How many there were."""
        ...

    async def set_quotas(self, quotas: Sequence[Quota], *, by: str) -> None: ...

    async def remove_quotas(self, identities: Sequence[Pattern]) -> int:
        """How many there were."""
        ...


class Peers(Protocol):
    """Calls to other processes, many in one message over one stream each."""

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        """`method` is "service.method", e.g. "participant.write_markers". Raises OncelogError; a
        lost answer is UnknownOutcome. Never hangs beyond timeout_ms."""
        ...


# -------------------------------------------------------------------------------------- replica


M = TypeVar("M")
# The role's machine.
M_co = TypeVar("M_co", covariant=True)


class Replica(Protocol[M_co]):
    """One partition that this process leads, as services and outboxes use it."""

    partition: PartitionId

    @property
    def machine(self) -> M_co | None:
        """Services may read it; only the driver calls its mutators. None: this process has stepped
        down. Whoever awaits anything looks again."""
        ...

    @property
    def epoch(self) -> LeaderEpoch: ...

    @property
    def high_watermark(self) -> JournalOffset:
        """Exclusive; everything below is durable."""
        ...

    @property
    def log_start(self) -> JournalOffset: ...

    @property
    def log_end(self) -> JournalOffset: ...

    def submit(self, command: object) -> Awaitable[Any]:
        """decide and apply now, in this very call; the awaitable gives the reply once durable, or
        raises the refusal, or UnknownOutcome when the process steps down first. Raises NotLeader,
        Loading at once. Dropping the awaitable abandons the reply, never the records."""
        ...

    def signal(self, signal: object) -> None:
        """machine.seen(signal, now)."""
        ...

    def require_room(self) -> None:
        """Raises DiskFull where data must be refused. Called before a submit that carries data."""
        ...

    def require_lease(self) -> None:
        """Raises NotLeader past this node's own lease deadline: for "now" answers."""
        ...

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> Sequence[StoredFrame]:
        """Frames in journal order, all of them below the journal offset `below`. The first one
        holds `from_offset`. About `max_bytes` in all, but at least one frame, however large. Raises
        CorruptLog."""
        ...

    async def read_frames(self, offsets: Sequence[int]) -> Sequence[StoredFrame]:
        """The frames that begin at exactly these journal offsets (neighbours are read together)."""
        ...

    @property
    def settled_end(self) -> int:
        """Committed offset: records below stand in blocks, but for those that were deleted. What is
        settled is durable. It only grows while this process leads."""
        ...

    @property
    def compacted_to(self) -> int:
        """Committed offset: what a record below it supersedes is in no block."""
        ...

    async def read_settled(
        self, from_offset: int, max_bytes: int, *, below: int
    ) -> Sequence[Block]:
        """Blocks in offset order, the first of which holds `from_offset`; they end at or before
        `below`, a settled end. About `max_bytes` in all, but at least one block; often fewer than
        there are. Raises OffsetOutOfRange where it was deleted, CorruptLog."""
        ...

    @property
    def is_watched(self) -> bool:
        """Somebody has read from it, to wait for more, since its high watermark last moved."""
        ...

    def unreadable(self, error: CorruptLog) -> OncelogError:
        """What a reader is told where it lacks a frame that is needed: who has it leads next."""
        ...

    def watch(self, moved: Callable[[], None]) -> Callable[[], object]:
        """`moved` is called once: when the HW moves next, at step-down, or when this node's lease
        has run out. Returns what to call where nobody wants to know any more."""
        ...


def led_machine(replica: Replica[M]) -> M:
    """Raises NotLeader where this process has stepped down. Of what was journaled before that says
    nothing: then UnknownOutcome is the answer."""
    machine = replica.machine
    if machine is None:
        raise NotLeader(f"{replica.partition} was lost meanwhile; ask for the new leader")
    return machine


class Replicas(Protocol[M_co]):
    """The partitions of one role that this process leads."""

    def lead(self, partition: PartitionId) -> Replica[M_co]:
        """Raises NotLeader (metadata: leader_host, leader_port, leader_node, epoch where known),
        UnknownTopic, UnknownPartition."""
        ...

    def led(self) -> Sequence[Replica[M_co]]:
        """By partition."""
        ...


class Outbox(Protocol):
    """Does what its machine owes, for one led partition. Made when the replica becomes ready."""

    def wake(self) -> None:
        """The HW moved, a peer moved, or a timer fired: look at machine.owed(HW) again."""
        ...

    async def stop(self) -> None:
        """At step-down and at shutdown. Returns when nothing runs any more."""
        ...


class Call(Protocol):
    """What a handler knows of its caller."""

    # Milliseconds that the caller still waits.
    timeout_ms: int

    # Identity from the caller's certificate; "" without TLS.
    identity: str

    # Where it calls from, as the transport says it: ipv4:10.0.0.7:51234. "": it does not say.
    peer: str

    # Identifies the caller's stream; 0 for a unary call.
    stream_id: int

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        """Why the caller may not write under the id of a producer that another identity uses. None:
        he is that identity, or nobody asks who calls."""
        ...

    def sees(self, need: Need) -> bool:
        """Whether the caller may. For listings that come in pages: what he may not see must be left
        out before a page is filled, not taken out of it."""
        ...

    # Items of the request that its caller has no right to, by their place, and what each is told.
    # The handler answers for them, and touches none of them. Only where the role's table of needs
    # has items (`core/needs`).
    refused: Mapping[int, OncelogError]

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        """Called once when the caller's stream ends. Only where stream_id is not 0."""
        ...

    async def room(self, size: int) -> None:
        """Waits until the caller has read so much of what it was given that this call may hold
        `size` bytes for it, what it holds already included. Kept until the reply is written. Raises
        Throttled where the caller's time ends first. For replies that are large."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether `room` would not wait."""
        ...

    def room_left(self) -> int:
        """How many bytes it may hold without being in anybody's way: for a stream of replies, which
        never waits for room, but sends less at a time."""
        ...

    def holds(self, size: int) -> None:
        """How much it really holds, which may also be more than it took room for."""
        ...


class Reporter(Protocol):
    """Metrics and one-line state changes. Metric names get the prefix `oncelog_<role>_`."""

    def count(self, name: str, value: float = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        """A duration, into a histogram."""
        ...

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        """All series of a gauge that `whose` shows, as (labels, value): those that it showed before
        and that are not among them go."""
        ...

    def forget(self, label: str, value: str) -> None:
        """What that label alone tells apart, and is no more: a partition that was deleted."""
        ...

    def event(self, event: str, **fields: object) -> None:
        """One structured log line; TxIds as hex."""
        ...

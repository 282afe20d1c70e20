"""Whom a call goes to: by the request's content, never by a choice of the caller.

    coordinator.*       the transaction group (InitProducer), or the journal partition in the top 16
                        bits of the producer id or TxId
    offset_manager.*    the consumer group
    partition_leader.*  produce, fetch, list_offsets, ...: split by partition leader and merged in
                        order; administration of topics: any partition leader process
    listings            all processes of the role, merged
    cluster.*           any process; UncleanElect: the node that shall lead

`Directory` is the client's memory of who leads what. It is a hint: a leader that is asked in error
says NOT_LEADER, and that answer corrects it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, partition_leader_pb2, types_pb2

JOURNAL_BITS: Final = 48
# Partitions of the transaction journal, for ever.
JOURNAL_PARTITIONS: Final = 16


class Endpoint(NamedTuple):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Kind(Enum):
    """How a method finds its process."""

    ANYONE = "any process"
    NODE = "process of a node"
    TRANSACTION_GROUP = "coordinator of a transaction group"
    JOURNAL = "coordinator of a journal partition"
    CONSUMER_GROUP = "offset manager of a consumer group"
    PARTITIONS = "leaders of partitions"
    ROLE_ANY = "any process of the role"
    ROLE_ALL = "all processes of the role"


class Method(NamedTuple):
    """How one RPC is called."""

    kind: Kind
    # Repeating it after a lost answer is harmless: the service knows the request again, or carrying
    # it out twice is as good as once.
    idempotent: bool
    # Travels on the role's bidirectional stream.
    streamed: bool = False
    # PARTITIONS, ROLE_ALL: the repeated field of the request that is split, of the reply that is
    # merged; the first is "" where there is nothing to split.
    items: str = ""
    results: str = ""


# Leaders of groups and of journal partitions that are remembered. Each producer without a name is a
# group of its own.
ROUTES_KEPT: Final = 10_000


class Key(NamedTuple):
    """What is led: (kind, name or number)."""

    kind: Kind
    name: str | int


METHODS: Final[dict[str, Method]] = {
    "cluster.get_metadata": Method(Kind.ANYONE, idempotent=True),
    "cluster.get_config": Method(Kind.ANYONE, idempotent=True),
    "cluster.balance_leaders": Method(Kind.ANYONE, idempotent=True),
    "cluster.unclean_elect": Method(Kind.NODE, idempotent=False),
    "cluster.reassign_partitions": Method(Kind.ANYONE, idempotent=True),
    "cluster.list_rules": Method(Kind.ANYONE, idempotent=True),
    "cluster.add_rules": Method(Kind.ANYONE, idempotent=True),
    "cluster.remove_rules": Method(Kind.ANYONE, idempotent=True),
    "cluster.test_access": Method(Kind.ANYONE, idempotent=True),
    "cluster.list_quotas": Method(Kind.ANYONE, idempotent=True),
    "cluster.set_quotas": Method(Kind.ANYONE, idempotent=True),
    "cluster.remove_quotas": Method(Kind.ANYONE, idempotent=True),
    "replication.describe_replicas": Method(Kind.ANYONE, idempotent=True),
    "coordinator.init_producer": Method(Kind.TRANSACTION_GROUP, idempotent=True, streamed=True),
    "coordinator.begin_transaction": Method(Kind.JOURNAL, idempotent=True, streamed=True),
    "coordinator.commit_transaction": Method(Kind.JOURNAL, idempotent=True, streamed=True),
    "coordinator.abort_transaction": Method(Kind.JOURNAL, idempotent=True, streamed=True),
    "coordinator.transact": Method(Kind.JOURNAL, idempotent=True, streamed=True),
    "coordinator.get_transaction": Method(Kind.JOURNAL, idempotent=True, streamed=True),
    "coordinator.list_transactions": Method(Kind.ROLE_ALL, idempotent=True, results="transactions"),
    "offset_manager.commit_offsets": Method(Kind.CONSUMER_GROUP, idempotent=False, streamed=True),
    "offset_manager.commit_transaction_offsets": Method(
        Kind.CONSUMER_GROUP, idempotent=True, streamed=True
    ),
    "offset_manager.fetch_offsets": Method(Kind.CONSUMER_GROUP, idempotent=True, streamed=True),
    "offset_manager.heartbeat": Method(Kind.CONSUMER_GROUP, idempotent=True),
    "offset_manager.describe_group": Method(Kind.CONSUMER_GROUP, idempotent=True),
    "offset_manager.remove_member": Method(Kind.CONSUMER_GROUP, idempotent=False),
    "offset_manager.claim_group": Method(Kind.CONSUMER_GROUP, idempotent=True),
    "offset_manager.reset_offsets": Method(Kind.CONSUMER_GROUP, idempotent=True),
    "offset_manager.delete_group": Method(Kind.CONSUMER_GROUP, idempotent=False),
    "offset_manager.list_groups": Method(Kind.ROLE_ALL, idempotent=True, results="groups"),
    "partition_leader.produce": Method(
        Kind.PARTITIONS, idempotent=True, streamed=True, items="batches", results="results"
    ),
    "partition_leader.fetch": Method(
        Kind.PARTITIONS, idempotent=True, streamed=True, items="partitions", results="partitions"
    ),
    "partition_leader.list_offsets": Method(
        Kind.PARTITIONS, idempotent=True, streamed=True, items="queries", results="offsets"
    ),
    "partition_leader.resolve_transaction": Method(Kind.PARTITIONS, idempotent=False),
    "partition_leader.truncate_partition": Method(Kind.PARTITIONS, idempotent=True),
    "partition_leader.describe_journals": Method(
        Kind.ROLE_ALL, idempotent=True, results="journals"
    ),
    "partition_leader.create_topic": Method(Kind.ROLE_ANY, idempotent=False),
    "partition_leader.describe_topics": Method(Kind.ROLE_ANY, idempotent=True),
    "partition_leader.list_topics": Method(Kind.ROLE_ANY, idempotent=True),
    "partition_leader.alter_topic": Method(Kind.ROLE_ANY, idempotent=True),
    "partition_leader.delete_topic": Method(Kind.ROLE_ANY, idempotent=False),
}


class PartitionKey(NamedTuple):
    """One partition of one topic, as the wire names it."""

    topic_id: bytes
    number: int

    @classmethod
    def of(cls, partition: types_pb2.Partition) -> PartitionKey:
        return cls(partition.topic_id, partition.number)

    def wire(self) -> types_pb2.Partition:
        return types_pb2.Partition(topic_id=self.topic_id, number=self.number)


def method_of(name: str) -> Method:
    """Raises InvalidArgument for a method that no service has."""
    method = METHODS.get(name)
    if method is None:
        known = ", ".join(sorted(METHODS))
        raise errors.InvalidArgument(f"no method {name!r}; there are: {known}", field="method")
    return method


def role_of(name: str) -> str:
    """The service that has the method."""
    return name.partition(".")[0]


def key_of(name: str, request: Any) -> Key:
    """What the single process that serves this request leads."""
    kind = method_of(name).kind
    if kind is Kind.TRANSACTION_GROUP:
        group = request.group or request.name
        if not group:
            raise errors.InvalidArgument(
                "a producer without a name needs a group: choose one at random", field="group"
            )
        return Key(kind, group)
    if kind is Kind.CONSUMER_GROUP:
        offsets = getattr(request, "offsets", None)
        return Key(kind, offsets.group if offsets is not None else request.group)
    assert kind is Kind.JOURNAL, f"{name} is not led by one process"
    tx_id: int = getattr(request, "tx_id", 0)
    journal_partition = (tx_id or request.producer.producer_id) >> JOURNAL_BITS
    if tx_id and journal_partition >= JOURNAL_PARTITIONS:
        # A cluster refuses to say who leads it, and with it the questions of others that travel in
        # the same message.
        raise errors.UnknownTransaction(
            f"no TxId: its top 16 bits are {journal_partition}, and there are "
            f"{JOURNAL_PARTITIONS} journal partitions",
            tx_id=tx_id,
        )
    return Key(kind, journal_partition)


def items_of(name: str, request: Any) -> list[PartitionKey]:
    """The partition of each item that the request is split by, in order."""
    method = method_of(name)
    if not method.items:
        return [PartitionKey.of(request.partition)]
    return [PartitionKey.of(item.partition) for item in getattr(request, method.items)]


def part_of(name: str, request: Any, chosen: Sequence[int]) -> Any:
    """The request with only the items of these indexes."""
    method = method_of(name)
    items = getattr(request, method.items)
    if len(chosen) == len(items):
        return request
    part = type(request)()
    for field, value in request.ListFields():
        if field.name == method.items:
            continue
        if field.message_type is not None:
            getattr(part, field.name).CopyFrom(value)
        else:
            setattr(part, field.name, value)
    getattr(part, method.items).extend(items[index] for index in chosen)
    return part


class Directory:
    """Who leads what, as far as this client was told."""

    def __init__(self) -> None:
        self.cluster_id = b""
        self.nodes: list[cluster_pb2.Node] = []
        self._topics: dict[str, partition_leader_pb2.TopicDescription] = {}
        self._names: dict[bytes, str] = {}
        self._leaders: dict[PartitionKey, Endpoint] = {}
        self._routes: dict[Key, Endpoint] = {}
        # Topics that we may not describe, by name or id as they were asked for: google.rpc.Status.
        self._refused: dict[str | bytes, Any] = {}

    def learn(
        self, request: cluster_pb2.GetMetadataRequest, reply: cluster_pb2.GetMetadataReply
    ) -> None:
        """Takes in an answer; what was asked for and is absent is forgotten."""
        if self.cluster_id and reply.cluster_id != self.cluster_id:
            raise errors.InvalidArgument(
                f"the bootstrap list names processes of two clusters: {self.cluster_id.hex()} and "
                f"{reply.cluster_id.hex()}",
                field="bootstrap",
            )
        self.cluster_id = reply.cluster_id
        self.nodes = list(reply.nodes)
        told = {topic.name for topic in reply.topics}
        asked = [*request.topics, *(self._names.get(known, "") for known in request.topic_ids)]
        for name in asked:
            if name not in told:
                self.forget_topic(name)
        for name in request.topics:
            self._refused.pop(name, None)
        for topic_id in request.topic_ids:
            self._refused.pop(topic_id, None)
        for refused in reply.refused_topics:
            self._refused[refused.name or refused.topic_id] = refused.error
        for topic in reply.topics:
            self.learn_topic(topic)
        self._learn_routes(Kind.TRANSACTION_GROUP, reply.transaction_groups)
        self._learn_routes(Kind.CONSUMER_GROUP, reply.consumer_groups)
        self._learn_routes(Kind.JOURNAL, reply.journal_partitions)

    def topic(self, name: str) -> partition_leader_pb2.TopicDescription | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> partition_leader_pb2.TopicDescription | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics.get(name)

    def shown(self, key: Key | PartitionKey) -> str:
        """For messages: what is led, in users' words."""
        if isinstance(key, PartitionKey):
            topic = self.topic_by_id(key.topic_id)
            name = key.topic_id.hex() if topic is None else repr(topic.name)
            return f"partition {key.number} of {name}"
        match key.kind:
            case Kind.JOURNAL:
                return f"partition {key.name} of the transaction journal"
            case Kind.TRANSACTION_GROUP:
                return f"transaction group {key.name!r}"
            case _:
                return f"consumer group {key.name!r}"

    def refusal(self, topic: str | bytes) -> errors.OncelogError | None:
        """Why a topic, by name or id, is not described: we have no right to it."""
        refused = self._refused.get(topic)
        return None if refused is None else errors.from_status(refused)

    def known_topics(self) -> list[str]:
        return sorted(self._topics)

    def leader(self, partition: PartitionKey) -> Endpoint | None:
        return self._leaders.get(partition)

    def route(self, key: Key) -> Endpoint | None:
        return self._routes.get(key)

    def members(self, role: str | None = None) -> set[Endpoint]:
        """The processes there are, of one role or of all."""
        return {
            Endpoint(node.endpoint.host, node.endpoint.port)
            for node in self.nodes
            if role is None or role in node.roles
        }

    def redirect(self, key: Key | PartitionKey, error: errors.OncelogError) -> bool:
        """Believes a NOT_LEADER that names the leader. False: it names none; ask for metadata."""
        endpoint = self._named(error)
        if endpoint is None:
            self.forget(key)
            return False
        if isinstance(key, PartitionKey):
            changed = self._leaders.get(key) != endpoint
            self._leaders[key] = endpoint
        else:
            changed = self._routes.get(key) != endpoint
            self._keep_route(key, endpoint)
        return changed

    def _named(self, error: errors.OncelogError) -> Endpoint | None:
        """Where we reach whom the error names. Its address is the one that processes use among
        themselves; outside of their network we were told others, by node (`GetMetadata`)."""
        leader = error.metadata.get("leader_node")
        for node in self.nodes:
            if node.node_id and node.node_id == leader:
                return Endpoint(node.endpoint.host, node.endpoint.port)
        host, port = error.metadata.get("leader_host"), error.metadata.get("leader_port", "")
        return Endpoint(host, int(port)) if host and port.isdigit() else None

    def forget(self, key: Key | PartitionKey) -> None:
        if isinstance(key, PartitionKey):
            self._leaders.pop(key, None)
        else:
            self._routes.pop(key, None)

    def forget_processes(self, endpoints: Collection[Endpoint]) -> None:
        """What they led, others may lead by now."""
        for partition in [key for key, at in self._leaders.items() if at in endpoints]:
            del self._leaders[partition]
        for key in [key for key, at in self._routes.items() if at in endpoints]:
            del self._routes[key]

    def forget_strangers(self) -> None:
        """The same of all that are no members any more."""
        members = self.members()
        self.forget_processes({*self._leaders.values(), *self._routes.values()}.difference(members))

    def forget_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.topic_id, None)
            for partition in topic.partitions:
                self._leaders.pop(PartitionKey(topic.topic_id, partition.number), None)

    def forget_topic_id(self, topic_id: bytes) -> None:
        """It is gone; its name may be of another topic now."""
        self.forget_topic(self._names.get(topic_id, ""))

    def learn_topic(self, topic: partition_leader_pb2.TopicDescription) -> None:
        """As a process described it. A topic never loses partitions: who knows of fewer has not
        heard yet of those that were added."""
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id:
            topic.partitions.extend(known.partitions[len(topic.partitions) :])
        self.forget_topic(topic.name)
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        for partition in topic.partitions:
            if partition.HasField("leader"):
                endpoint = partition.leader.endpoint
                key = PartitionKey(topic.topic_id, partition.number)
                self._leaders[key] = Endpoint(endpoint.host, endpoint.port)

    def _learn_routes(self, kind: Kind, routes: Iterable[cluster_pb2.Route]) -> None:
        for route in routes:
            name: str | int = route.partition.number if kind is Kind.JOURNAL else route.group
            key = Key(kind, name)
            self.forget(key)
            if route.HasField("leader"):
                endpoint = Endpoint(route.leader.endpoint.host, route.leader.endpoint.port)
                self._keep_route(key, endpoint)
                if kind is Kind.TRANSACTION_GROUP:
                    # The group's journal partition has the same leader: saves a question.
                    self._keep_route(Key(Kind.JOURNAL, route.partition.number), endpoint)

    def _keep_route(self, key: Key, endpoint: Endpoint) -> None:
        """The one that was learned longest ago goes: it is asked for again where it is needed."""
        self._routes.pop(key, None)
        self._routes[key] = endpoint
        if len(self._routes) > ROUTES_KEPT:
            del self._routes[next(iter(self._routes))]


def metadata_request(
    *, keys: Iterable[Key] = (), topics: Iterable[str] = (), topic_ids: Iterable[bytes] = ()
) -> cluster_pb2.GetMetadataRequest:
    """Asks for all of these at once."""
    request = cluster_pb2.GetMetadataRequest()
    request.topics.extend(sorted(set(topics)))
    request.topic_ids.extend(sorted(set(topic_ids)))
    for key in sorted(set(keys), key=lambda key: (key.kind.value, str(key.name))):
        if key.kind is Kind.TRANSACTION_GROUP:
            request.transaction_groups.append(str(key.name))
        elif key.kind is Kind.CONSUMER_GROUP:
            request.consumer_groups.append(str(key.name))
        else:
            request.journal_partitions.append(int(key.name))
    return request


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Endpoint]:
    """`host:port[,host:port]`, or a list of such; IPv6 as `[::1]:7400`. Raises InvalidArgument."""
    entries: Sequence[Any] = bootstrap if isinstance(bootstrap, list | tuple) else [bootstrap]
    if not all(isinstance(entry, str) for entry in entries):
        raise errors.InvalidArgument(
            f"an address is text, host:port, not {entries!r}", field="bootstrap"
        )
    listed = [entry.strip() for several in entries for entry in several.split(",")]
    endpoints = [_parse_endpoint(entry) for entry in listed if entry]
    if not endpoints:
        raise errors.InvalidArgument(
            "the bootstrap list is empty; give host:port[,host:port]", field="bootstrap"
        )
    return endpoints


def _parse_endpoint(entry: str) -> Endpoint:
    scheme, separator, rest = entry.partition("://")
    if separator:
        address = rest.partition("/")[0]
        secure = ", and ask for TLS by the option `tls`" if scheme in ("https", "grpcs") else ""
        raise errors.InvalidArgument(
            f"{entry!r} in the bootstrap list has a scheme, {scheme}://: an address is host:port; "
            f"write {address!r}{secure}",
            field="bootstrap",
        )
    host, separator, port = entry.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = int(port) if len(port) <= 5 and port.isascii() and port.isdigit() else 0
    if not separator or not host or not 0 < number < 65536:
        raise errors.InvalidArgument(
            f"{entry!r} in the bootstrap list is not host:port, like localhost:7400",
            field="bootstrap",
        )
    return Endpoint(host, number)

"""ClusterView: this process's picture of etcd (the ClusterMetadata port).

One range, then one watch from the revision after it. Each revision is applied in one loop turn, so
the picture is always that of some revision, never ahead of etcd and usually a few ms behind.
Where the watch's revision was compacted, it lists again and tells what changed.

Once in PROBE_MS it reads the cluster record, linearizably: that tells whether etcd is reachable,
and its revision, which the `Guard` compares with what this node remembers.

Invariants:
  * the revision of the picture never goes back;
  * a revision in which the cluster record goes, or is another cluster's, is not applied: whoever
    deletes it deletes all keys in the same revision, and no topic was deleted by that;
  * once etcd was refused, nothing is applied, told or confirmed any more (`refuse`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

from oncelog_server.core.ids import (
    CONTROL_PARTITIONS,
    CONTROL_TOPIC_IDS,
    BootId,
    PartitionId,
    TopicId,
)
from oncelog_server.core.ports import Address, NodeInfo, PartitionInfo, TopicInfo
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.access_view import ACCESS, AccessView
from oncelog_server.runtime.etcd.deletions import Deletions
from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.etcd.port import (
    Etcd,
    EtcdCompacted,
    EtcdUnavailable,
    KeyValue,
    WatchEvent,
)
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import Unavailable

PROBE_MS: Final = 1_000
RETRY_MS: Final = 200
# How long `start` waits for a first answer.
START_TIMEOUT_MS: Final = 30_000

# Value and revision of a key that was not seen.
_NEVER: Final = (b"", 0)

Keys = frozenset[str]
Listener = Callable[[Keys], None]


class Entry(NamedTuple):
    """A partition's state, and the revision of its last change."""

    state: PartitionState
    mod_revision: int


class Guard(Protocol):
    """Remembers what etcd was, and judges what it is (Identity)."""

    @property
    def revision(self) -> int:
        """The highest that was seen."""
        ...

    def observe(self, record: KeyValue | None, revision: int, *, at_least: int) -> None:
        """A linearizable read of the cluster record. `at_least` is what had been seen before it was
        sent: what the watch tells meanwhile may overtake the answer. Raises EtcdRefused."""
        ...

    def witness(self, put: KeyValue) -> None:
        """A key that was written at that revision, in the history that this process follows."""
        ...

    async def recheck(self) -> None:
        """That history is etcd's still. Raises EtcdUnavailable."""
        ...


def _control_topic(name: str, topic_id: TopicId) -> TopicInfo:
    """No key describes one; how many replicas it has is told by its partitions."""
    return TopicInfo(name, topic_id, CONTROL_PARTITIONS, 1, {}, 0)


class ClusterView:
    """The ClusterMetadata port. `start` before use; `stop` at the end."""

    def __init__(
        self,
        etcd: Etcd,
        *,
        cluster_id: bytes,
        guard: Guard | None = None,
        on_fatal: Fatal = vital.complain,
    ) -> None:
        self.cluster_id = cluster_id
        self.revision = 0
        self._etcd = etcd
        self._guard = guard
        self._on_fatal = on_fatal
        self._reachable = False
        # Why etcd is not followed any more.
        self._refusal: EtcdRefused | None = None
        self._values: dict[str, tuple[bytes, int]] = {}
        self._nodes: dict[str, NodeInfo] = {}
        # Node ids of those that have a process; and of them, those that are about to stop, and have
        # no other process.
        self.living: frozenset[str] = frozenset()
        self.leaving: frozenset[str] = frozenset()
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[TopicId, str] = {}
        self._deletions = Deletions(etcd, self._names.get, on_fatal, confirm=self._confirm)
        self._control: dict[TopicId, TopicInfo] = {
            topic_id: _control_topic(name, topic_id) for name, topic_id in CONTROL_TOPIC_IDS.items()
        }
        self._partitions: dict[PartitionId, Entry] = {}
        self._creating: dict[str, TopicId] = {}
        # Who may do what.
        self.access: Final = AccessView()
        self._listeners: list[Listener] = []
        self._waiters: set[asyncio.Event] = set()
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------------------------- the port

    def leader_of(self, partition: PartitionId) -> Address | None:
        """None also while etcd names a leader whose process is gone."""
        entry = self._partitions.get(partition)
        if entry is None or not self.leader_lives(entry.state):
            return None
        return keys.address_of(entry.state)

    def topic(self, name: str) -> TopicInfo | None:
        control = CONTROL_TOPIC_IDS.get(name)
        return self._topics.get(name) if control is None else self._control[control]

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        if (control := self._control.get(topic_id)) is not None:
            return control
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def topics(self) -> Sequence[TopicInfo]:
        return [self._topics[name] for name in sorted(self._topics)]

    def partition(self, partition: PartitionId) -> PartitionInfo | None:
        """None where it does not exist, or its topic is not wholly created."""
        entry = self.entry(partition)
        if entry is None:
            return None
        return keys.describe(partition, entry.state, entry.mod_revision)

    def nodes(self) -> Sequence[NodeInfo]:
        return [self._nodes[key] for key in sorted(self._nodes)]

    async def lives(self, node_id: str, boot_id: BootId) -> bool:
        """Whether etcd shows that run of that node; one that is not in the view yet is asked for.
        Raises Unavailable where etcd does not answer."""
        if any(one.boot_id == boot_id and one.node_id == node_id for one in self.nodes()):
            return True
        key = keys.boot_key(boot_id)
        try:
            found, _ = await self._etcd.get(key)
        except EtcdUnavailable as error:
            raise Unavailable("etcd does not answer; try again") from error
        return found is not None and keys.decode_boot(key, found.value).node_id == node_id

    def topics_of(self, changed: Keys) -> list[TopicInfo]:
        """Of the keys that changed, the topics that stand now. One that is gone has no id any
        more."""
        names = (key.removeprefix(keys.TOPICS) for key in changed if key.startswith(keys.TOPICS))
        return [topic for name in names if (topic := self.topic(name)) is not None]

    async def is_gone(self, topic_id: TopicId) -> bool:
        """See the port. Of an id that a client once learned: a topic under creation is unknown
        to everybody. Raises Unavailable where etcd does not answer."""
        if topic_id in self._control:
            return False
        return await self._deletions.is_gone(topic_id)

    async def gone(self, topic_ids: Collection[TopicId], *, timeout_ms: int) -> set[TopicId]:
        """See the port."""
        if not topic_ids:
            return set()
        asking = {
            asyncio.ensure_future(self.is_gone(topic_id)): topic_id
            for topic_id in sorted(topic_ids)
        }
        done, late = await asyncio.wait(asking, timeout=timeout_ms / 1000)
        for one in late:
            one.cancel()
        return {asking[one] for one in done if one.exception() is None and one.result()}

    async def exists(self, partition: PartitionId) -> bool:
        """See the port. Partitions are written before their topic, or its count of them."""
        if self.entry(partition) is not None:
            return True
        try:
            found, _ = await self._etcd.get(keys.partition_key(partition))
            if found is None:
                await self._confirm()
        except EtcdUnavailable as error:
            raise Unavailable(f"cannot ask etcd about {partition}: {error}") from error
        return found is not None

    def etcd_status(self) -> tuple[int, bool]:
        return self.revision, self._reachable

    # -------------------------------------------------------------------------- beside the port

    @property
    def reachable(self) -> bool:
        return self._reachable

    def entry(self, partition: PartitionId) -> Entry | None:
        """As `partition`, with the revision that a compare-and-set needs."""
        return self._partitions.get(partition) if self._counts(partition) else None

    def replicas_on(
        self, node_id: str, *, among: Collection[PartitionId] | None = None
    ) -> Sequence[PartitionId]:
        """The partitions with a replica on this node, in order; only of topics that stand. `among`:
        None for all."""
        return sorted(
            partition
            for partition in (self._partitions if among is None else among)
            if (entry := self.entry(partition)) is not None and node_id in entry.state.replicas
        )

    def _counts(self, partition: PartitionId) -> bool:
        """Its topic stands, and has that many: the keys of partitions come before it says so."""
        topic = self.topic_by_id(partition.topic_id)
        return topic is not None and partition.number < topic.partitions

    def replica_counts(self) -> dict[str, int]:
        """How many replicas are placed on each node; nodes without one are absent."""
        counts: dict[str, int] = {}
        for entry in self._partitions.values():
            for node_id in entry.state.replicas:
                counts[node_id] = counts.get(node_id, 0) + 1
        return counts

    def leader_lives(self, state: PartitionState) -> bool:
        """etcd names a leader, and its process's key stands."""
        return state.leader is not None and keys.boot_key(state.leader.boot_id) in self._nodes

    def orphans(self) -> dict[PartitionId, int]:
        """Partition keys that belong to no topic and to no creation under way, with their
        revisions: what a process left behind that died while it created or deleted a topic."""
        under_way = set(self._creating.values())
        return {
            partition: entry.mod_revision
            for partition, entry in sorted(self._partitions.items())
            if self.topic_by_id(partition.topic_id) is None and partition.topic_id not in under_way
        }

    def on_change(self, listener: Listener) -> None:
        """`listener` is called with the changed keys, after each revision, on the loop."""
        self._listeners.append(listener)

    async def wait_for(
        self, predicate: Callable[[ClusterView], bool], *, timeout_ms: float
    ) -> None:
        """Returns once the predicate holds for this view. Raises TimeoutError."""
        changed = asyncio.Event()
        self._waiters.add(changed)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not predicate(self):
                    changed.clear()
                    await changed.wait()
        finally:
            self._waiters.discard(changed)

    # ----------------------------------------------------------------------------- start and stop

    async def start(self, *, timeout_ms: int = START_TIMEOUT_MS) -> None:
        """Returns with a first picture. Raises EtcdUnavailable, EtcdRefused."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._list_until_answered()
        except TimeoutError as error:
            raise EtcdUnavailable(f"etcd gave no answer in {timeout_ms} ms") from error
        self._tasks = [
            vital.spawn(work, self._on_fatal) for work in (self._follow(), self._probe())
        ]

    async def stop(self) -> None:
        await self._deletions.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    # ---------------------------------------------------------------------------- how it follows

    def refuse(self, error: EtcdRefused) -> None:
        """This etcd is not the one that this process knows: the picture stays as it is, and the
        process ends. Also for those who find that out elsewhere."""
        if self._refusal is None:
            self._refusal, self._reachable = error, False
            self._on_fatal(error)

    async def _follow(self) -> None:
        """Until etcd is refused."""
        while self._refusal is None:
            try:
                await self._watch_until_compacted()
                await self._list_until_answered()
            except EtcdRefused as error:
                self.refuse(error)
            except EtcdUnavailable:
                await asyncio.sleep(RETRY_MS / 1000)

    async def _watch_until_compacted(self) -> None:
        """Raises EtcdUnavailable, EtcdRefused."""
        try:
            async for batch in self._etcd.watch("", self.revision + 1):
                if self._refusal is not None:
                    raise self._refusal
                self._apply(batch)
        except EtcdCompacted:
            return
        raise EtcdUnavailable("the watch ended")

    async def _observe(self) -> None:
        """Raises EtcdUnavailable."""
        seen = 0 if self._guard is None else self._guard.revision
        record, revision = await self._etcd.get(keys.CLUSTER)
        if self._guard is not None:
            self._guard.observe(record, revision, at_least=seen)

    async def _confirm(self) -> None:
        """What a read before did not find is not there: that was the etcd which this process knows.
        One that was wiped, or is as it was before, has found nothing, either; it is noticed a
        second later only. Raises EtcdUnavailable."""
        if self._refusal is not None:
            raise self._refusal
        try:
            await self._observe()
            if self._guard is not None:
                await self._guard.recheck()
        except EtcdRefused as error:
            self.refuse(error)
            raise

    async def _probe(self) -> None:
        """Until etcd is refused."""
        while self._refusal is None:
            try:
                await self._observe()
                self._reachable = self._refusal is None
            except EtcdRefused as error:
                self.refuse(error)
            except EtcdUnavailable:
                self._reachable = False
            await asyncio.sleep(PROBE_MS / 1000)

    async def _list_until_answered(self) -> None:
        """Raises EtcdRefused."""
        while True:
            try:
                listed, revision = await self._etcd.range("")
                self._require_our_past(listed)
                if revision >= self.revision:
                    if self.revision:
                        # What it lacks was deleted only if this is the etcd that we know.
                        await self._confirm()
                    self._replace(listed, revision)
                    self._reachable = True
                    return
            except EtcdRefused:
                raise
            except EtcdUnavailable:
                self._reachable = False
            # Or a store that went back; the probe refuses it.
            await asyncio.sleep(RETRY_MS / 1000)

    def _require_our_past(self, listed: Sequence[KeyValue]) -> None:
        """What was written up to the picture's revision stands in the picture, just so: another
        key, or another value, was written in another history, though that may be past this revision
        again. Raises EtcdRefused."""
        for kv in listed:
            known = self._values.get(kv.key, _NEVER)
            if kv.mod_revision <= self.revision and known != (kv.value, kv.mod_revision):
                raise EtcdRefused(
                    f"etcd has another history than it had: it holds {kv.key!r} as of revision "
                    f"{kv.mod_revision}, and this node knows it otherwise"
                )

    def _apply(self, batch: Sequence[WatchEvent]) -> None:
        """Raises EtcdRefused; then nothing of it was applied."""
        for event in batch:
            if event.key == keys.CLUSTER and event.mod_revision > self.revision:
                self._require_our_cluster(event.value, event.mod_revision)
        changed = set()
        for event in batch:
            if event.mod_revision <= self.revision:
                continue
            self._set(event.key, event.value, event.mod_revision)
            if event.value is not None and self._guard is not None:
                self._guard.witness(KeyValue(event.key, event.value, event.mod_revision))
            changed.add(event.key)
        if changed:
            self.revision = max(event.mod_revision for event in batch)
            self._tell(frozenset(changed))

    def _replace(self, listed: Sequence[KeyValue], revision: int) -> None:
        """Raises EtcdRefused; then nothing of it was applied."""
        fresh = {kv.key: kv for kv in listed}
        record = fresh.get(keys.CLUSTER)
        self._require_our_cluster(None if record is None else record.value, revision)
        changed = {key for key in self._values if key not in fresh}
        for key in sorted(changed):
            self._set(key, None, revision)
        for key, kv in fresh.items():
            if self._values.get(key, _NEVER)[1] != kv.mod_revision:
                self._set(key, kv.value, kv.mod_revision)
                changed.add(key)
        self.revision = revision
        self._tell(frozenset(changed))

    def _require_our_cluster(self, record: bytes | None, revision: int) -> None:
        """What a watch or a list shows of the cluster record. Raises EtcdRefused."""
        if self._guard is not None:
            found = None if record is None else KeyValue(keys.CLUSTER, record, revision)
            self._guard.observe(found, revision, at_least=0)
        elif record is None:
            raise EtcdRefused("etcd holds no cluster record under this prefix")

    def _tell(self, changed: Keys) -> None:
        for listener in self._listeners:
            listener(changed)
        # In any order: each only wakes its own task.
        for waiter in self._waiters:
            waiter.set()

    def _set(self, key: str, value: bytes | None, mod_revision: int) -> None:
        """The only mutator of the picture."""
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = (value, mod_revision)
        if key.startswith(keys.PARTITIONS):
            self._set_partition(keys.partition_of_key(key), value, mod_revision)
        elif key.startswith(keys.BOOTS):
            self._nodes.pop(key, None)
            if value is not None:
                self._nodes[key] = keys.decode_boot(key, value)
            self._look_who_leaves()
        elif key.startswith(keys.TOPICS):
            self._set_topic(key, value)
        elif key.startswith(keys.CREATING):
            self._creating.pop(key, None)
            if value is not None:
                self._creating[key] = keys.decode_creating(value)
        elif key.startswith(ACCESS):
            self.access.set(key, value)

    def _look_who_leaves(self) -> None:
        nodes = self._nodes.values()
        stay = {node.node_id for node in nodes if not node.leaving}
        self.living = frozenset(node.node_id for node in nodes)
        self.leaving = self.living - stay

    def _set_partition(self, partition: PartitionId, value: bytes | None, revision: int) -> None:
        before = self._partitions.get(partition)
        after = None if value is None else Entry(keys.decode_partition(value), revision)
        if after is None:
            self._partitions.pop(partition, None)
        else:
            self._partitions[partition] = after
        if partition.topic_id in self._control and _copies(before) != _copies(after):
            self._count_replicas(partition.topic_id)

    def _count_replicas(self, topic_id: TopicId) -> None:
        """Of a control topic: as many as each of its partitions has, or shall have."""
        partitions = (PartitionId(topic_id, number) for number in range(CONTROL_PARTITIONS))
        counts = [
            copies
            for partition in partitions
            if (copies := _copies(self._partitions.get(partition))) is not None
        ]
        self._control[topic_id] = self._control[topic_id]._replace(
            replication_factor=min(counts, default=1)
        )

    def _set_topic(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(keys.TOPICS)
        before = self._topics.pop(name, None)
        if before is not None:
            self._names.pop(before.topic_id, None)
        if value is not None:
            info = _topic(key, value)
            self._topics[name] = info
            self._names[info.topic_id] = name


def _copies(entry: Entry | None) -> int | None:
    """How many replicas it has, or shall have; None for none."""
    return None if entry is None else len(entry.state.target or entry.state.replicas)


def _topic(key: str, value: bytes) -> TopicInfo:
    return keys.decode_topic(key.removeprefix(keys.TOPICS), value)

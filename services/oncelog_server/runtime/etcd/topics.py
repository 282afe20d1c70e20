"""EtcdTopics: creating, changing and deleting topics (the TopicStore port).

A creation in steps, each by compare-and-set, so that dying between two of them leaves nothing that
anybody can use:

    1  creating/<name>              under this process's lease: the name is taken
    2  partitions/<id>/<number>     in batches, each comparing that 1 still stands
    3  topics/<name>                comparing 1 and removing it: now the topic exists

Partitions are added in the same order: keys of the new ones, in batches, each comparing that
topics/<name> stands as it was read; then topics/<name>, by the same comparison. Before that nobody
knows of them (`ClusterView` shows those alone that the topic counts), so nobody leads them, and
whoever adds some later may write over what was left (ADR 32).

A deletion removes topics/<name> first, then the partition keys. `sweep` removes partition keys that
a process left behind which died in between: no topic has their id, and no creation under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import Clock, TopicInfo
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.core.topic_limits import TOPIC_NAME_BYTES_MAX, require_config_bytes
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import (
    TXN_KEYS_MAX,
    CreatingValue,
    PartitionState,
    TopicValue,
    encode,
    topic_value,
)
from oncelog_server.runtime.etcd.placed import placed
from oncelog_server.runtime.etcd.placement import TooFewNodes
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    Etcd,
    EtcdUnavailable,
    KeyValue,
    Put,
    TxnResult,
)
from oncelogpb.errors import (
    InvalidArgument,
    LimitExceeded,
    TopicExists,
    Unavailable,
    UnknownOutcome,
    UnknownTopic,
)

TOPIC_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_BYTES_MAX}}}")
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
# Of a cluster. Each process holds all of them in memory, and each partition has a key in etcd and a
# journal, which is open files, at its leader.
TOPICS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 100_000
CONFIGS_MAX: Final = 100
# A metadata change that etcd has not answered by then ends as UNKNOWN_OUTCOME.
CHANGE_TIMEOUT_MS: Final = 15_000
RETRY_MS: Final = 200
# How often a name is looked at, once a second, whose creation failed here: what was sent to etcd
# and not answered does not arrive later.
LOOKS_FOR_ABANDONED: Final = 60
# Two processes that change one topic at once; more often than this is a bug.
CONFLICTS_MAX: Final = 20

A = TypeVar("A")


@dataclass(slots=True)
class _Abandoned:
    """A creation that failed."""

    name: str
    looks_left: int = LOOKS_FOR_ABANDONED


class EtcdTopics:
    """The TopicStore port. `lease` gives the process's lease (Membership.lease)."""

    def __init__(
        self,
        etcd: Etcd,
        view: ClusterView,
        *,
        lease: Callable[[], int],
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._etcd = etcd
        self._view = view
        self._lease = lease
        self._clock = clock
        self._random_bytes = random_bytes
        # Partitions of the creations under way here, by topic id.
        self._under_way: dict[TopicId, int] = {}
        # By topic id, creations that failed here and whose `creating/` key may stand, or come.
        self._abandoned: dict[str, _Abandoned] = {}

    # ---------------------------------------------------------------------------------- the port

    async def create(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> TopicInfo:
        """Raises InvalidArgument, LimitExceeded, Unsupported, TopicExists, Unavailable (also while
        another process creates it), UnknownOutcome."""
        require_topic(name, partitions, replication_factor, configs)
        self._require_place(name, partitions)
        topic_id = self._new_topic_id()
        value = TopicValue(
            topic_id=topic_id.hex(),
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(configs),
            created_ms=self._clock.now().wall_ms,
        )
        self._under_way[topic_id] = partitions
        try:
            return await self._create(name, value)
        finally:
            del self._under_way[topic_id]

    async def _create(self, name: str, value: TopicValue) -> TopicInfo:
        states = self._place(value.partitions, value.replication_factor)
        # Until it is published. Whatever ends it before, also a caller who gives up, and an etcd
        # that does not answer: the name must be free for others.
        self._abandoned[value.topic_id] = _Abandoned(name)
        try:
            await self.sweep()
            marker = await self._take_name(name, value)
            await self._write_partitions(marker, value, states)
        except EtcdUnavailable as error:
            # Without step 3 nothing exists.
            raise Unavailable(f"topic {name!r} was not created: {error}") from error
        except (TopicExists, Unavailable):
            # So etcd answered: it has nothing of this creation.
            self._abandoned.pop(value.topic_id, None)
            raise
        revision = await self._publish(name, marker, value)
        self._abandoned.pop(value.topic_id, None)
        await self._shown_at(revision)
        return keys.decode_topic(name, encode(value))

    async def alter(
        self, name: str, configs: Mapping[str, str], *, partitions: int = 0
    ) -> TopicInfo:
        """An empty value removes a setting. `partitions`: how many there shall be; 0: as many as
        there are. Raises UnknownTopic, InvalidArgument (also: fewer than there are), LimitExceeded,
        Unavailable, UnknownOutcome."""
        if name.startswith("__"):
            raise InvalidArgument(f"{name} is Oncelog's own and has no settings")
        _require_configs(configs)
        for turn in range(CONFLICTS_MAX):
            found, topic = await self._find(name)
            wanted = partitions or topic.partitions
            self._require_growth(name, topic, wanted, turn)
            if wanted > topic.partitions and not await self._write_added(found, topic, wanted):
                continue
            merged = {**topic.configs, **configs}
            changed = msgspec.structs.replace(
                topic,
                partitions=wanted,
                configs={key: value for key, value in merged.items() if value},
                version=topic.version + 1,
            )
            result = await self._change(
                name, Compare(found.key, found.mod_revision), [Put(found.key, encode(changed))]
            )
            # After a lost answer the next turn finds, and writes, the same once more.
            if result.succeeded:
                await self._shown_at(result.revision)
                return keys.decode_topic(name, encode(changed))
        raise Unavailable(f"topic {name!r} is being changed by others; try again")

    async def delete(self, name: str, only: TopicId | None = None) -> TopicId:
        """`only`: not another topic that has this name by now. Raises UnknownTopic,
        InvalidArgument, Unavailable, UnknownOutcome."""
        if name.startswith("__"):
            raise InvalidArgument(f"{name} is Oncelog's own and cannot be deleted")
        found, topic = await self._find(name)
        topic_id = TopicId(bytes.fromhex(topic.topic_id))
        if only is not None and only != topic_id:
            raise UnknownTopic(
                f"topic {name!r} of id {only.hex()} is gone: another one has its name",
                topic=name,
                topic_id=topic.topic_id,
            )
        for _ in range(CONFLICTS_MAX):
            await self._change(name, Compare(found.key, found.mod_revision), [Delete(found.key)])
            # Not the answer but what stands counts: an unanswered attempt may have done it.
            standing = await self._read(name)
            if standing is None or _decode(standing).topic_id != topic.topic_id:
                await self._remove_partitions(topic_id, topic.partitions)
                await self._shown(lambda view: view.topic_by_id(topic_id) is None)
                return topic_id
            found = standing
        raise Unavailable(f"topic {name!r} is being changed by others; try again")

    # -------------------------------------------------------------------------- beside the port

    async def free_names(self) -> None:
        """Removes the `creating/` keys of creations that failed here: they stand as long as this
        process lives, and nobody else may remove them. Called about every second; what etcd does
        not answer now is tried again."""
        for name in sorted({abandoned.name for abandoned in self._abandoned.values()}):
            with contextlib.suppress(EtcdUnavailable):
                marker, _ = await self._etcd.get(keys.creating_key(name))
                if marker is None or not await self._remove_abandoned(marker):
                    self._found_nothing(name)

    def _found_nothing(self, name: str) -> None:
        """Nothing of a failed creation stands there now. What was sent and not answered may arrive
        still, for a while."""
        for topic_id, abandoned in list(self._abandoned.items()):
            if abandoned.name != name or TopicId(bytes.fromhex(topic_id)) in self._under_way:
                continue
            abandoned.looks_left -= 1
            if not abandoned.looks_left:
                del self._abandoned[topic_id]

    async def sweep(self) -> int:
        """Removes orphaned partition keys; how many. Raises EtcdUnavailable."""
        orphans = [
            (keys.partition_key(partition), revision)
            for partition, revision in self._view.orphans().items()
        ]
        for batch in _batches(orphans):
            await self._etcd.txn(
                [Compare(key, revision) for key, revision in batch],
                [Delete(key) for key, _ in batch],
            )
        return len(orphans)

    # ---------------------------------------------------------------------------- how it creates

    async def _take_name(self, name: str, value: TopicValue) -> KeyValue:
        creating, topic = keys.creating_key(name), keys.topic_key(name)
        marker = encode(CreatingValue(value.topic_id))
        for _ in range(CONFLICTS_MAX):
            result = await self._etcd.txn(
                [Compare(topic, 0), Compare(creating, 0)], [Put(creating, marker, self._lease())]
            )
            if result.succeeded:
                return KeyValue(creating, marker, result.revision)
            found, _ = await self._etcd.get(topic)
            if found is not None:
                raise TopicExists(f"topic {name!r} exists already")
            other, _ = await self._etcd.get(creating)
            if other is not None and not await self._remove_abandoned(other):
                break
        # Its creator may have died: TopicExists would tell of a topic that may never be.
        raise Unavailable(f"topic {name!r} is being created by another call; try again")

    async def _remove_abandoned(self, marker: KeyValue) -> bool:
        """Frees a name whose creation failed here. False: it is somebody else's."""
        topic_id = keys.decode_creating(marker.value)
        if topic_id.hex() not in self._abandoned or topic_id in self._under_way:
            return False
        await self._etcd.txn([Compare(marker.key, marker.mod_revision)], [Delete(marker.key)])
        self._abandoned.pop(topic_id.hex(), None)
        return True

    async def _write_partitions(
        self, marker: KeyValue, value: TopicValue, states: Sequence[PartitionState]
    ) -> None:
        topic_id = TopicId(bytes.fromhex(value.topic_id))
        puts = [
            Put(keys.partition_key(PartitionId(topic_id, number)), encode(state))
            for number, state in enumerate(states)
        ]
        for batch in _batches(puts):
            result = await self._etcd.txn([Compare(marker.key, marker.mod_revision)], batch)
            if not result.succeeded:
                raise EtcdUnavailable("this process lost its lease meanwhile")

    async def _write_added(self, found: KeyValue, topic: TopicValue, wanted: int) -> bool:
        """The keys of the partitions that are to be added. False: the topic changed meanwhile.
        Raises Unavailable: the topic is as it was."""
        topic_id = TopicId(bytes.fromhex(topic.topic_id))
        states = self._place(wanted - topic.partitions, topic.replication_factor)
        puts = [
            Put(keys.partition_key(PartitionId(topic_id, number)), encode(state))
            for number, state in enumerate(states, start=topic.partitions)
        ]
        unchanged = Compare(found.key, found.mod_revision)
        try:
            for batch in _batches(puts):
                if not (await self._etcd.txn([unchanged], batch)).succeeded:
                    return False
        except EtcdUnavailable as error:
            name = found.key.removeprefix(keys.TOPICS)
            raise Unavailable(f"topic {name!r} was not altered: {error}") from error
        return True

    def _require_growth(self, name: str, topic: TopicValue, wanted: int, turn: int) -> None:
        """Raises InvalidArgument, LimitExceeded, UnknownOutcome."""
        if wanted < topic.partitions and turn:
            raise UnknownOutcome(
                f"topic {name!r} was changed by others meanwhile; it has {topic.partitions} "
                "partitions now"
            )
        if wanted < topic.partitions:
            raise InvalidArgument(
                f"topic {name!r} has {topic.partitions} partitions: some can be added, none taken "
                f"away, so not {wanted}",
                field="partitions",
            )
        _require_partitions_per_topic(wanted)
        held = sum(one.partitions for one in self._view.topics()) + sum(self._coming())
        if wanted > topic.partitions and held + wanted - topic.partitions > PARTITIONS_MAX:
            raise _too_many_partitions(held, wanted - topic.partitions)

    async def _publish(self, name: str, marker: KeyValue, value: TopicValue) -> int:
        """Step 3; the revision at which the topic exists. Where a repetition finds the marker
        gone, the topic's own key says how the lost attempt went."""
        key = keys.topic_key(name)
        result = await self._change(
            name,
            Compare(marker.key, marker.mod_revision),
            [Put(key, encode(value)), Delete(marker.key)],
        )
        if result.succeeded:
            return result.revision
        found = await self._read(name)
        if found is None or _decode(found).topic_id != value.topic_id:
            raise Unavailable(f"topic {name!r} was not created: this process lost its lease")
        return found.mod_revision

    def _require_place(self, name: str, partitions: int) -> None:
        """Raises LimitExceeded. What other processes create in this moment is not counted."""
        if self._view.topic(name) is not None:
            # It will be told so.
            return
        standing, coming = self._view.topics(), self._coming()
        if len(standing) + len(coming) >= TOPICS_MAX:
            raise LimitExceeded(
                f"the cluster holds topics_max ({TOPICS_MAX}) topics; delete some",
                limit="topics_max",
            )
        held = sum(topic.partitions for topic in standing) + sum(coming)
        if held + partitions > PARTITIONS_MAX:
            raise _too_many_partitions(held, partitions)

    def _coming(self) -> list[int]:
        """Partitions of each creation under way here."""
        return [
            count
            for topic_id, count in self._under_way.items()
            if self._view.topic_by_id(topic_id) is None
        ]

    def _place(self, partitions: int, replication_factor: int) -> list[PartitionState]:
        """Over the living nodes that lead topics. Raises Unavailable: too few are alive."""
        try:
            return placed(self._view, PARTITION_LEADER, partitions, replication_factor)
        except TooFewNodes as error:
            raise Unavailable(
                f"{error}: start more partition leader processes and try again"
            ) from error

    def _new_topic_id(self) -> TopicId:
        raw = bytearray(self._random_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        return TopicId(bytes(raw))

    # ------------------------------------------------------------------------------ how it asks

    async def _find(self, name: str) -> tuple[KeyValue, TopicValue]:
        try:
            found, _ = await self._etcd.get(keys.topic_key(name))
        except EtcdUnavailable as error:
            raise Unavailable(f"topic {name!r} was not changed: {error}") from error
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        return found, _decode(found)

    async def _change(self, name: str, compare: Compare, then: Sequence[Put | Delete]) -> TxnResult:
        """One compare-and-set, repeated until etcd answers. It is applied once at most; but that
        the last attempt failed does not say that an earlier, unanswered one did."""
        return await self._answered(name, lambda: self._etcd.txn([compare], then))

    async def _read(self, name: str) -> KeyValue | None:
        found, _ = await self._answered(name, lambda: self._etcd.get(keys.topic_key(name)))
        return found

    async def _answered(self, name: str, ask: Callable[[], Awaitable[A]]) -> A:
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_MS / 1000):
                while True:
                    try:
                        return await ask()
                    except EtcdUnavailable:
                        await asyncio.sleep(RETRY_MS / 1000)
        except TimeoutError as error:
            raise UnknownOutcome(
                f"etcd did not say whether topic {name!r} was changed; describe it to see"
            ) from error

    async def _remove_partitions(self, topic_id: TopicId, partitions: int) -> None:
        ops = [
            Delete(keys.partition_key(PartitionId(topic_id, number)))
            for number in range(partitions)
        ]
        try:
            for batch in _batches(ops):
                await self._etcd.txn([], batch)
        except EtcdUnavailable:
            # The topic is deleted; a sweep removes what is left.
            return

    async def _shown_at(self, revision: int) -> None:
        """`revision` is that of a key of ours, so the view comes to it."""
        await self._shown(lambda view: view.revision >= revision)

    async def _shown(self, predicate: Callable[[ClusterView], bool]) -> None:
        try:
            await self._view.wait_for(predicate, timeout_ms=CHANGE_TIMEOUT_MS)
        except TimeoutError as error:
            raise UnknownOutcome("done in etcd, but this process does not see it yet") from error


def require_topic(
    name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    """Raises InvalidArgument, LimitExceeded: what is wrong, in this order."""
    if not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidArgument(
            f"{name!r} is not a topic name: 1 to 249 of A-Z a-z 0-9 . _ -, and not . or .."
        )
    if name.startswith("__"):
        raise InvalidArgument(f"{name!r}: names that begin with two underscores are Oncelog's own")
    if partitions < 1:
        raise InvalidArgument(f"a topic has at least one partition, not {partitions}")
    _require_partitions_per_topic(partitions)
    if replication_factor < 1:
        raise InvalidArgument(f"the replication factor is at least 1, not {replication_factor}")
    _require_configs(configs)


def _require_partitions_per_topic(partitions: int) -> None:
    if partitions > PARTITIONS_PER_TOPIC_MAX:
        raise LimitExceeded(
            f"{partitions} partitions are more than partitions_per_topic_max "
            f"({PARTITIONS_PER_TOPIC_MAX})",
            limit="partitions_per_topic_max",
        )


def _too_many_partitions(held: int, more: int) -> LimitExceeded:
    return LimitExceeded(
        f"the cluster holds {held} partitions, and {more} more are above "
        f"partitions_max ({PARTITIONS_MAX}); take fewer, or delete topics",
        limit="partitions_max",
    )


def _require_configs(configs: Mapping[str, str]) -> None:
    if len(configs) > CONFIGS_MAX:
        raise LimitExceeded(
            f"{len(configs)} settings are more than configs_max ({CONFIGS_MAX})",
            limit="configs_max",
        )
    for name in sorted(configs):
        require_config_bytes(name, configs[name])


def _decode(found: KeyValue) -> TopicValue:
    return topic_value(found.value)


def _batches(items: Sequence[A]) -> Iterator[Sequence[A]]:
    for start in range(0, len(items), TXN_KEYS_MAX):
        yield items[start : start + TXN_KEYS_MAX]

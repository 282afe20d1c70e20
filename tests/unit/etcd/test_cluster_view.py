"""The view: a picture of one revision, never behind a re-list, never showing half a topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS,
    TRANSACTION_CONTROL,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    TopicId,
)
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.cluster_view import PROBE_MS, ClusterView
from oncelog_server.runtime.etcd.identity import ClusterSettings
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState, TopicValue
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.port import (
    Delete,
    DeletePrefix,
    EtcdCompacted,
    KeyValue,
    Put,
    WatchEvent,
)
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.storage.disk import RealDisk
from oncelogpb.errors import Unavailable
from tests.unit.etcd.test_identity import identity
from tests.unit.etcd.world import Node, World

TOPIC = TopicId(b"t" * 16)
GONE = TopicId(b"g" * 16)
P0 = PartitionId(TOPIC, 0)


def topic_put(name: str = "t") -> Put:
    return Put(keys.topic_key(name), keys.encode(TopicValue(TOPIC.hex(), 1, 1, {"a": "b"}, 7)))


def state_put(state: PartitionState) -> Put:
    return Put(keys.partition_key(P0), keys.encode(state))


def test_a_topic_is_shown_only_when_all_of_it_stands(world: World) -> None:
    async def story() -> None:
        view = (await world.node("n1").start(elections=False)).view
        world.server.txn([], [state_put(PartitionState(("n1",)))])
        await asyncio.sleep(1)
        assert view.partition(P0) is None
        assert view.replicas_on("n1") == []
        assert list(view.orphans()) == [P0]
        world.server.txn([], [topic_put()])
        await view.wait_for(lambda view: view.topic("t") is not None, timeout_ms=1_000)
        info = view.partition(P0)
        assert info is not None
        assert (info.epoch, info.replicas, view.orphans()) == (0, ("n1",), {})
        assert view.topic_by_id(TOPIC) == view.topic("t")
        assert [topic.name for topic in view.topics()] == ["t"]

    world.run(story)


def test_a_leader_is_shown_while_its_process_lives(world: World) -> None:
    async def story() -> None:
        node, watcher = world.node("n1"), world.node("n2")
        await node.start(elections=False)
        view = (await watcher.start(elections=False)).view
        leader = LeaderValue("n1", node.membership.boot_id.hex(), "host", 9)
        world.server.txn(
            [], [state_put(PartitionState(("n1",), leader=leader, epoch=3)), topic_put()]
        )
        await asyncio.sleep(1)
        address = view.leader_of(P0)
        assert address is not None
        assert (address.host, address.port, address.epoch) == ("host", 9, 3)
        await node.crash()
        await World.until(lambda: view.leader_of(P0) is None)
        info = view.partition(P0)
        assert info is not None
        assert info.leader is not None, "as etcd names it"

    world.run(story)


def test_the_control_topics_are_known_but_not_listed(world: World) -> None:
    async def story() -> None:
        view = (await world.node("n1").start(elections=False)).view
        control = view.topic(TRANSACTION_CONTROL)
        assert control is not None
        assert control.topic_id == TRANSACTION_CONTROL_ID
        assert view.topic_by_id(TRANSACTION_CONTROL_ID) == control
        assert view.topic(CONSUMER_OFFSETS) is not None
        assert view.topics() == []
        assert not await view.is_gone(TRANSACTION_CONTROL_ID)

    world.run(story)


def test_after_compaction_it_lists_again_and_tells_what_vanished(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put("a"), Put("other", b"1")])
        await asyncio.sleep(1)
        told: list[frozenset[str]] = []
        node.view.on_change(told.append)
        node.etcd.unavailable = True
        world.server.txn([], [Delete(keys.topic_key("a"))])
        world.server.txn([], [Put(keys.topic_key("b"), topic_put().value)])
        world.server.compact(world.server.revision)
        node.etcd.unavailable = False
        await World.until(lambda: node.view.topic("b"))
        assert node.view.topic("a") is None
        assert told == [frozenset({keys.topic_key("a"), keys.topic_key("b")})]
        assert node.view.revision == world.server.revision

    world.run(story)


async def list_anew(
    world: World, node: Node, answer: tuple[list[KeyValue], int]
) -> list[frozenset[str]]:
    """Has the view list again; the first answer that it gets is this one. What it told."""
    told: list[frozenset[str]] = []
    node.view.on_change(told.append)
    real, answers = node.etcd.range, [answer]

    async def once(prefix: str) -> tuple[list[KeyValue], int]:
        return answers.pop() if answers else await real(prefix)

    node.etcd.unavailable = True
    world.server.txn([], [Put("other", b"2")])
    world.server.compact(world.server.revision)
    node.etcd.range = once  # type: ignore[method-assign]
    node.etcd.unavailable = False
    await asyncio.sleep(10)
    assert not answers
    return told


def test_i25_a_list_of_an_earlier_revision_is_not_taken(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put("a")])
        await asyncio.sleep(1)
        told = await list_anew(world, node, ([], node.view.revision - 1))
        assert told == [frozenset({"other"})], "it believed that a topic was gone"

    world.run(story)


def test_i25_a_list_in_which_a_key_is_older_than_it_was_is_not_taken(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put("a")])
        await asyncio.sleep(1)
        listed = world.server.range("")
        older = [
            kv._replace(mod_revision=kv.mod_revision - (kv.key == keys.topic_key("a")))
            for kv in listed
        ]
        told = await list_anew(world, node, (older, node.view.revision + 9))
        assert ["it holds 'topics/a'" in str(error) for error in node.refused] == [True]
        assert told == [], "it believed a store of another past"

    world.run(story)


def test_i25_a_list_that_holds_what_was_never_told_is_not_taken(world: World) -> None:
    """It was written in another history, at a revision that the view has passed."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put("a")])
        await asyncio.sleep(1)
        foreign = KeyValue("topics/b", topic_put().value, node.view.revision)
        answer = ([*world.server.range(""), foreign], node.view.revision + 9)
        told = await list_anew(world, node, answer)
        assert ["it holds 'topics/b'" in str(error) for error in node.refused] == [True]
        assert told == [], "it believed a store of another past"

    world.run(story)


class Guarded:
    """A view that knows its cluster as a process does; what it told, and why it refused etcd."""

    def __init__(self, world: World, directory: Path) -> None:
        self.etcd = MemoryEtcd(world.server)
        self.guard = identity(RealDisk(directory), self.etcd)
        self.refused: list[BaseException] = []
        self.told: list[frozenset[str]] = []
        self.view = ClusterView(
            self.etcd, cluster_id=b"c" * 16, guard=self.guard, on_fatal=self.refused.append
        )

    async def start(self) -> ClusterView:
        await self.guard.join(ClusterSettings())
        await self.view.start()
        self.view.on_change(self.told.append)
        return self.view


@pytest.mark.parametrize("what", ["nothing", "another cluster", "another recovery"])
def test_i18_a_revision_that_ends_the_cluster_is_told_to_nobody(
    world: World, tmp_path: Path, what: str
) -> None:
    """It deletes all keys, and what stands then is somebody else's: no topic was deleted."""

    async def story() -> None:
        guarded = Guarded(world, tmp_path)
        world.server.txn([], [topic_put(), state_put(PartitionState(("n1",)))])
        view = await guarded.start()
        record = world.server.get(keys.CLUSTER)
        assert record is not None
        value, gone = keys.cluster_value(record.value), DeletePrefix("")
        if what == "another cluster":
            value = msgspec.structs.replace(value, cluster_id="ff" * 16)
        else:
            value = msgspec.structs.replace(value, recovery=1)
        if what != "nothing":
            gone = DeletePrefix(keys.TOPICS)
            world.server.txn([], [gone, Put(keys.CLUSTER, keys.encode(value))])
        else:
            world.server.txn([], [gone])
        await World.until(lambda: guarded.refused, within_ms=100)
        # Nor is what comes after it.
        world.server.txn([], [DeletePrefix(keys.PARTITIONS), Put("other", b"1")])
        await asyncio.sleep(3)
        assert guarded.told == [], "it believed that everything was deleted"
        assert view.topic("t") is not None
        assert [type(error) for error in guarded.refused] == [EtcdRefused]
        assert not view.reachable
        with pytest.raises(Unavailable):
            await view.is_gone(GONE)
        await view.stop()

    world.run(story)


def test_other_fields_of_the_cluster_record_may_change(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        guarded = Guarded(world, tmp_path)
        view = await guarded.start()
        record = world.server.get(keys.CLUSTER)
        assert record is not None
        value = msgspec.structs.replace(keys.cluster_value(record.value), min_insync_replicas=1)
        world.server.txn([], [Put(keys.CLUSTER, keys.encode(value)), topic_put()])
        await World.until(lambda: view.topic("t"))
        assert guarded.told == [frozenset({keys.CLUSTER, keys.topic_key("t")})]
        assert guarded.refused == []
        await view.stop()

    world.run(story)


def test_i18_a_list_without_the_cluster_record_is_not_taken(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        guarded = Guarded(world, tmp_path)
        world.server.txn([], [topic_put()])
        view = await guarded.start()
        guarded.etcd.unavailable = True
        await asyncio.sleep(0.5)
        world.server.txn([], [DeletePrefix("")])
        world.server.txn([], [Put("other", b"1")])
        world.server.compact(world.server.revision)
        # The probe asks a second later; the watch lists at once.
        guarded.etcd.unavailable = False
        await World.until(lambda: guarded.refused)
        await asyncio.sleep(3)
        assert guarded.told == [], "it believed that everything was deleted"
        assert view.topic("t") is not None
        await view.stop()

    world.run(story)


def test_i18_what_a_list_lacks_is_gone_once_etcd_was_confirmed(
    world: World, tmp_path: Path
) -> None:
    """That etcd was restored and is past the revision that was seen: the list alone does not show
    it."""

    async def story() -> None:
        guarded = Guarded(world, tmp_path)
        view = await guarded.start()
        backup = world.server.backup()
        world.server.txn([], [topic_put()])
        # It is remembered as seen written.
        await asyncio.sleep(3)
        guarded.told.clear()
        real, goes_on = guarded.etcd.watch, asyncio.Event()

        async def compacted(prefix: str, from_revision: int) -> AsyncIterator[Any]:
            await goes_on.wait()
            if not guarded.told:
                raise EtcdCompacted("the revision is gone")
            yield []
            await asyncio.Event().wait()

        guarded.etcd.watch = compacted  # type: ignore[method-assign]
        guarded.etcd.break_watches()
        await asyncio.sleep(1)
        world.server.restore(backup)
        for number in range(3):
            world.server.txn([], [Put("x", b"%d" % number)])
        goes_on.set()
        await World.until(lambda: guarded.refused or guarded.told)
        assert guarded.told == [], "it believed a store of another past"
        assert view.topic("t") is not None
        guarded.etcd.watch = real  # type: ignore[method-assign]
        await view.stop()

    world.run(story)


def test_i18_after_a_refusal_no_watch_is_believed(world: World) -> None:
    """What it shows then is of a history that is not ours."""

    async def story() -> None:
        node = world.node("n1")
        watches = 0

        async def refusing(prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
            nonlocal watches
            watches += 1
            if watches == 1:
                await refused.wait()
                raise EtcdRefused("etcd has another history than it had")
            yield [WatchEvent(keys.topic_key("t"), None, from_revision)]
            await asyncio.Event().wait()

        refused = asyncio.Event()
        world.server.txn([], [topic_put()])
        node.etcd.watch = refusing  # type: ignore[method-assign]
        view = node.view
        await view.start()
        told: list[frozenset[str]] = []
        view.on_change(told.append)
        refused.set()
        await asyncio.sleep(3)
        assert told == [], "it believed another history"
        assert view.topic("t") is not None
        assert watches == 1
        assert len(node.refused) == 1
        assert not view.reachable

    world.run(story)


def test_each_revision_is_told_by_itself(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        told: list[frozenset[str]] = []
        node.view.on_change(told.append)
        world.server.txn([], [Put("x", b"1"), Put("y", b"1")])
        world.server.txn([], [Put("x", b"2")])
        await asyncio.sleep(1)
        assert told == [frozenset({"x", "y"}), frozenset({"x"})]

    world.run(story)


def test_it_says_whether_etcd_is_reachable(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        assert node.view.etcd_status() == (world.server.revision, True)
        node.etcd.unavailable = True
        await asyncio.sleep(PROBE_MS / 1000 + 0.1)
        assert node.view.etcd_status()[1] is False
        node.etcd.unavailable = False
        await World.until(lambda: node.view.reachable)

    world.run(story)


def test_waiting_for_what_does_not_come_ends(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        with pytest.raises(TimeoutError):
            await node.view.wait_for(lambda view: False, timeout_ms=500)

    world.run(story)


class Counting:
    """Counts what is read of etcd, and can hold it up."""

    def __init__(self, node: Node) -> None:
        self.reads = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._range, self._get = node.etcd.range, node.etcd.get
        node.etcd.range = self.range  # type: ignore[method-assign]
        node.etcd.get = self.get  # type: ignore[method-assign]

    async def range(self, prefix: str) -> Any:
        self.reads += prefix == keys.TOPICS
        found = await self._range(prefix)
        await self.goes_on.wait()
        return found

    async def get(self, key: str) -> Any:
        self.reads += key.startswith(keys.TOPICS)
        return await self._get(key)


def test_many_who_ask_what_is_gone_share_one_read(world: World) -> None:
    """One abort of 2,000 parts of a deleted topic listed all topics 2,000 times."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put()])
        counting = Counting(node)
        answers = await asyncio.gather(*(node.view.is_gone(GONE) for _ in range(2_000)))
        assert all(answers)
        assert counting.reads == 1
        mixed = [TopicId(number.to_bytes(16, "big")) for number in range(500)]
        answers = await asyncio.gather(*(node.view.is_gone(one) for one in [*mixed, TOPIC]))
        assert answers == [True] * 500 + [False]
        assert counting.reads == 2
        assert await node.view.is_gone(GONE)
        assert counting.reads == 2, "gone is for ever"
        assert not await node.view.is_gone(TOPIC)
        assert counting.reads == 3, "what stands may be deleted in the next moment"

    world.run(story)


def test_i1_nobody_is_told_gone_by_a_read_that_was_sent_before_he_asked(world: World) -> None:
    """It may be older than the topic: its markers would count as done."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        counting = Counting(node)
        counting.goes_on.clear()
        earlier = asyncio.create_task(node.view.is_gone(GONE))
        await asyncio.sleep(1)
        # Read, and on its way back: now the topic is made, and somebody hears of it.
        world.server.txn([], [topic_put()])
        later = asyncio.create_task(node.view.is_gone(TOPIC))
        await asyncio.sleep(1)
        counting.goes_on.set()
        assert await earlier
        assert not await later

    world.run(story)


@pytest.mark.parametrize("how", ["wiped", "restored", "restored, and went on"])
def test_i18_nothing_is_gone_by_the_word_of_an_etcd_that_went_back(
    world: World, tmp_path: Path, how: str
) -> None:
    """The process notices that a second later: until then it would drop what was acknowledged, as
    of a topic that was deleted."""

    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        guard = identity(RealDisk(tmp_path), etcd)
        await guard.join(ClusterSettings())
        refused: list[BaseException] = []
        view = ClusterView(etcd, cluster_id=b"c" * 16, guard=guard, on_fatal=refused.append)
        await view.start()
        backup = world.server.backup()
        world.server.txn([], [topic_put()])
        # It remembers some of what it saw written.
        await asyncio.sleep(3)
        assert await view.is_gone(GONE)
        if how == "wiped":
            world.server.wipe()
        else:
            world.server.restore(backup)
        if how == "restored, and went on":
            # Its revision says nothing any more: what this process saw written there is missing.
            for number in range(3):
                world.server.txn([], [Put("x", b"%d" % number)])
        with pytest.raises(Unavailable):
            await view.is_gone(TOPIC)
        assert isinstance(refused[0], EtcdRefused), "it ends, and another one will not start"
        with pytest.raises(Unavailable):
            await view.exists(PartitionId(TOPIC, 0))
        await view.stop()

    world.run(story)


def test_who_cannot_wait_is_told_in_time_what_is_known(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put()])
        both = {GONE, TOPIC}
        assert await node.view.gone(both, timeout_ms=100) == {GONE}
        counting = Counting(node)
        counting.goes_on.clear()
        other = TopicId(b"o" * 16)
        async with asyncio.timeout(1):
            assert await node.view.gone({*both, other}, timeout_ms=100) == {GONE}
        node.etcd.unavailable = True
        assert await node.view.gone({GONE, TopicId(b"p" * 16)}, timeout_ms=100) == {GONE}
        assert await node.view.gone(set(), timeout_ms=100) == set()

    world.run(story)


def test_who_gives_up_asking_takes_the_answer_from_nobody(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        impatient, patient = (asyncio.create_task(node.view.is_gone(GONE)) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        assert await patient
        node.etcd.unavailable = True
        with pytest.raises(Unavailable):
            await node.view.is_gone(TopicId(b"o" * 16))
        node.etcd.unavailable = False
        assert await node.view.is_gone(TopicId(b"o" * 16))

    world.run(story)


def test_i29_who_asks_what_is_gone_does_not_wait_for_a_process_that_stops(world: World) -> None:
    """Its call stood there until its caller gave up."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        counting = Counting(node)
        counting.goes_on.clear()
        reading = asyncio.create_task(node.view.is_gone(GONE))
        await asyncio.sleep(1)
        waiting = asyncio.create_task(node.view.is_gone(TopicId(b"o" * 16)))
        await asyncio.sleep(1)
        await node.view.stop()
        late = asyncio.create_task(node.view.is_gone(TopicId(b"p" * 16)))
        done, _ = await asyncio.wait([reading, waiting, late], timeout=10)
        assert len(done) == 3, "nobody answers them any more"
        assert all(isinstance(one.exception(), Unavailable) for one in done)

    world.run(story)


def test_a_partition_is_denied_only_by_a_linearizable_read(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        assert not await node.view.exists(P0)
        # Written before its topic: not in the view, but in etcd.
        world.server.txn([], [state_put(PartitionState(("n1",)))])
        assert node.view.partition(P0) is None
        assert await node.view.exists(P0)
        assert not await node.view.exists(PartitionId(TOPIC, 1))

    world.run(story)


def test_gone_is_said_only_by_a_linearizable_read(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [topic_put()])
        # Not in the view yet, but in etcd.
        assert node.view.topic("t") is None
        assert not await node.view.is_gone(TOPIC)
        await node.view.wait_for(lambda view: view.topic("t") is not None, timeout_ms=1_000)
        world.server.txn([], [Delete(keys.topic_key("t"))])
        # In the view still, but not in etcd.
        assert node.view.topic("t") is not None
        assert await node.view.is_gone(TOPIC)

    world.run(story)


def test_a_process_says_its_rack_and_its_start_and_an_older_one_neither(world: World) -> None:
    async def story() -> None:
        view = (await world.node("n1").start(elections=False)).view
        newer = keys.BootValue("n2", "host", 1, ("coordinator",), "0.2", rack="north", started_ms=7)
        older = b'{"node_id":"n3","host":"host","port":2,"roles":[],"version":"0.1"}'
        world.server.txn(
            [], [Put(keys.boot_key(b"2"), keys.encode(newer)), Put(keys.boot_key(b"3"), older)]
        )
        await view.wait_for(lambda view: len(view.nodes()) == 3, timeout_ms=1_000)
        told = {node.node_id: (node.rack, node.started_ms) for node in view.nodes()}
        assert (told["n2"], told["n3"]) == (("north", 7), ("", 0))

    world.run(story)

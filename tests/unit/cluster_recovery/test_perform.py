"""In which etcd a recovery may go to work, what it counts up, and that nobody writes beside it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId
from oncelog_server.runtime.cluster_recovery.inventory import (
    DataDirectory,
    FoundReplica,
    RecoveryRefused,
    look,
)
from oncelog_server.runtime.cluster_recovery.perform import (
    Loss,
    Mode,
    Replace,
    Survey,
    perform,
    plan_of,
    survey,
)
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.identity import Remembered, Witness, load_remembered
from oncelog_server.runtime.etcd.keys import ClusterValue, PartitionState
from oncelog_server.runtime.etcd.memory import MemoryEtcd, MemoryEtcdServer
from oncelog_server.runtime.etcd.port import Put
from oncelog_server.runtime.replica.record import ReplicaRecord, TopicRecord, save_record
from oncelog_server.runtime.replicas import directory_of, put_aside
from oncelog_server.runtime.storage.identity import read_incarnation, save_incarnation
from oncelog_server.runtime.storage.journal import Journal
from tests.simulation.disk import FakeDisk
from tests.unit.cluster_recovery.test_plan import NOW, of_orders, replica

OURS, OTHERS = "aa" * 16, "bb" * 16
CONTROL = PartitionId(TRANSACTION_CONTROL_ID, 3)


class Etcd:
    """An etcd that stands, perhaps with a cluster's record in it."""

    def __init__(self, *, cluster_id: str = "", recovery: int = 0) -> None:
        self.server = MemoryEtcdServer()
        self.etcd = MemoryEtcd(self.server)
        if cluster_id:
            value = ClusterValue(cluster_id, 16, 16, 1, 10_000, recovery)
            self.put(keys.CLUSTER, keys.encode(value))

    @property
    def id(self) -> str:
        return f"{self.server.cluster_id:x}"

    def put(self, key: str, value: bytes) -> None:
        assert self.server.txn([], [Put(key, value)]).succeeded

    def survey(self, *directories: DataDirectory, replace: Replace = Replace.NOTHING) -> Survey:
        return asyncio.run(survey(directories, self.etcd, replace))


def directory(
    etcd: Etcd, *replicas: FoundReplica, node_id: str = "a", **remembered: Any
) -> DataDirectory:
    """One that knows this etcd as it stands, but for what is said otherwise."""
    known = Remembered(OURS, etcd.id, etcd.server.revision)
    known = msgspec.structs.replace(known, **remembered)
    return DataDirectory(f"/{node_id}", FakeDisk(), node_id, known, list(replicas))


def standing_etcd() -> Etcd:
    etcd = Etcd(cluster_id=OURS, recovery=1)
    state = PartitionState(replicas=("a",), isr=(NOW,), epoch=5)
    etcd.put(keys.partition_key(CONTROL), keys.encode(state))
    return etcd


def test_an_etcd_that_is_as_known_needs_no_recovery() -> None:
    etcd = standing_etcd()
    assert etcd.survey(directory(etcd, replica(), recovery=1)).mode is Mode.DONE


REWRITTEN = Witness("cluster", 2, hashlib.sha256(b"another past").hexdigest())


@pytest.mark.parametrize(
    ("epoch", "remembered"),
    [
        (5, {"revision": 99}),
        (6, {}),
        (5, {"witness": REWRITTEN}),
        (5, {"etcd_cluster_id": "1"}),
    ],
    ids=["an older revision", "an epoch that was logged", "another past", "another etcd"],
)
def test_i25_an_etcd_of_the_past_is_not_taken_for_the_one_that_was_known(
    epoch: int, remembered: dict[str, Any]
) -> None:
    etcd = standing_etcd()
    found = directory(etcd, replica(last_epoch=epoch), recovery=1, **remembered)
    with pytest.raises(RecoveryRefused, match="restored from a backup"):
        etcd.survey(found)
    surveyed = etcd.survey(found, replace=Replace.WHAT_IS_REFUSED)
    assert (surveyed.mode, surveyed.cluster.recovery) == (Mode.FOUND, 2)


def test_a_second_recovery_is_counted_also_where_etcd_is_empty() -> None:
    etcd = Etcd()
    surveyed = etcd.survey(directory(etcd, recovery=3), directory(etcd, node_id="b", recovery=1))
    assert (surveyed.mode, surveyed.cluster.recovery) == (Mode.FOUND, 4)


def test_directories_of_two_clusters_are_not_made_one() -> None:
    etcd = Etcd()
    foreign = directory(etcd, node_id="b", cluster_id=OTHERS)
    with pytest.raises(RecoveryRefused, match="different clusters"):
        etcd.survey(directory(etcd), foreign)


def test_what_is_in_doubt_is_not_lost_before_somebody_says_so() -> None:
    etcd = Etcd()
    surveyed = etcd.survey(directory(etcd, replica(noted="")))
    with pytest.raises(RecoveryRefused, match=r"may be lost(.|\n)*--accept-loss"):
        plan_of(surveyed, Loss.REFUSED)
    assert plan_of(surveyed, Loss.ACCEPTED).partitions[CONTROL].unclean_epoch


@pytest.mark.parametrize(
    ("mark", "is_older"),
    [
        (keys.DirectoryValue(revision=2, recovery=1), True),
        (keys.DirectoryValue(revision=100), True),
        (keys.DirectoryValue(revision=99), False),
        (None, False),
    ],
    ids=["took part before", "of before it", "as it was left", "nothing is known"],
)
def test_i25_a_directory_that_was_put_back_is_intact_in_no_recovery(
    mark: keys.DirectoryValue | None, is_older: bool
) -> None:
    """Its replicas have new names, on its disk and in etcd, and are in doubt."""
    etcd = Etcd(cluster_id=OURS, recovery=1)
    if mark is not None:
        etcd.put(keys.directory_key("a"), keys.encode(mark))
    found = directory(etcd, replica(), node_id="a", revision=99)
    disk, path = found.disk, directory_of(CONTROL)
    disk.make_directory(path)
    save_incarnation(disk, path, bytes.fromhex(NOW))
    surveyed = etcd.survey(found)
    assert surveyed.mode is Mode.JOIN
    if is_older:
        with pytest.raises(RecoveryRefused, match="put back from a backup"):
            plan_of(surveyed, Loss.REFUSED)
    asyncio.run(perform(surveyed, plan_of(surveyed, Loss.ACCEPTED), etcd.etcd, lambda: None))
    state = etcd.server.get(keys.partition_key(CONTROL))
    assert state is not None
    [in_sync] = keys.decode_partition(state.value).isr
    assert (in_sync != NOW) == is_older
    assert (read_incarnation(disk, path) or b"").hex() == in_sync
    assert load_remembered(disk).revision == etcd.server.revision


def test_a_recovery_from_the_beginning_forgets_what_directories_had_noted() -> None:
    """Of another etcd, or before a restore: revisions begin anew."""
    etcd = standing_etcd()
    etcd.put(keys.directory_key("a"), keys.encode(keys.DirectoryValue(revision=10**6)))
    found = directory(etcd, replica(last_epoch=6), recovery=1)
    surveyed = etcd.survey(found, replace=Replace.WHAT_IS_REFUSED)
    asyncio.run(perform(surveyed, plan_of(surveyed, Loss.ACCEPTED), etcd.etcd, lambda: None))
    assert etcd.server.get(keys.directory_key("a")) is None
    assert load_remembered(found.disk).revision == etcd.server.revision


# ------------------------------------------------------------------------ nobody writes beside it


class Meddled(MemoryEtcd):
    """Somebody else writes this key right before the first transaction that writes it too."""

    key = ""

    async def txn(self, compares: Sequence[Any], then: Sequence[Any]) -> Any:
        if any(isinstance(op, Put) and op.key == self.key for op in then):
            self.server.txn([], [Put(self.key, b"somebody else's")])
        return await super().txn(compares, then)


@pytest.mark.parametrize(
    "key", [keys.CLUSTER, keys.partition_key(CONTROL), keys.topic_key("orders")]
)
def test_a_recovery_overwrites_nothing_that_came_beside_it(key: str) -> None:
    etcd = Etcd()
    etcd.etcd = meddled = Meddled(etcd.server)
    meddled.key = key
    surveyed = etcd.survey(directory(etcd, replica(), of_orders(0)))
    with pytest.raises(RecoveryRefused, match="changed by somebody else meanwhile"):
        plan = plan_of(surveyed, Loss.REFUSED)
        asyncio.run(perform(surveyed, plan, meddled, lambda: None))
    found = etcd.server.get(key)
    assert found is not None
    assert found.value == b"somebody else's"


def test_a_directory_that_was_moved_by_hand_is_refused() -> None:
    etcd = Etcd()
    found = directory(etcd)
    moved = PartitionId(TRANSACTION_CONTROL_ID, 4)
    topic = TopicRecord("__transaction_control", 16, 1, {}, created_ms=0, version=0)
    record = ReplicaRecord(CONTROL.topic_id.hex(), CONTROL.number, NOW, 5, topic)
    found.disk.make_directory(directory_of(moved))
    save_record(found.disk, directory_of(moved), record)
    with pytest.raises(RecoveryRefused, match="move them back"):
        look(found, lambda partition: None)


def test_what_lies_in_orphans_is_read_and_left_as_it_is() -> None:
    found = directory(Etcd())
    disk, name = found.disk, directory_of(CONTROL)
    assert isinstance(disk, FakeDisk)
    disk.make_directory(name)
    Journal.open(disk, name).close()
    record = ReplicaRecord(CONTROL.topic_id.hex(), CONTROL.number, NOW, 5)
    save_record(disk, name, record)
    for target in ("orphans/c-3", "orphans/c-3.1"):
        disk.make_directory(target)
    disk.make_directory("orphans")
    put_aside(disk, name)
    before = sorted(disk.list(f"orphans/{name.rsplit('/', 1)[-1]}"))
    look(found, lambda partition: None)
    assert found.replicas == []
    [aside] = found.set_aside
    assert (aside.partition, aside.record, aside.last_epoch) == (CONTROL, record, 5)
    assert aside.path == f"/a/orphans/{name.rsplit('/', 1)[-1]}"
    assert len(aside.incarnation) == 32
    assert sorted(disk.list(f"orphans/{name.rsplit('/', 1)[-1]}")) == before
    [told] = plan_of(Etcd().survey(found), Loss.REFUSED).aside
    assert "set aside, as of epoch 5, synced to 0" in told.why

"""What etcd is told of the replicas that were found: one row per kind of replica."""

from __future__ import annotations

import msgspec
import pytest

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    CONTROL_PARTITIONS,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    TopicId,
)
from oncelog_server.runtime.cluster_recovery.choosing import EPOCH_MAX, RECOVERY_EPOCHS, Missing
from oncelog_server.runtime.cluster_recovery.inventory import FoundReplica, RecoveryRefused
from oncelog_server.runtime.cluster_recovery.plan import (
    VACANT,
    InEtcd,
    make_plan,
)
from oncelog_server.runtime.etcd.keys import PartitionState, TopicValue
from oncelog_server.runtime.leadership.rules import Fitness, fitness
from oncelog_server.runtime.replica.record import ReplicaRecord, TopicRecord
from oncelog_server.runtime.target import Candidate

ORDERS, OLD_ORDERS = TopicId(b"o" * 16), TopicId(b"p" * 16)
NOW, BEFORE = "ab" * 16, "cd" * 16
TOPIC = TopicRecord("orders", 2, 1, {"max.batch.bytes": "5"}, created_ms=7, version=1)
CONTROL = PartitionId(TRANSACTION_CONTROL_ID, 3)


def replica(
    partition: PartitionId = CONTROL,
    *,
    path: str = "/a",
    node_id: str = "a",
    noted: str = NOW,
    noted_epoch: int = 5,
    topic: TopicRecord | None = None,
    last_epoch: int = 5,
    damage: str = "",
) -> FoundReplica:
    record = None
    if noted:
        topic_id = partition.topic_id.hex()
        record = ReplicaRecord(topic_id, partition.number, noted, noted_epoch, topic)
    incarnation = "" if damage else NOW
    return FoundReplica(path, node_id, partition, record, incarnation, last_epoch, 9, damage)


def of_orders(number: int = 0, topic: TopicRecord = TOPIC, **changed: object) -> FoundReplica:
    return replica(PartitionId(ORDERS, number), topic=topic, **changed)  # type: ignore[arg-type]


def may_lead(state: PartitionState, last_epoch: int) -> bool:
    return fitness(state, Candidate(bytes.fromhex(NOW), last_epoch)) is Fitness.FIT


def test_i5_a_replica_that_lies_in_orphans_and_is_missed_is_told_of() -> None:
    """Its process took the loss of etcd for a deletion, and it is the only one."""
    aside = replica(path="/a/orphans/c-3")
    plan = make_plan([], InEtcd(), set_aside=[aside])
    assert [told.replica for told in plan.aside] == [aside]
    assert "epoch 5, synced to 9" in plan.aside[0].why
    assert "move it back to partitions/" in plan.aside[0].why
    assert plan.doubts == [], "a topic that was deleted lies there, too"
    assert plan.partitions[CONTROL] == VACANT, "nothing is taken from there"
    topic = make_plan([], InEtcd(), set_aside=[of_orders(path="/a/orphans/o-0")])
    assert ([told.replica.path for told in topic.aside], topic.topics) == (
        ["/a/orphans/o-0"],
        {},
    )


def test_what_lies_in_orphans_is_not_told_of_where_another_copy_is_in_place() -> None:
    """A damaged log was copied anew; a replica was moved to a node that is here, too."""
    for other in (copy("a"), copy("b")):
        found = [other, copy("c")]
        plan = make_plan(found, THREE, set_aside=[replica(path="/a/orphans/c-3")])
        assert plan.aside == []
    waiting = make_plan([copy("a")], THREE, set_aside=[replica(path="/a/orphans/c-3")])
    assert (waiting.aside, list(waiting.waiting)) == ([], [CONTROL])
    elsewhere = replica(path="/b/orphans/c-3", node_id="b")
    assert make_plan([copy("a")], THREE, set_aside=[elsewhere]).aside


@pytest.mark.parametrize(("logged", "noted"), [(5, 3), (3, 5)])
def test_a_sound_replica_leads_far_above_all_epochs(logged: int, noted: int) -> None:
    """Also above one that it won, and died before its first frame was durable."""
    plan = make_plan([replica(last_epoch=logged, noted_epoch=noted)], InEtcd())
    state = plan.partitions[CONTROL]
    assert (plan.doubts, state.epoch, state.unclean_epoch) == ([], 5 + RECOVERY_EPOCHS, 0)
    assert may_lead(state, 5)


@pytest.mark.parametrize("noted", [BEFORE, ""], ids=["another incarnation", "never led"])
def test_i19_a_replica_that_may_lack_records_skips_offsets_and_is_in_doubt(noted: str) -> None:
    plan = make_plan([replica(noted=noted)], InEtcd())
    (doubt,) = plan.doubts
    assert "may be lost" in doubt.why
    state = plan.partitions[CONTROL]
    assert may_lead(state, 5)
    # So the next leader of a control journal skips 2^32 offsets, and no TxId repeats.
    assert state.unclean_epoch == state.epoch > 5


@pytest.mark.parametrize("noted", [NOW, ""])
def test_a_damaged_replica_stays_offline_under_an_epoch_that_it_did_not_reach(noted: str) -> None:
    plan = make_plan([replica(noted=noted, damage="file 3", last_epoch=0)], InEtcd())
    (doubt,) = plan.doubts
    assert "file 3" in doubt.why
    state = plan.partitions[CONTROL]
    assert fitness(state, Candidate(b"fresh incarnation", 0)) is not Fitness.FIT
    assert state.epoch >= RECOVERY_EPOCHS
    # The incarnation that last led may, when a better copy of its directory is brought.
    assert may_lead(state, 5) == bool(noted)


def test_a_topic_comes_back_as_its_newest_memory_has_it_with_vacant_keys_for_the_rest() -> None:
    newer = msgspec.structs.replace(TOPIC, configs={}, version=2, partitions=3)
    plan = make_plan([of_orders(0), of_orders(1, newer)], InEtcd())
    assert plan.topics == {"orders": TopicValue(ORDERS.hex(), 3, 1, {}, 7, 2)}
    assert plan.partitions[PartitionId(ORDERS, 2)] == VACANT
    vacant = [p for p in plan.vacant if p.topic_id == ORDERS]
    assert vacant == [PartitionId(ORDERS, 2)]


def test_a_vacant_key_keeps_control_partitions_from_being_created_anew() -> None:
    plan = make_plan([replica()], InEtcd())
    control = [p for p in plan.partitions if p.topic_id == TRANSACTION_CONTROL_ID]
    assert len(control) == CONTROL_PARTITIONS
    assert len([p for p in plan.partitions if p.topic_id == CONSUMER_OFFSETS_ID]) == 16
    assert fitness(VACANT, Candidate(b"anybody", 0)) is not Fitness.FIT


def test_of_two_topics_with_one_name_the_newer_stays() -> None:
    older = msgspec.structs.replace(TOPIC, created_ms=6)
    left = replica(PartitionId(OLD_ORDERS, 0), topic=older)
    plan = make_plan([left, of_orders(0)], InEtcd())
    assert plan.topics["orders"].topic_id == ORDERS.hex()
    assert plan.left_out == [left]
    assert "newer topic" in plan.doubts[0].why


@pytest.mark.parametrize(("last_epoch", "doubts"), [(0, 0), (1, 1)])
def test_a_replica_of_no_known_topic_is_left_out_and_in_doubt_if_it_ever_led(
    last_epoch: int, doubts: int
) -> None:
    nameless = replica(PartitionId(ORDERS, 0), noted="", last_epoch=last_epoch)
    plan = make_plan([nameless], InEtcd())
    assert plan.left_out == [nameless]
    assert len(plan.doubts) == doubts


# ------------------------------------------------------------ beside what another run has written


def test_later_directories_fill_vacant_keys_and_leave_the_rest() -> None:
    first = make_plan([of_orders(0)], InEtcd())
    standing = InEtcd(first.partitions, first.topics)
    second = make_plan([of_orders(1, node_id="b", path="/b")], standing)
    assert {p: s.replicas for p, s in second.partitions.items()} == {PartitionId(ORDERS, 1): ("b",)}
    assert second.topics == {}
    # Once more, as after a crash: nothing is left to do.
    again = InEtcd({**first.partitions, **second.partitions}, first.topics)
    assert make_plan([of_orders(1, node_id="b", path="/b")], again).partitions == {}


def test_the_epoch_of_a_vacant_key_is_not_used_again() -> None:
    vacant = PartitionState(replicas=(), epoch=RECOVERY_EPOCHS + 9)
    plan = make_plan([replica(last_epoch=5)], InEtcd({CONTROL: vacant}, {}))
    assert plan.partitions[CONTROL].epoch == RECOVERY_EPOCHS + 9


def test_a_topic_that_was_made_meanwhile_under_the_name_keeps_it() -> None:
    standing = InEtcd({}, {"orders": TopicValue("ff" * 16, 1, 1, {}, 99)})
    plan = make_plan([of_orders(0)], standing)
    assert plan.topics == {}
    assert "newer topic in etcd" in plan.doubts[0].why


def test_a_newer_memory_of_the_settings_wins_over_what_an_earlier_run_wrote() -> None:
    first = make_plan([of_orders(0)], InEtcd())
    newer = msgspec.structs.replace(TOPIC, configs={}, version=2)
    plan = make_plan([of_orders(1, newer)], InEtcd(first.partitions, first.topics))
    assert plan.topics["orders"].configs == {}


def test_contradictions_are_refused() -> None:
    with pytest.raises(RecoveryRefused, match=r"/a and in /b.*copy"):
        make_plan([replica(), replica(path="/b", node_id="b")], InEtcd())
    held = InEtcd({CONTROL: PartitionState(replicas=("b",), epoch=1)}, {})
    with pytest.raises(RecoveryRefused, match=r"at node b.*copy"):
        make_plan([replica()], held)
    with pytest.raises(RecoveryRefused, match=f"the last is {EPOCH_MAX}"):
        make_plan([replica(last_epoch=EPOCH_MAX)], InEtcd())


# ------------------------------------------------------------------------------ several replicas

ABC = ("a", "b", "c")
THREE = InEtcd(min_insync_replicas=2)


def copy(
    node_id: str,
    *,
    last_epoch: int = 5,
    end: int = 9,
    replicas: tuple[str, ...] = ABC,
    revision: int = 1,
    is_intact: bool = True,
) -> FoundReplica:
    """The replica of a node, of three."""
    incarnation = node_id.encode().hex() * 16
    record = ReplicaRecord(
        CONTROL.topic_id.hex(),
        CONTROL.number,
        incarnation if is_intact else BEFORE,
        last_epoch,
        replicas=replicas,
        revision=revision,
    )
    return FoundReplica(f"/{node_id}", node_id, CONTROL, record, incarnation, last_epoch, end)


def leader_of(state: PartitionState) -> str:
    """The node of the one in sync."""
    (incarnation,) = state.isr
    return bytes.fromhex(incarnation)[:1].decode()


@pytest.mark.parametrize(
    ("found", "leads"),
    [
        ([copy("a"), copy("b", end=8), copy("c", end=7)], "a"),
        ([copy("a", end=99), copy("b", last_epoch=6, end=8)], "b"),
        ([copy("a", end=8), copy("c")], "c"),
    ],
    ids=["all", "a later epoch is more", "two of three"],
)
def test_i5_of_enough_intact_replicas_the_largest_leads(
    found: list[FoundReplica], leads: str
) -> None:
    plan = make_plan(found, THREE)
    state = plan.partitions[CONTROL]
    assert leader_of(state) == leads, "acknowledged records are lost"
    assert (state.replicas, state.unclean_epoch, plan.doubts, plan.waiting) == (ABC, 0, [], {})
    assert state.epoch == max(one.last_epoch for one in found) + RECOVERY_EPOCHS


def test_i5_with_too_few_intact_replicas_nobody_leads_until_others_come() -> None:
    first = make_plan([copy("a", end=3)], THREE)
    assert first.waiting == {CONTROL: (1, 2)}, "one of three may lack what was acknowledged"
    assert not may_lead(first.partitions[CONTROL], 5)
    standing = InEtcd(first.partitions, {}, min_insync_replicas=2)
    second = make_plan([copy("b", end=4)], standing)
    assert (second.waiting, leader_of(second.partitions[CONTROL])) == ({}, "b")
    assert second.partitions[CONTROL].epoch == 5 + RECOVERY_EPOCHS
    assert second.partitions[CONTROL].found == ()
    # The third one follows: nothing is left to be said of it.
    standing = InEtcd(second.partitions, {}, min_insync_replicas=2)
    assert CONTROL not in make_plan([copy("c", end=9)], standing).partitions


def test_i5_a_replica_that_was_emptied_proves_nothing() -> None:
    plan = make_plan([copy("a"), copy("b", end=1, is_intact=False)], THREE)
    assert plan.waiting == {CONTROL: (1, 2)}, "an emptied replica counts"


def test_i5_what_may_be_lost_is_said_where_the_others_are_given_up() -> None:
    plan = make_plan([copy("a")], THREE, Missing.GIVEN_UP)
    (doubt,) = plan.doubts
    assert "acknowledged records above 9 may be lost" in doubt.why
    state = plan.partitions[CONTROL]
    assert (leader_of(state), state.unclean_epoch) == ("a", state.epoch)


def test_what_earlier_runs_found_may_be_given_up_to() -> None:
    first = make_plan([copy("a")], THREE)
    standing = InEtcd(first.partitions, {}, min_insync_replicas=2)
    plan = make_plan([], standing, Missing.GIVEN_UP)
    assert leader_of(plan.partitions[CONTROL]) == "a"
    assert len(plan.doubts) == 1


def test_who_has_no_replica_any_more_is_left_out() -> None:
    """`c` was away while its replica was moved to `d`."""
    moved = ("a", "b", "d")
    found = [copy("a", replicas=moved, revision=7), copy("c", end=99, revision=3)]
    plan = make_plan(found, THREE)
    assert plan.left_out == found[1:]
    assert plan.waiting == {CONTROL: (1, 2)}

"""Who should lead a partition, and when it is handed over, as tables."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from oncelog_server.core.ids import BootId, PartitionId, TopicId
from oncelog_server.core.ports import NodeInfo
from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.leadership.preference import (
    BACK_OFF_MAX,
    BALANCED_MAX,
    PREFERENCE_PAUSE_MS,
    Balancing,
    Parting,
    is_missed,
    parting,
    pause_ms,
    staying,
)

REPLICAS = ("a", "b", "c")
ALL = ("ia", "ib", "ic")
AFTER_MS = 1_000


def node(node_id: str, *roles: str, leaving: bool = False) -> NodeInfo:
    return NodeInfo(node_id, BootId(b"x" * 16), "h", 1, roles, "0.1", leaving=leaving)


def test_staying_are_those_of_the_role_that_do_not_stop() -> None:
    nodes = [
        node("a", "coordinator"),
        node("b", "coordinator", leaving=True),
        node("c", "partition_leader"),
        # It stops, and its next process runs already.
        node("d", "coordinator", leaving=True),
        node("d", "coordinator"),
    ]
    assert staying(nodes, "coordinator") == {"a", "d"}


@pytest.mark.parametrize(
    ("what", "epoch", "isr", "own", "others", "pauses"),
    [
        ("the first one stands at once", 0, (), "a", REPLICAS, 0),
        ("the second one lets it go first", 0, (), "b", REPLICAS, 1),
        ("the third one both", 0, (), "c", REPLICAS, 2),
        ("who is dead, or stops, is not waited for", 4, ALL, "b", ("b", "c"), 0),
        ("... by the third one either", 4, ALL, "c", ("b", "c"), 1),
        ("with all in sync the first one can win", 4, ALL, "c", REPLICAS, 2),
        ("with a replica out of sync it may be the first one", 4, ("ib", "ic"), "c", REPLICAS, 0),
    ],
)
def test_who_goes_first_at_an_election(
    what: str, epoch: int, isr: tuple[str, ...], own: str, others: Collection[str], pauses: int
) -> None:
    state = PartitionState(REPLICAS, isr=isr, epoch=epoch)
    assert pause_ms(state, own, others) == pauses * PREFERENCE_PAUSE_MS, what


@pytest.mark.parametrize(
    ("what", "others", "in_sync", "then"),
    [
        ("both can take over", "bc", "bc", Parting.HAND_OVER),
        ("one of them restarted, and comes", "bc", "b", Parting.WAIT),
        ("nobody is in sync yet", "bc", "", Parting.WAIT),
        ("one is dead: nobody else will come", "b", "bc", Parting.HAND_OVER),
        ("the one that stays is behind", "b", "c", Parting.WAIT),
        ("all stop", "", "bc", Parting.KEEP),
        ("others of the role hold no replica", "xy", "", Parting.KEEP),
    ],
)
def test_what_a_leader_that_stops_does_with_a_partition(
    what: str, others: str, in_sync: str, then: Parting
) -> None:
    found = parting(
        REPLICAS, own="a", others=set(others), in_sync=set(in_sync), min_insync_replicas=2
    )
    assert found is then, what


def test_a_lone_replica_is_kept() -> None:
    assert (
        parting(("a",), own="a", others={"b", "c"}, in_sync=(), min_insync_replicas=2)
        is Parting.KEEP
    )


@pytest.mark.parametrize(
    ("what", "isr", "others", "missed"),
    [
        ("its leader drops it at once", ALL, "bc", True),
        ("as soon as the third one has caught up", ("ia", "ib"), "bc", True),
        ("it was dropped", ("ib", "ic"), "bc", False),
        ("it is needed for good: nobody replaces it", ("ia", "ib"), "b", False),
    ],
)
def test_when_a_follower_that_stops_waits_for_its_leaders(
    what: str, isr: tuple[str, ...], others: str, missed: bool
) -> None:
    state = PartitionState(REPLICAS, isr=isr, epoch=4)
    found = is_missed(state, own="a", incarnation="ia", others=set(others), min_insync_replicas=2)
    assert found is missed, what


def partition(number: int) -> PartitionId:
    return PartitionId(TopicId(b"t" * 16), number)


def test_leadership_is_handed_back_once_the_preferred_node_was_in_sync_for_a_while() -> None:
    balancing = Balancing(after_ms=AFTER_MS)
    assert balancing.due([(partition(0), 3)], 0) == []
    assert balancing.due([(partition(0), 3)], AFTER_MS - 1) == []
    assert balancing.due([(partition(0), 3)], AFTER_MS) == [partition(0)]


@pytest.mark.parametrize("between", [[], [(partition(0), 4)]], ids=["out of sync", "a new epoch"])
def test_what_comes_between_begins_the_wait_anew(between: list[tuple[PartitionId, int]]) -> None:
    balancing = Balancing(after_ms=AFTER_MS)
    balancing.due([(partition(0), 3)], 0)
    balancing.due(between, AFTER_MS - 1)
    assert balancing.due([(partition(0), 4)], AFTER_MS) == []
    assert balancing.due([(partition(0), 4)], 2 * AFTER_MS) == [partition(0)]


def test_a_few_at_a_time() -> None:
    balancing = Balancing(after_ms=AFTER_MS)
    could = [(partition(number), 1) for number in range(3 * BALANCED_MAX)]
    balancing.due(could, 0)
    assert balancing.due(could, AFTER_MS) == [place for place, _ in could[:BALANCED_MAX]]


def test_what_does_not_arrive_is_tried_less_and_less_often() -> None:
    balancing = Balancing(after_ms=AFTER_MS)
    tried, now_ms = [], 0
    # It comes back to us in another epoch, whenever it was handed over.
    for epoch in range(1, 11):
        balancing.due([(partition(0), epoch)], now_ms)
        begun_ms = now_ms
        while not balancing.due([(partition(0), epoch)], now_ms):
            now_ms += AFTER_MS
        tried.append((now_ms - begun_ms) // AFTER_MS)
    assert tried == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]
    assert tried[-1] == BACK_OFF_MAX
    balancing.arrived(partition(0))
    assert balancing.attempted() == []


def test_zero_never_hands_back() -> None:
    balancing = Balancing(after_ms=0)
    balancing.due([(partition(0), 3)], 0)
    assert balancing.due([(partition(0), 3)], 10**9) == []

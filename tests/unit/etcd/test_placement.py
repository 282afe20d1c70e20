"""Where new replicas go: apart, evenly, and the same for the same nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.runtime.etcd.placement import Holder, TooFewNodes, spread

LOADS = st.integers(0, 20)
# A few nodes, of which some hold more than others.
NODES = st.dictionaries(st.sampled_from([f"n{number}" for number in range(6)]), LOADS, min_size=1)
RACKED = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(8)]),
    st.sampled_from(["a", "b", "c"]),
    min_size=1,
)
PARTITIONS = st.integers(1, 40)
FACTORS = st.integers(1, 5)


def _between(counts: Counter[str], nodes: list[str]) -> int:
    """The difference between who has most and who has least."""
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


@given(PARTITIONS, FACTORS, NODES)
def test_i25_replicas_stand_on_different_nodes(
    partitions: int, factor: int, load: dict[str, int]
) -> None:
    holders = [Holder(node) for node in load]
    if factor > len(holders):
        with pytest.raises(TooFewNodes, match=f"{len(holders)} are alive"):
            spread(partitions, factor, holders, load)
        return
    placed = spread(partitions, factor, holders, load)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(load)


@given(PARTITIONS, FACTORS, NODES)
def test_a_topic_is_spread_evenly(partitions: int, factor: int, load: dict[str, int]) -> None:
    factor = min(factor, len(load))
    placed = spread(partitions, factor, [Holder(node) for node in load], load)
    held = Counter(node for replicas in placed for node in replicas)
    leads = Counter(replicas[0] for replicas in placed)
    assert _between(held, list(load)) <= 1
    assert _between(leads, list(load)) <= 1


@given(PARTITIONS, FACTORS, RACKED)
def test_i25_replicas_stand_in_as_many_racks_as_there_are(
    partitions: int, factor: int, racks: dict[str, str]
) -> None:
    factor = min(factor, len(racks))
    holders = [Holder(node, rack) for node, rack in racks.items()]
    size = Counter(racks.values())
    for replicas in spread(partitions, factor, holders, {}):
        used = Counter(racks[node] for node in replicas)
        assert len(used) == min(factor, len(size))
        # No rack has two more than another that had room.
        for rack, nodes in size.items():
            assert max(used.values()) <= used[rack] + 1 or used[rack] == nodes


@given(PARTITIONS, FACTORS, RACKED, st.randoms(use_true_random=False))
def test_the_same_nodes_give_the_same_answer(
    partitions: int, factor: int, racks: dict[str, str], chance: object
) -> None:
    factor = min(factor, len(racks))
    holders = [Holder(node, rack) for node, rack in racks.items()]
    again = list(holders)
    chance.shuffle(again)  # type: ignore[attr-defined]
    assert spread(partitions, factor, holders, {}) == spread(
        partitions, factor, [*again, again[0]], {}
    )


def test_who_holds_least_comes_first() -> None:
    holders = [Holder("n1"), Holder("n2"), Holder("n3")]
    placed = spread(4, 2, holders, {"n1": 7, "n2": 3})
    assert placed == [("n3", "n2"), ("n1", "n3"), ("n2", "n1"), ("n3", "n2")]

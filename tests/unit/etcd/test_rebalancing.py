"""Where replicas that stand already shall be: only what has to move does."""

from __future__ import annotations

from collections import Counter

import pytest

from oncelog_server.runtime.etcd.placement import Holder, TooFewNodes
from oncelog_server.runtime.etcd.rebalancing import balanced, drained, resized


def nodes(names: str, racks: str = "") -> list[Holder]:
    """Of one letter each."""
    return [Holder(name, racks[at] if racks else "") for at, name in enumerate(names)]


def test_a_node_is_drained_onto_those_that_hold_least() -> None:
    standing = {0: "ab", 1: "ca", 2: "bc", 3: "ab"}
    targets = drained(standing, "a", nodes("abcd"))
    assert targets == {0: ("d", "b"), 1: ("c", "d"), 3: ("c", "b")}, "places are kept"


def test_a_drained_node_is_replaced_in_its_own_rack() -> None:
    targets = drained({0: "ab"}, "a", nodes("abcd", "xyyx"))
    assert targets == {0: ("d", "b")}


def test_a_node_without_which_there_are_too_few_is_not_drained() -> None:
    with pytest.raises(TooFewNodes):
        drained({0: "abc"}, "a", nodes("abc"))


def test_copies_are_added_where_least_is_and_in_other_racks() -> None:
    targets = resized({0: "a", 1: "b"}, 3, nodes("abcd", "xxyz"))
    assert targets == {0: ("a", "c", "d"), 1: ("b", "c", "d")}


def test_who_goes_is_away_or_shares_a_rack_and_the_first_one_stays() -> None:
    assert resized({0: "abc"}, 2, nodes("ab", "xx")) == {0: ("a", "b")}, "c is away"
    assert resized({0: "abc"}, 2, nodes("abc", "xxy")) == {0: ("a", "c")}
    assert resized({0: "abc"}, 1, nodes("abc")) == {0: ("a",)}
    assert resized({0: "ab"}, 2, nodes("abc")) == {}


def test_new_nodes_get_their_share_and_no_more_moves_than_that() -> None:
    standing = {number: "ab" if number % 2 else "ba" for number in range(6)}
    targets = balanced(standing, nodes("abc"))
    after = {**{n: tuple(r) for n, r in standing.items()}, **targets}
    held = Counter(node for replicas in after.values() for node in replicas)
    assert held == {"a": 4, "b": 4, "c": 4}
    assert len(targets) == 4, "a replica each"


def test_balance_does_not_put_two_copies_into_one_rack() -> None:
    standing = dict.fromkeys(range(4), "ab")
    assert balanced(standing, nodes("abc", "xyy")) == {0: ("a", "c"), 1: ("a", "c")}

"""How partitions are shared out: everybody gets as much as can be, and as little as can be moves.
What is best is found again here, by trying all there is, or by looking for a way to do better."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.assignors import ASSIGNORS, assign, require_assignor
from oncelog_server.offset_manager.fewest_moves import POSITIONS_MAX
from oncelogpb.errors import InvalidArgument

Topics = dict[TopicId, int]
Subscriptions = dict[str, frozenset[TopicId]]
Assignment = Mapping[PartitionId, str]

TOPICS: Final = [TopicId(name.encode() * 16) for name in "abcd"]
A, B, C, D = TOPICS
MEMBERS: Final = ["m1", "m2", "m3", "m4", "m5"]
NAMES: Final = st.sampled_from(sorted(ASSIGNORS))


def _topics(most: int) -> st.SearchStrategy[Topics]:
    return st.dictionaries(st.sampled_from(TOPICS), st.integers(0, most), min_size=1)


def _subscriptions(members: list[str]) -> st.SearchStrategy[Subscriptions]:
    some = st.frozensets(st.sampled_from(TOPICS))
    return st.dictionaries(st.sampled_from(members), some, min_size=1)


def _before(members: list[str], most: int) -> st.SearchStrategy[dict[PartitionId, str]]:
    """Members and partitions in it may be gone."""
    partitions = [PartitionId(topic, number) for topic in TOPICS for number in range(most + 1)]
    owners = st.sampled_from([*members, "gone", ""])
    return st.lists(owners, min_size=len(partitions), max_size=len(partitions)).map(
        lambda chosen: {
            partition: owner for partition, owner in zip(partitions, chosen, strict=True) if owner
        }
    )


def _all(topics: Topics) -> list[PartitionId]:
    return [
        PartitionId(topic, number) for topic in sorted(topics) for number in range(topics[topic])
    ]


def _loads(assignment: Assignment, members: Subscriptions) -> dict[str, int]:
    counts = Counter(assignment.values())
    return {member: counts[member] for member in members}


def _moves(before: Assignment, after: Assignment, members: Subscriptions) -> int:
    """How many members that are still there, and may still have it, lose something."""
    return sum(
        1
        for partition, member in after.items()
        if before.get(partition, member) != member
        and partition.topic_id in members.get(before[partition], ())
    )


# --------------------------------------------------------------------------------------- complete


@given(NAMES, _topics(6), _subscriptions(MEMBERS), _before(MEMBERS, 7))
def test_each_partition_has_one_owner_that_subscribes_to_it(
    name: str, topics: Topics, members: Subscriptions, before: dict[PartitionId, str]
) -> None:
    after = assign(name, members, topics, before)
    wanted = {topic for some in members.values() for topic in some}
    assert list(after) == [partition for partition in _all(topics) if partition.topic_id in wanted]
    for partition, member in after.items():
        assert partition.topic_id in members[member]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_what_is_gone_is_given_to_nobody(name: str) -> None:
    """The subscription of m1 to b, the member m2, the partition a/2, the topic c."""
    members = {"m1": frozenset([A]), "m3": frozenset([A, B])}
    before = {
        PartitionId(A, 0): "m1",
        PartitionId(A, 1): "m2",
        PartitionId(A, 2): "m1",
        PartitionId(B, 0): "m1",
        PartitionId(C, 0): "m3",
    }
    after = assign(name, members, {A: 2, B: 1}, before)
    assert after[PartitionId(A, 0)] == "m1"
    assert after[PartitionId(B, 0)] == "m3"
    assert list(after) == _all({A: 2, B: 1})


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match="no assignor 'sticky'; ask for range or uniform"):
        assign("sticky", {}, {}, {})
    with pytest.raises(InvalidArgument):
        require_assignor("")
    require_assignor("uniform")


# ------------------------------------------------------------------------------ uniform: balance


def _chain_that_eases(assignment: Assignment, members: Subscriptions) -> str | None:
    """From a member to one that has two less, each giving the next one a partition."""
    loads = _loads(assignment, members)
    takers = {
        member: {
            taker
            for partition, owner in assignment.items()
            if owner == member
            for taker in members
            if partition.topic_id in members[taker]
        }
        for member in members
    }
    for first in members:
        reached, front = {first}, [first]
        while front:
            for taker in takers[front.pop()] - reached:
                if loads[taker] <= loads[first] - 2:
                    return f"{first} has {loads[first]}, {taker} has {loads[taker]}"
                reached.add(taker)
                front.append(taker)
    return None


@given(_topics(12), _subscriptions(MEMBERS), _before(MEMBERS, 12))
def test_uniform_eases_whoever_can_be_eased(
    topics: Topics, members: Subscriptions, before: dict[PartitionId, str]
) -> None:
    after = assign("uniform", members, topics, before)
    assert _chain_that_eases(after, members) is None


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), _before(MEMBERS, 40))
def test_uniform_gives_equal_members_as_much_but_for_one(
    a: int, b: int, count: int, before: dict[PartitionId, str]
) -> None:
    members = {member: frozenset([A, B]) for member in MEMBERS[:count]}
    loads = _loads(assign("uniform", members, {A: a, B: b}, before), members).values()
    assert max(loads) - min(loads) <= 1


def test_uniform_eases_a_member_over_another_one() -> None:
    """m1 alone reads a; m3, who comes, may have nothing that m1 has. m2 stands between them."""
    members = {"m1": frozenset([A, B]), "m2": frozenset([B, C]), "m3": frozenset([C])}
    before = {
        **{PartitionId(A, number): "m1" for number in range(2)},
        PartitionId(B, 0): "m1",
        **{PartitionId(C, number): "m2" for number in range(3)},
    }
    after = assign("uniform", members, {A: 2, B: 1, C: 3}, before)
    assert sorted(_loads(after, members).items()) == [("m1", 2), ("m2", 2), ("m3", 2)]
    assert _moves(before, after, members) == 3


def test_uniform_shares_out_each_topic_where_all_is_new() -> None:
    members = {member: frozenset([A, B]) for member in MEMBERS[:3]}
    after = assign("uniform", members, {A: 6, B: 9}, {})
    for topic, each in ((A, 2), (B, 3)):
        owners = Counter(owner for partition, owner in after.items() if partition.topic_id == topic)
        assert owners == {"m1": each, "m2": each, "m3": each}


def test_uniform_gives_away_some_of_each_topic() -> None:
    members = {member: frozenset([A, B]) for member in MEMBERS[:2]}
    topics = {A: 4, B: 4}
    after = assign("uniform", members, topics, dict.fromkeys(_all(topics), "m1"))
    assert sorted(partition.topic_id for partition in after if after[partition] == "m2") == [
        *[A, A],
        *[B, B],
    ]


# ----------------------------------------------------------------------------- uniform: stickiness


def _possible(topics: Topics, members: Subscriptions) -> Iterator[dict[PartitionId, str]]:
    """Every assignment that there is."""
    owners = {
        partition: [member for member in members if partition.topic_id in members[member]]
        for partition in _all(topics)
    }
    wanted = [partition for partition in owners if owners[partition]]
    for chosen in product(*(owners[partition] for partition in wanted)):
        yield dict(zip(wanted, chosen, strict=True))


@settings(max_examples=300)
@given(
    _topics(2).filter(lambda topics: sum(topics.values()) <= 6),
    _subscriptions(MEMBERS[:4]),
    _before(MEMBERS[:4], 2),
)
def test_uniform_moves_the_fewest_of_all_that_are_as_equal(
    topics: Topics, members: Subscriptions, before: dict[PartitionId, str]
) -> None:
    best = min(
        (
            sorted(_loads(one, members).values(), reverse=True),
            _moves(before, one, members),
        )
        for one in _possible(topics, members)
    )
    after = assign("uniform", members, topics, before)
    loads = sorted(_loads(after, members).values(), reverse=True)
    assert (loads, _moves(before, after, members)) == best


def test_uniform_undoes_what_turned_out_to_be_needless() -> None:
    """a/1 has to leave m2 only as long as b/0, which m3 alone lacks, is still there."""
    members = {"m1": frozenset([A, B]), "m2": frozenset([A, B, C]), "m3": frozenset([B])}
    before = {PartitionId(A, 1): "m2", PartitionId(B, 0): "m2"}
    after = assign("uniform", members, {A: 2, B: 1, C: 1}, before)
    assert sorted(_loads(after, members).items()) == [("m1", 1), ("m2", 2), ("m3", 1)]
    assert _moves(before, after, members) == 1


def test_uniform_finds_other_moves_where_those_are_fewer() -> None:
    """None of two moves can be left out; another one does it alone."""
    members = {"m1": frozenset([A, D]), "m2": frozenset([C, D]), "m3": frozenset(TOPICS)}
    before = {
        PartitionId(A, 1): "m3",
        PartitionId(B, 1): "m3",
        PartitionId(D, 0): "m3",
        PartitionId(D, 1): "m1",
    }
    after = assign("uniform", members, {A: 2, B: 2, C: 1, D: 2}, before)
    assert sorted(_loads(after, members).values()) == [2, 2, 3]
    assert _moves(before, after, members) == 1


@given(_topics(12), _subscriptions(MEMBERS), _before(MEMBERS, 12))
def test_nothing_moves_where_nothing_changed(
    topics: Topics, members: Subscriptions, before: dict[PartitionId, str]
) -> None:
    for name in ASSIGNORS:
        after = assign(name, members, topics, before)
        assert assign(name, members, topics, after) == after


@given(_topics(20), st.integers(1, 4))
def test_who_joins_takes_from_others_and_nothing_moves_among_them(
    topics: Topics, count: int
) -> None:
    members = {member: frozenset(TOPICS) for member in MEMBERS[:count]}
    before = assign("uniform", members, topics, {})
    after = assign("uniform", {**members, "new": frozenset(TOPICS)}, topics, before)
    for partition, member in after.items():
        assert member in (before[partition], "new")


@given(_topics(20), st.integers(2, 5), st.integers(0, 4))
def test_what_moves_when_one_leaves_is_what_it_had(topics: Topics, count: int, which: int) -> None:
    members = {member: frozenset(TOPICS) for member in MEMBERS[:count]}
    before = assign("uniform", members, topics, {})
    gone = MEMBERS[which % count]
    del members[gone]
    after = assign("uniform", members, topics, before)
    for partition, member in after.items():
        assert before[partition] in (member, gone)


@given(_topics(20), st.integers(1, 5), st.integers(1, 9))
def test_partitions_that_are_added_go_where_least_is(
    topics: Topics, count: int, added: int
) -> None:
    members = {member: frozenset(TOPICS) for member in MEMBERS[:count]}
    before = assign("uniform", members, topics, {})
    more = {topic: number + added for topic, number in topics.items()}
    assert _moves(before, assign("uniform", members, more, before), members) == 0


# ------------------------------------------- uniform: stickiness where each subscribes differently


def _part_that_could_be_left_out(
    before: Assignment, after: Assignment, members: Subscriptions
) -> list[str] | None:
    """Moves that could be undone and leave the shares as they are but for who has which: in a
    circle, or back to a member from one that has one more."""
    loads = _loads(after, members)
    back: dict[str, set[str]] = {}
    for partition, member in after.items():
        owner = before.get(partition, member)
        if owner != member and partition.topic_id in members.get(owner, ()):
            back.setdefault(member, set()).add(owner)

    for first in back:
        ways = [[first]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for owner in back.get(way[-1], ()):
                if owner == first or loads[owner] == loads[first] - 1:
                    return [*way, owner]
                if owner not in seen:
                    seen.add(owner)
                    ways.append([*way, owner])
    return None


@pytest.mark.parametrize("seed", range(4))
def test_where_all_subscribe_differently_no_part_of_the_moves_could_be_left_out(seed: int) -> None:
    chance = random.Random(seed)
    topics = {TopicId(number.to_bytes(16, "big")): chance.randint(0, 8) for number in range(120)}
    members = {
        f"m{number:03}": frozenset(chance.sample(sorted(topics), chance.randint(2, 8)))
        for number in range(120)
    }
    assert len(members) * len(topics) > POSITIONS_MAX, "too much for the fewest moves"
    subscribers = {
        topic: [member for member in members if topic in members[member]] for topic in topics
    }
    before = {
        partition: chance.choice(subscribers[partition.topic_id])
        for partition in _all(topics)
        if subscribers[partition.topic_id]
    }
    after = assign("uniform", members, topics, before)
    assert _moves(before, after, members) > 0
    assert _chain_that_eases(after, members) is None
    assert _part_that_could_be_left_out(before, after, members) is None


# ----------------------------------------------------------------------------------------- range


def test_range_gives_neighbours_and_the_same_numbers_of_topics_of_one_size() -> None:
    """The example of Kafka's RangeAssignor."""
    members = {"m2": frozenset([A, B]), "m1": frozenset([A, B])}
    after = assign("range", members, {A: 3, B: 3}, {})
    assert after == {
        PartitionId(A, 0): "m1",
        PartitionId(A, 1): "m1",
        PartitionId(A, 2): "m2",
        PartitionId(B, 0): "m1",
        PartitionId(B, 1): "m1",
        PartitionId(B, 2): "m2",
    }


def test_range_puts_static_members_first_in_the_order_of_their_instances() -> None:
    """Whose member ids are others with each restart."""
    members = {member: frozenset([A]) for member in ("m1", "m2", "m3", "m4")}
    static = {"m4": "north", "m3": "south"}
    after = assign("range", members, {A: 4}, {}, static)
    assert [after[PartitionId(A, number)] for number in range(4)] == ["m4", "m3", "m1", "m2"]
    restarted = {**{m: members[m] for m in ("m1", "m2", "m4")}, "m0": frozenset([A])}
    again = assign("range", restarted, {A: 4}, {}, {"m4": "north", "m0": "south"})
    assert [again[PartitionId(A, number)] for number in range(4)] == ["m4", "m0", "m1", "m2"]


@given(_topics(12), _subscriptions(MEMBERS))
def test_range_gives_each_subscriber_of_a_topic_neighbours(
    topics: Topics, members: Subscriptions
) -> None:
    after = assign("range", members, topics, {})
    for topic, count in topics.items():
        subscribers = sorted(member for member in members if topic in members[member])
        owners = [after.get(PartitionId(topic, number)) for number in range(count)]
        if subscribers:
            each, more = divmod(count, len(subscribers))
            assert owners == [
                member
                for index, member in enumerate(subscribers)
                for _ in range(each + (index < more))
            ]


# ----------------------------------------------------------------------------------- determinism


@given(
    NAMES,
    _topics(6),
    _subscriptions(MEMBERS),
    _before(MEMBERS, 7),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_it_is_told_makes_no_difference(
    name: str,
    topics: Topics,
    members: Subscriptions,
    before: dict[PartitionId, str],
    chance: random.Random,
) -> None:
    told = assign(name, members, topics, before)
    others: list[list[tuple[object, object]]] = [
        list(mapping.items()) for mapping in (members, topics, before)
    ]
    for items in others:
        chance.shuffle(items)
    again = assign(name, *(dict(items) for items in others))  # type: ignore[arg-type]
    assert list(again.items()) == list(told.items())


@pytest.mark.parametrize("seed", range(10))
def test_the_hashes_of_ids_make_no_difference(seed: int) -> None:
    """Other ids in the same order are other hashes, as in a process with another seed of them."""
    chance = random.Random(seed)
    topics = {TopicId(bytes([number])): chance.randint(0, 5) for number in range(20)}
    members = {f"m{number}": frozenset(chance.sample(sorted(topics), 5)) for number in range(20)}
    for name in ASSIGNORS:
        told = assign(name, members, topics, {})
        again = assign(
            name,
            {member: frozenset(map(_other, some)) for member, some in members.items()},
            {_other(topic): count for topic, count in topics.items()},
            {},
        )
        assert again == {
            PartitionId(_other(partition.topic_id), partition.number): member
            for partition, member in told.items()
        }


def _other(topic: TopicId) -> TopicId:
    return TopicId(topic + b"other")

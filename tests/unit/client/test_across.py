"""Transactions are put together over several partitions: whole, each once, in the order of their
groups, whatever comes first."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog._core import across as module
from oncelog._core.across import GIVEN_KEPT, Across, Standing, Told
from oncelog._core.beyond import decode, encode
from oncelog._core.routing import PartitionKey
from tests.unit.client.across_world import AHEAD_MAX, SIZE, Cluster, Reader, key, unit_of

A, B, C = key(0), key(1), key(2)
STRANGER = key(9)


def t(number: int, group: int = 0) -> int:
    """A TxId."""
    return (group << 48) + number


class Scene:
    def __init__(self, *partitions: PartitionKey) -> None:
        self.across = Across(lambda part: None)
        self.standings = {place: Standing(1, 0, ()) for place in partitions}
        self.across.follow(self.standings)
        self.next = dict.fromkeys(partitions, 0)

    def read(self, place: PartitionKey, *tx_ids: int) -> None:
        edition = self.standings[place].edition
        assert edition is not None
        for tx_id in tx_ids:
            self.across.add(unit_of(place, tx_id, self.next[place], edition=edition))
            self.next[place] += 1

    def tell(
        self, tx_id: int, place: int, *participants: PartitionKey, late: PartitionKey | None = None
    ) -> None:
        gathered = self.across.untold[tx_id]
        unreadable = frozenset([late] if late is not None else ())
        self.across.learn(gathered, Told(place, frozenset(participants), unreadable))

    def again(self, place: PartitionKey, position: int, edition: int | None) -> None:
        self.standings[place] = Standing(edition, position, ())
        self.across.follow(self.standings)
        self.next[place] = position

    def given(self) -> list[tuple[int, str]]:
        """TxIds, with their partitions."""
        found = []
        while (taken := self.across.take()) is not None:
            gathered, _ = taken
            numbers = "".join(str(place.number) for place in sorted(gathered.units))
            found.append((gathered.tx_id, numbers))
        return found


def test_i3_a_transaction_is_given_when_all_its_parts_are_there() -> None:
    scene = Scene(A, B)
    scene.read(A, t(1))
    assert scene.given() == []
    scene.tell(t(1), 5, A, B)
    assert scene.given() == []
    scene.read(B, t(1))
    assert scene.given() == [(t(1), "01")]


def test_parts_in_partitions_that_are_not_read_are_not_waited_for() -> None:
    scene = Scene(A, B)
    scene.read(A, t(1))
    scene.tell(t(1), 5, A, STRANGER)
    assert scene.given() == [(t(1), "0")]


def test_i11_the_transactions_of_a_group_come_in_the_order_of_their_commits() -> None:
    scene = Scene(A, B, C)
    scene.read(B, t(2))
    # It began later, and was committed earlier.
    scene.read(A, t(9))
    # Both are complete but for one part of the earlier one; they share no partition.
    scene.tell(t(2), 6, B)
    scene.tell(t(9), 5, A, C)
    assert scene.given() == []
    scene.read(C, t(9))
    assert scene.given() == [(t(9), "02"), (t(2), "1")]


def test_i11_what_was_not_told_yet_holds_back_what_lies_behind_it() -> None:
    scene = Scene(A, B)
    scene.read(A, t(1), t(2))
    scene.tell(t(2), 6, A)
    assert scene.given() == []
    scene.tell(t(1), 5, A)
    assert scene.given() == [(t(1), "0"), (t(2), "0")]


def test_groups_that_partitions_show_in_different_orders_do_not_wait_for_each_other() -> None:
    one, other = t(1, group=0), t(1, group=1)
    scene = Scene(A, B)
    scene.read(A, one, other)
    scene.read(B, other, one)
    scene.tell(one, 5, A, B)
    scene.tell(other, 5, A, B)
    assert sorted(scene.given()) == [(one, "01"), (other, "01")]


def test_i14_a_position_stays_before_what_waits_and_says_what_was_given_beyond() -> None:
    one, other = t(1, group=3), t(1, group=7)
    scene = Scene(A, B)
    scene.read(A, one, other, 0)
    scene.tell(one, 5, A, B)
    scene.tell(other, 5, A)
    taken = scene.across.take()
    assert taken is not None
    ((partition, position, beyond),) = taken[1]
    assert (partition, position, beyond) == (A, 0, ((7, 2),))
    # Plain records come when all before them was given.
    assert scene.given() == []
    scene.read(B, one)
    taken = scene.across.take()
    assert taken is not None
    assert [tuple(move) for move in sorted(taken[1])] == [(A, 2, ()), (B, 1, ())]
    assert scene.given() == [(0, "0")]


def test_i21_what_was_given_beyond_a_position_is_not_given_again() -> None:
    scene = Scene(A)
    scene.standings = {A: Standing(2, 0, ((7, 2),))}
    scene.across.follow(scene.standings)
    scene.read(A, t(1, group=3), t(1, group=7), t(2, group=7))
    assert set(scene.across.untold) == {t(1, group=3), t(2, group=7)}
    scene.tell(t(1, group=3), 5, A)
    scene.tell(t(2, group=7), 6, A)
    assert sorted(scene.given()) == [(t(1, group=3), "0"), (t(2, group=7), "0")]


def test_i31_a_part_that_cannot_come_any_more_is_not_waited_for() -> None:
    """It was removed, or lies before where reading began: something later of its group came there,
    or all is read up to where it would lie."""
    scene = Scene(A, B)
    scene.read(A, t(1), t(3))
    scene.read(B, t(2))
    scene.tell(t(1), 5, A, B)
    scene.tell(t(3), 8, A, B)
    assert scene.given() == []
    scene.tell(t(2), 6, B)
    assert scene.given() == [(t(1), "0"), (t(2), "1")]
    ((waiting, missing),) = scene.across.held_up()
    assert (waiting.tx_id, missing) == (t(3), [B])
    waiting.ends[B] = 2
    assert scene.given() == []
    scene.read(B, 0)
    assert scene.given() == [(0, "1"), (t(3), "0")]


def test_i31_a_partition_that_goes_is_not_waited_for() -> None:
    scene = Scene(A, B)
    scene.read(A, t(1))
    scene.tell(t(1), 5, A, B)
    assert scene.given() == []
    del scene.standings[B]
    scene.across.follow(scene.standings)
    assert scene.given() == [(t(1), "0")]


def test_a_paused_partition_is_waited_for() -> None:
    scene = Scene(A, B)
    scene.read(A, t(1))
    scene.tell(t(1), 5, A, B)
    scene.again(B, 0, None)
    assert scene.given() == []
    scene.again(B, 0, 2)
    scene.read(B, t(1))
    assert scene.given() == [(t(1), "01")]


def test_i14_what_was_gathered_of_a_position_that_is_not_any_more_is_dropped() -> None:
    scene = Scene(A, B)
    scene.read(A, t(1), t(2))
    scene.read(B, t(1))
    scene.tell(t(1), 5, A, B)
    scene.again(A, 1, 2)
    assert scene.given() == []
    scene.read(A, t(2))
    scene.tell(t(2), 6, A)
    # What is in A of the first one lies before where it is read now.
    assert scene.given() == [(t(1), "1"), (t(2), "0")]


def test_i11_a_part_that_an_operator_exposed_late_stops_nobody() -> None:
    """It stands behind transactions of its group that were committed later."""
    scene = Scene(A, B)
    scene.read(A, t(2), t(1))
    scene.read(B, t(1), t(2))
    scene.tell(t(1), 5, A, B)
    scene.tell(t(2), 6, A, B)
    assert scene.given() == [(t(1), "1"), (t(2), "01"), (t(1), "0")]


def test_i28_who_reads_ahead_is_held_back_where_nobody_waits_for_a_part() -> None:
    scene = Scene(A, B, C)
    scene.read(A, t(1), t(2), t(3))
    scene.read(C, t(4, group=1), t(5, group=1))
    for number in (1, 2, 3):
        scene.tell(t(number), number, A, B)
    scene.tell(t(4, group=1), 4, C, A)
    assert scene.across.far_ahead(1_500) == {C}
    assert scene.across.far_ahead(10_000) == set()
    scene.read(A, t(4, group=1))
    assert scene.given() == [(t(4, group=1), "02")]
    assert scene.across.far_ahead(1_500) == {A}


@pytest.mark.parametrize("beyond", [(), ((0, 5),), ((3, 7), (15, 1 << 40))])
@pytest.mark.parametrize("rest", ["", "oncelog-buffered/1 1 2 3"])
def test_what_was_given_beyond_a_position_travels_as_its_metadata(
    beyond: tuple[tuple[int, int], ...], rest: str
) -> None:
    assert decode(encode(beyond, rest)) == (beyond, rest)


@pytest.mark.parametrize("text", ["", "mine", "oncelog-across/1", "oncelog-across/1 3:x", "x 1:2"])
def test_metadata_that_say_something_else_are_left_alone(text: str) -> None:
    assert decode(text) == ((), text)


def test_i28_what_was_given_behind_a_front_that_waits_costs_nothing() -> None:
    first, second = key(0), key(1)
    across = Across(lambda part: None)
    across.follow({place: Standing(1, 0, ()) for place in (first, second)})
    waits = 1
    across.add(unit_of(first, waits, 0))
    both = frozenset([first, second])
    across.learn(across.untold[waits], Told(1, both, frozenset([second])))
    for number in range(1, 1_000):
        tx_id = (1 << 48) + number
        across.add(unit_of(first, tx_id, number))
        across.learn(across.untold[tx_id], Told(number, frozenset([first]), frozenset()))
        taken = across.take()
        assert taken is not None
        assert taken[0].tx_id == tx_id
        assert taken[1] == [(first, 0, ((1, number + 1),))]
    assert len(across._lines[first].entries) <= GIVEN_KEPT + 4
    across.add(unit_of(second, waits, 0))
    taken = across.take()
    assert taken is not None
    assert taken[0].tx_id == waits
    assert (first, 1_000, ()) in taken[1], "the position is behind all of them"


@pytest.fixture(autouse=True, scope="module")
def little_kept() -> Iterator[None]:
    """What was given is thrown together soon, so that the walks below meet that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GIVEN_KEPT", 1)
        yield


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_i3_i11_i21_each_transaction_comes_whole_and_once_in_any_order_of_everything(
    seed: int,
) -> None:
    chance = random.Random(seed)
    cluster = Cluster(
        chance,
        partitions=chance.randint(1, 4),
        groups=chance.randint(1, 3),
        count=chance.randint(1, 25),
    )
    reader = Reader(cluster, cluster.logs)
    places = list(cluster.logs)
    trouble = chance.choice([0.0, 0.02, 0.1])
    for _ in range(chance.randint(0, 400)):
        place = chance.choice(places)
        log = cluster.logs[place]
        match chance.randrange(8):
            case 0 | 1:
                log.readable = min(len(log.units), log.readable + chance.randint(1, 4))
            case 2 | 3:
                reader.read(place)
            case 4 if reader.across.untold:
                reader.ask(chance.choice(list(reader.across.untold)))
            case 5:
                reader.take()
            case 6:
                reader.ask_again()
            case 7 if chance.random() < 0.3:
                reader.commit()
        if chance.random() < trouble:
            match chance.randrange(3):
                case 0:
                    reader.abort()
                case 1:
                    reader.restart()
                case 2:
                    reader.pause(place)
    # All becomes well.
    for place in list(reader.paused):
        reader.pause(place)
    for log in cluster.logs.values():
        log.readable = len(log.units)
    is_going_on = True
    while is_going_on:
        is_going_on = reader.read_each(places)
        for tx_id in list(reader.across.untold):
            reader.ask(tx_id)
            is_going_on = True
        reader.ask_again()
        while reader.take() is not None:
            is_going_on = True
    reader.commit()
    everything = [
        (place, offset) for place, log in cluster.logs.items() for offset in range(len(log.units))
    ]
    assert sorted(reader.processed) == sorted(everything)
    assert not reader.held
    assert {place: at for place, (at, _) in reader.committed.items()} == {
        place: len(log.units) for place, log in cluster.logs.items()
    }
    assert {metadata for _, metadata in reader.committed.values()} == {"x y"}


def test_i28_what_waits_is_bounded_while_one_partition_lags() -> None:
    chance = random.Random(1)
    cluster = Cluster(chance, partitions=3, groups=1, count=300)
    reader = Reader(cluster, cluster.logs)
    slow, *quick = cluster.logs
    for log in cluster.logs.values():
        log.readable = len(log.units)
    is_going_on, turn = True, 0
    while is_going_on:
        turn += 1
        is_going_on = reader.read_each(quick * 3)
        is_going_on |= turn % 4 == 0 and reader.read(slow)
        is_going_on |= reader.fetched[slow] < len(cluster.logs[slow].units)
        for tx_id in list(reader.across.untold):
            reader.ask(tx_id)
        reader.ask_again()
        while reader.take() is not None:
            is_going_on = True
    reader.commit()
    assert len(reader.processed) == sum(len(log.units) for log in cluster.logs.values())
    assert reader.longest <= 3 * (AHEAD_MAX // (SIZE + 1_024) + 2) + 3

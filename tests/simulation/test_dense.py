"""What compares committed logs record by record notices what bytes that are equal do not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.batch import Record
from tests.faults.verdict import replay
from tests.simulation.dense import DenseOrders, Order, same_rows
from tests.simulation.rows import Row
from tests.simulation.test_copies import TOPIC, play
from tests.simulation.world import World


async def interleave(world: World) -> list[Record]:
    """Two transactions whose batches alternate, the second one commits first; plain records, one
    without a value and one with headers. What a reader is given in the end."""
    client = world.client()
    first, second = [await client.transactional_producer(name) for name in ("one", "two")]
    async with first.transaction() as one, second.transaction() as two:
        for number in range(3):
            for tx, name in ((one, b"one"), (two, b"two")):
                await tx.send(TOPIC, b"%s %d" % (name, number), key=name)
                await tx.flush()
    plain = await client.producer()
    await plain.send(TOPIC, None, key=b"gone")
    await plain.send(TOPIC, b"last", headers=[("from", b"here"), ("to", None)])
    await plain.close()
    consumer = await client.consumer([TOPIC], start="earliest")
    found: list[Record] = []
    while len(found) < 11:
        found += await consumer.poll(10.0) or ()
    await client.close()
    await world.copies.level()
    return found


def test_i8_all_replicas_and_a_reader_have_the_same_records_in_the_same_order() -> None:
    async def story(world: World) -> None:
        seen = await interleave(world)
        values = [record.value for record in seen]
        assert values[3:6] == [b"two 0", b"two 1", b"two 2"], "in commit order"
        orders = DenseOrders(world)
        await orders.compare(seen)
        assert orders.compared == 3
        for other in (
            seen[3]._replace(value=b"other"),
            seen[3]._replace(key=None),
            seen[3]._replace(timestamp_us=7),
            seen[-1]._replace(headers=()),
        ):
            with pytest.raises(AssertionError, match=r"I8: .* and readers have different records"):
                await orders.compare([*seen, other])

    play(story)


def test_i14_a_replica_whose_rows_lead_elsewhere_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bytes are those of all others."""

    async def story(world: World) -> None:
        seen = await interleave(world)
        monkeypatch.setattr("tests.simulation.dense.replay", _swapped(2))
        with pytest.raises(AssertionError, match=r"I8: .* and others have different records at 3"):
            await DenseOrders(world).compare(seen)

    play(story)


def _swapped(which: int) -> Callable[..., object]:
    """Replays; of the one with this number the batches of two transactions change places."""
    replays = 0

    def wrong(*arguments: object, **options: object) -> object:
        nonlocal replays
        replays += 1
        machine = replay(*arguments, **options)  # type: ignore[arg-type]
        if replays == which:
            journal = machine.committed.journal.tail
            journal[-7:-1] = type(journal)("q", [*journal[-4:-1], *journal[-7:-4]])
        return machine

    return wrong


def test_i14_ends_that_differ_are_noticed() -> None:
    row = Row(None, b"x", 0, ())
    order = Order(0, 1, {0: row})
    same_rows("these", order, {0: row}, below=1)
    with pytest.raises(AssertionError, match="I14: these: 1 and 2 are ends"):
        same_rows("these", order, {0: row, 1: row}, below=2)
    with pytest.raises(AssertionError, match="I8: these have different records at 0"):
        same_rows("these", order, {0: row._replace(value=b"y")})

"""ListTransactions in pages, and in turns of the loop that leave room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from oncelog_server.coordinator import listing
from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import INSTANCE, begin, refused, run
from tests.unit.coordinator.harness import Coordinator, FakeCall

COUNT = 30


async def many(c: Coordinator) -> list[int]:
    """Open transactions of as many producers of one group; their TxIds."""
    c.around.leader = None
    found = []
    for number in range(COUNT):
        request = pb.InitProducerRequest(group="g", name=f"p{number}", instance_id=INSTANCE)
        granted = await c.service.init_producer(request, FakeCall())
        found.append(await begin(c, granted.producer))
    return found


async def listed(c: Coordinator, **wanted: Any) -> pb.ListTransactionsReply:
    request = pb.ListTransactionsRequest(**wanted)
    reply: pb.ListTransactionsReply = await c.service.list_transactions(request, FakeCall())
    return reply


async def turns_of(work: Awaitable[Any]) -> int:
    """How often others got the loop before it was done."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


@pytest.mark.parametrize("limit", [1, 7, 29, 30, 31])
def test_pages_show_each_transaction_once_and_say_whether_there_are_more(limit: int) -> None:
    async def story(c: Coordinator) -> None:
        tx_ids = await many(c)
        seen: list[int] = []
        while True:
            page = await listed(c, limit=limit, after_tx_id=seen[-1] if seen else 0)
            seen += [found.tx_id for found in page.transactions]
            assert page.more == (len(seen) < COUNT)
            if not page.more:
                break
        assert seen == tx_ids

    run(story)


def test_a_page_is_what_matches_not_what_was_looked_at() -> None:
    async def story(c: Coordinator) -> None:
        tx_ids = await many(c)
        page = await listed(c, limit=1, name="p29")
        assert ([found.tx_id for found in page.transactions], page.more) == ([tx_ids[29]], False)
        none = await listed(c, states=[types.TRANSACTION_STATE_ABORTED])
        assert (len(none.transactions), none.more) == (0, False)

    run(story)


def test_a_page_is_filled_with_what_its_caller_sees() -> None:
    class Narrow(FakeCall):
        def sees(self, need: object) -> bool:
            assert isinstance(need, Need)
            assert (need.verb, need.kind) == (Verb.DESCRIBE, ResourceKind.TRANSACTION)
            return need.name in ("p5", "p20", "p29")

    async def story(c: Coordinator) -> None:
        tx_ids = await many(c)
        request = pb.ListTransactionsRequest(limit=2)
        first = await c.service.list_transactions(request, Narrow())
        assert [found.tx_id for found in first.transactions] == [tx_ids[5], tx_ids[20]]
        assert first.more
        request.after_tx_id = tx_ids[20]
        last = await c.service.list_transactions(request, Narrow())
        assert ([found.tx_id for found in last.transactions], last.more) == ([tx_ids[29]], False)

    run(story)


def test_a_page_of_large_descriptions_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED_BYTES_MAX", 100)

    async def story(c: Coordinator) -> None:
        tx_ids = await many(c)
        page = await listed(c)
        assert 0 < len(page.transactions) < COUNT
        assert page.more
        rest = await listed(c, after_tx_id=page.transactions[-1].tx_id)
        assert rest.transactions[0].tx_id == tx_ids[len(page.transactions)]

    run(story)


def test_others_get_the_loop_while_many_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 took 0.7 s of one turn: longer than a lease at the limits."""
    monkeypatch.setattr(listing, "UNITS_PER_TURN", 2 * listing.DESCRIBED)

    async def story(c: Coordinator) -> None:
        await many(c)
        assert await turns_of(listed(c)) > COUNT / 3
        # What does not match is looked at, too.
        monkeypatch.setattr(listing, "UNITS_PER_TURN", 2)
        assert await turns_of(listed(c, name="nobody")) > COUNT / 3

    run(story)


def test_what_ends_while_it_is_listed_is_left_out_and_a_lost_partition_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "UNITS_PER_TURN", listing.DESCRIBED)

    async def story(c: Coordinator) -> None:
        tx_ids = await many(c)
        asking = asyncio.create_task(listed(c))
        await asyncio.sleep(0)
        transactions = c.replica.machine.state.transactions
        del transactions._by_id[tx_ids[-1]]
        assert [found.tx_id for found in (await asking).transactions] == tx_ids[:-1]
        refusal = asyncio.create_task(refused(listed(c)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        c.replica.leads = False
        assert await refusal == "NOT_LEADER"

    run(story)

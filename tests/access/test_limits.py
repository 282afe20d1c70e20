"""Quotas, over a real cluster: who has used his share up waits as he is told, and loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2 as pb
from tests.access.stage import set_up
from tests.access.world import OPERATOR, SERVICE, World, refusal_of, running

RECORDS = 60
VALUE = b"x" * 10_000


async def limit(world: World, identity: str, **quota: int) -> None:
    """Returns when every process obeys."""
    log = world.operator.log()
    await log.admin.access.set_quota(identity, **quota)
    await log.close()
    for role in world.addresses:
        while True:
            reply = await world.operator.call(
                "Cluster", "list_quotas", pb.ListQuotasRequest(), role
            )
            if any(str(one.identity.text) == identity.rstrip("*") for one in reply.quotas):
                break
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("quota", [{"bytes_per_second": 200_000}, {"calls_per_second": 20}])
def test_i6_a_producer_and_a_consumer_with_a_quota_lose_nothing(
    tmp_path: Path, quota: dict[str, int]
) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("alice create,read,write topic:t", "alice read group:g")
            log = world.caller("alice").log()
            await log.admin.create_topic("t", partitions=3)
            await limit(world, "alice", **quota)
            producer = await log.producer(linger_ms=0, batch_bytes=30_000)
            for number in range(RECORDS):
                await producer.send("t", b"%d " % number + VALUE, key=b"%d" % number)
            await producer.flush()
            consumer = await log.consumer(["t"], start="earliest", group="g")
            found: list[int] = []
            while len(found) < RECORDS:
                batch = await consumer.poll(20.0)
                assert batch is not None
                found += [int((record.value or b"").split()[0]) for record in batch]
            await consumer.commit()
            assert sorted(found) == list(range(RECORDS))
            assert await throttled_once(world, "alice"), "it was really limited"
            await log.close()

    asyncio.run(story())


async def throttled_once(world: World, identity: str) -> bool:
    """Asks at length until it is told to come back."""
    request = pb.GetMetadataRequest(consumer_groups=["x" * 1_000] * 100)
    for _ in range(200):
        refused = await refusal_of(world.caller(identity).call("Cluster", "get_metadata", request))
        if isinstance(refused, errors.Throttled):
            assert refused.metadata["limit"].startswith("quota_")
            assert int(refused.metadata["retry_after_ms"]) > 0
            return True
    return False


def test_transactions_under_a_quota_commit_and_services_are_not_held_up(tmp_path: Path) -> None:
    """Everybody has a quota that markers alone would use up."""

    async def story() -> None:
        async with running(tmp_path) as world:
            await set_up(world)
            await world.allow("alice read,write topic:*", "alice write producer:*")
            await limit(world, "*", calls_per_second=15)
            log = world.caller("alice").log()
            producer = await log.transactional_producer("p")
            for number in range(20):
                async with producer.transaction(wait="visible") as tx:
                    await tx.send("a", b"%d" % number)
                    await tx.send("b", b"%d" % number)
            assert not await throttled_once(world, SERVICE)
            assert await throttled_once(world, "somebody")
            await log.close()

    asyncio.run(story())


def test_the_closest_quota_holds_for_operators_too_and_can_be_lifted(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await limit(world, "*", calls_per_second=1_000_000)
            await limit(world, "bob", calls_per_second=5)
            assert await throttled_once(world, "bob")
            assert not await throttled_once(world, "carol")
            assert not await throttled_once(world, OPERATOR)
            log = world.operator.log()
            assert await log.admin.access.remove_quota("bob") == 1
            await log.close()
            while await throttled_once(world, "bob"):
                await asyncio.sleep(0.01)

    asyncio.run(story())

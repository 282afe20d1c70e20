"""While a transaction that was given a consumer is open, whatever else is done with that consumer:
either it commits exactly the positions whose records it has processed, or it commits nothing (I21).
In virtual time, against a model of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelog.batch import TopicPartition
from oncelogpb import errors
from tests.unit.client.member_world import SESSION_MS, Client, World, in_a_world
from tests.unit.client.scripted import TOPIC_ID

COMMIT = "offset_manager.commit_offsets"
Record = tuple[int, int]


@dataclass
class Scene:
    """A consumer, and what is open."""

    world: World
    client: Client
    consumer: Consumer
    producer: TransactionalProducer
    # Set within the block.
    tx: Any = None
    # What the application has processed in transactions: (partition, offset).
    processed: list[Record] = field(default_factory=list)

    async def process(self, into: list[Record]) -> None:
        """A batch of the consumer, into an open transaction."""
        batch = await self.consumer.poll(2)
        into += [(record.partition, record.offset) for record in batch or ()]

    @property
    def consumed(self) -> list[Record]:
        """What the group has committed as processed."""
        return sorted(
            (partition, offset)
            for partition, start, to, _ in self.world.commits
            for offset in range(start, to)
        )

    def fails(self, error: errors.OncelogError, *, arrives: bool = False) -> None:
        """Plain commits from now on; `arrives`: and take effect all the same."""
        usual = self.client.transport.handlers[COMMIT]

        def fail(to: Endpoint, request: Any) -> Any:
            if arrives:
                usual(to, request)
            raise error

        self.client.transport.handlers[COMMIT] = fail


Act = Callable[[Scene], Awaitable[object]]


async def commit_that_is_taken(scene: Scene) -> None:
    await scene.consumer.commit()


async def commit_of_named_offsets(scene: Scene) -> None:
    ends = scene.consumer.feeding.standing()
    await scene.consumer.commit(ends)


async def commit_of_a_part(scene: Scene) -> None:
    ends = scene.consumer.feeding.standing()
    moved = {place: to - 2 for place, to in ends.items() if to > 1}
    await scene.consumer.commit(moved)


async def commit_that_is_refused(scene: Scene) -> None:
    scene.fails(errors.StalePosition("another consumer committed"))
    await scene.consumer.commit()


async def commit_whose_answer_is_lost(scene: Scene) -> None:
    scene.fails(errors.UnknownOutcome("no answer"), arrives=True)
    await scene.consumer.commit()


async def commit_that_is_lost(scene: Scene) -> None:
    scene.fails(errors.UnknownOutcome("no answer"))
    await scene.consumer.commit()


async def commit_that_is_cancelled(scene: Scene) -> None:
    scene.client.transport.handlers[COMMIT] = hanging
    await asyncio.wait_for(scene.consumer.commit(), 1)


async def seek_back(scene: Scene) -> None:
    for place in scene.consumer.assignment:
        await scene.consumer.seek(*place, 0)


async def seek_on(scene: Scene) -> None:
    for place in scene.consumer.assignment:
        await scene.consumer.seek(*place, 500)


async def seek_to_the_end(scene: Scene) -> None:
    await scene.consumer.seek_to_end()


async def pause_and_resume(scene: Scene) -> None:
    await scene.consumer.pause()
    assert await scene.consumer.poll(1) is None
    await scene.consumer.resume()


async def read_something_else(scene: Scene) -> None:
    await scene.consumer.assign([("a", 3)])


async def begin_another_in_it(scene: Scene) -> None:
    async with scene.producer.transaction(scene.consumer):
        raise AssertionError("it is never entered")


async def begin_one_of_another_producer(scene: Scene) -> None:
    async with (
        await scene.client.log.transactional_producer() as other,
        other.transaction(scene.consumer) as tx,
    ):
        await tx.send("a", b"v", partition=0)


async def make_one_that_cannot_be(scene: Scene) -> None:
    scene.producer.transaction(scene.consumer, wait="for ever")


async def send_its_offsets_elsewhere(scene: Scene) -> None:
    ends = scene.consumer.feeding.standing()
    async with (
        await scene.client.log.transactional_producer() as other,
        other.transaction() as tx,
    ):
        await tx.send_offsets(ends, scene.consumer.group_metadata())


async def send_its_offsets_here(scene: Scene) -> None:
    ends = scene.consumer.feeding.standing()
    await scene.tx.send_offsets(ends, scene.consumer.group_metadata())


async def close_it(scene: Scene) -> None:
    await scene.consumer.close()


async def poll_that_is_cancelled(scene: Scene) -> None:
    await scene.consumer.pause()
    with suppress(TimeoutError):
        await asyncio.wait_for(scene.consumer.poll(60), 1)
    await scene.consumer.resume()


async def lose_it_to_another(scene: Scene) -> None:
    scene.world.group.members.clear()
    await asyncio.sleep(SESSION_MS / 1000)


ALONE_AND_MEMBERS: list[Act] = [
    commit_that_is_taken,
    commit_of_named_offsets,
    commit_of_a_part,
    commit_that_is_refused,
    commit_whose_answer_is_lost,
    commit_that_is_lost,
    commit_that_is_cancelled,
    seek_back,
    seek_on,
    seek_to_the_end,
    pause_and_resume,
    begin_another_in_it,
    begin_one_of_another_producer,
    make_one_that_cannot_be,
    send_its_offsets_elsewhere,
    send_its_offsets_here,
    close_it,
    poll_that_is_cancelled,
]
PATHS = [
    *(("alone", act) for act in [*ALONE_AND_MEMBERS, read_something_else]),
    *(("member", act) for act in [*ALONE_AND_MEMBERS, lose_it_to_another]),
]


async def scene_of(world: World, kind: str, **options: Any) -> Scene:
    client = world.client(timeout_ms=1_000)
    if kind == "member":
        consumer = await client.member(**options)
    else:
        consumer = await client.log.consumer(
            ["a"], group="g", partitions="all", batch_records_max=5, **options
        )
    return Scene(world, client, consumer, await client.log.transactional_producer())


class Dropped(Exception):
    """By the application."""


async def in_one_transaction(scene: Scene, act: Act, *, raises: bool = False) -> Transaction:
    """Processes a batch, does that whatever comes of it, and processes another one."""
    mine: list[Record] = []
    tx = scene.tx = scene.producer.transaction(scene.consumer)
    with suppress(errors.OncelogError, Dropped):
        async with tx:
            await scene.process(mine)
            await tx.send("a", b"what became of it", partition=0)
            with suppress(errors.OncelogError, TimeoutError):
                await act(scene)
            if not scene.consumer.closed:
                with suppress(errors.OncelogError):
                    await scene.process(mine)
            if raises:
                raise Dropped
    assert mine, "something was processed"
    if tx.state == "committed":
        scene.processed += mine
    return tx


@pytest.mark.parametrize("raises", [False, True], ids=["left", "dropped"])
@pytest.mark.parametrize(
    ("kind", "act"), PATHS, ids=[f"{kind} {act.__name__}" for kind, act in PATHS]
)
def test_i21_a_transaction_commits_what_it_has_processed_or_nothing(
    kind: str, act: Act, raises: bool
) -> None:
    async def work(world: World) -> None:
        scene = await scene_of(world, kind)
        usual = dict(scene.client.transport.handlers)
        tx = await in_one_transaction(scene, act, raises=raises)
        assert tx.state in ("committed", "aborted")
        assert sorted(scene.processed) == scene.consumed
        # And who goes on leaves nothing out, and does nothing twice.
        scene.client.transport.handlers.update(usual)
        if scene.consumer.closed:
            return
        for place in scene.consumer.assignment if act is seek_on or act is seek_to_the_end else ():
            await scene.consumer.seek(*place, world.committed.get(_key(place), 0))
        for _ in range(4):
            await in_one_transaction(scene, pause_and_resume)
        assert sorted(scene.processed) == scene.consumed
        assert len(set(scene.processed)) == len(scene.processed)
        await scene.consumer.close()

    in_a_world(work)


@pytest.mark.parametrize("raises", [False, True], ids=["left", "dropped"])
@pytest.mark.parametrize("is_caught", [False, True], ids=["told", "caught"])
def test_i21_who_commits_in_on_revoked_takes_nothing_out_of_an_open_transaction(
    is_caught: bool, raises: bool
) -> None:
    """Letting go has waited for its end for a whole session."""
    refusals: list[errors.OncelogError] = []

    async def work(world: World) -> None:
        async def commit(places: object) -> None:
            try:
                await scene.consumer.commit()
            except errors.InvalidArgument as error:
                refusals.append(error)
                if not is_caught:
                    raise

        async def stay_too_long(scene: Scene) -> None:
            others.append(await world.client().member())
            end_ms = world.now_ms() + 2 * SESSION_MS
            while world.now_ms() < end_ms:
                with suppress(errors.InvalidArgument):
                    await scene.consumer.poll(0.5)

        others: list[Consumer] = []
        scene = await scene_of(world, "member", on_revoked=commit)
        tx = await in_one_transaction(scene, stay_too_long, raises=raises)
        assert refusals
        assert (tx.state, world.commits) == ("aborted", [])
        for consumer in [*others, scene.consumer]:
            await consumer.close()

    in_a_world(work)


# ------------------------------------------------------------------------- offsets that are sent


async def nothing_else(scene: Scene) -> None:
    """As it should be."""


async def send_to_a_topic_that_is_not(scene: Scene) -> None:
    ends = {**scene.consumer.feeding.standing(), TopicPartition("nowhere", 0): 4}
    await scene.tx.send_offsets(ends, scene.consumer.group_metadata())


async def send_and_be_cancelled(scene: Scene) -> None:
    """While the group is asked where it stands."""
    metadata = replace(scene.consumer.group_metadata(), since={})
    ends = scene.consumer.feeding.standing()
    scene.consumer.feeding.forget()
    scene.client.transport.handlers["offset_manager.fetch_offsets"] = hanging
    await asyncio.wait_for(scene.tx.send_offsets(ends, metadata), 1)


async def seek_back_and_on(scene: Scene) -> None:
    ends = scene.consumer.feeding.standing()
    for place in ends:
        await scene.consumer.seek(*place, 0)
    for place, to in ends.items():
        await scene.consumer.seek(*place, to)


NAMED: list[Act] = [
    nothing_else,
    commit_that_is_taken,
    commit_of_named_offsets,
    commit_of_a_part,
    begin_one_of_another_producer,
    make_one_that_cannot_be,
    send_to_a_topic_that_is_not,
    send_and_be_cancelled,
    seek_back_and_on,
    close_it,
]


async def with_offsets_sent(scene: Scene, act: Act, *, raises: bool) -> Transaction:
    """Processes a batch, sends its offsets, and does that, whatever comes of it."""
    mine: list[Record] = []
    tx = scene.tx = scene.producer.transaction()
    metadata = scene.consumer.group_metadata()
    with suppress(errors.OncelogError, Dropped):
        async with tx:
            await scene.process(mine)
            await tx.send_offsets(scene.consumer.feeding.standing(), metadata)
            with suppress(errors.OncelogError, TimeoutError):
                await act(scene)
            if raises:
                raise Dropped
    if tx.state == "committed":
        scene.processed += mine
    else:
        scene.consumer.feeding.rewind()
    return tx


@pytest.mark.parametrize("raises", [False, True], ids=["left", "dropped"])
@pytest.mark.parametrize("act", NAMED, ids=[act.__name__ for act in NAMED])
@pytest.mark.parametrize("kind", ["alone", "member"])
def test_i21_a_transaction_that_was_sent_offsets_commits_those_or_nothing(
    kind: str, act: Act, raises: bool
) -> None:
    async def work(world: World) -> None:
        scene = await scene_of(world, kind)
        usual = dict(scene.client.transport.handlers)
        tx = await with_offsets_sent(scene, act, raises=raises)
        assert tx.state in ("committed", "aborted")
        assert sorted(scene.processed) == scene.consumed
        scene.client.transport.handlers.update(usual)
        if scene.consumer.closed:
            return
        for _ in range(3):
            await with_offsets_sent(scene, nothing_else, raises=False)
        assert sorted(scene.processed) == scene.consumed
        assert len(set(scene.processed)) == len(scene.processed)
        await scene.consumer.close()

    in_a_world(work)


@pytest.mark.parametrize("kind", ["alone", "member"])
def test_i21_offsets_of_who_commits_by_itself_are_not_sent(kind: str) -> None:
    """It would commit what an aborted transaction has read."""

    async def work(world: World) -> None:
        scene = await scene_of(world, kind, auto_commit_ms=1_000)
        async with scene.producer.transaction() as tx:
            await scene.process([])
            scene.tx = tx
            with pytest.raises(errors.InvalidArgument, match="auto_commit_ms"):
                await send_its_offsets_here(scene)
            with pytest.raises(errors.InvalidArgument, match="auto_commit_ms"):
                await tx.commit()
            await tx.abort()
        assert world.commits == []
        await scene.consumer.close()

    in_a_world(work)


def test_two_transactions_may_take_what_they_name_of_one_consumer() -> None:
    async def work(world: World) -> None:
        scene = await scene_of(world, "member")
        await scene.process(scene.processed)
        await scene.process(scene.processed)
        first, *others = scene.consumer.feeding.standing().items()
        metadata = scene.consumer.group_metadata()
        async with (
            await scene.client.log.transactional_producer() as other,
            scene.producer.transaction() as mine,
            other.transaction() as theirs,
        ):
            await mine.send_offsets(dict([first]), metadata)
            await theirs.send_offsets(dict(others), metadata)
        assert (mine.state, theirs.state) == ("committed", "committed")
        assert sorted(scene.processed) == scene.consumed
        await scene.consumer.close()

    in_a_world(work)


async def hanging(to: Endpoint, request: Any) -> Any:
    await asyncio.sleep(60)


def _key(place: TopicPartition) -> PartitionKey:
    return PartitionKey(TOPIC_ID, place.partition)

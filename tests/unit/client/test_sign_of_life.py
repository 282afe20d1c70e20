"""A consumer that lives keeps its group alive, however quiet its topics are (I21): it commits where
the group stands, now and then, and that moves nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from oncelog.aio.consumer import Consumer
from oncelog.aio.sign_of_life import LAST_S
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import consuming, reply

DAY_S = 24 * 3_600
RETENTION_S = 7 * DAY_S
COMMIT = "offset_manager.commit_offsets"


class QuietGroup:
    """An offset manager that forgets what was committed after 7 quiet days. `refusals` are raised
    first, one for each commit."""

    def __init__(self, transport: ScriptedTransport, *refusals: errors.OncelogError) -> None:
        self.at: int | None = None
        # Told to who fetches; 0: not.
        self.retention_ms = 0
        self.changed_s = 0.0
        self.steps: list[tuple[int, int]] = []
        self.signs_s: list[float] = []
        self.refusals = list(refusals)
        transport.handlers[COMMIT] = self.commit
        transport.handlers["offset_manager.fetch_offsets"] = self.fetch

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def commit(self, to: Any, request: Any) -> Any:
        if self.now_s() - self.changed_s > RETENTION_S:
            self.at = None
        (commit,) = request.offsets.offsets
        if commit.from_offset == commit.to_offset:
            self.signs_s.append(self.now_s())
        if self.refusals:
            raise self.refusals.pop(0)
        stands = commit.from_offset if commit.HasField("from_offset") else None
        if self.at != stands:
            raise errors.StalePosition(f"it stands at {self.at}")
        self.at, self.changed_s = commit.to_offset, self.now_s()
        self.steps.append((commit.from_offset, commit.to_offset))
        return offsets.CommitOffsetsReply()

    def fetch(self, to: Any, request: Any) -> Any:
        found = offsets.CommittedOffset(partition=request.partitions[0])
        if self.at is not None:
            found.offset = self.at
        return offsets.FetchOffsetsReply(offsets=[found], group_retention_ms=self.retention_ms)


def test_i21_a_group_whose_topic_is_quiet_for_longer_than_its_retention_goes_on() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        await consumer.poll(1.0)
        await consumer.commit()
        await asyncio.sleep(3 * RETENTION_S)
        transport.streams = [[reply(0, 10, 5)]]
        await consumer.pause()
        await consumer.resume()
        batch = await consumer.poll(1.0)
        assert batch is not None
        await consumer.commit()
        assert [step for step in group.steps if step[0] != step[1]] == [(0, 10), (10, 15)]

    consuming(work, [reply(0, 0, 10)], group="g")


def test_signs_are_given_while_it_is_quiet_and_only_then() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        await consumer.poll(1.0)
        await asyncio.sleep(DAY_S)
        assert not group.signs_s, "nothing is committed that could be forgotten"
        await consumer.commit()
        await asyncio.sleep(3.5 * 3_600)
        assert len(group.signs_s) == 3
        assert await consumer.position("a", 0) == 10
        await consumer.close()
        await asyncio.sleep(DAY_S)
        assert len(group.signs_s) == 3

    consuming(work, [reply(0, 0, 10)], group="g")


def test_the_interval_is_an_option() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        await consumer.poll(1.0)
        await consumer.commit()
        await asyncio.sleep(10.5)
        assert len(group.signs_s) == 5

    consuming(work, [reply(0, 0, 10)], group="g", sign_of_life_ms=2_000)


@pytest.mark.parametrize(
    ("refusal", "again_after_s"),
    [
        (errors.StalePosition("another one committed"), 3_600),
        (errors.Unavailable("starting"), 360),
    ],
)
def test_a_sign_that_is_refused_changes_nothing_and_one_that_was_not_heard_is_given_again(
    refusal: errors.OncelogError, again_after_s: int
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        await consumer.poll(1.0)
        await consumer.commit()
        # For as long as one call asks again.
        group.refusals = [refusal] * (1 if refusal.reason == "STALE_POSITION" else 80)
        await asyncio.sleep(3_700)
        first = group.signs_s[-1]
        group.refusals = []
        await asyncio.sleep(again_after_s)
        assert group.signs_s[-1] > first
        assert await consumer.position("a", 0) == 10
        assert consumer._positions.unknown() == []

    consuming(work, [reply(0, 0, 10)], group="g")


def test_i21_who_runs_for_a_moment_now_and_then_gives_a_sign_too() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        group.at = 10
        await consumer.poll(1.0)
        await asyncio.sleep(11)
        assert group.steps == [(10, 10)]

    consuming(work, group="g")


def test_i21_an_offset_manager_that_forgets_soon_is_told_often() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        group.at, group.retention_ms = 10, 4_000
        started_s = group.now_s()
        await consumer.poll(1.0)
        await asyncio.sleep(60)
        heard_s = [started_s, *group.signs_s, group.now_s()]
        pauses = [after - before for before, after in pairwise(heard_s)]
        assert max(pauses) < 3, "the interval is an hour, and would have been too late"

    consuming(work, group="g")


@pytest.mark.parametrize("refusals", [[], [errors.StalePosition("another one committed")]])
def test_i21_who_leaves_before_its_first_sign_gives_it_then(
    refusals: list[errors.OncelogError],
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport, *refusals)
        group.at = 10
        await consumer.poll(1.0)
        await consumer.close()
        await consumer.close()
        assert len(group.signs_s) == 1

    consuming(work, group="g")


def test_leaving_does_not_wait_for_an_offset_manager_that_is_silent() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        group.at = 10
        await consumer.poll(1.0)
        group.refusals = [errors.Unavailable("starting")] * 1_000
        before_s = group.now_s()
        await consumer.close()
        assert group.now_s() - before_s <= LAST_S

    consuming(work, group="g")


def test_a_consumer_without_a_group_gives_none() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = QuietGroup(transport)
        await consumer.poll(1.0)
        await asyncio.sleep(DAY_S)
        assert not group.signs_s

    consuming(work, [reply(0, 0, 10)])

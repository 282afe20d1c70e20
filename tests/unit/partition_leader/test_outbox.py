"""Questions go out in packs, come back as verdicts, and stop when the transaction has ended
here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog_server.core.ids import BootId, compose_tx_id
from oncelog_server.core.ports import Address
from oncelog_server.participant import asking, questions
from oncelog_server.participant.asking import LOOK_EVERY_MS
from oncelog_server.partition_leader.outbox import PartitionOutbox
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb.v1 import coordinator_pb2 as pb
from tests.unit.partition_leader.fakes import FakeCall, World
from tests.unit.partition_leader.messages import batch, send

ANSWER = pb.Answer
COORDINATOR = Address("coordinator", BootId(b"1" * 16), "127.0.0.1", 7400, 3)
NEXT_COORDINATOR = COORDINATOR._replace(boot_id=BootId(b"2" * 16), epoch=4)


class Story:
    """A partition whose outbox is woken as the driver wakes it."""

    def __init__(self) -> None:
        self.world = World()
        self.world.metadata.coordinators = {0: COORDINATOR, 2: COORDINATOR}
        self.outbox = PartitionOutbox(self.world.first, self.world.env)
        self.verdicts: dict[int, int] = {}
        self.world.peers.answer = self._answer

    def _answer(self, request: pb.AskTransactionsRequest) -> pb.AskTransactionsReply:
        return pb.AskTransactionsReply(
            answers=[
                pb.Answer(
                    tx_id=question.tx_id,
                    partition=question.partition,
                    verdict=self.verdicts.get(question.tx_id, ANSWER.VERDICT_ONGOING),  # type: ignore[arg-type]
                )
                for question in request.questions
            ]
        )

    async def send(self, tx_id: int, value: bytes = b"x", sequence: int = 0) -> None:
        service = PartitionLeaderService(self.world.env, self.world.config)
        await service.produce(send(tx_id, batch([value], sequence=sequence)), FakeCall())

    async def pass_time(self, ms: int) -> list[list[int]]:
        """Ticks all the way; the TxIds of each call that went out."""
        before = len(self.world.peers.asked)
        end = self.world.clock.monotonic_ms + ms
        while self.world.clock.monotonic_ms < end:
            self.world.clock.monotonic_ms = min(end, self.world.clock.monotonic_ms + LOOK_EVERY_MS)
            self.outbox.wake()
            for _ in range(5):
                await asyncio.sleep(0)
        asked = self.world.peers.asked[before:]
        return [[question.tx_id for question in request.questions] for _, request in asked]

    @property
    def open(self) -> list[int]:
        return list(self.world.first.machine.pending.open)


def run(story: Callable[[Story], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        told = Story()
        await story(told)
        await told.outbox.stop()

    asyncio.run(main())


def test_asks_after_a_second_then_every_two_until_it_has_ended_here() -> None:
    async def story(told: Story) -> None:
        told.outbox.wake()
        await told.send(5)
        assert await told.pass_time(1_000) == []
        assert await told.pass_time(400) == [[5]]
        assert await told.pass_time(6_000) == [[5]] * 3
        told.verdicts[5] = ANSWER.VERDICT_NEVER
        assert await told.pass_time(2_200) == [[5]]
        assert told.open == []
        assert await told.pass_time(10_000) == []
        assert told.world.reporter.counted["transactions_dropped"] == 1

    run(story)


def test_questions_are_packed_per_journal_partition() -> None:
    async def story(told: Story) -> None:
        other = compose_tx_id(2, 9)
        for tx_id in (5, 6, other):
            await told.send(tx_id)
        told.outbox.wake()
        asked = await told.pass_time(1_200)
        assert asked == [[5, 6], [other]]
        requests = [request for _, request in told.world.peers.asked]
        assert [request.journal_partition for request in requests] == [0, 2]
        question = requests[0].questions[0]
        assert question.producer.producer_id == 77
        assert question.bytes_received > 0

    run(story)


def test_many_are_asked_about_one_call_after_the_other_without_waiting_for_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (asking, questions):
        monkeypatch.setattr(module, "QUESTIONS_PER_CALL_MAX", 4)

    async def story(told: Story) -> None:
        for tx_id in range(1, 14):
            await told.send(tx_id)
            told.verdicts[tx_id] = ANSWER.VERDICT_NEVER
        await told.pass_time(LOOK_EVERY_MS)
        told.world.clock.monotonic_ms += 1_000
        told.outbox.wake()
        for _ in range(100):
            await asyncio.sleep(0)
        assert told.open == []
        asked = [len(request.questions) for _, request in told.world.peers.asked]
        assert asked == [4, 4, 4, 1]

    run(story)


def test_silence_and_no_coordinator_end_nothing() -> None:
    async def story(told: Story) -> None:
        told.world.peers.answer = None
        await told.send(5)
        await told.pass_time(5_000)
        assert told.open == [5]
        assert told.world.reporter.counted["questions_unanswered/NOT_LEADER"] > 1
        told.world.metadata.coordinators.clear()
        assert await told.pass_time(5_000) == []
        assert told.open == [5]

    run(story)


def test_another_coordinator_is_asked_at_once() -> None:
    async def story(told: Story) -> None:
        await told.send(5)
        await told.pass_time(1_400)
        told.world.metadata.coordinators[0] = NEXT_COORDINATOR
        assert await told.pass_time(LOOK_EVERY_MS) == [[5]]
        assert told.world.peers.asked[-1][0] == NEXT_COORDINATOR

    run(story)


def test_the_same_process_in_a_later_epoch_is_asked_at_once_and_once() -> None:
    """It may have forgotten us: it resigned, and was elected again."""

    async def story(told: Story) -> None:
        await told.send(5)
        await told.pass_time(1_400)
        told.world.metadata.coordinators[0] = COORDINATOR._replace(epoch=4)
        assert await told.pass_time(LOOK_EVERY_MS) == [[5]]
        assert await told.pass_time(LOOK_EVERY_MS * 3) == [], "it has been asked"

    run(story)


def test_an_answer_about_another_partition_or_of_another_kind_is_silence() -> None:
    async def story(told: Story) -> None:
        await told.send(5)

        def answer(request: pb.AskTransactionsRequest) -> pb.AskTransactionsReply:
            elsewhere = request.questions[0].partition
            elsewhere.number = 9
            wrong = pb.Answer(tx_id=5, partition=elsewhere, verdict=ANSWER.VERDICT_ABORTED)
            unknown = pb.Answer(tx_id=5, verdict=99)  # type: ignore[arg-type]
            return pb.AskTransactionsReply(answers=[wrong, unknown])

        told.world.peers.answer = answer
        await told.pass_time(2_000)
        assert told.open == [5]

    run(story)


def test_one_call_per_journal_partition_at_a_time() -> None:
    """A coordinator that is slow is not asked again and again meanwhile."""

    async def story(told: Story) -> None:
        never = asyncio.Event()

        async def call(to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
            told.world.peers.asked.append((to, request))
            await never.wait()

        told.world.peers.call = call  # type: ignore[method-assign]
        await told.send(5)
        assert await told.pass_time(10_000) == [[5]]

    run(story)


def test_a_stopped_outbox_asks_nothing() -> None:
    async def story(told: Story) -> None:
        await told.send(5)
        told.outbox.wake()
        await told.outbox.stop()
        assert await told.pass_time(5_000) == []

    run(story)


def test_gauges_say_what_is_open() -> None:
    async def story(told: Story) -> None:
        await told.send(5)
        await told.pass_time(800)
        counted = told.world.reporter.counted
        assert counted["open_transactions"] == 1
        assert counted["first_open_position"] == 1
        assert counted["oldest_open_transaction_age_ms"] == 800

    run(story)

"""Questions about transactions that stay open: when, to whom, and what the answers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog_server.core.ids import (
    BootId,
    Generation,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    compose_tx_id,
)
from oncelog_server.core.ports import Address
from oncelog_server.offset_manager.commands import CommitTransactionOffsets, OffsetCommit
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.outbox import OffsetManagerOutbox
from oncelog_server.participant.commands import Heard, HearVerdicts, Verdict
from oncelogpb.errors import UnknownOutcome
from oncelogpb.v1 import coordinator_pb2 as pb
from tests.unit.offset_manager.fakes import Outside

ORDERS = TopicId(b"orders..........")
T1, T2 = compose_tx_id(3, 5), compose_tx_id(4, 5)


def _answering(verdict: int) -> Callable[[pb.AskTransactionsRequest], pb.AskTransactionsReply]:
    def answer(request: pb.AskTransactionsRequest) -> pb.AskTransactionsReply:
        return pb.AskTransactionsReply(
            answers=[
                pb.Answer(
                    tx_id=q.tx_id,
                    partition=q.partition,
                    verdict=pb.Answer.Verdict.ValueType(verdict),
                )
                for q in request.questions
            ]
        )

    return answer


async def _pend(outside: Outside, tx_id: TxId, producer: int = 100, number: int = 0) -> None:
    step = OffsetCommit(PartitionId(ORDERS, number), -1, 10)
    command = CommitTransactionOffsets(
        tx_id, ProducerId(producer), Generation(1), f"g{producer}", (step,)
    )
    await outside.replicas.by_number[0].submit(command)


class Story:
    """One led partition with its outbox, and a clock that is moved by hand."""

    def __init__(self, verdict: int = pb.Answer.VERDICT_ONGOING) -> None:
        self.outside = Outside(0, answer=_answering(verdict))
        self.replica = self.outside.replicas.by_number[0]
        self.outbox = self.new_outbox()

    def new_outbox(self) -> OffsetManagerOutbox:
        return OffsetManagerOutbox(
            self.replica,  # type: ignore[arg-type]
            self.outside.env,
            OffsetManagerConfig(lag_every_ms=0),
        )

    async def after(self, ms: int) -> int:
        """Lets time pass, wakes; how many calls were made by it."""
        before = len(self.outside.peers.asked)
        self.outside.clock.monotonic_ms += ms
        self.replica.host.pass_time(ms)
        self.outbox.wake()
        for _ in range(5):
            await asyncio.sleep(0)
        return len(self.outside.peers.asked) - before

    def open_transactions(self) -> int:
        return int(self.replica.machine.open_transactions)


def test_gauges_name_the_partition_as_those_do_that_are_forgotten_with_it() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        await told.after(300)
        partition = str(told.replica.partition)
        gauges = told.outside.reporter.gauges
        assert {named for _, named in gauges} == {partition}
        assert gauges["open_transactions", partition] == 1
        assert gauges["groups", partition] == 1

    asyncio.run(story())


def test_asked_after_one_second_then_every_two() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        assert await told.after(0) == 0
        assert await told.after(999) == 0
        assert await told.after(201) == 1
        assert await told.after(1_799) == 0
        assert await told.after(201) == 1
        (question,) = told.outside.peers.asked[0].questions
        assert (question.tx_id, question.producer.producer_id) == (T1, 100)
        assert question.partition.topic_id == told.replica.partition.topic_id
        assert told.open_transactions() == 1

    asyncio.run(story())


def test_i30_a_txid_that_was_dropped_and_opened_again_between_two_looks_is_asked_about() -> None:
    """By another producer, whom nothing fences. Its first bytes are fewer than the last one's, and
    a question that cannot be written must not count as under way for ever."""

    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        await _pend(told.outside, T1, number=1)
        await told.after(0)
        await told.after(1_000)
        heard = Heard(T1, ProducerId(100), Generation(1), Verdict.ABORTED)
        await told.replica.submit(HearVerdicts((heard,)))
        await _pend(told.outside, T1, producer=101)
        await told.after(200)
        await told.after(2_000)
        asked = [request.questions[0] for request in told.outside.peers.asked]
        assert [(q.producer.producer_id, q.bytes_received) for q in asked] == [
            (100, 128),
            (101, 64),
        ]

    asyncio.run(story())


def test_the_sign_of_life_counts_only_what_is_new() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        await told.after(0)
        await told.after(1_000)
        await told.after(2_000)
        await _pend(told.outside, T1, number=1)
        await told.after(2_000)
        told_bytes = [asked.questions[0].bytes_received for asked in told.outside.peers.asked]
        assert told_bytes == [64, 0, 64]

    asyncio.run(story())


def test_questions_go_in_one_call_per_journal_partition() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1, 100, 0)
        await _pend(told.outside, T2, 200, 1)
        await _pend(told.outside, compose_tx_id(3, 9), 300, 2)
        await told.after(0)
        assert await told.after(1_000) == 2
        asked = {a.journal_partition: len(a.questions) for a in told.outside.peers.asked}
        assert asked == {3: 2, 4: 1}

    asyncio.run(story())


@pytest.mark.parametrize(
    "verdict",
    [
        pb.Answer.VERDICT_COMMITTED_WITHOUT_YOU,
        pb.Answer.VERDICT_ABORTED,
        pb.Answer.VERDICT_EXPIRED,
        pb.Answer.VERDICT_NEVER,
    ],
)
def test_a_final_verdict_without_us_drops_it(verdict: int) -> None:
    async def story() -> None:
        told = Story(verdict)
        await _pend(told.outside, T1)
        await told.after(0)
        await told.after(1_000)
        assert told.open_transactions() == 0
        assert await told.after(5_000) == 0

    asyncio.run(story())


@pytest.mark.parametrize(
    "verdict",
    [
        pb.Answer.VERDICT_UNSPECIFIED,
        pb.Answer.VERDICT_LATER,
        pb.Answer.VERDICT_ONGOING,
        pb.Answer.VERDICT_COMMITTED_WITH_YOU,
    ],
)
def test_other_verdicts_end_nothing(verdict: int) -> None:
    async def story() -> None:
        told = Story(verdict)
        await _pend(told.outside, T1)
        await told.after(0)
        assert await told.after(1_000) == 1
        assert told.open_transactions() == 1
        assert await told.after(2_000) == 1

    asyncio.run(story())


def test_silence_ends_nothing() -> None:
    async def story() -> None:
        told = Story()

        def no_answer(request: object) -> object:
            raise UnknownOutcome("lost")

        told.outside.peers.answer = no_answer
        await _pend(told.outside, T1)
        await told.after(0)
        assert await told.after(1_000) == 1
        assert told.open_transactions() == 1
        assert await told.after(2_000) == 1
        # Unanswered bytes are told again.
        assert told.outside.peers.asked[1].questions[0].bytes_received == 64

    asyncio.run(story())


def test_a_new_leader_here_asks_at_once_about_what_it_inherits() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        told.replica.host.failover(lose_tail=False)
        told.replica.host.sync()
        told.outbox = told.new_outbox()
        assert await told.after(0) == 1

    asyncio.run(story())


def test_a_new_coordinator_is_asked_at_once() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        await told.after(0)
        assert await told.after(1_000) == 1
        told.outside.metadata.coordinator = Address("m", BootId(b"d" * 16), "localhost", 9, 2)
        assert await told.after(300) == 1

    asyncio.run(story())


def test_without_a_coordinator_it_waits() -> None:
    async def story() -> None:
        told = Story()
        told.outside.metadata.coordinator = None
        await _pend(told.outside, T1)
        await told.after(0)
        assert await told.after(5_000) == 0
        told.outside.metadata.coordinator = Address("m", BootId(b"d" * 16), "localhost", 9, 2)
        assert await told.after(300) == 1

    asyncio.run(story())


def test_a_stopped_outbox_asks_nobody() -> None:
    async def story() -> None:
        told = Story()
        await _pend(told.outside, T1)
        await told.after(0)
        await told.outbox.stop()
        assert await told.after(5_000) == 0

    asyncio.run(story())

"""Asks coordinators about transactions that stay open here.

A transaction with pending offsets that is open for `question_after_ms` is asked about, then again
every `question_again_ms`, and at once after a change of leader on either side, until it has ended
*here*: asked once and told ONGOING, it would hang for ever where the coordinator fails over and
forgets this partition. The question announces that this partition takes part, and says how many
bytes came. Verdicts that end it come back as commands; LATER, ONGOING and silence end nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from oncelogpb.errors import OncelogError
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2
from services.core.ids import (
    TRANSACTION_CONTROL_ID,
    BootId,
    PartitionId,
    TxId,
    journal_partition_of,
)
from services.core.ports import Address, Replica
from services.core.role import RoleEnv
from services.offset_manager.commands import DropTransaction
from services.offset_manager.config import OffsetManagerConfig
from services.offset_manager.machine import Ask

QUESTIONS_PER_CALL_MAX: Final = 1_000
QUESTION_TIMEOUT_MS: Final = 5_000
# Between two looks at what is owed; well below the shortest question timer.
LOOK_EVERY_MS: Final = 200

ENDED_WITHOUT_US: Final[Mapping[int, str]] = {
    pb.Answer.VERDICT_COMMITTED_WITHOUT_YOU: "committed without this partition",
    pb.Answer.VERDICT_ABORTED: "aborted",
    pb.Answer.VERDICT_EXPIRED: "expired",
    pb.Answer.VERDICT_NEVER: "never began",
}


class Watched(msgspec.Struct):
    """A transaction that is open here, with its question timer."""

    # Monotonic, both. Since when this leader knows it is a lower bound of its age.
    due_ms: int
    since_ms: int
    bytes_told: int = 0
    # Whom the last question went to.
    asked_of: tuple[BootId, int] | None = None
    in_flight: bool = False


class OffsetManagerOutbox:
    """See the module. One per led partition of `__consumer_offsets`."""

    def __init__(self, replica: Replica, env: RoleEnv, config: OffsetManagerConfig) -> None:
        self._replica = replica
        self._env = env
        self._config = config
        # A new leader asks at once about all that it inherits.
        now_ms = env.clock.now().monotonic_ms
        self._watched: dict[TxId, Watched] = {
            ask.tx_id: Watched(due_ms=0, since_ms=now_ms)
            for ask in replica.machine.owed(replica.high_watermark)
        }
        self._next_look_ms = 0
        self._asking: set[asyncio.Task[None]] = set()
        self._stopped = False

    def wake(self) -> None:
        now_ms = self._env.clock.now().monotonic_ms
        if self._stopped or now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + LOOK_EVERY_MS
        owed: Sequence[Ask] = self._replica.machine.owed(self._replica.high_watermark)
        self._watch(owed, now_ms)
        due = [ask for ask in owed if self._is_due(ask, now_ms)]
        due.sort(key=lambda ask: journal_partition_of(ask.tx_id))
        for journal_partition, asks in groupby(due, lambda ask: journal_partition_of(ask.tx_id)):
            self._ask_all(journal_partition, list(asks), now_ms)

    async def stop(self) -> None:
        self._stopped = True
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # ------------------------------------------------------------------------------------- timers

    def _watch(self, owed: Sequence[Ask], now_ms: int) -> None:
        first_due_ms = now_ms + self._config.question_after_ms
        self._watched = {
            ask.tx_id: self._still_watched(ask) or Watched(first_due_ms, now_ms) for ask in owed
        }
        label = str(self._replica.partition.number)
        oldest_ms = min((one.since_ms for one in self._watched.values()), default=now_ms)
        reporter = self._env.reporter
        reporter.gauge("open_transactions", len(owed), partition=label)
        reporter.gauge("oldest_open_transaction_age_ms", now_ms - oldest_ms, partition=label)
        reporter.gauge("groups", self._replica.machine.groups, partition=label)
        reporter.gauge("producers", self._replica.machine.producers, partition=label)

    def _still_watched(self, ask: Ask) -> Watched | None:
        """Fewer bytes than it was said to have: it ended here and was opened again by somebody
        else, since the last look."""
        watched = self._watched.get(ask.tx_id)
        return None if watched is None or watched.bytes_told > ask.bytes_received else watched

    def _is_due(self, ask: Ask, now_ms: int) -> bool:
        watched = self._watched[ask.tx_id]
        if watched.in_flight:
            return False
        if watched.asked_of is not None:
            coordinator = self._coordinator(journal_partition_of(ask.tx_id))
            if coordinator is not None and _run(coordinator) != watched.asked_of:
                return True
        return now_ms >= watched.due_ms

    # ---------------------------------------------------------------------------------- questions

    def _ask_all(self, journal_partition: int, asks: Sequence[Ask], now_ms: int) -> None:
        coordinator = self._coordinator(journal_partition)
        if coordinator is None:
            return
        for first in range(0, len(asks), QUESTIONS_PER_CALL_MAX):
            some = asks[first : first + QUESTIONS_PER_CALL_MAX]
            for ask in some:
                watched = self._watched[ask.tx_id]
                watched.due_ms = now_ms + self._config.question_again_ms
                watched.asked_of = _run(coordinator)
                watched.in_flight = True
            question = self._ask(journal_partition, coordinator, some)
            task = asyncio.get_running_loop().create_task(question)
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, journal_partition: int, coordinator: Address, asks: Sequence[Ask]) -> None:
        watched = [self._watched[ask.tx_id] for ask in asks]
        try:
            request = self._request(journal_partition, asks)
            reply: pb.AskTransactionsReply = await self._env.peers.call(
                coordinator,
                "coordinator.ask_transactions",
                request,
                timeout_ms=QUESTION_TIMEOUT_MS,
            )
            for ask, entry in zip(asks, watched, strict=True):
                entry.bytes_told = ask.bytes_received
            await self._act(reply)
        except OncelogError as error:
            # Silence ends nothing: the timer asks again.
            self._env.reporter.count("questions_unanswered", len(asks), reason=error.reason)
        finally:
            for entry in watched:
                entry.in_flight = False

    def _request(self, journal_partition: int, asks: Sequence[Ask]) -> pb.AskTransactionsRequest:
        here = self._replica.partition
        partition = types_pb2.Partition(topic_id=here.topic_id, number=here.number)
        return pb.AskTransactionsRequest(
            journal_partition=journal_partition,
            questions=[
                pb.Question(
                    tx_id=ask.tx_id,
                    producer=types_pb2.Producer(
                        producer_id=ask.producer_id, generation=ask.generation
                    ),
                    partition=partition,
                    bytes_received=ask.bytes_received - self._watched[ask.tx_id].bytes_told,
                )
                for ask in asks
            ],
        )

    async def _act(self, reply: pb.AskTransactionsReply) -> None:
        """All verdicts go in one loop turn, so one sync makes them durable together."""
        dropped: list[Awaitable[None]] = []
        for answer in reply.answers:
            verdict = ENDED_WITHOUT_US.get(answer.verdict)
            if verdict is None:
                continue
            dropped.append(self._replica.submit(DropTransaction(TxId(answer.tx_id), verdict)))
            self._env.reporter.count("transactions_dropped")
            self._env.reporter.event("pending offsets dropped", tx_id=answer.tx_id, verdict=verdict)
        for durable in dropped:
            await durable

    def _coordinator(self, journal_partition: int) -> Address | None:
        partition = PartitionId(TRANSACTION_CONTROL_ID, journal_partition)
        return self._env.directory.leader_of(partition)


def _run(coordinator: Address) -> tuple[BootId, int]:
    """Which run of which epoch an address means."""
    return coordinator.boot_id, coordinator.epoch

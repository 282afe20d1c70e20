"""The outbox of whoever takes part in transactions: asks coordinators about those that stay open
here, until they have ended here. One per led partition.

The machine knows what is owed and when (`questions`); this looks at it when it is woken, sends
packed lists, one call per journal partition at a time, and submits the verdicts. Silence, LATER and
ONGOING end nothing: the machine asks again. The question also announces that this partition takes
part.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final, Generic, TypeVar

from oncelog_server.core.ids import (
    TRANSACTION_CONTROL_ID,
    BootId,
    PartitionId,
    journal_partition_of,
)
from oncelog_server.core.machine import Machine
from oncelog_server.core.ports import Address, Replica, led_machine
from oncelog_server.core.role import RoleEnv
from oncelog_server.participant import wire
from oncelog_server.participant.commands import (
    FINAL_VERDICTS,
    Answered,
    Asked,
    HearVerdicts,
    LeaderMoved,
    Look,
    Question,
)
from oncelog_server.participant.questions import QUESTIONS_PER_CALL_MAX
from oncelogpb.errors import OncelogError

QUESTION_TIMEOUT_MS: Final = 5_000
# Between two looks; well below the shortest question timer.
LOOK_EVERY_MS: Final = 200

# Who leads a journal partition: a process run and its epoch.
Run = tuple[BootId, int]


M = TypeVar("M", bound=Machine[Any, Any, Question])


class QuestionOutbox(abc.ABC, Generic[M]):
    """See the module. A role's own says what its gauges are; here they get their label, the one by
    which the driver forgets them."""

    def __init__(self, replica: Replica[M], env: RoleEnv[M]) -> None:
        self.replica = replica
        # Of this leadership: it ends when the outbox has stopped.
        self.machine = led_machine(replica)
        self.env = env
        self._next_look_ms = 0
        # Journal partition -> whom its last question went to.
        self._asked_of: dict[int, Run] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._stopped = False

    @abc.abstractmethod
    def gauges(self) -> Mapping[str, float]:
        """What the partition holds, by metric; shown as often as it is looked at."""

    def look(self) -> None:
        """What else a role does as often as it looks."""

    def age_ms(self, began_ms: int | None) -> int:
        """Of the oldest open transaction. None: there is none."""
        return 0 if began_ms is None else max(self.env.clock.now().wall_ms - began_ms, 0)

    def wake(self) -> None:
        now_ms = self.env.clock.now().monotonic_ms
        if self._stopped or now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + LOOK_EVERY_MS
        self._notice_moves()
        self.replica.signal(Look())
        owed = self.machine.owed(self.replica.high_watermark)
        for journal_partition, questions in groupby(owed, lambda q: journal_partition_of(q.tx_id)):
            if journal_partition not in self._calls:
                self._start(journal_partition, tuple(questions))
        self.look()
        label = str(self.replica.partition)
        for name, value in self.gauges().items():
            self.env.reporter.gauge(name, value, partition=label)

    async def stop(self) -> None:
        self._stopped = True
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _notice_moves(self) -> None:
        moved = frozenset(
            journal_partition
            for journal_partition, run in self._asked_of.items()
            if (leader := self._leader(journal_partition)) is not None and _run(leader) != run
        )
        if moved:
            for journal_partition in moved:
                del self._asked_of[journal_partition]
            self.replica.signal(LeaderMoved(moved))

    def _start(self, journal_partition: int, questions: tuple[Question, ...]) -> None:
        leader = self._leader(journal_partition)
        if leader is None:
            return
        self._asked_of[journal_partition] = _run(leader)
        self.replica.signal(Asked(questions))
        asking = self._ask(journal_partition, leader, questions)
        call = asyncio.get_running_loop().create_task(asking)
        self._calls[journal_partition] = call
        call.add_done_callback(lambda _: self._asked(journal_partition, len(questions)))

    def _asked(self, journal_partition: int, count: int) -> None:
        self._calls.pop(journal_partition, None)
        if count == QUESTIONS_PER_CALL_MAX:
            # There are more, mostly: they need not wait for the next look.
            self._next_look_ms = 0
            self.wake()

    async def _ask(
        self, journal_partition: int, leader: Address, questions: tuple[Question, ...]
    ) -> None:
        partition = self.replica.partition
        request = wire.ask_request(partition, journal_partition, questions)
        reporter = self.env.reporter
        reporter.count("questions_asked", len(questions))
        try:
            reply = await self.env.peers.call(
                leader, "coordinator.ask_transactions", request, timeout_ms=QUESTION_TIMEOUT_MS
            )
            self.replica.signal(Answered(questions))
            final = wire.verdicts(reply, partition, questions, among=FINAL_VERDICTS)
            for heard in final:
                reporter.event(
                    "transaction ended without its marker",
                    tx_id=heard.tx_id,
                    partition=str(partition),
                    verdict=heard.verdict.value,
                )
            if final:
                dropped: int = await self.replica.submit(HearVerdicts(final))
                reporter.count("transactions_dropped", dropped)
        except OncelogError as error:
            # Asked again when the machine says so.
            reporter.count("questions_unanswered", len(questions), reason=error.reason)

    def _leader(self, journal_partition: int) -> Address | None:
        return self.env.metadata.leader_of(PartitionId(TRANSACTION_CONTROL_ID, journal_partition))


def _run(leader: Address) -> Run:
    return leader.boot_id, leader.epoch

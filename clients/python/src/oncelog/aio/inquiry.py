"""Asks coordinators about transactions of which parts are here: where the others are, and which
comes first (`oncelog._core.across`).

Each is asked about once, when its first part was read. One whose parts do not come is asked about
again: a part that can be read already, and is not found up to where its partition ended then, is
not there (it was removed, damaged, or lies before where reading began).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final, Protocol

from oncelog._core import retries
from oncelog._core.across import Across, Gathered, Told, journal_of
from oncelog._core.routing import PartitionKey
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2, types_pb2

# Transactions of one journal partition (it has one coordinator) that are asked about at one time.
ASKED_MAX: Final = 64
# Answers that are kept.
KNOWN_MAX: Final = 10_000
# Whose parts do not come is asked about again after so long, then twice as long each time, up to
# the second, milliseconds.
AGAIN_MS: Final = 50
AGAIN_MS_MAX: Final = 1_000


Question = Callable[[], Awaitable[None]]


class Ends(Protocol):
    """Where partitions end now: `Offsets.look_up`."""

    def __call__(self, partitions: list[PartitionKey], at: str) -> Awaitable[list[int]]: ...


class Inquiry:
    """Of one consumer, on its loop."""

    def __init__(
        self, protocol: AsyncProtocol, across: Across, *, ends: Ends, wake: Callable[[], None]
    ) -> None:
        """`wake`: something is known now."""
        self._protocol = protocol
        self._across = across
        self._ends = ends
        self._wake = wake
        # By TxId.
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._troubles: dict[Gathered, Exception] = {}
        # Those of whom nobody says anything: since when, and why.
        self._unheard: dict[Gathered, tuple[float, errors.OncelogError]] = {}
        # What was said last of each, for what is read again after a rewind; oldest first.
        self._known: OrderedDict[int, Told] = OrderedDict()
        # Those that wait for parts: since when, and how often they were asked about since.
        self._held_up: dict[Gathered, tuple[float, int]] = {}

    def go_on(self) -> None:
        """Asks about what is new, and about what waits for too long."""
        asking = Counter(map(journal_of, self._asking))
        for number, untold in list(self._across.untold_of.items()):
            for gathered in list(islice(untold.values(), ASKED_MAX)):
                told = self._known.get(gathered.tx_id)
                if told is not None:
                    self._across.learn(gathered, told)
                elif self._is_idle(gathered) and asking[number] < ASKED_MAX:
                    self._begin(gathered, partial(self._ask, gathered))
                    asking[number] += 1
        waiting = dict(self._across.held_up())
        now_ms = self._protocol.now_ms()
        self._held_up = {one: self._held_up.get(one, (now_ms, 0)) for one in waiting}
        for gathered, missing in waiting.items():
            since, asked = self._held_up[gathered]
            if self._is_idle(gathered):
                again = partial(self._ask_again, gathered, missing, asked)
                self._begin(gathered, again)
                self._held_up[gathered] = since, asked + 1

    def take_trouble(self) -> tuple[Gathered, Exception] | None:
        """What kept it from an answer, once: then it is asked again. One that is forgotten can only
        be left out: that is told when nothing waits before it, which would be left out, too."""
        for gathered, error in list(self._troubles.items()):
            if gathered.is_over:
                del self._troubles[gathered]
            elif not isinstance(error, errors.UnknownTransaction) or self._across.foremost(
                gathered
            ):
                del self._troubles[gathered]
                return gathered, error
        return None

    def require_answers(self, within_ms: float) -> None:
        """Raises why nobody has answered for so long. Asking goes on."""
        for gathered, (since, error) in list(self._unheard.items()):
            if gathered.is_over:
                del self._unheard[gathered]
            elif self._protocol.now_ms() - since > within_ms:
                raise error

    def held_up_ms(self, gathered: Gathered) -> float:
        """How long it has waited for its parts."""
        since, _ = self._held_up.get(gathered, (self._protocol.now_ms(), 0))
        return self._protocol.now_ms() - since

    async def stop(self) -> None:
        """Safe to repeat."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------- inside

    def _is_idle(self, gathered: Gathered) -> bool:
        return gathered.tx_id not in self._asking and gathered not in self._troubles

    def _begin(self, gathered: Gathered, question: Question) -> None:
        self._asking[gathered.tx_id] = asyncio.get_running_loop().create_task(
            self._until_answered(gathered, question)
        )

    async def _until_answered(self, gathered: Gathered, question: Question) -> None:
        try:
            await question()
            self._unheard.pop(gathered, None)
        except errors.OncelogError as error:
            if retries.may_answer_later(error):
                self._unheard.setdefault(gathered, (self._protocol.now_ms(), error))
                await self._protocol.back_off(1)
            else:
                self._troubles[gathered] = error
        except Exception as error:
            # A fault of ours.
            self._troubles[gathered] = error
        finally:
            del self._asking[gathered.tx_id]
            self._wake()

    async def _ask(self, gathered: Gathered) -> None:
        self._across.learn(gathered, await self._told(gathered.tx_id))

    async def _ask_again(self, gathered: Gathered, missing: list[PartitionKey], asked: int) -> None:
        await asyncio.sleep(min(AGAIN_MS << min(asked, 10), AGAIN_MS_MAX) / 1000)
        if gathered.is_over:
            return
        told = await self._told(gathered.tx_id)
        for partition in missing:
            if partition not in told.unreadable and partition not in gathered.ends:
                # Asked after it could be read: so it lies below.
                gathered.ends[partition] = await self._end(partition)
        self._across.learn(gathered, told)

    async def _end(self, partition: PartitionKey) -> int:
        try:
            [end] = await self._ends([partition], "latest")
        except errors.UnknownTopic:
            # It was deleted, and its parts with it.
            return 0
        return end

    async def _told(self, tx_id: int) -> Told:
        reply = await self._protocol.call(
            "coordinator.get_transaction", coordinator_pb2.GetTransactionRequest(tx_id=tx_id)
        )
        told = self._known[tx_id] = told_of(reply.transaction)
        self._known.move_to_end(tx_id)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return told


def told_of(described: coordinator_pb2.TransactionDescription) -> Told:
    """Raises UnknownTransaction where it, or where its parts are, was forgotten."""
    if described.state == types_pb2.TRANSACTION_STATE_EXPIRED:
        raise errors.UnknownTransaction(
            f"transaction {show_id(described.tx_id)} ended longer ago than its coordinator "
            "remembers (outcome_retention_ms), so nobody knows where its parts are",
            tx_id=described.tx_id,
        )
    if described.state != types_pb2.TRANSACTION_STATE_COMMITTED:
        raise errors.Unavailable(
            f"the coordinator of transaction {show_id(described.tx_id)} does not say yet that it "
            "is committed; it is asked again"
        )
    if described.parts_forgotten:
        raise errors.UnknownTransaction(
            f"transaction {show_id(described.tx_id)} is committed, but its coordinator had no room "
            "to keep where its parts are (control_journal_bytes_max), so nobody knows",
            tx_id=described.tx_id,
        )
    damaged = {PartitionKey.of(part.partition) for part in described.damaged}
    participants = {
        PartitionKey(topic.topic_id, number)
        for topic in described.parts.topics
        for number in topic.partition
    }
    return Told(
        described.prepare_offset,
        frozenset(participants - damaged),
        frozenset(map(PartitionKey.of, described.unacknowledged)),
    )

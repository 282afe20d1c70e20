"""Does what one coordinator partition owes: markers to participants, offsets of staged one-shots to
the offset manager, and the record that a transaction is over.

Markers (docs/protocol.md): per participant at most one unacknowledged group, which begins with the
earliest unacknowledged marker and carries all that are due; groups for one leader process travel in
one message, and what is due soon after one waits for the next (`marker_pace`). Refused or
unanswered, they are sent again for ever, to whoever leads by then; a topic that etcd says is gone
is done. Nothing is lost with this object: `machine.owed` knows it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from oncelog_server.coordinator.commands import (
    AnswerOffsets,
    FinishPlanned,
    FinishTransactions,
    MarkerAnswer,
    MarkersAnswered,
    MarkersSent,
    MarkerStatus,
    OffsetsSent,
    Owed,
    OweDecision,
    OweFinish,
    OweMarkers,
    OweOffsets,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.decide_one_shot import refusal_of
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.marker_pace import MarkerPace
from oncelog_server.coordinator.marker_wire import GroupAnswer, answers_of, group_message
from oncelog_server.coordinator.outbox_metrics import OutboxMetrics
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.values import AbortCause, Refusal
from oncelog_server.coordinator.waiting import Waiting
from oncelog_server.core.ids import PartitionId, TopicId, TxId
from oncelog_server.core.ports import Address
from oncelogpb.doubt import Doubt
from oncelogpb.errors import (
    DiskFull,
    InDoubt,
    NotLeader,
    OncelogError,
    PendingTransaction,
    TransactionEnded,
    TryAgain,
    UnknownTopic,
)
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import participant_pb2 as pb

# How long a participant may take to answer; a slower answer is in doubt, so it is asked again. Half
# of what I29 allows after a fault has healed.
MARKERS_TIMEOUT_MS: Final = 5_000
OFFSETS_TIMEOUT_MS: Final = 5_000
# Between two attempts at one participant: the first pause, doubled up to the longest.
BACKOFF_MS_MIN: Final = 20
BACKOFF_MS_MAX: Final = 500
# Bytes of groups in one message; a single larger group goes alone.
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
# That transactions are over is journaled at leisure and for many at once: nobody waits for it, and
# each time costs the CPU of a commit, and a sync that stands before the next commit's. Earlier
# where many are over, or where they hold much memory. See docs/adr/0099.
FINISH_DELAY_MS: Final = 200
FINISH_AT_ONCE: Final = 1_000
FINISH_AT_ONCE_BYTES: Final = 16 * 1024 * 1024


class CoordinatorOutbox:
    """One per led partition of `__transaction_control`, from ready to step-down."""

    def __init__(
        self,
        replica: CoordinatorReplica,
        env: CoordinatorEnv,
        waiting: Waiting,
        config: CoordinatorConfig,
    ) -> None:
        self._replica = replica
        self._env = env
        self._waiting = waiting
        self._config = config
        self._tally = OutboxMetrics(replica, env)
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempts: dict[PartitionId, int] = {}
        # What FinishTransactions will be asked for, and the memory that it holds until then.
        self._finishable: list[TxId] = []
        self._finishable_bytes = 0
        self._finish_at: asyncio.TimerHandle | None = None
        self._stopped = False
        number = replica.partition.number
        self._pace = MarkerPace(self.wake, lambda: waiting.is_hurried(number))
        waiting.hurry_with(number, self.wake, self._asked)

    # ------------------------------------------------------------------------------ the main verb

    def wake(self) -> None:
        if self._stopped or self._replica.machine is None:
            return
        groups: list[OweMarkers] = []
        for owed in self._owed(self._replica.machine):
            match owed:
                case OweMarkers():
                    groups.append(owed)
                case OweOffsets() | OweDecision():
                    self._replica.signal(OffsetsSent(owed.tx_id))
                    self._spawn(self._decide(owed))
                case OweFinish():
                    self._delivered(self._replica.machine, owed.tx_ids)
        if groups:
            self._pace.went()
            self._send_all(groups)
        self._tally.look()

    def _owed(self, machine: CoordinatorMachine) -> Sequence[Owed]:
        below, deliveries = self._replica.high_watermark, machine.state.deliveries
        if deliveries.has_ready and not self._pace.may_go(is_much=deliveries.are_many):
            return machine.owed_beside_markers(below)
        return machine.owed(below)

    def _asked(self) -> None:
        """Whether something is visible, by somebody who will ask again."""
        self._pace.heard(is_watched=True)
        self.wake()

    async def stop(self) -> None:
        self._stopped = True
        self._pace.stop()
        if self._finish_at is not None:
            self._finish_at.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.step_down(self._replica.partition.number)

    # ------------------------------------------------------------------------------------- markers

    def _send_all(self, groups: Sequence[OweMarkers]) -> None:
        """Groups of one leader process in one message."""
        by_leader: dict[Address, list[OweMarkers]] = {}
        for group in groups:
            self._replica.signal(MarkersSent(group.participant))
            self._tally.sent(group)
            leader = self._env.metadata.leader_of(group.participant)
            if leader is None:
                self._spawn(self._without_leader(group))
            else:
                # One process may lead partitions in several epochs: it is one destination.
                by_leader.setdefault(leader._replace(epoch=0), []).append(group)
        for leader, of_leader in by_leader.items():
            for owed, request in _requests(self._replica, leader, of_leader):
                self._spawn(self._send(leader, owed, request))

    async def _send(
        self, leader: Address, groups: Sequence[OweMarkers], request: pb.WriteMarkersRequest
    ) -> None:
        try:
            reply: pb.WriteMarkersReply = await self._env.peers.call(
                leader, "participant.write_markers", request, timeout_ms=MARKERS_TIMEOUT_MS
            )
            answers = answers_of(reply, groups)
        except OncelogError as error:
            told = Doubt.inherited("participant.write_markers").as_reported(error)
            for group in groups:
                self._refused(group, told)
            return
        for group, answer in zip(groups, answers, strict=True):
            self._answered(group, answer)
        taken = [answer for answer in answers if answer.refusal is None]
        if taken:
            self._pace.heard(is_watched=not all(answer.is_unwatched for answer in taken))
        self.wake()

    def _answered(self, group: OweMarkers, answer: GroupAnswer) -> None:
        self._replica.signal(MarkersAnswered(group.participant, answer.results))
        self._tally.written(answer.results)
        if answer.refusal is None:
            self._attempts.pop(group.participant, None)
            return
        # What was applied before the refusal is done; the rest waits.
        self._replica.signal(MarkersSent(group.participant))
        self._refused(group, answer.refusal)

    def _refused(self, group: OweMarkers, error: OncelogError) -> None:
        """Still under way, as far as the machine knows, until its pause is over."""
        self._tally.refused(error)
        if isinstance(error, UnknownTopic):
            self._spawn(self._without_leader(group))
        else:
            self._spawn(self._again(group.participant, disk_full=isinstance(error, DiskFull)))

    async def _without_leader(self, group: OweMarkers) -> None:
        """Nobody leads it now; or its topic was deleted, or there never was such a partition, and
        that is the end of it: nothing can be written there any more under a decided TxId."""
        metadata, participant = self._env.metadata, group.participant
        try:
            gone = await metadata.is_gone(participant.topic_id)
            gone = gone or not await metadata.exists(participant)
        except OncelogError:
            gone = False
        if not gone:
            await self._again(group.participant, disk_full=False)
            return
        results = [MarkerAnswer(marker.tx_id, MarkerStatus.GONE) for marker in group.markers]
        self._attempts.pop(group.participant, None)
        self._replica.signal(MarkersAnswered(group.participant, results))
        self._tally.written(results)
        self.wake()

    async def _again(self, participant: PartitionId, *, disk_full: bool) -> None:
        if disk_full:
            self._replica.signal(MarkersAnswered(participant, disk_full=True))
            self._replica.signal(MarkersSent(participant))
        await self._pause(self._attempts.get(participant, 0))
        self._attempts[participant] = self._attempts.get(participant, 0) + 1
        self._replica.signal(MarkersAnswered(participant))
        self.wake()

    # -------------------------------------------------------------------------- over and visible

    def _delivered(self, machine: CoordinatorMachine, tx_ids: Sequence[TxId]) -> None:
        self._replica.signal(FinishPlanned(tx_ids))
        for tx_id in tx_ids:
            self._finishable.append(tx_id)
            self._finishable_bytes += machine.state.transactions[tx_id].one_shot_bytes
            self._tally.delivered(tx_id)
            self._waiting.happened(tx_id)
        are_many = len(self._finishable) >= FINISH_AT_ONCE
        if are_many or self._finishable_bytes >= FINISH_AT_ONCE_BYTES:
            self._finish()
        else:
            self._finish_later()

    def _finish_later(self) -> None:
        if self._finish_at is None:
            loop = asyncio.get_running_loop()
            self._finish_at = loop.call_later(FINISH_DELAY_MS / 1000, self._finish)

    def _finish(self) -> None:
        if self._finish_at is not None:
            self._finish_at.cancel()
            self._finish_at = None
        try:
            self._replica.submit(FinishTransactions(tuple(self._finishable)))
        except OncelogError:
            # A lease that ran out may come back, and copies that are missing; where this steps
            # down, the next leader sends these markers again.
            self._finish_later()
            return
        self._finishable.clear()
        self._finishable_bytes = 0

    # ------------------------------------------------------------------------- offsets of one-shots

    async def _decide(self, owed: OweOffsets | OweDecision) -> None:
        """Asks until the offset manager has answered: only that ends a staged one-shot with
        offsets."""
        refusal = await self._ask_offsets(owed) if isinstance(owed, OweOffsets) else None
        decided = await self._bring(AnswerOffsets(owed.tx_id, refusal))
        if refusal is not None:
            self._env.reporter.event("offsets refused", tx_id=owed.tx_id, reason=refusal.reason)
        for tx_id in decided:
            self._waiting.happened(tx_id)

    async def _bring(self, answer: AnswerOffsets) -> Sequence[TxId]:
        """Until it is durable: a lease that ran out may come back, and the leadership with it. A
        step-down ends this task, and the next leader asks again, which is idempotent."""
        attempt = 0
        while True:
            try:
                decided: Sequence[TxId] = await self._replica.submit(answer)
            except OncelogError:
                await self._pause(attempt)
                attempt += 1
                continue
            if attempt:
                # An earlier attempt may have decided it, and those behind it.
                self._waiting.look_again(self._replica.partition.number)
            return decided

    async def _ask_offsets(self, owed: OweOffsets) -> Refusal | None:
        request = _offsets_request(owed)
        # The leader before this one may have asked already.
        doubt = Doubt.inherited("offset_manager.commit_transaction_offsets")
        pending_since_ms: int | None = None
        attempt = 0
        while True:
            try:
                await self._call_offset_manager(owed, request)
                return None
            except PendingTransaction as error:
                now_ms = self._env.clock.now().monotonic_ms
                pending_since_ms = now_ms if pending_since_ms is None else pending_since_ms
                if now_ms - pending_since_ms >= self._config.staged_pending_ms_max:
                    return _held_by_another(error)
            except OncelogError as error:
                told = doubt.as_reported(error)
                if not isinstance(told, TryAgain | InDoubt):
                    return refusal_of(told)
                pending_since_ms = None
            await self._pause(attempt)
            attempt += 1

    async def _call_offset_manager(
        self, owed: OweOffsets, request: offsets_pb.CommitTransactionOffsetsRequest
    ) -> None:
        leader = self._env.metadata.leader_of(owed.offsets.participant)
        if leader is None:
            raise NotLeader("nobody leads the group's partition of __consumer_offsets now")
        await self._env.peers.call(
            leader,
            "offset_manager.commit_transaction_offsets",
            request,
            timeout_ms=OFFSETS_TIMEOUT_MS,
        )

    # --------------------------------------------------------------------------------------- tasks

    async def _pause(self, attempt: int) -> None:
        pause_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempt, 16))
        await asyncio.sleep(pause_ms / 1000)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _requests(
    replica: CoordinatorReplica, leader: Address, groups: Sequence[OweMarkers]
) -> list[tuple[list[OweMarkers], pb.WriteMarkersRequest]]:
    """As few messages as `REQUEST_BYTES_MAX` allows."""
    packed: list[tuple[list[OweMarkers], pb.WriteMarkersRequest]] = []
    size_bytes = 0
    for group in groups:
        message = group_message(group, replica.partition.number, replica.epoch, leader)
        group_bytes = message.ByteSize()
        if not packed or size_bytes + group_bytes > REQUEST_BYTES_MAX:
            packed.append(([], pb.WriteMarkersRequest()))
            size_bytes = 0
        size_bytes += group_bytes
        packed[-1][0].append(group)
        packed[-1][1].groups.append(message)
    return packed


def _held_by_another(error: PendingTransaction) -> Refusal:
    """The no that the client hears: final, for a repeat of its request number gets it again."""
    holder = error.metadata.get("tx_id", "")
    return Refusal(
        TransactionEnded.reason,
        "aborted: another transaction holds the offsets (staged_pending_ms_max); rewind, try anew",
        {"outcome": "aborted", "cause": AbortCause.OFFSETS.name, "held_by": holder},
    )


def _offsets_request(owed: OweOffsets) -> offsets_pb.CommitTransactionOffsetsRequest:
    """With what `from` may chain on filled in where the client could not know it: it sent this
    one-shot before the earlier one was answered."""
    offsets = offsets_pb.GroupOffsets.FromString(owed.offsets.request)
    for offset in offsets.offsets:
        if not offset.after_tx_id and owed.after:
            place = PartitionId(TopicId(offset.partition.topic_id), offset.partition.number)
            offset.after_tx_id = owed.after.get(place, TxId(0))
    request = offsets_pb.CommitTransactionOffsetsRequest(tx_id=owed.tx_id, offsets=offsets)
    request.producer.producer_id = owed.producer.producer_id
    request.producer.generation = owed.producer.generation
    return request

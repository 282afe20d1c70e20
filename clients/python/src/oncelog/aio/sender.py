"""Delivers sealed batches to their leaders: in order per partition, several in flight, many
partitions in one message, again after every error that allows it.

One Sender speaks in one name: of a plain producer, or of one transaction. It owns the lanes
(`_core.sequencing`) and decides nothing that they can decide. It belongs to one event loop and runs
in its callbacks: no task per partition.

Every batch ends: acknowledged, or failed at `delivery_timeout_ms` at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from oncelog._core import retries
from oncelog._core.messages import Identity, Produce
from oncelog._core.retries import Action
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog._core.sequencing import Lane, Numbered
from oncelog._core.transaction import WriterPart
from oncelog.aio.recorder import Parcel
from oncelog.errors import Closed
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors

# A Produce message is closed once it holds so much: 1 to 2 MiB are quickest, measured.
MESSAGE_BYTES: Final = 1024 * 1024
# Produce messages to one leader that are not answered yet: 4 to 8 keep the leader busy.
MESSAGES_IN_FLIGHT_MAX: Final = 8
# How long one message may take; the batch goes again until its own deadline.
ATTEMPT_MS_MAX: Final = 30_000


class Sender:
    """`renew` gives a plain producer a new identity where the old one's sequence broke; None in a
    transaction. `on_settled` is told the bytes that left memory; how each batch ended, its part,
    and before: who finds no bytes under way knows of each batch how it ended."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        identity: Identity,
        *,
        delivery_timeout_ms: int,
        on_settled: Callable[[int], None],
        renew: Callable[[], Identity] | None = None,
    ) -> None:
        self._protocol = protocol
        self._delivery_timeout_ms = delivery_timeout_ms
        self._on_settled = on_settled
        self._renew = renew
        self._identity = identity
        # A lane that was restarted has a name of its own.
        self._identities: dict[PartitionKey, Identity] = {}
        self._lanes: dict[PartitionKey, Lane] = {}
        # Lanes that may have something to send, in the order in which they asked.
        self._ready: dict[PartitionKey, None] = {}
        # Failures since a lane's last success: how many, and the first.
        self._troubles: dict[PartitionKey, tuple[int, errors.OncelogError]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        # Lanes of which nothing may go: they wait for a retry or for their leader's address.
        self._held: set[PartitionKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flights: dict[Endpoint, int] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._pump_due = False
        self._stopped = False

    def add(self, parcel: Parcel) -> None:
        """Puts a batch in line; it goes in this turn of the loop."""
        lane = self._lanes.get(parcel.partition)
        if lane is None:
            lane = self._lanes[parcel.partition] = Lane(renewable=self._renew is not None)
        deadline_ms = self._protocol.now_ms() + self._delivery_timeout_ms
        numbered = lane.add(parcel.sealed, deadline_ms, parcel.part)
        parcel.part.base = numbered.base_sequence
        self._wake(parcel.partition)

    async def drain(self) -> None:
        """Returns when everything was acknowledged or has failed."""
        while not self._stopped and not all(lane.idle for lane in self._lanes.values()):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def parts(self) -> list[WriterPart]:
        """What was acknowledged, for the manifest."""
        return [
            WriterPart(partition, self._identity.writer, lane.acknowledged)
            for partition, lane in self._lanes.items()
            if lane.acknowledged
        ]

    def partitions(self) -> list[PartitionKey]:
        """All partitions that may hold something."""
        return list(self._lanes)

    def stop(self) -> None:
        """Drops everything; late answers change nothing."""
        if self._stopped:
            return
        self._stopped = True
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for lane in self._lanes.values():
            for batch in lane.flying:
                _end(batch, errors.UnknownOutcome("it was closed before this was acknowledged"))
            for batch in lane.waiting:
                _end(batch, batch.doubt.as_reported(Closed("it was closed before this was sent")))
            self._on_settled(sum(batch.size for batch in (*lane.waiting, *lane.flying)))
        self._notify()

    # ---------------------------------------------------------------------------------- sending

    def _wake(self, partition: PartitionKey) -> None:
        self._ready[partition] = None
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Sends what is ready: one message per leader and identity, until the windows are full."""
        self._pump_due = False
        if self._stopped:
            return
        groups: dict[tuple[Endpoint, Identity], list[PartitionKey]] = {}
        for partition in list(self._ready):
            lane = self._lanes[partition]
            if not lane.sendable() or partition in self._held:
                del self._ready[partition]
                continue
            leader = self._protocol.directory.leader(partition)
            if leader is None:
                del self._ready[partition]
                self._locate(partition)
                continue
            identity = self._identities.get(partition, self._identity)
            groups.setdefault((leader, identity), []).append(partition)
        for (leader, identity), partitions in groups.items():
            while self._flights.get(leader, 0) < MESSAGES_IN_FLIGHT_MAX:
                batches = self._gather(partitions)
                if not batches:
                    break
                self._send(leader, identity, batches)

    def _gather(self, partitions: list[PartitionKey]) -> list[tuple[PartitionKey, Numbered]]:
        """Batches for one message, a partition at a time."""
        gathered: list[tuple[PartitionKey, Numbered]] = []
        size = 0
        for partition in partitions:
            lane = self._lanes[partition]
            # One that was refused at once waits for its retry already.
            while lane.sendable() and partition not in self._held:
                if gathered and size + lane.waiting[0].size > MESSAGE_BYTES:
                    # The lane behind gets its turn first in the next message.
                    return gathered
                batch = lane.take()
                gathered.append((partition, batch))
                size += batch.size
            self._ready.pop(partition, None)
        return gathered

    def _send(
        self,
        leader: Endpoint,
        identity: Identity,
        batches: list[tuple[PartitionKey, Numbered]],
    ) -> None:
        now_ms = self._protocol.now_ms()
        soonest_ms = min(batch.deadline_ms for _, batch in batches)
        timeout_ms = max(1, min(ATTEMPT_MS_MAX, int(soonest_ms - now_ms)))
        request = Produce(identity, batches)
        try:
            reply = self._protocol.transport.begin(
                leader, "partition_leader.produce", request, timeout_ms
            )
        except errors.OncelogError as error:
            self._refused(batches, error)
            return
        self._flights[leader] = self._flights.get(leader, 0) + 1
        reply.add_done_callback(lambda future: self._answered(leader, batches, future))

    # ---------------------------------------------------------------------------------- answers

    def _answered(
        self,
        leader: Endpoint,
        batches: list[tuple[PartitionKey, Numbered]],
        future: asyncio.Future[Any],
    ) -> None:
        self._flights[leader] -= 1
        if future.cancelled():
            error: BaseException | None = errors.UnknownOutcome("the call was cancelled")
        else:
            error = future.exception()
        if self._stopped:
            return
        if error is None:
            results = future.result().results
            if len(results) == len(batches):
                self._settle(batches, results)
            else:
                error = errors.Internal("a Produce was answered with another number of results")
        if error is not None:
            ours = _as_ours(error)
            self._protocol.suspect(leader, ours)
            self._refused(batches, ours)
        # Others may have waited for this message's place.
        for partition in list(self._ready)[:1]:
            self._wake(partition)
        self._notify()

    def _settle(self, batches: list[tuple[PartitionKey, Numbered]], results: Any) -> None:
        settled_bytes = 0
        for (partition, batch), result in zip(batches, results, strict=True):
            if result.HasField("error"):
                self._fail(partition, batch, errors.from_status(result.error))
                continue
            lane = self._lanes[partition]
            lane.succeed(batch)
            if batch.part is not None:
                batch.part.succeed(result.offset if result.HasField("offset") else None)
            self._troubles.pop(partition, None)
            settled_bytes += batch.size
            self._after(partition, lane)
        self._on_settled(settled_bytes)

    def _refused(
        self, batches: list[tuple[PartitionKey, Numbered]], error: errors.OncelogError
    ) -> None:
        for partition, batch in batches:
            self._fail(partition, batch, error)

    def _fail(self, partition: PartitionKey, batch: Numbered, error: errors.OncelogError) -> None:
        lane = self._lanes[partition]
        action = lane.fail(batch, error)
        self._protocol.learn_failure(partition, error)
        if isinstance(error, errors.TooLarge):
            # The topic takes smaller batches than we were told: the next ones ask.
            self._protocol.directory.forget_topic_id(partition.topic_id)
        if action not in (Action.RETRY, Action.REDIRECT):
            self._lose([batch], error)
        self._after(partition, lane, error)

    def _after(
        self, partition: PartitionKey, lane: Lane, error: errors.OncelogError | None = None
    ) -> None:
        """Goes on with a lane after an answer."""
        if self._stopped or lane.draining:
            return
        if lane.broken and not lane.flying:
            self._restart(partition, lane)
        if error is None:
            if lane.sendable():
                self._wake(partition)
            return
        self._later(partition, error)

    def _later(self, partition: PartitionKey, error: errors.OncelogError) -> None:
        """Wakes the lane after a wait, without what has waited too long by then."""
        attempt, first = self._troubles.get(partition, (0, error))
        self._troubles[partition] = (attempt + 1, first)
        wait_ms = retries.wait_ms(error, attempt, self._protocol.chance())
        self._held.add(partition)
        timer: asyncio.TimerHandle | None = None

        def due() -> None:
            self._timers.discard(timer)
            self._held.discard(partition)
            self._expire(partition, first)
            if not self._stopped:
                self._wake(partition)
                self._notify()

        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, due)
        self._timers.add(timer)

    def _expire(self, partition: PartitionKey, error: errors.OncelogError) -> None:
        lane = self._lanes[partition]
        if lane.flying:
            return
        late = lane.expire(self._protocol.now_ms())
        if late:
            self._lose(late, error)
        if lane.broken and not self._stopped:
            self._restart(partition, lane)

    def _restart(self, partition: PartitionKey, lane: Lane) -> None:
        """A plain producer goes on under a new id; a transaction is over."""
        if self._renew is None:
            return
        lost = lane.restart()
        self._identities[partition] = self._renew()
        if lost:
            self._lose(
                lost,
                errors.UnknownOutcome(
                    f"{len(lost)} batches may or may not have been appended: their sequence broke"
                ),
            )

    def _lose(self, batches: list[Numbered], error: errors.OncelogError) -> None:
        for batch in batches:
            _end(batch, batch.doubt.as_reported(error))
        self._on_settled(sum(batch.size for batch in batches))

    # --------------------------------------------------------------------------------- locating

    def _locate(self, partition: PartitionKey) -> None:
        self._held.add(partition)
        task = asyncio.get_running_loop().create_task(self._find_leader(partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find_leader(self, partition: PartitionKey) -> None:
        lane = self._lanes[partition]
        error: errors.OncelogError | None = None
        try:
            deadline_ms = self._protocol.now_ms() + ATTEMPT_MS_MAX
            await self._protocol.locate(partition, deadline_ms)
        except errors.OncelogError as failure:
            error = failure
        self._held.discard(partition)
        if self._stopped:
            return
        if error is None:
            self._wake(partition)
        elif retries.is_repeatable(retries.action_for(error), idempotent=True):
            self._later(partition, error)
        else:
            self._give_up(partition, lane, error)
        self._notify()

    def _give_up(self, partition: PartitionKey, lane: Lane, error: errors.OncelogError) -> None:
        """The topic is gone: all that waits fails."""
        lost = list(lane.waiting)
        lane.waiting.clear()
        lane.broken = True
        self._lose(lost, error)
        if not self._stopped and not lane.flying:
            self._restart(partition, lane)

    def _notify(self) -> None:
        if self._stopped or all(lane.idle for lane in self._lanes.values()):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _end(batch: Numbered, error: errors.OncelogError) -> None:
    if batch.part is not None:
        batch.part.fail(error)


def _as_ours(error: BaseException) -> errors.OncelogError:
    return error if isinstance(error, errors.OncelogError) else errors.UnknownOutcome(str(error))

"""A consumer's membership of its group, at work: heartbeats in the background while the user
processes, and what they changed, in the middle of the user's own polls.

Rules (I23):
- what the consumer reads and commits changes in `settle` alone, which runs inside of `poll`: a user
  who processes a batch finds the same partitions as before;
- a partition that another one shall have gives nothing more. Then `on_revoked` is called, which may
  commit or end the transaction; what is not committed then is dropped, for the next owner reads it
  again; only then the group is told;
- while a transaction that this consumer feeds is open, letting go waits for its end, for a session
  at most. Where partitions go all the same, or are lost, its commit is refused here: the output
  would be there, and the next owner would make it again;
- a transaction that names its offsets at its end (`send_offsets`) is made of this consumer's
  records long before that is known: where it began before such a loss, it is refused, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from oncelog._core.membership import MemberSettings, Membership, State
from oncelog._core.open_transactions import OpenTransactions
from oncelog._core.positions import Positions
from oncelog._core.routing import PartitionKey
from oncelog.batch import TopicPartition
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2

# Told which partitions came or went; awaited where it is a coroutine function.
OnPartitions = Callable[[Sequence[TopicPartition]], object]
# How long leaving may take, milliseconds; the group finds out by itself after a session.
LEAVE_MS: Final = 1_000
# What heartbeats wait at least: a sum and a difference of times may round to two sides of a moment,
# and that moment must pass.
WAIT_MS_MIN: Final = 1.0
# Each look may find that the one before changed something: so many are made for one poll.
LOOKS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Of the user: called from within `poll` (and `close`), one at a time."""

    # May be read from now on.
    on_assigned: OnPartitions | None = None
    # Go to another one after this: what is committed in it counts.
    on_revoked: OnPartitions | None = None
    # Are another one's already: nothing can be committed.
    on_lost: OnPartitions | None = None


def settings_of(group: str, options: ConsumerOptions) -> MemberSettings:
    """Operators see where a member runs, unless it says what it is called."""
    return MemberSettings(
        group=group,
        instance_id=options.instance_id,
        assignor=options.assignor,
        client_id=options.client_id or f"{socket.gethostname()}:{os.getpid()}",
        session_timeout_ms=options.session_timeout_ms,
        max_poll_interval_ms=options.max_poll_interval_ms,
    )


def compiled_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Raises InvalidArgument."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise errors.InvalidArgument(
            f"the pattern {pattern!r} is no regular expression of Python's: {error}",
            field="pattern",
        ) from error


class Member:
    """Of one consumer, on its loop."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        settings: MemberSettings,
        positions: Positions,
        transactions: OpenTransactions,
        callbacks: Callbacks,
        *,
        wake: Callable[[], None],
        before_letting_go: Callable[[], Awaitable[None]],
        flights_over: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        """`wake`: ends a poll that waits. `before_letting_go`: commits, where that is automatic.
        `flights_over`: waits for commits that are on their way. `changed`: the positions are of
        other partitions now."""
        self._protocol = protocol
        self._settings = settings
        self._positions = positions
        # Those that commit what this consumer gives.
        self._open = transactions
        self._callbacks = callbacks
        self._wake = wake
        self._before_letting_go = before_letting_go
        self._flights_over = flights_over
        self._has_changed = changed
        self.core = Membership(
            settings,
            draw_id=lambda: protocol.entropy(16).hex(),
            now_ms=protocol.now_ms(),
        )
        self._pattern: re.Pattern[str] | None = None
        self._listed_ms = 0.0
        # Partitions of each topic when it was subscribed to, by topic id: what is numbered beyond,
        # and a topic that came later, is read from its first record on.
        self._partitions_at_first: dict[bytes, int] = {}
        self._due = asyncio.Event()
        self._answered = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        # Partitions whose owner hears in `on_revoked` now that they go.
        self._telling: set[PartitionKey] = set()
        # Since when letting go waits for one of them; None: it does not.
        self._waits_since_ms: float | None = None

    # -------------------------------------------------------------------------------- subscribing

    async def subscribe(self, topics: Collection[str], pattern: re.Pattern[str] | None) -> None:
        """Joins, or changes what it wants, and waits for the first answer. Raises what the group
        refuses, Unavailable, CannotConnect."""
        self._pattern = pattern
        if pattern is None:
            names = await self._named(topics)
        else:
            matching = await self._matching(pattern, names_only=False)
            for topic in matching:
                self._note(topic)
            names = [topic.name for topic in matching]
        self.core.subscribe(names, self._protocol.now_ms())
        self._answered.clear()
        self._due.set()
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        await self._let_in()
        self._require_beating()
        trouble = self.core.take_trouble()
        if trouble is not None:
            raise trouble
        if self.core.state is State.JOINING:
            raise self.core.not_let_in()

    async def _let_in(self) -> None:
        """Until the first answer, or as long as any call waits: a heartbeat alone waits for less.
        Where the process is met meanwhile, it waits on."""
        began_ms = self._protocol.now_ms()
        deadline_ms = began_ms + self._protocol.options.timeout_ms
        while not self._answered.is_set():
            until_ms = self._protocol.until("offset_manager.heartbeat", began_ms, deadline_ms)
            left_ms = until_ms - self._protocol.now_ms()
            if left_ms <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._answered.wait()

    async def _named(self, topics: Collection[str]) -> list[str]:
        """As they are; how many partitions they have is noted."""
        for name in topics:
            with contextlib.suppress(errors.UnknownTopic):
                self._note(await self._protocol.topic(name))
        return list(topics)

    def _note(self, topic: partition_leader_pb2.TopicDescription) -> None:
        self._partitions_at_first.setdefault(topic.topic_id, len(topic.partitions))

    async def leave(self) -> None:
        """Ends heartbeats. A dynamic member says so, and its partitions go to others at once; a
        static one keeps them for its successor."""
        beating, self._beating = self._beating, None
        running = [task for task in (beating, self._looking) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        farewell = self.core.farewell()
        if farewell is not None and beating is not None:
            with contextlib.suppress(errors.OncelogError):
                await self._send(farewell, LEAVE_MS)

    async def _matching(
        self, pattern: re.Pattern[str], *, names_only: bool
    ) -> list[partition_leader_pb2.TopicDescription]:
        self._listed_ms = self._protocol.now_ms()
        request = partition_leader_pb2.ListTopicsRequest(names_only=names_only)
        reply = await self._protocol.call("partition_leader.list_topics", request)
        return [topic for topic in reply.topics if pattern.fullmatch(topic.name)]

    async def _look_for_topics(self) -> None:
        """Again with each refresh of the metadata; where nobody answers, the next time."""
        age_ms = self._protocol.now_ms() - self._listed_ms
        if self._pattern is None or age_ms < self._protocol.options.topic_refresh_ms:
            return
        with contextlib.suppress(errors.OncelogError):
            matching = await self._matching(self._pattern, names_only=True)
            names = [topic.name for topic in matching]
            self.core.subscribe(names, self._protocol.now_ms())
            self._due.set()

    # --------------------------------------------------------------------------------- heartbeats

    async def _beat(self) -> None:
        """Until cancelled."""
        while True:
            self._due.clear()
            request = self.core.request(self._protocol.now_ms())
            if request is None:
                wait_ms = self.core.wait_ms(self._protocol.now_ms())
                wait_s = None if wait_ms is None else max(wait_ms, WAIT_MS_MIN) / 1000
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: it may swallow a cancellation that comes with what it waits for.
                    async with asyncio.timeout(wait_s):
                        await self._due.wait()
                continue
            sent_ms = self._protocol.now_ms()
            try:
                reply = await self._send(request, self.core.answer_ms)
            except errors.OncelogError as error:
                self.core.refused(request, error, self._protocol.now_ms())
                if self.core.state is not State.JOINING or self.core.has_trouble:
                    self._answered.set()
            else:
                self.core.heard(request, reply, sent_ms=sent_ms)
                if not request.leaving:
                    self._answered.set()
            self._wake()
            if self._looking is None or self._looking.done():
                # Beside the heartbeats: it may wait for a process that is silent.
                self._looking = asyncio.get_running_loop().create_task(self._look_for_topics())

    async def _send(
        self, request: offset_manager_pb2.HeartbeatRequest, timeout_ms: int
    ) -> offset_manager_pb2.HeartbeatReply:
        reply: offset_manager_pb2.HeartbeatReply = await self._protocol.call(
            "offset_manager.heartbeat", request, timeout_ms
        )
        return reply

    def _require_beating(self) -> None:
        """Raises what ended the heartbeats, a fault of this client."""
        if self._beating is not None and self._beating.done() and not self._beating.cancelled():
            self._beating.result()

    # -------------------------------------------------------------------------------------- polls

    @asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        """While the user waits for records."""
        self._require_beating()
        self.core.poll_began(self._protocol.now_ms())
        self._due.set()
        try:
            yield
        finally:
            self.core.poll_ended(self._protocol.now_ms())

    async def settle(self) -> None:
        """Brings what the consumer reads in line with what it may read. When this returns, nothing
        that is not its own is given, unless the loop runs on. Raises what callbacks raise, and what
        the group refuses."""
        for _ in range(LOOKS_MAX):
            self.core.look(self._protocol.now_ms())
            loss = self.core.take_loss()
            if loss is not None:
                await self._lose(loss)
            elif not await self._let_go() and not await self._take():
                break
        trouble = self.core.take_trouble()
        if trouble is not None:
            raise trouble

    async def _lose(self, loss: errors.OncelogError) -> None:
        lost = self._positions.assigned
        # Of those that are unknown something may have been given before they were forgotten.
        if self._is_in_use(lost) or self._positions.unknown():
            self._open.lose(loss)
        places = self._places(lost)
        self._positions.revoke(lost)
        self._has_changed()
        await _call(self._callbacks.on_lost, places)

    async def _let_go(self) -> bool:
        """True where something was changed."""
        going = self.core.must_let_go
        self._positions.withhold(going)
        # Within on_revoked what goes is held until the callback ends: it may commit.
        if not going or self._telling or self._waits_for_a_transaction(going):
            return False
        read = [partition for partition in going if partition in self._positions.assigned]
        try:
            await self.give_up(read)
        finally:
            # What was lost meanwhile is not held any more.
            held = set(self.core.held)
            self.core.let_go([key for key in going if key in held], self._protocol.now_ms())
            self._due.set()
        return True

    async def give_up(self, partitions: Sequence[PartitionKey]) -> None:
        """The user's last chance to commit what he was given of these; then they are dropped."""
        # Of those that are told already, this is within their callback: it closes the consumer.
        fresh = [key for key in partitions if key not in self._telling]
        self._telling.update(fresh)
        try:
            await self._before_letting_go()
            await _call(self._callbacks.on_revoked, self._places(fresh))
            await self._flights_over()
        finally:
            self._telling.difference_update(fresh)
            left = [key for key in partitions if key in self._positions.assigned]
            if self._is_in_use(left):
                self._open.lose(
                    errors.IllegalGeneration(
                        f"partitions of this transaction's input went to another member of group "
                        f"{self._settings.group!r} before it was committed: abort it"
                    )
                )
            self._positions.revoke(left)
            self._has_changed()

    async def _take(self) -> bool:
        """True where something was changed."""
        known = set(self._positions.assigned)
        added = [partition for partition in self.core.may_read if partition not in known]
        if not added:
            return False
        self._positions.assign([key for key in added if not self._came_later(key)])
        self._positions.assign_added([key for key in added if self._came_later(key)])
        self._has_changed()
        await _call(self._callbacks.on_assigned, self._places(added))
        return True

    def _came_later(self, partition: PartitionKey) -> bool:
        return partition.number >= self._partitions_at_first.get(partition.topic_id, 0)

    def _places(self, partitions: Sequence[PartitionKey]) -> list[TopicPartition]:
        return sorted(self.place(partition) for partition in partitions)

    def place(self, partition: PartitionKey) -> TopicPartition:
        """By the name of its topic."""
        return TopicPartition(self.core.name_of(partition.topic_id), partition.number)

    # ------------------------------------------------------------------------------- transactions

    def require(self) -> None:
        """Raises why nothing may be committed."""
        self.core.look(self._protocol.now_ms())
        self.core.require()

    def refused_as(
        self, member: offset_manager_pb2.GroupMember, error: errors.OncelogError
    ) -> None:
        """A commit in the name of that member was. An earlier life's says nothing of this one."""
        if member.member_id == self.core.member_id:
            self.core.commit_refused(error, self._protocol.now_ms())
        self._due.set()

    def told(
        self, member: offset_manager_pb2.GroupMember, error: errors.OncelogError
    ) -> errors.OncelogError:
        """Where it was this consumer itself that took the instance over, in a later life, nobody
        has to stop."""
        is_earlier = member.member_id != self.core.member_id
        if not isinstance(error, errors.FencedInstance) or not is_earlier:
            return error
        if self.core.state is State.FENCED:
            return error
        return errors.UnknownMember(
            f"this member of group {self._settings.group!r} was silent for its session and has "
            "joined again since: what it read before is read again, by it or by others"
        )

    def _is_in_use(self, partitions: Collection[PartitionKey]) -> bool:
        """Something of them was given and is not committed."""
        return any(item.partition in partitions for item in self._positions.progress())

    def _waits_for_a_transaction(self, going: Sequence[PartitionKey]) -> bool:
        if not self._open or not self._is_in_use(going):
            self._waits_since_ms = None
            return False
        now_ms = self._protocol.now_ms()
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        is_over = now_ms - self._waits_since_ms >= self._settings.session_timeout_ms
        if is_over:
            self._waits_since_ms = None
        return not is_over


async def _call(callback: OnPartitions | None, places: Sequence[TopicPartition]) -> None:
    if callback is None or not places:
        return
    result = callback(places)
    if inspect.isawaitable(result):
        await result

"""Finds where partitions begin, before the first record of them is given: what the group has
committed. A transaction in flight that holds a partition's offset, or one that moved it and is not
visible everywhere (`visibility`), is waited for, up to `pending_timeout_ms`, and holds back that
partition alone.

Where the group has committed nothing, and `start` is the end, a member commits where it begins
before it gives anything. A refusal of that tells nothing that its heartbeats, or the next fetch, do
not tell as well: it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final

from oncelog._core.positions import Positions
from oncelog._core.routing import PartitionKey
from oncelog.aio.offsets import HeldUp, NotBegun, Offsets
from oncelogpb import errors

# After a refusal of where a member begins, before it is asked again: seconds; and so often, where
# somebody waits for it.
REFUSED_S: Final = 0.1
ATTEMPTS_MAX: Final = 5


class Starting:
    """Of one consumer. Asked for (`all_started`), or beside what is read already (`go_on`)."""

    def __init__(
        self,
        offsets: Offsets,
        positions: Positions,
        pending_timeout_ms: int,
        wake: Callable[[], None],
    ) -> None:
        """`wake`: something has started, or failed."""
        self._pending_timeout_ms = pending_timeout_ms
        self._offsets = offsets
        self._positions = positions
        self._wake = wake
        self._task: asyncio.Task[None] | None = None

    async def all_started(self) -> int | None:
        """None: there was nothing to be asked; else how long the group is remembered. Raises also
        what the group says of where a member begins: UnknownMember and the like, UnknownOutcome."""
        await self.stop()
        unknown = self._positions.unknown()
        if not unknown:
            return None
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._start(unknown)
            except NotBegun:
                await asyncio.sleep(REFUSED_S)
        try:
            return await self._start(unknown)
        except NotBegun as error:
            raise error.why from None

    def go_on(self) -> None:
        """Has them started in the background. Raises what kept it from that, once; the next call
        tries again."""
        task = self._task
        if task is not None and task.done():
            self._task = None
            if not task.cancelled():
                task.result()
        if self._task is None and self._positions.unknown():
            self._task = asyncio.get_running_loop().create_task(self._start_unknown())

    def begin_anew(self) -> None:
        """Other partitions are read now, or the user has said from where: what was asked before
        may be of an earlier ownership."""
        task, self._task = self._task, None
        if task is not None and not task.cancel() and not task.cancelled():
            # It failed before anybody asked: the next one meets that again.
            task.exception()

    async def stop(self) -> None:
        """Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _start(self, partitions: list[PartitionKey]) -> int:
        while True:
            try:
                return await self._offsets.start(partitions)
            except errors.PendingTransaction as error:
                raise await self._offsets.explained(error) from None
            except HeldUp as held_up:
                partitions = list(held_up.movers)
                waiting = [
                    self._offsets.visibility.wait(mover, moved, self._pending_timeout_ms)
                    for mover, moved in _by_mover(held_up.movers).items()
                ]
                await _all_of(waiting)

    async def _start_unknown(self) -> None:
        try:
            await self._start_each()
        except (NotBegun, errors.UnknownTopic):
            # The group did not take note of it, or its topic was deleted and it goes back.
            await asyncio.sleep(REFUSED_S)
        finally:
            self._wake()

    async def _start_each(self) -> None:
        left = self._positions.unknown()
        # What waits for one transaction waits together.
        held_up: list[list[PartitionKey]] = []
        while left:
            try:
                await self._offsets.start(left, pending_ms=0)
                break
            except errors.PendingTransaction as error:
                held = _held_by(error, left)
                if held is None:
                    raise
                left.remove(held)
                held_up.append([held])
                self._wake()
            except HeldUp as error:
                # All but these have begun.
                self._wake()
                left = []
                held_up += _by_mover(error.movers).values()
        self._wake()
        await _all_of([self._wait_for(partitions) for partitions in held_up])

    async def _wait_for(self, partitions: list[PartitionKey]) -> None:
        await self._start(partitions)
        self._wake()


async def _all_of(waiting: Sequence[Coroutine[None, None, None]]) -> None:
    """Each to its end. Raises what the first of them met."""
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        if ended is not None:
            raise ended


def _by_mover(movers: Mapping[PartitionKey, int]) -> dict[int, list[PartitionKey]]:
    moved: dict[int, list[PartitionKey]] = {}
    for partition, mover in movers.items():
        moved.setdefault(mover, []).append(partition)
    return moved


def _held_by(
    error: errors.PendingTransaction, partitions: list[PartitionKey]
) -> PartitionKey | None:
    """The partition that the error names."""
    named = error.metadata.get("topic_id"), error.metadata.get("partition")
    for partition in partitions:
        if (partition.topic_id.hex(), str(partition.number)) == named:
            return partition
    return None

"""Which topics were deleted, as etcd says by a linearizable read, asked as seldom as can be.

    asked while nothing is read ──► one read, in the next turn of the loop, for all who asked
    asked while it is under way ──► the next read, for all of these

Invariants:
  * an answer is that of a read which was *sent after* the question: one sent before may be older
    than the topic, and would call gone what has just been made;
  * gone is for ever, for an id is given out once: such an answer is remembered;
  * nothing is gone by the word of an etcd that was wiped, or is as it was before: whoever hears
    "gone" drops what was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from oncelog_server.core.ids import TopicId
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.port import Etcd, EtcdUnavailable
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import Unavailable

# Deleted topics that are remembered; the oldest are asked about again.
DELETIONS_REMEMBERED: Final = 10_000
# So many that this process still knows by name are read one by one; more by listing all.
SINGLE_READS_MAX: Final = 8
_STOPPING: Final = "this process is stopping; nobody asks etcd any more"


class Deletions:
    """Of one process."""

    def __init__(
        self,
        etcd: Etcd,
        name_of: Callable[[TopicId], str | None],
        on_fatal: Fatal,
        *,
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        """`name_of`: of a topic that this process knows still. `confirm`: this is the etcd that the
        process knows, or it raises EtcdUnavailable."""
        self._etcd = etcd
        self._name_of = name_of
        self._confirm = confirm
        self._on_fatal = on_fatal
        self._gone: dict[TopicId, None] = {}
        # For the next read.
        self._asked: dict[TopicId, asyncio.Future[bool]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stopped = False

    async def is_gone(self, topic_id: TopicId) -> bool:
        """Raises Unavailable where etcd does not answer, or this process stops."""
        if topic_id in self._gone:
            return True
        if self._stopped:
            raise Unavailable(_STOPPING)
        answer = self._asked.get(topic_id)
        if answer is None:
            answer = self._asked[topic_id] = asyncio.get_running_loop().create_future()
        if self._reading is None:
            self._reading = vital.spawn(self._read_all(), self._on_fatal)
        # Others wait for the same answer.
        return await asyncio.shield(answer)

    async def stop(self) -> None:
        """Whoever waits is told."""
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        _refuse(self._asked, _STOPPING)

    async def _read_all(self) -> None:
        asked: dict[TopicId, asyncio.Future[bool]] = {}
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                await self._answer(asked)
        finally:
            self._reading = None
            _refuse(asked, _STOPPING)

    async def _answer(self, asked: dict[TopicId, asyncio.Future[bool]]) -> None:
        try:
            standing = await self._standing(asked)
            if not standing.issuperset(asked):
                await self._confirm()
        except EtcdUnavailable as error:
            _refuse(asked, f"cannot ask etcd whether a topic was deleted: {error}")
            return
        for topic_id, answer in asked.items():
            if topic_id not in standing:
                self._remember(topic_id)
            answer.set_result(topic_id not in standing)

    async def _standing(self, asked: Iterable[TopicId]) -> set[TopicId]:
        """Those that stand, among others. Raises EtcdUnavailable."""
        names = [self._name_of(topic_id) for topic_id in asked]
        known = [name for name in names if name is not None]
        if len(known) < len(names) or len(known) > SINGLE_READS_MAX:
            found, _ = await self._etcd.range(keys.TOPICS)
        else:
            read = [await self._etcd.get(keys.topic_key(name)) for name in known]
            found = [kv for kv, _ in read if kv is not None]
        return {TopicId(bytes.fromhex(keys.topic_value(kv.value).topic_id)) for kv in found}

    def _remember(self, topic_id: TopicId) -> None:
        self._gone[topic_id] = None
        if len(self._gone) > DELETIONS_REMEMBERED:
            del self._gone[next(iter(self._gone))]


def _refuse(asked: Mapping[TopicId, asyncio.Future[bool]], why: str) -> None:
    """Those that have no answer yet."""
    for answer in asked.values():
        if not answer.done():
            answer.set_exception(Unavailable(why))
            # Whoever asked may have gone.
            answer.exception()

"""What a process does again and again while it runs: ticks, notes, gauges, names that are free
again, and hints for tools. Those that wait for etcd are tasks of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.directory_mark import MARK_AGAIN_MS, MARK_EVERY_MS
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from oncelog_server.runtime.etcd.topics import EtcdTopics
from oncelog_server.runtime.free_space import FreeSpace
from oncelog_server.runtime.handing_over import HandingOver
from oncelog_server.runtime.hints import Hints
from oncelog_server.runtime.hosting import Hosting
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replication.links import Links
from oncelog_server.runtime.replication.serving import ReplicationService
from oncelog_server.runtime.storage.tail import TailBudget

# How often free space is looked at and synced ends are noted.
HOUSEKEEPING_MS: Final = 1_000
# How often hints for tools go to etcd.
HINT_MS: Final = 10_000


class Housekeeping:
    """Of one process that has joined its cluster."""

    def __init__(
        self,
        view: ClusterView,
        hosting: Hosting,
        handing_over: HandingOver,
        topics: EtcdTopics,
        *,
        links: Links,
        followers: ReplicationService,
        free_space: FreeSpace,
        tails: TailBudget,
        catch_up: Room,
        hints: Hints,
        mark: Callable[[], Awaitable[None]],
        reporter: Reporter,
        tick_ms: int,
    ) -> None:
        self._view = view
        self._hosting = hosting
        self._handing_over = handing_over
        self._topics = topics
        self._links = links
        self._followers = followers
        self._free_space = free_space
        self._tails = tails
        self._catch_up = catch_up
        self._hints = hints
        self._mark = mark
        self._reporter = reporter
        self._tick_ms = tick_ms

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """None of them ends by itself."""
        return [
            self._tick(),
            self._keep(),
            self._note(),
            self._hint(),
            self._keep_marked(),
            self._free_names(),
        ]

    async def _tick(self) -> None:
        while True:
            await self._hosting.next_tick(self._tick_ms)
            self._hosting.tick()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_MS / 1000)
            self._free_space.look()
            self._show()
            self._handing_over.look()

    async def _note(self) -> None:
        """Beside the rest: it takes its time where thousands of replicas are busy."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_MS / 1000)
            await self._hosting.note()

    def _show(self) -> None:
        topics = self._view.topics()
        for name, value in (
            ("etcd_reachable", float(self._view.etcd_status()[1])),
            ("tail_bytes", self._tails.bytes),
            ("followed", self._links.count),
            ("followers", self._followers.stream_count),
            ("catch_up_bytes", self._catch_up.used_bytes),
            ("topics", len(topics)),
            ("partitions", sum(topic.partitions for topic in topics)),
        ):
            self._reporter.gauge(name, value)

    async def _hint(self) -> None:
        while True:
            await asyncio.sleep(HINT_MS / 1000)
            await self._hints.tell()

    async def _keep_marked(self) -> None:
        """It was told before the process led."""
        pause_ms = MARK_EVERY_MS
        while True:
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self._mark()
                pause_ms = MARK_EVERY_MS
            except EtcdUnavailable:
                pause_ms = MARK_AGAIN_MS

    async def _free_names(self) -> None:
        """Beside the housekeeping: it waits for etcd."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_MS / 1000)
            await self._topics.free_names()

"""What a process does again and again holds up nothing else of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from oncelog_server.runtime.housekeeping import Housekeeping
from tests.simulation.virtual_time import VirtualTimeLoop, run

SECONDS = 10


def test_free_space_is_looked_at_while_thousands_note_what_is_synced() -> None:
    looks: list[float] = []
    loop = VirtualTimeLoop()

    async def note() -> None:
        await asyncio.sleep(SECONDS)

    def nothing(*_: object) -> None:
        return None

    async def tick(tick_ms: int) -> None:
        await asyncio.sleep(tick_ms / 1000)

    async def forever() -> None:
        await asyncio.sleep(1_000)

    stands: dict[str, Any] = {
        "view": SimpleNamespace(topics=list, etcd_status=lambda: (1, True)),
        "hosting": SimpleNamespace(next_tick=tick, tick=nothing, note=note),
        "handing_over": SimpleNamespace(look=nothing),
        "topics": SimpleNamespace(free_names=forever),
        "links": SimpleNamespace(count=0),
        "followers": SimpleNamespace(stream_count=0),
        "free_space": SimpleNamespace(look=lambda: looks.append(loop.time())),
        "tails": SimpleNamespace(bytes=0),
        "catch_up": SimpleNamespace(used_bytes=0),
        "hints": SimpleNamespace(tell=forever),
        "mark": forever,
        "reporter": SimpleNamespace(gauge=nothing),
    }

    async def main() -> None:
        tasks = [asyncio.ensure_future(it) for it in Housekeeping(**stands, tick_ms=100).tasks()]
        await asyncio.sleep(SECONDS + 0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main(), loop)
    assert len(looks) == SECONDS

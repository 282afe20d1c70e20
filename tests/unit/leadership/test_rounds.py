"""When elections look at everything, and what they leave to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from oncelog_server.runtime.leadership.rounds import REST_MS_MAX, ROUND_REST, Rounds
from tests.simulation.virtual_time import VirtualTimeLoop, run


def test_i18_rounds_leave_most_of_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand partitions change one after the other, and each change calls for a round."""
    loop = VirtualTimeLoop()

    def moments() -> Iterator[float]:
        """A round takes 10 ms."""
        while True:
            yield from (0.0, 0.010)

    async def main() -> int:
        rounds, clock = Rounds(), moments()
        monkeypatch.setattr(rounds, "_now", lambda: next(clock))
        count, end = 0, loop.time() + 4.0
        while loop.time() < end:
            rounds.begin()
            rounds.looked()
            rounds.call()
            count += 1
            assert count < 1_000, "rounds take the whole loop"
            await rounds.next(within_ms=None)
        return count

    assert run(main(), loop) == pytest.approx(4.0 / (ROUND_REST * 0.010), abs=2)


def test_a_change_is_looked_at_at_once_where_there_is_little_to_look_at() -> None:
    loop = VirtualTimeLoop()

    async def main() -> float:
        rounds, began = Rounds(), loop.time()
        rounds.begin()
        rounds.looked()
        asyncio.get_running_loop().call_later(1.0, rounds.call)
        await rounds.next(within_ms=None)
        rounds.begin()
        rounds.call()
        rounds.looked()
        await rounds.next(within_ms=None)
        rounds.begin()
        rounds.looked()
        await rounds.next(within_ms=500)
        return loop.time() - began

    assert run(main(), loop) == pytest.approx(1.5)


def test_i29_who_was_stopped_in_the_middle_of_a_round_stands_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP for twice a lease: that was no work of the round."""
    loop = VirtualTimeLoop()
    stopped_s = 8.0

    async def main() -> float:
        rounds, clock = Rounds(), iter((0.0, stopped_s))
        monkeypatch.setattr(rounds, "_now", lambda: next(clock))
        rounds.begin()
        rounds.looked()
        rounds.call()
        began = loop.time()
        await rounds.next(within_ms=None)
        return loop.time() - began

    assert run(main(), loop) <= REST_MS_MAX / 1000, "it rests for what others did to it"

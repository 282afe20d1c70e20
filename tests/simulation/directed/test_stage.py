"""The stage itself: a story in which nothing happens but writes and a death."""

from __future__ import annotations

from tests.simulation.directed.stage import Stage, play


def test_i5_a_leader_dies_and_the_next_one_has_all() -> None:
    async def story(stage: Stage) -> None:
        await stage.begin()
        leader = stage.leader(stage.data)
        await stage.acknowledged(b"1", at=leader)
        await stage.lose_power(leader)
        await stage.acknowledged(b"2", at=await stage.next_leader(stage.data))
        assert await stage.end() == [b"1", b"2"]

    play(story)

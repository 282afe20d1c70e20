"""What an operator forces: a replica leads that lacks records, while those who have them live."""

from __future__ import annotations

import asyncio

from oncelog_server.runtime.leadership.unclean import UncleanElection
from tests.simulation.directed.stage import Stage, play

LEASE_S = 7.0


def test_i5_acknowledgements_in_flight_count_for_nothing_after_an_unclean_election() -> None:
    """The leader and its follower are cut off from etcd, and the follower's acknowledgement is on
    its way, when an operator lets the third one lead. What the leader tells its clients then would
    be lost."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        stage.part_ways(third, first, second)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the third leaves")
        for name in (first, second):
            stage.cut_off_from_etcd(name)
        stage.hold((second, first))
        x = stage.write(b"x", at=first)
        end = stage.replica(third, stage.data).log_end
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.synced_end > end, "x is copied"
        )
        await asyncio.sleep(LEASE_S)
        node = stage.world.processes[third].node
        epoch, kept = await node.unclean_elect(UncleanElection(stage.data, node.node_id))
        assert kept == end, "it says what it keeps"
        await stage.elected(third, stage.data)
        stage.let((second, first))
        await stage.until(lambda: x.task.done(), "an answer")
        assert x.why == "UNKNOWN_OUTCOME", "it is cut"
        assert await stage.end() == [b"1"]
        assert stage.state(stage.data).unclean_epoch == epoch

    play(story)

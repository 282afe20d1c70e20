"""What an operator forces: a replica leads that lacks records, while those who have them live."""

from __future__ import annotations

from oncelog_server.runtime.leadership.unclean import UncleanElection
from tests.simulation.directed.stage import Stage, play

# Of its lease the leader has so much left when it is written to. Less than a stream may be silent.
LEASE_LEFT_S = 1.0


def test_i5_acknowledgements_in_flight_count_for_nothing_after_an_unclean_election() -> None:
    """The leader and its follower are cut off from etcd, and the follower's acknowledgement is on
    its way, when etcd gives the lease up and an operator lets the third one lead. It arrives as the
    leader's own deadline passes, before its next tick: what it told its clients then would be
    lost."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        stage.part_ways(third, first, second)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the third leaves")
        for name in (first, second):
            stage.cut_off_from_etcd(name)
        await stage.until(lambda: stage.lease_left_s(first) < LEASE_LEFT_S, "soon over")
        stage.hold((second, first))
        x = stage.write(b"x", at=first)
        end = stage.replica(third, stage.data).log_end
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.synced_end > end, "x is copied"
        )
        stage.end_lease(first)
        node = stage.world.processes[third].node
        epoch, kept = await node.unclean_elect(UncleanElection(stage.data, node.node_id))
        assert kept == end, "it says what it keeps"
        await stage.elected(third, stage.data)
        await stage.until(lambda: stage.lease_left_s(first) <= 0, "the deadline passes")
        assert not x.task.done(), "it waits for the follower"
        stage.let((second, first))
        await stage.until(lambda: x.task.done(), "an answer")
        assert x.why == "UNKNOWN_OUTCOME", "it is cut"
        assert await stage.end() == [b"1"]
        assert stage.state(stage.data).unclean_epoch == epoch

    play(story)

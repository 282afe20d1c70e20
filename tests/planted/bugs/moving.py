"""Bugs of moving replicas: who counts while they move, when one may be dropped, and what becomes of
its log."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_IN_SYNC: Final = "oncelog_server.runtime.replica.in_sync:InSync"
_ELECTIONS: Final = "oncelog_server.runtime.leadership.election:Elections"
_RESIGNING: Final = "oncelog_server.runtime.leadership.resigning:Resigning"


def _of_book(name: str) -> str:
    return unit("replica/test_in_sync", name)


def _of_elections(name: str) -> str:
    return unit("leadership/test_moving", name)


BUGS: Final = (
    Bug(
        "a-move-begins-without-those-that-were",
        "I5: everybody who has the records stays a replica until others have them",
        (
            Edit(
                "oncelog_server.runtime.leadership.moving:begin_move",
                "replicas=kept + adding",
                "replicas=wanted",
            ),
        ),
        {
            _of_elections(
                "test_i5_everybody_who_has_the_records_stays_a_replica"
            ): "who has the records is no replica any more"
        },
    ),
    Bug(
        "a-move-ends-with-those-that-are-there",
        "I5: a move ends when every wanted node has a member",
        (Edit(f"{_IN_SYNC}._end_of_move", "if len(isr) < len(target):", "if not isr:"),),
        {
            _of_book(
                "test_i5_a_move_ends_when_every_wanted_node_has_a_member"
            ): "c is no member yet, and b is needed"
        },
    ),
    Bug(
        "added-replicas-count-for-the-least",
        "a partition needs no more in sync than it had replicas before a move",
        (
            Edit(
                "oncelog_server.runtime.target:Assignment.replication_factor",
                "len(self.replicas) - len(self.adding)",
                "len(self.replicas)",
            ),
        ),
        {_of_book("test_a_copy_that_is_added_stops_no_writes"): "b and c have nothing yet"},
    ),
    Bug(
        "who-was-moved-away-joins-again",
        "I5: what was acknowledged before a move counts for nothing after it",
        (Edit(f"{_IN_SYNC}.state_seen", "self._dismiss(known - self.isr)", "pass"),),
        {
            _of_book(
                "test_i5_what_was_acknowledged_before_a_move_counts_for_nothing_after_it"
            ): "its log may be gone"
        },
    ),
    Bug(
        "acknowledgements-on-their-way-count-after-a-move",
        "I5: a node that is wanted again begins a new dialog",
        (
            Edit(
                f"{_IN_SYNC}.hears",
                "return self.is_assigned(node) and incarnation not in self._dismissed",
                "return self.is_assigned(node)",
            ),
        ),
        {
            _of_book(
                "test_i5_what_was_acknowledged_before_a_move_counts_for_nothing_after_it"
            ): "it was on its way"
        },
    ),
    Bug(
        "put-aside-by-the-view-alone",
        "I5: a log is put aside once a linearizable read has confirmed it",
        (
            Edit(
                f"{_ELECTIONS}._put_aside",
                "if self._held.node_id in decode_partition(found.value).replicas:",
                "if not decode_partition(found.value).replicas:",
            ),
            Edit(
                f"{_ELECTIONS}._put_aside",
                "if history is not None and self._has_overtaken(partition, history, found):",
                "if False:",
            ),
        ),
        {
            unit(
                "leadership/test_whom_to_follow",
                "test_i5_a_log_is_put_aside_once_a_read_has_confirmed_it",
            ): "wanted again"
        },
    ),
    Bug(
        "handed-over-while-it-answers",
        "I18: who hands over has stopped answering before etcd is asked",
        (
            Edit(
                f"{_RESIGNING}.end_move",
                "self._host.aim(partition, StandBy())",
                "asyncio.get_running_loop().call_later(1, self._host.aim, partition, StandBy())",
            ),
        ),
        {
            _of_elections(
                "test_i18_who_hands_over_has_stopped_answering_before_etcd_is_asked"
            ): "it answers while another may lead"
        },
    ),
    Bug(
        "a-leader-stays-that-has-no-replica",
        "I18: a leader that has no replica after a move leads no more",
        (
            Edit(
                "oncelog_server.runtime.leadership.isr:changed",
                "leader=state.leader if state.leader.node_id in assignment.replicas else None",
                "leader=state.leader",
            ),
        ),
        {
            unit(
                "leadership/test_isr",
                "test_i18_a_leader_that_has_no_replica_after_a_move_leads_no_more",
            ): "assert"
        },
    ),
)

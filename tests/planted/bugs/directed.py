"""Bugs against the directed cases of the simulator (docs/testing.md): each one loses, doubles or
shows something in the one order of events that its case tells, over several real nodes."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_DRIVER: Final = "oncelog_server.runtime.replica.driver:Driver"
_LEADERSHIP: Final = "oncelog_server.runtime.replica.leading:Leadership"
_IN_SYNC: Final = "oncelog_server.runtime.replica.in_sync:InSync"
_RULES: Final = "oncelog_server.runtime.leadership.rules"


def _directed(room: str, test: str) -> str:
    return f"tests/simulation/directed/{room}.py::{test}"


BUGS: Final = (
    Bug(
        "new-leader-counts-itself-alone",
        "I3, I19: a new coordinator acts on a PREPARE that only it has, before EPOCH_START is "
        "covered",
        (
            Edit(
                f"{_LEADERSHIP}._count_from",
                "isr=self._granted.isr.members or (own,)",
                "isr=(own,)",
            ),
            Edit(
                f"{_LEADERSHIP}._count_from",
                "min_insync_replicas=self._min_insync_replicas",
                "min_insync_replicas=1",
            ),
        ),
        {
            _directed(
                "test_new_leaders",
                "test_i3_i19_nobody_acts_on_a_prepare_that_only_the_last_tail_had",
            ): "stage is ReplicaStage.LOADING"
        },
    ),
    Bug(
        "position-above-the-known-high-watermark-is-out-of-range",
        "I14: a fetch above what a new leader knows of waits, it is never out of range",
        (
            Edit(
                f"{_DRIVER}.require_ready",
                "if self._state.stage is Stage.READY:",
                "if self._state.leads:",
            ),
        ),
        {
            _directed(
                "test_new_leaders",
                "test_i14_i27_a_position_that_the_new_leader_does_not_know_of_is_waited_for",
            ): "LOADING"
        },
    ),
    Bug(
        "own-epoch-continued-after-a-restart",
        "I18: a restarted process never continues an epoch, also where its lease stands",
        (
            Edit(
                f"{_RULES}:make_bid",
                "epoch=state.epoch + 1",
                "epoch=state.epoch + (getattr(state.leader, 'node_id', '') != leader.node_id)",
            ),
        ),
        {
            _directed(
                "test_new_leaders", "test_i18_who_is_back_within_its_lease_leads_a_new_epoch"
            ): "an epoch is never continued"
        },
    ),
    Bug(
        "isr-shrinks-to-the-leader",
        "I25: the ISR never shrinks below min_insync_replicas; then the one disk dies",
        (
            Edit(
                f"{_IN_SYNC}.next_change",
                "self._nodes(rest) >= self._min_insync_replicas",
                "True",
            ),
            Edit(
                f"{_IN_SYNC}._count_anew",
                "self._nodes(self.isr) < self._min_insync_replicas",
                "self._nodes(self.isr) < 1",
            ),
        ),
        {
            _directed(
                "test_isr", "test_i25_nothing_is_acknowledged_that_one_disk_has"
            ): "one disk has it"
        },
    ),
    Bug(
        "joiner-counts-when-its-leader-hears-of-it",
        "I5: a joiner counts from the moment its compare-and-set is sent",
        (
            Edit(
                f"{_IN_SYNC}.counted",
                "self.isr.union({self._own}, *(change.isr for change in self._in_flight))",
                "self.isr",
            ),
        ),
        {
            _directed(
                "test_isr", "test_i5_a_joiner_counts_though_nobody_said_that_it_joined"
            ): "who joins has not got it"
        },
    ),
    Bug(
        "change-over-once-etcd-does-not-answer",
        "I5: a timeout ends no change of the ISR: the compare-and-set may be applied yet",
        (
            Edit(
                f"{_LEADERSHIP}._ask_etcd",
                "await asyncio.sleep(ISR_RETRY_MS / 1000)",
                "self._in_sync._in_flight = ()\n"
                "            self._in_sync._count_anew()\n"
                "            await asyncio.sleep(ISR_RETRY_MS / 1000)",
            ),
        ),
        {
            _directed(
                "test_isr",
                "test_i5_a_change_that_is_on_its_way_counts_until_it_cannot_happen_any_more",
            ): "who joins has not got it"
        },
    ),
    Bug(
        "note-of-a-quiet-log-left-to-the-page-cache",
        "I5, I26: what is synced is noted durably within a second, also where nothing follows",
        (
            Edit(
                f"{_DRIVER}._note_synced_end",
                "self._around.commit.wrote(journal, self._synced, self._write_failed)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i26_the_note_of_what_is_synced_outlives_the_power_though_nothing_is_appended",
            ): "torn tail",
            _directed(
                "test_returning", "test_i5_who_lost_what_it_acknowledged_wins_nothing[rot]"
            ): "it lacks what was acknowledged",
        },
    ),
    Bug(
        "emptied-replica-wins-by-its-node",
        "I5: elections name incarnations: a node that was emptied cannot win for what it was",
        (
            Edit(
                f"{_RULES}:fitness",
                "return Fitness.FIT if candidate.incarnation.hex() in state.isr else Fitness.UNFIT",
                "return Fitness.FIT",
            ),
        ),
        {
            _directed(
                "test_returning", "test_i5_who_lost_what_it_acknowledged_wins_nothing[empty]"
            ): "it lacks what was acknowledged",
        },
    ),
    Bug(
        "log-that-ends-early-keeps-its-name",
        "I5: a log that ends below synced_end takes a new incarnation before it says anything",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "not fit or walk.end.offset < noted.synced_end:",
                "not fit:",
            ),
        ),
        {
            _directed(
                "test_returning", "test_i5_who_lost_what_it_acknowledged_wins_nothing[cut]"
            ): "it lacks what was acknowledged",
        },
    ),
    Bug(
        "followed-until-the-disk-is-quiet",
        "I31: a process that stops follows nobody any more before it waits for its disk",
        (
            Edit(
                "oncelog_server.runtime.node:Node.stop",
                "if self._links is not None:\n            await self._links.stop()\n"
                "        if self._commit",
                "if self._commit",
            ),
        ),
        {
            _directed(
                "test_stopping", "test_i31_a_follower_that_stops_copies_no_more"
            ): "it copies on"
        },
    ),
)

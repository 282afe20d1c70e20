"""Bugs against the directed cases of the simulator (docs/testing.md): each one loses, doubles or
shows something in the one order of events that its case tells, over several real nodes."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_DRIVER: Final = "oncelog_server.runtime.replica.driver:Driver"
_LOG: Final = "oncelog_server.runtime.replica.log:ReplicaLog"
_LEADERSHIP: Final = "oncelog_server.runtime.replica.leading:Leadership"
_FOLLOWERS: Final = "oncelog_server.runtime.replica.followers:Followers"
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
                f"{_FOLLOWERS}.begin",
                "isr=self._granted.isr.members or (own,)",
                "isr=(own,)",
            ),
            Edit(
                f"{_FOLLOWERS}.begin",
                "wanted = replication.min_insync_replicas",
                "wanted = min(1, replication.min_insync_replicas)",
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
        "I18: a restarted process never continues an epoch, also where its lease stands, "
        "though its replica would refuse to lead it",
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
            ): "an epoch is never continued",
        },
    ),
    Bug(
        "isr-shrinks-to-the-leader",
        "I25: the ISR never shrinks below min_insync_replicas; then the one disk dies",
        (
            Edit(
                f"{_IN_SYNC}.next_change",
                "self._nodes(rest) >= self.min_insync_replicas",
                "True",
            ),
            Edit(
                f"{_IN_SYNC}._count_anew",
                "self._nodes(self.isr) < self.min_insync_replicas",
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
                f"{_FOLLOWERS}._ask_etcd",
                "await asyncio.sleep(ISR_RETRY_MS / 1000)",
                "self.book._in_flight = ()\n"
                "            self.book._count_anew()\n"
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
                f"{_LOG}.note_synced_end",
                "self._around.commit.wrote(self.journal, synced, write_failed)",
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
            _directed(
                "test_isr", "test_i5_who_is_not_in_sync_is_not_elected"
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
    # ------------------------------------------------------------------- epochs, leases, two logs
    Bug(
        "leader-found-in-an-old-view",
        "I5: who leads is read linearizably before anybody is followed; a view may be of before",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._round",
                "if history.was_read:",
                "if not history.led_epoch:",
            ),
            Edit(
                "oncelog_server.runtime.node:Node._join",
                "any(node.boot_id == self.boot_id for node in view.nodes())",
                "True",
            ),
        ),
        {
            _directed(
                "test_epochs", "test_i5_nobody_follows_by_an_old_view_after_a_restart"
            ): "the second one has cut it"
        },
    ),
    Bug(
        "epoch-goes-on-behind-a-failed-sync",
        "I18: a leader whose sync failed never leads that epoch again",
        (
            Edit(
                f"{_DRIVER}._write_failed",
                "if not self._state.write_failed():",
                "if self._state.leads:\n"
                "            self.journal.abandon_unsynced()\n"
                "            return\n"
                "        if not self._state.write_failed():",
            ),
        ),
        {
            _directed(
                "test_epochs",
                "test_i18_a_leader_whose_sync_failed_never_leads_that_epoch_again",
            ): "was acknowledged"
        },
    ),
    Bug(
        "view-believed-after-a-new-lease",
        "I18: a new lease gives no leadership back: what is led is read from etcd first",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections.recheck",
                "not self._held.names_us(state) or state.epoch != history.led_epoch",
                "False",
            ),
        ),
        {
            _directed(
                "test_epochs", "test_i18_a_new_lease_gives_no_leadership_back"
            ): "it would say: nothing there"
        },
    ),
    Bug(
        "logs-taken-for-the-same-after-one-cut",
        "I7: logs are compared until the answered epoch is the follower's last one (KIP-279)",
        (
            Edit(
                "oncelog_server.runtime.replica.following:Following._go_on",
                "log.last_epoch and self._answered_epoch != log.last_epoch",
                "self._answered_epoch > log.last_epoch > self._answered_epoch",
            ),
        ),
        {
            _directed(
                "test_epochs", "test_i7_logs_are_compared_until_their_epochs_agree"
            ): "differ in"
        },
    ),
    Bug(
        "empty-replica-joins-at-once",
        "I5: who joins has synced EPOCH_START, and all that the leader knows to be durable",
        (
            Edit(
                f"{_IN_SYNC}._may_join",
                "progress.synced_end > self._epoch_start",
                "progress.synced_end >= 0",
            ),
            Edit(
                f"{_IN_SYNC}._may_join",
                "progress.synced_end >= self._hw.value",
                "progress.synced_end >= 0",
            ),
        ),
        {
            _directed(
                "test_isr", "test_i5_an_empty_replica_joins_when_it_has_what_was_shown"
            ): "the third is empty"
        },
    ),
    Bug(
        "high-watermark-noted-for-the-synced-end",
        "I5: synced_end is what a replica itself has synced, not what it knows to be durable",
        (
            Edit(
                f"{_DRIVER}.report",
                "            self._log.note_synced_end(",
                "            end = self.journal.synced_end\n"
                "            if getattr(self._epochs.followership, 'high_watermark', end) >= end:\n"
                "                self._log.note_synced_end(",
            ),
        ),
        {
            _directed(
                "test_returning",
                "test_i5_what_a_follower_acknowledged_counts_though_it_heard_of_no_high_watermark",
            ): "it lacks what was acknowledged"
        },
    ),
    Bug(
        "answered-whatever-became-of-the-lease",
        "I5: an acknowledgement that comes after the lease answers nobody: others may lead",
        (
            Edit(
                "oncelog_server.runtime.replica.replies:Replies._answer",
                "if not self._lease_valid():",
                "if False:",
            ),
        ),
        {
            _directed(
                "test_unclean",
                "test_i5_acknowledgements_in_flight_count_for_nothing_after_an_unclean_election",
            ): "it is cut"
        },
    ),
    # ----------------------------------------------------------------------- disks, etcd's answers
    Bug(
        "snapshot-of-what-is-cut-later",
        "I35: a snapshot is written when the HW has passed it, and goes with what is cut",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.save",
                "if self._captured is not None and self._captured[0] <= high_watermark:",
                "if self._captured is not None:",
            ),
            Edit(
                "oncelog_server.runtime.storage.journal:Journal._lower_promise",
                "self._snapshots.drop_above(end)",
                "pass",
            ),
        ),
        {_directed("test_disks", "test_i35_no_snapshot_outlives_what_is_cut"): "AssertionError"},
    ),
    Bug(
        "full-disks-take-data",
        "I28: below the floor data is refused, and control records use the reserve",
        (Edit(f"{_DRIVER}.require_room", "if not self._around.has_room():", "if False:"),),
        {
            _directed(
                "test_disks",
                "test_i28_where_all_disks_are_full_data_is_refused_and_transactions_end",
            ): "'DISK_FULL'"
        },
    ),
    Bug(
        "failed-commit-taken-for-done",
        "I5, I25: what could not be synced counts for nobody",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit_all",
                "if error is not None:",
                "if False:",
            ),
        ),
        {
            _directed(
                "test_disks", "test_i5_i25_what_could_not_be_synced_is_not_acknowledged[leader]"
            ): "is_acknowledged",
            _directed(
                "test_disks",
                "test_i5_i25_what_could_not_be_synced_is_not_acknowledged[leader and follower]",
            ): "is_acknowledged",
        },
    ),
    Bug(
        "copied-counts-before-it-is-synced",
        "I25: a follower acknowledges what it has synced",
        (
            Edit(
                "oncelog_server.runtime.replica.following:Following.acknowledge",
                "JournalOffset(log.synced_end)",
                "JournalOffset(log.log_end)",
            ),
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._append",
                "self._around.commit.wrote(",
                "self._say(self._following.acknowledge())\n            self._around.commit.wrote(",
            ),
        ),
        {
            _directed(
                "test_disks", "test_i5_i25_what_could_not_be_synced_is_not_acknowledged[follower]"
            ): "it is on one disk at most"
        },
    ),
    Bug(
        "what-a-watch-missed-stays-missed",
        "I29: after a gap in the watch, what a new listing lacks is gone",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._replace",
                "changed = {key for key in self._values if key not in fresh}",
                "changed = set()",
            ),
        ),
        {
            _directed(
                "test_leases",
                "test_i18_two_leases_end_in_one_instant_and_the_third_missed_it",
            ): "never came"
        },
    ),
    Bug(
        "first-word-of-a-turn-counts",
        "I18: the last word of elections counts, also while an epoch closes",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState.aim",
                "self.target = target",
                "closes = self.stage is Stage.CLOSING and isinstance(self.target, Lead)\n"
                "            self.target = self.target if closes else target",
            ),
        ),
        {
            _directed(
                "test_leases",
                "test_i18_granted_and_deposed_in_one_turn_while_the_last_epoch_closes",
            ): "it never led epoch 2"
        },
    ),
    # --------------------------------------------------------------------------- transactions
    Bug(
        "paused-coordinator-answers-never",
        "I5: who was paused behind its lease says nothing of what its successor may have begun",
        (
            Edit(
                "oncelog_server.coordinator.questions:verdict",
                "return AnswerCode.NEVER if unborn else AnswerCode.LATER",
                "return AnswerCode.NEVER",
            ),
            Edit(
                "oncelog_server.coordinator.service:CoordinatorService.ask_transactions",
                "replica.require_lease()",
                "pass",
            ),
        ),
        {
            _directed(
                "test_transactions",
                "test_i5_a_coordinator_that_was_paused_says_nothing_of_what_its_successor_began",
            ): "[b'1']"
        },
    ),
    Bug(
        "markers-behind-a-refused-one-applied",
        "I11: a batch of markers stops at its first refusal, or the retry is a repeat",
        (
            Edit(
                "oncelog_server.participant.handler:_with_room",
                "for marker in command.markers:",
                "bare = [marker for marker in command.markers if marker.batch is None]\n"
                "        return WriteMarkers(\n"
                "            command.journal_partition, command.coordinator_epoch, tuple(bare)\n"
                "        ), no_room\n"
                "        for marker in command.markers:",
            ),
        ),
        {
            _directed(
                "test_transactions", "test_i11_markers_behind_a_refused_one_wait_for_it"
            ): "the third waits"
        },
    ),
    Bug(
        "pending-offsets-die-with-their-leader",
        "I21, I22: pending offsets are held by the next leader until their marker comes",
        (
            Edit(
                "oncelog_server.offset_manager.machine:OffsetManagerMachine.apply",
                "self._questions.inherited()",
                "self._questions.inherited()\n"
                "                for group in state.groups.values():\n"
                "                    group.pending.clear()",
            ),
        ),
        {
            _directed(
                "test_transactions", "test_i21_i22_pending_offsets_outlive_the_offset_manager"
            ): "they are pending there"
        },
    ),
    Bug(
        "zombies-are-asked-nothing",
        "I23: who is no member any more commits nothing, whatever he was told before",
        (
            Edit(
                "oncelog_server.offset_manager.decide_commit:_require_right",
                "    membership.require_owned(",
                "    if member.member_id not in membership.member_states:\n        return\n"
                "    membership.require_owned(",
            ),
        ),
        {
            _directed(
                "test_groups",
                "test_i21_i23_a_zombie_commits_nothing_over_a_failover_of_the_offset_manager",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "topic-made-again-under-its-id",
        "I1: a topic that is made again is another one: batches of the old one are not its",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics._new_topic_id",
                "raw = bytearray(self._random_bytes(16))",
                "raw = bytearray(16)",
            ),
        ),
        {
            _directed(
                "test_transactions",
                "test_i1_what_was_sent_to_a_deleted_topic_is_not_in_the_next_one_of_its_name",
            ): "it is of the old one"
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
    Bug(
        "snapshot-without-its-outcomes",
        "I4: what no frame tells any more comes with the snapshot",
        (
            Edit(
                "oncelog_server.runtime.replica.receiving:Receiving._receive",
                "await self._slots(first.slot_names, offset)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_receiving",
                "test_i35_a_replica_without_anything_begins_with_the_leaders_snapshot_and_can_lead",
            ): "assert None ==",
            _directed(
                "test_snapshots", "test_i4_i5_an_empty_replica_begins_with_a_snapshot_and_leads"
            ): "came with the snapshot",
        },
    ),
    Bug(
        "taken-over-before-it-is-visible",
        "I21: a position that another one's transaction moved is read on before that can be read",
        (
            Edit(
                "oncelog.aio.visibility:Visibility.is_known",
                "return not tx_id or tx_id in self._visible",
                "return True",
            ),
        ),
        {
            _directed(
                "test_groups", "test_i21_what_follows_in_the_input_follows_in_the_output[member]"
            ): "assert [b'2', b'1'] == [b'1', b'2']",
            _directed(
                "test_groups",
                "test_i21_what_follows_in_the_input_follows_in_the_output[standalone]",
            ): "assert [b'2', b'1'] == [b'1', b'2']",
        },
    ),
)

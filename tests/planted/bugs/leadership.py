"""Bugs of one leadership after another of a replica, and of the replicas of a role."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "older-etcd-obeyed-by-all",
        "I18: an etcd whose revision went back is refused: it gives epochs out again",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:ClusterIdentity._judge",
                "if revision < at_least:",
                "if False:",
            ),
        ),
        {
            unit(
                "etcd/test_identity", "test_a_restored_etcd_is_refused_by_its_lower_revision"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "projected-at-the-high-watermark",
        "the HW is exclusive: projections see only what is below it",
        (
            Edit(
                "oncelog_server.runtime.replica.projecting:Projecting.advance",
                "if at.offset >= high_watermark:",
                "if at.offset > high_watermark:",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_projections_see_nothing_that_is_on_its_way_to_the_disk",
            ): "assert [(1, 4), (2, 5)] == [(1, 4)]"
        },
    ),
    Bug(
        "long-polls-outlive-the-leadership",
        "stepping down ends whatever waits, I29",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.end",
                "self._notify_advanced()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_who_waits_for_the_next_advance_hears_of_the_step_down",
            ): "a long poll would wait at who leads no more"
        },
    ),
    Bug(
        "inherited-record-projected-before-it-is-durable",
        "I4: an outcome is told when its record is durable, whichever leadership wrote it",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._covered_by_snapshot",
                "self._projecting.advance(self._hw)",
                "self._projecting.advance(self._journal.log_end)",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i4_what_is_on_its_way_to_the_disk_is_not_projected_by_the_next_leadership_either",
            ): "it was not durable, and never will be"
        },
    ),
    Bug(
        "two-leaderships-at-once",
        "a later leadership begins when nothing of the last one runs",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.closed",
                "await self.leadership.closed()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_a_later_leadership_begins_when_nothing_of_the_last_one_runs",
            ): "Stage.CLOSING"
        },
    ),
    Bug(
        "replayed-bytes-not-counted",
        "who is killed again and again takes a snapshot, or each start takes longer",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._replay",
                "self._snapshots.appended(len(stored.frame.payload))",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_who_never_lives_long_enough_for_a_snapshot_takes_one_all_the_same",
            ): "assert None is not None"
        },
    ),
    Bug(
        "high-watermark-forgotten",
        "a leader inherits what is durable: the HW never goes back",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.__init__",
                "self._hw = inherited =",
                "self._hw, inherited = 0,",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i27_no_read_gives_what_is_above_the_high_watermark",
            ): "it never goes back"
        },
    ),
    Bug(
        "overtaken-replay-leads-on",
        "I18: who left an epoch never leads it again, also while it is loading",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.load",
                "if not self._state.leads:\n                return",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i18_a_replay_that_is_overtaken_writes_no_epoch_start",
            ): "assert "
        },
    ),
    Bug(
        "ticked-past-the-lease",
        "I18: nothing is appended past the own deadline",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.tick",
                "elif self.is_ready:",
                "if self.is_ready:",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership", "test_i18_no_tick_appends_past_the_lease"
            ): "assert 2 == 1"
        },
    ),
    Bug(
        "grant-that-outlives-its-loss",
        "I18: who is deposed before it began to lead does not lead",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState.aim",
                "self.target = target",
                "self.target = self.target if isinstance(self.target, Lead) else target",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i18_who_is_deposed_before_it_began_to_lead_does_not_lead",
            ): "it was told to step down",
            unit(
                "runtime/test_replicas",
                "test_i18_a_grant_and_the_loss_of_it_are_obeyed_in_the_order_in_which_etcd_said_them",
            ): "DID NOT RAISE NotLeader",
        },
    ),
    Bug(
        "last-word-overridden",
        "I18: who leaves leads nothing, whatever is heard of it afterwards",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState._may_still_want",
                "return not self.is_leaving or isinstance(target, Close)",
                "return True",
            ),
        ),
        {
            unit(
                "runtime/test_replica_state", "test_i18_what_can_happen_to_a_replica"
            ): "it leaves, whatever is heard then"
        },
    ),
    Bug(
        "cut-beside-a-commit",
        "I26: a log is cut when the disk is done with it",
        (
            Edit(
                "oncelog_server.runtime.replica.log:ReplicaLog.abandon",
                "await self._around.commit.leave(self.journal)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver",
                "test_i26_what_is_on_its_way_when_a_record_fails_is_waited_for_before_the_log_is_cut",
            ): "it promises what it cut"
        },
    ),
    Bug(
        "epoch-left-and-led-again",
        "I18: who left an epoch never leads it again",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState._work_on_standby",
                "self.target.epoch > self.epoch",
                "self.target.epoch >= self.epoch",
            ),
        ),
        {
            unit(
                "runtime/test_replica_state", "test_i18_what_can_happen_to_a_replica"
            ): "an epoch is led once at most"
        },
    ),
    Bug(
        "loaded-over-bytes-in-doubt",
        "I25: what a failed write left is abandoned before anything is read over it",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState._work_on_standby",
                "if self.in_doubt:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_replica_state", "test_i18_what_can_happen_to_a_replica"
            ): "what was in doubt is abandoned"
        },
    ),
    Bug(
        "stands-with-bytes-in-doubt",
        "a replica whose write failed stands in no election before it went back to its last sync",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState.may_stand",
                "self.in_doubt or ",
                "",
            ),
        ),
        {
            unit(
                "runtime/test_replica_state", "test_i18_what_can_happen_to_a_replica"
            ): "what its log holds is not known"
        },
    ),
    Bug(
        "half-a-process",
        "I29: what a process must do all its life ends it where it fails",
        (Edit("oncelog_server.runtime.vital:watch", "fatal(error)", "pass"),),
        {
            unit("etcd/test_vital", test): "== [Bug]"
            for test in (
                "test_a_round_of_elections_that_fails_ends_the_process",
                "test_a_change_of_the_view_that_nobody_can_take_ends_the_process",
            )
        },
    ),
    Bug(
        "half-applied-decision-kept",
        "I35: an apply that fails ends the process, and nothing of it is on the disk",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._append_all",
                "self._broken(error)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver",
                "test_i35_an_apply_that_fails_ends_the_process_and_leaves_nothing_of_itself",
            ): "== [ZeroDivisionError]"
        },
    ),
    Bug(
        "machine-outlives-its-epoch",
        "who steps down drops the machine and reloads",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.closed",
                "self.machine = None",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_the_machine_of_an_ended_leadership_is_dropped",
            ): "is None"
        },
    ),
    Bug(
        "checkpoint-ahead-of-the-high-watermark",
        "I35: snapshots hold only what is below the HW",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.checkpoint",
                "if high_watermark == self._journal.log_end and is_worth_it:",
                "if is_worth_it:",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i35_a_checkpoint_takes_no_state_that_is_not_durable",
            ): "is None"
        },
    ),
    Bug(
        "read-above-the-high-watermark",
        "I27: nothing above the HW is served, whatever a reader asks for",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.read",
                "below = min(below, self.high_watermark)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i27_no_read_gives_what_is_above_the_high_watermark",
            ): "assert 3 == (3 - 1)"
        },
    ),
    Bug(
        "snapshot-outlives-its-leadership",
        "the journal may be cut once the leadership is closed",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.closed",
                "await self._snapshots.ended()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_a_snapshot_that_is_being_written_is_waited_for",
            ): "the journal may be cut, or closed, from here on"
        },
    ),
    Bug(
        "failed-write-of-the-last-epoch-ignored",
        "I29: what is appended behind bytes in doubt is never written, so its epoch ends too",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._hand_to_disk",
                "self.followers.synced, self._write_failed,",
                "self.followers.synced, lambda error: self._is_over or self._write_failed(error),",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i29_a_write_of_the_last_epoch_that_fails_in_the_next_one_ends_that_too",
            ): "it would load for ever",
        },
    ),
    Bug(
        "no-skip-after-an-unclean-election",
        "I19: control journals then skip 2^32 offsets, so no TxId repeats",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.load",
                "UNCLEAN_SKIP if is_control and behind else 0",
                "0",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_i19_a_control_journal_skips_offsets_once_after_an_unclean_election",
            ): "a TxId may be one that was lost"
        },
    ),
    Bug(
        "skipped-at-each-election",
        "who has passed the unclean epoch has skipped",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.load",
                "journal.last_epoch < target.unclean_epoch",
                "journal.last_epoch <= target.unclean_epoch",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_i19_a_control_journal_skips_offsets_once_after_an_unclean_election",
            ): "it has skipped already"
        },
    ),
    Bug(
        "unreadable-journal-kept",
        "I29: who was granted an epoch and cannot lead it resigns",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.load",
                "self._around.failed(self._partition, error)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_a_journal_that_cannot_be_replayed_is_resigned_and_the_process_goes_on",
            ): "whoever is granted and cannot lead says so"
        },
    ),
    Bug(
        "loading-replica-found",
        "I27: until the HW passes EPOCH_START: LOADING",
        (
            Edit(
                "oncelog_server.runtime.replicas:RoleReplicas.lead",
                "driver.require_ready()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replicas", "test_i27_a_replica_that_is_loading_does_not_answer"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "topic-change-not-written-down",
        "what `cluster recover` knows of a topic is its newest state",
        (
            Edit(
                "oncelog_server.runtime.replica.record:ReplicaRecord.says_as_much_as",
                "self == msgspec.structs.replace(newer, epoch=self.epoch, revision=self.revision)",
                "self.incarnation == newer.incarnation",
            ),
        ),
        {
            unit(
                "runtime/test_replicas", "test_what_changed_about_a_topic_is_written_down"
            ): "assert ({}, 0) == ({'a': 'b'}, 1)"
        },
    ),
    Bug(
        "put-aside-over-another",
        "nothing is deleted because etcd does not know it",
        (
            Edit(
                "oncelog_server.runtime.replicas:put_aside",
                "while target in taken:",
                "while False:",
            ),
        ),
        {unit("runtime/test_replicas", "test_one_that_is_put_aside_replaces_no_other"): "assert "},
    ),
    Bug(
        "incarnations-drawn-past-the-port",
        "chance is a port, and one seed reproduces everything",
        (
            Edit(
                "oncelog_server.runtime.replicas:RoleReplicas._open_log",
                "random_bytes=self._random_bytes,",
                "",
            ),
        ),
        {
            unit(
                "runtime/test_replicas", "test_one_seed_draws_the_incarnations_too"
            ): "of `random_bytes`, not of the system",
        },
    ),
    Bug(
        "gauges-outlive-the-leadership",
        "what is shown of a partition is of who leads it",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._forget_gauges",
                'reporter.forget("partition", name)',
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_of_a_partition_that_is_led_no_more_nothing_is_shown_but_that",
            ): "open_transactions",
        },
    ),
    Bug(
        "closed-under-a-reader",
        "I31: a partition is put aside when its readers are done, and later ones hear why",
        (
            Edit(
                "oncelog_server.runtime.replica.log:ReplicaLog.close",
                "await self.readers.leave()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_i31_who_reads_while_the_partition_is_deleted_gets_an_error_with_a_name",
            ): "no other error",
        },
    ),
    Bug(
        "moved-under-a-commit",
        "I25: a deletion fails no commit of others",
        (
            Edit(
                "oncelog_server.runtime.replica.log:ReplicaLog.close",
                "await self._around.commit.leave(self.journal)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_i25_a_deleted_partition_is_put_aside_when_the_disk_is_done_with_it",
            ): "it was moved under a commit"
        },
    ),
    Bug(
        "at-rest-for-ever",
        "I30: who has work again is ticked again, or its transactions outlive their time",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._append_all",
                "self._stir()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_resting",
                "test_who_is_at_rest_is_looked_at_seldom_and_ticked_again_when_there_is_work",
            ): "== REST_AFTER_TICKS"
        },
    ),
    Bug(
        "deadline-without-drift",
        "I18: a clock that runs slow does not keep a lease alive that etcd has given away",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._deadline",
                " * (1000 - DRIFT_PERMILLE) // 1000",
                "",
            ),
        ),
        {
            "tests/simulation/test_days.py::"
            "test_i18_a_machine_whose_clock_is_slow_gives_up_its_lease_before_etcd_does": "assert"
        },
    ),
    Bug(
        "nothing-may-be-synced-while-a-log-is-loaded",
        "I29: a commit that ends while a log is loaded ends no epoch",
        (
            Edit(
                "oncelog_server.runtime.replica.followers:Followers.synced",
                "if self.book is None or self._is_over:",
                "assert self.book is not None\n        if self._is_over:",
            ),
        ),
        {
            unit(
                "runtime/test_driver_leadership",
                "test_i29_what_is_noted_while_a_log_is_loaded_ends_no_epoch",
            ): "it has not replayed all of it"
        },
    ),
)

"""Bugs of the driver, the high watermark, leases and elections."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    # -------------------------------------------------------------------------- durable, then said
    Bug(
        "reply-before-the-high-watermark",
        "I5, I25: a reply waits for the HW to cover what it was decided on",
        (
            Edit(
                "oncelog_server.runtime.replica.replies:Replies.park",
                "if high_watermark >= end and not self._parked:",
                "if True:",
            ),
        ),
        {
            unit("runtime/test_driver", "test_i5_a_reply_waits_for_the_sync"): "assert not True",
        },
    ),
    Bug(
        "refusal-before-the-high-watermark",
        "InitProducer's reply waits for everything decided before it; so does every refusal",
        (
            Edit(
                "oncelog_server.runtime.replica.replies:Replies.park",
                "if high_watermark >= end and not self._parked:",
                "if not decision.records:",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_refusals_and_reads_wait_for_what_they_were_decided_on"
            ): "assert not True",
        },
    ),
    Bug(
        "part-of-a-decision-applied",
        "I35: a decision is applied as a whole, or not at all",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._apply_all",
                "if len(records) > 1:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_driver",
                "test_i35_a_decision_with_a_record_that_is_too_large_changes_nothing",
            ): "== (['TOO_LARGE'], [])",
        },
    ),
    Bug(
        "answers-while-loading",
        "a new leader owes, answers and serves nothing until the HW covers its EPOCH_START",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.require_ready",
                "if self._state.stage is Stage.READY:",
                "if self._state.leads:",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_nothing_is_answered_before_epoch_start_is_durable"
            ): "DID NOT RAISE Loading",
        },
    ),
    Bug(
        "high-watermark-moves-below-epoch-start",
        "Raft's figure 8: an inherited frame is shown, then another log wins",
        (
            Edit(
                "oncelog_server.runtime.replica.high_watermark:HighWatermark._move",
                "if covered <= self._epoch_start or covered <= self.value:",
                "if covered <= self.value:",
            ),
        ),
        {
            unit(
                "runtime/test_high_watermark",
                "test_it_does_not_move_before_it_can_pass_epoch_start",
            ): "everything before EPOCH_START is synced, but not EPOCH_START",
        },
    ),
    Bug(
        "inherited-high-watermark-covers-epoch-start",
        "the HW does not move in an epoch until it can pass EPOCH_START",
        (
            Edit(
                "oncelog_server.runtime.replica.high_watermark:HighWatermark.__init__",
                "min(inherited, epoch_start)",
                "max(inherited, epoch_start + 1)",
            ),
        ),
        {
            unit(
                "runtime/test_high_watermark", "test_what_was_inherited_never_covers_the_new_epoch"
            ): "assert 9 == 3",
        },
    ),
    Bug(
        "acks-of-others-counted",
        "only ISR members count, and the HW is their minimum",
        (
            Edit(
                "oncelog_server.runtime.replica.high_watermark:HighWatermark._move",
                "covered = min(self._synced.values())",
                "covered = max(self._synced.values())",
            ),
        ),
        {
            unit(
                "runtime/test_high_watermark", "test_i25_it_is_the_minimum_over_those_that_count"
            ): "assert not True",
        },
    ),
    Bug(
        "snapshot-ahead-of-the-high-watermark",
        "I35: snapshots hold only what is below the HW, else a phantom after a cut",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.save",
                "if self._captured is not None and self._captured[0] <= high_watermark:",
                "if self._captured is not None:",
            ),
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.save_snapshot",
                'assert offset <= self.synced_end, "a snapshot never runs ahead of the log"',
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_i35_a_snapshot_waits_until_what_it_holds_is_durable"
            ): "it runs ahead of the log",
        },
    ),
    Bug(
        "replay-shows-projections-all-of-it",
        "I4: an outcome that is not durable is shown to nobody, in replay as in life",
        (
            Edit(
                "oncelog_server.runtime.replica.projecting:Projecting.__init__",
                "self._high_watermark = high_watermark",
                "self._high_watermark = 1 << 62",
            ),
        ),
        {
            unit(
                "runtime/test_projecting",
                "test_i4_replay_shows_what_the_high_watermark_covers_and_no_more",
            ): "assert [1, 2, 3, 4] == [1, 2]"
        },
    ),
    Bug(
        "projection-ahead-of-the-high-watermark",
        "index and data files hold only what is below the HW",
        (
            Edit(
                "oncelog_server.runtime.replica.projecting:Projecting.saw",
                "if at.offset < self._high_watermark and not self._waiting:",
                "if True:",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_projections_see_durable_records_in_order"
            ): "assert [(1, 4), (2, 5), (3, 6)] == []",
        },
    ),
    Bug(
        "loss-called-not-leader",
        "I31: NOT_LEADER promises that nothing happened; what was journaled is UNKNOWN_OUTCOME",
        (
            Edit(
                "oncelog_server.runtime.replica.replies:_lost",
                "if item.recorded:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_i31_who_steps_down_says_that_the_outcome_is_unknown"
            ): "NOT_LEADER",
        },
    ),
    # ----------------------------------------------------------------- failed writes, lost leases
    Bug(
        "failed-sync-goes-on",
        "a leader whose sync failed resigns and never leads that epoch again",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver._write_failed",
                "if not self._state.write_failed():",
                "if True:",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_a_failed_sync_ends_the_epoch_and_its_bytes_are_gone"
            ): "all tasks wait and no timer is set",
        },
    ),
    Bug(
        "epoch-continued-after-a-restart",
        "I18: a restarted process never continues an epoch",
        (
            Edit(
                "oncelog_server.runtime.replica.epochs:Epochs.load",
                'assert target.epoch > journal.last_epoch, "an epoch is never continued"',
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_i18_an_epoch_is_never_continued"
            ): "epoch 4 begins after 4",
        },
    ),
    Bug(
        "acknowledged-past-the-lease",
        "I18: a node checks its own deadline when a reply is made, acknowledgements included",
        (
            Edit(
                "oncelog_server.runtime.replica.replies:Replies._answer",
                "if not self._lease_valid():",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_i18_nothing_is_acknowledged_past_the_lease"
            ): "DID NOT RAISE UnknownOutcome",
        },
    ),
    Bug(
        "appended-past-the-lease",
        "I18: nothing is appended for an answer that could not be given",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.submit",
                "self.require_lease()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver", "test_i18_nothing_is_acknowledged_past_the_lease"
            ): "UNKNOWN_OUTCOME",
        },
    ),
    Bug(
        "parked-for-ever-past-the-lease",
        "I31: whose lease has run out answers whoever waits for the high watermark",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.tick",
                'led.lose_replies("the lease ran out")',
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_driver",
                "test_i31_who_waits_for_the_high_watermark_is_answered_when_the_lease_runs_out",
            ): "nobody is told",
        },
    ),
    Bug(
        "renewal-tried-again-late",
        "I29: a renewal that failed is tried again soon",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._renew",
                "pause_s = self._lease_ms / ATTEMPTS_PER_LEASE / 1000",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_lease", "test_i29_a_renewal_that_failed_is_tried_again_soon"
            ): "assert (",
        },
    ),
    Bug(
        "deadline-from-the-answer",
        "the deadline counts from the moment the last successful keep-alive was sent",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._renew_on_the_loop",
                "self._deadline(sent_ms)",
                "self._deadline(self._now_ms())",
            ),
        ),
        {
            unit(
                "leadership/test_lease",
                "test_the_deadline_counts_from_the_sending_of_the_keep_alive",
            ): ">= 400",
        },
    ),
    Bug(
        "key-of-a-process-in-a-wiped-etcd",
        "I5: a process leaves no key in an etcd that knows no cluster, for recover to find",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._register",
                "[compare, Exists(CLUSTER)]",
                "[compare]",
            ),
        ),
        {
            unit(
                "leadership/test_lease",
                "test_i5_a_process_leaves_no_key_in_an_etcd_that_was_wiped",
            ): "== []",
        },
    ),
    Bug(
        "hint-in-a-wiped-etcd",
        "I5: a process leaves no key in an etcd that knows no cluster, for recover to find",
        (Edit("oncelog_server.runtime.hints:Hints.tell", "[Exists(CLUSTER)]", "[]"),),
        {
            unit("runtime/test_hints", "test_i5_no_hint_is_left_in_an_etcd_that_was_wiped"): (
                "== []"
            ),
        },
    ),
    Bug(
        "leadership-back-with-a-new-lease",
        "a new lease gives no leadership back",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._register",
                "held.confirmed = self.lost == 0",
                "held.confirmed = True",
            ),
        ),
        {
            unit(
                "leadership/test_lease",
                "test_a_new_lease_is_valid_only_when_leadership_was_compared",
            ): "assert [('lost', ",
        },
    ),
    Bug(
        "leadership-not-compared-after-a-new-lease",
        "I18: who lost its key reads the partition keys again, after the new key stands",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections.recheck",
                "not self._held.names_us(state) or state.epoch != history.led_epoch",
                "False",
            ),
        ),
        {
            "tests/simulation/directed/test_epochs.py::"
            "test_i18_a_new_lease_gives_no_leadership_back": "it would say: nothing there",
        },
    ),
    Bug(
        "late-election-believed",
        "I18: an election that is answered after the key was lost is void",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._vote",
                "if lost != self._membership.lost:",
                "if False:",
            ),
        ),
        {
            unit(
                "leadership/test_election",
                "test_i18_an_election_answered_after_the_key_was_lost_is_void",
            ): "assert ('elected'",
        },
    ),
    Bug(
        "restored-etcd-obeyed",
        "an etcd with a revision below the highest seen is refused",
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
            ): "DID NOT RAISE EtcdRefused",
        },
    ),
    Bug(
        "log-ahead-of-etcd-obeyed",
        "an etcd with an epoch below one found in a log is refused",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._may_win",
                "if fit is Fitness.FIT:",
                "if fit is not Fitness.AHEAD_OF_ETCD:",
            ),
        ),
        {
            unit(
                "leadership/test_election",
                "test_only_an_isr_incarnation_wins_and_the_offline_partition_names_the_way_out",
            ): "assert 5 == 0",
        },
    ),
)

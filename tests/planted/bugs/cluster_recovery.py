"""Bugs of `oncelog cluster recover`: which epochs, in which etcd, beside whom."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_DAYS: Final = "tests/simulation/test_copies.py"

BUGS: Final = (
    Bug(
        "recovery-overlooks-orphans",
        "I5: a replica in orphans/ that is missed is told of",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.plan:make_plan",
                "plan.aside.append(Doubt(aside, _why_set_aside(aside)))",
                "pass",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan",
                "test_i5_a_replica_that_lies_in_orphans_and_is_missed_is_told_of",
            ): "assert [] == [FoundReplica",
        },
    ),
    Bug(
        "orphans-doubted-beside-their-copy",
        "a log that was copied anew is in place: what it was copied for is no doubt",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.plan:make_plan",
                "if (aside.partition, aside.node_id) in placed:",
                "if False:",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan",
                "test_what_lies_in_orphans_is_not_told_of_where_another_copy_is_in_place",
            ): "== ([], [",
        },
    ),
    Bug(
        "recovery-forgets-a-won-epoch",
        "no epoch that anybody may have used is used again",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.choosing:_epoch",
                "max(*noted, *logged,",
                "max(*logged,",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan", "test_a_sound_replica_leads_far_above_all_epochs"
            ): "1048579, 0) == ([], 1048581, 0)"
        },
    ),
    Bug(
        "recovery-forgets-a-vacant-epoch",
        "no epoch that anybody may have used is used again",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.choosing:_epoch",
                "before.epoch - RECOVERY_EPOCHS, 0)",
                "0)",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan", "test_the_epoch_of_a_vacant_key_is_not_used_again"
            ): "assert 1048581 == (1048576 + 9)"
        },
    ),
    Bug(
        "damaged-incarnation-in-isr",
        "a better copy of a damaged replica may lead later",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.choosing:choose",
                "isr=(newest.incarnation,)",
                "isr=(members[0].incarnation,)",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan",
                "test_a_damaged_replica_stays_offline_under_an_epoch_that_it_did_not_reach",
            ): "assert False == True"
        },
    ),
    Bug(
        "moved-directory-recovered",
        "a replica is of the partition that its record names",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.inventory:_look_at",
                "if record is not None and record.partition != partition:",
                "if False:",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_a_directory_that_was_moved_by_hand_is_refused",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "older-etcd-taken-for-known",
        "I25: an etcd restored from a backup is refused",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:_is_as_known",
                "and known.revision <= revision",
                "",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_i25_an_etcd_of_the_past_is_not_taken_for_the_one_that_was_known",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "etcd-below-logged-epochs-taken",
        "I25: an etcd restored from a backup is refused",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:_is_as_known",
                "replica.last_epoch <= state.epoch",
                "True",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_i25_an_etcd_of_the_past_is_not_taken_for_the_one_that_was_known",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "etcd-of-another-past-taken",
        "I25: an etcd restored from a backup is refused",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:survey",
                "known = known and await has_history_of(etcd, directory.remembered)",
                "pass",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_i25_an_etcd_of_the_past_is_not_taken_for_the_one_that_was_known",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "second-recovery-not-counted",
        "a directory works only with the recovery that it took part in",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:survey",
                "_cluster_of(directories, cluster_id, highest + 1)",
                "_cluster_of(directories, cluster_id, max(highest, 1))",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_a_second_recovery_is_counted_also_where_etcd_is_empty",
            ): "3) == (<Mode.FOUND: 'found'>, 4)"
        },
    ),
    Bug(
        "recovery-over-a-new-cluster",
        "a recovery overwrites nothing that came beside it",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:perform",
                "await _write(etcd, [compare], [*gone,",
                "await _write(etcd, [], [*gone,",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_a_recovery_overwrites_nothing_that_came_beside_it",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "recovery-over-new-partitions",
        "a recovery overwrites nothing that came beside it",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:perform",
                "[Compare(put.key, revisions.get(put.key, 0)) for put in batch]",
                "[]",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_a_recovery_overwrites_nothing_that_came_beside_it",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "recovery-over-a-new-topic",
        "a recovery overwrites nothing that came beside it",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:_write_topics",
                "[Compare(key, revisions.get(key, 0))]",
                "[]",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_a_recovery_overwrites_nothing_that_came_beside_it",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "two-clusters-recovered-as-one",
        "one recovery is of one cluster",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:_require_one_cluster",
                "if len(by_cluster) > 1:",
                "if False:",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform", "test_directories_of_two_clusters_are_not_made_one"
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "loss-accepted-silently",
        "what may be lost is lost only with --accept-loss",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:plan_of",
                "if plan.doubts and loss is Loss.REFUSED:",
                "if False:",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_what_is_in_doubt_is_not_lost_before_somebody_says_so",
            ): "DID NOT RAISE RecoveryRefused"
        },
    ),
    Bug(
        "one-replica-of-three-is-enough-to-recover",
        "I5: replicas - min_insync_replicas + 1 intact ones, else an acknowledged record may lack",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.choosing:choose",
                "needed = len(replicas) - least + 1",
                "needed = min(1, least)",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan",
                "test_i5_with_too_few_intact_replicas_nobody_leads_until_others_come",
            ): "one of three may lack what was acknowledged",
            f"{_DAYS}::test_i5_nothing_is_missing_after_etcd_was_lost_and_rebuilt": "another frame",
        },
    ),
    Bug(
        "an-emptied-replica-counts-at-a-recovery",
        "I5: who was emptied or damaged since it was in sync proves nothing",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.choosing:_found",
                "record is not None and record.incarnation == replica.incarnation",
                "record is not None",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan", "test_i5_a_replica_that_was_emptied_proves_nothing"
            ): "an emptied replica counts"
        },
    ),
    Bug(
        "the-longest-log-leads-after-a-recovery",
        "I5: the largest (last epoch, synced end) leads, not the longest log",
        (
            Edit(
                "oncelog_server.runtime.leadership.last_resort:rank",
                "(log.last_epoch, log.synced_end, log.node_id)",
                "(log.synced_end, 0, log.node_id)",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_plan",
                "test_i5_of_enough_intact_replicas_the_largest_leads",
            ): "acknowledged records are lost",
            unit(
                "leadership/test_last_resort",
                "test_i5_the_largest_last_epoch_then_synced_end_is_proposed",
            ): "acknowledged records are lost",
        },
    ),
    Bug(
        "recovery-that-leaves-no-word",
        "who recovered a cluster, and what he was told, is known before any process starts again",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:perform",
                "    leave_account()\n",
                "",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_accounts",
                "test_no_process_starts_on_a_directory_before_the_account_is_left_there",
            ): "a process may have started that tells of nothing"
        },
    ),
    Bug(
        "accounts-above-what-is-read",
        "who recovered a cluster is told, however many accounts wait",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.accounts:leave",
                "> FILE_BYTES_MAX:",
                "> 2 * FILE_BYTES_MAX:",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_accounts",
                "test_accounts_that_do_not_fit_into_the_file_make_the_oldest_go",
            ): "all are lost with account"
        },
    ),
    Bug(
        "recovery-that-is-not-audited",
        "operators are trusted, and what they do is in the audit log",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.accounts:tell",
                "guard.audit.called(fields)",
                "pass",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_accounts",
                "test_who_recovered_and_what_he_was_told_stands_in_the_audit_log_once",
            ): "nobody knows who gave records up"
        },
    ),
    Bug(
        "recovery-names-the-next-epoch",
        "I18: epochs may have been granted that no log here shows: a recovery leaves them behind",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.choosing:_epoch",
                "before.epoch - RECOVERY_EPOCHS, 0) + RECOVERY_EPOCHS",
                "before.epoch - RECOVERY_EPOCHS, 0) + 1",
            ),
        ),
        {
            "tests/simulation/directed/test_recovering.py::"
            "test_i5_i18_after_an_etcd_of_the_past_a_recovery_finds_the_log_that_has_all": (
                "none is repeated"
            )
        },
    ),
    Bug(
        "recovered-under-processes-that-live",
        "I18: who lives by an etcd stops before it is rebuilt: he may acknowledge, and lead on",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:perform",
                "await _wait_for_the_end_of_others(surveyed, etcd)",
                "pass",
            ),
        ),
        {
            "tests/simulation/test_cluster_recovery.py::"
            "test_a_recovery_does_not_pull_the_floor_from_under_those_who_live": "DID NOT RAISE"
        },
    ),
)

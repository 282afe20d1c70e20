"""Bugs of leases and elections: what is heard late, and what a leader keeps."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "first-deadline-from-the-answer",
        "I18: the deadline counts from the sending, the first one too",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._register",
                "self._deadline(sent_ms)",
                "self._deadline(self._now_ms())",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i18_the_first_deadline_counts_from_the_asking_for_the_lease",
            ): "etcd may have counted from the asking on"
        },
    ),
    Bug(
        "thread-deadline-from-the-answer",
        "I18: a thread of its own renews, by the same rule",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._renew",
                "self._deadline(sent_ms)",
                "self._deadline(self._now_ms())",
            ),
        ),
        {
            unit(
                "leadership/test_lease",
                "test_i18_the_thread_counts_from_the_sending_of_the_keep_alive_too",
            ): "it was sent at 0 and answered at 200"
        },
    ),
    Bug(
        "old-lease-ends-the-new-one",
        "I29: the end of a lease is heard once",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._lose",
                "if self._held is not held:",
                "if self._held is None:",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_the_end_of_an_old_lease_heard_late_leaves_the_new_one",
            ): "assert None is not None"
        },
    ),
    Bug(
        "old-deletion-ends-the-new-lease",
        "I29: a deletion before the put of our key is not ours",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._key_gone",
                "revision > held.revision",
                "True",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_the_end_of_an_old_lease_heard_late_leaves_the_new_one",
            ): "(2, False) == (1, True)"
        },
    ),
    Bug(
        "loss-heard-by-the-thread-only",
        "a lease that etcd ended is lost at once, not at its deadline",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._renew",
                "loop.call_soon_threadsafe(self._lose, held)",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_lease", "test_a_lease_that_the_thread_finds_ended_is_lost"
            ): "the thread was told, and nobody heard of it"
        },
    ),
    Bug(
        "election-won-twice",
        "I18: an epoch is won once, by its answer or by its adoption",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._vote",
                "if bid.new.epoch > max(history.led_epoch, history.left_epoch):",
                "if True:",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_an_unclean_election_that_was_adopted_before_its_answer_is_won_once",
            ): "a process leads a partition once at a time"
        },
    ),
    Bug(
        "late-adoption-believed",
        "I18: an adoption that is heard after the key was lost is void",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing.adopt",
                "or lost != self._membership.lost ",
                "",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i18_an_adoption_heard_after_the_key_was_lost_is_void",
            ): "etcd named it before it lost its key"
        },
    ),
    Bug(
        "epoch-adopted-that-the-log-knows",
        "I18: an epoch that stands in the log is never continued",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._granted",
                "candidate.last_epoch < state.epoch",
                "candidate.last_epoch <= state.epoch",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i18_an_epoch_that_the_log_knows_already_is_not_adopted",
            ): "it did not come about"
        },
    ),
    Bug(
        "unfit-replica-adopts",
        "elections name incarnations, adoptions too",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._granted",
                "and candidate.incarnation.hex() in state.isr",
                "",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers", "test_a_replica_that_was_replaced_adopts_nothing"
            ): "it lacks what may be acknowledged in that epoch"
        },
    ),
    Bug(
        "stands-before-it-compared",
        "a new lease gives no leadership back, nor new ones before what it leads was compared",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing.stand",
                " if self._membership.valid() else ()",
                "",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_who_has_not_compared_what_it_leads_stands_for_nothing",
            ): "assert [1] == []"
        },
    ),
    Bug(
        "late-resignation-ends-the-next-epoch",
        "I29: a resignation is of one epoch",
        (
            Edit(
                "oncelog_server.runtime.leadership.resigning:Resigning._try_resign",
                " or state.epoch != epoch",
                "",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i18_a_resignation_heard_late_does_not_end_the_next_epoch",
            ): "assert 3 == 2"
        },
    ),
    Bug(
        "one-partition-holds-back-all",
        "I29: one transaction, on failure one by one",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing.stand",
                "await self._vote([bid])",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i29_a_partition_that_cannot_be_won_holds_back_no_other",
            ): "it did not come about"
        },
    ),
    Bug(
        "another-epoch-of-this-boot-taken-for-ours",
        "I18: after a new lease etcd must name this boot in the epoch that it leads",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections.recheck",
                " or state.epoch != history.led_epoch",
                "",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i18_after_a_new_lease_another_epoch_of_this_boot_deposes_too",
            ): "deposed before the new lease counts"
        },
    ),
    Bug(
        "unclean-election-below-the-log",
        "an etcd with an epoch below one found in a log is refused, by operators too",
        (
            Edit(
                "oncelog_server.runtime.leadership.unclean:unclean_bid",
                "if candidate.last_epoch > state.epoch:",
                "if False:",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_an_unclean_election_does_not_go_below_an_epoch_of_the_log",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "memory-that-was-not-written-counts",
        "each replica keeps the highest revision it has seen: a failed write is tried again",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:ClusterIdentity._write",
                "            await self._offload(lambda: save_remembered(self._disk, remembered))\n"
                "            self._remembered = remembered",
                "            self._remembered = remembered\n"
                "            await self._offload(lambda: save_remembered(self._disk, remembered))",
            ),
        ),
        {
            unit(
                "etcd/test_identity", "test_what_could_not_be_written_is_written_later"
            ): "assert 2 == 3"
        },
    ),
    Bug(
        "gone-by-an-older-read",
        "I1: a read that was sent before the question says nothing of what was made meanwhile",
        (
            Edit(
                "oncelog_server.runtime.etcd.deletions:Deletions._read_all",
                "asked, self._asked = self._asked, {}\n                await self._answer(asked)",
                "await self._answer(self._asked)\n                self._asked = {}",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i1_nobody_is_told_gone_by_a_read_that_was_sent_before_he_asked",
            ): "assert not True",
        },
    ),
    Bug(
        "gone-by-the-word-of-a-wiped-etcd",
        "I18: nothing is gone by the word of an etcd that is not what it was",
        (
            Edit(
                "oncelog_server.runtime.etcd.deletions:Deletions._answer",
                "await self._confirm()",
                "pass",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i18_nothing_is_gone_by_the_word_of_an_etcd_that_went_back[wiped]",
            ): "DID NOT RAISE",
            unit(
                "etcd/test_cluster_view",
                "test_i18_nothing_is_gone_by_the_word_of_an_etcd_that_went_back[restored]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "gone-by-the-revision-alone",
        "I18: a key that was seen written tells an etcd that went back and on",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._confirm",
                "await self._guard.recheck()",
                "pass",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i18_nothing_is_gone_by_the_word_of_an_etcd_that_went_back"
                "[restored, and went on]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "followed-as-the-view-names-it",
        "I5: nobody is followed before his key was read, linearizably",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._round",
                "if history.was_read:",
                "if not history.led_epoch:",
            ),
        ),
        {
            unit(
                "leadership/test_whom_to_follow",
                "test_i5_nobody_is_followed_before_his_key_was_read",
            ): "only the view names it"
        },
    ),
    Bug(
        "a-new-lease-follows-on",
        "I5: after a new lease the key is read before anybody is followed",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections.recheck",
                "history.was_read = False",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_whom_to_follow",
                "test_i5_after_a_new_lease_the_key_is_read_again",
            ): "nobody has read it"
        },
    ),
    Bug(
        "rounds-rest-for-as-long-as-a-process-was-stopped",
        "I29: a process that was stopped stands in elections soon after it goes on",
        (
            Edit(
                "oncelog_server.runtime.leadership.rounds:Rounds.next",
                "min(ROUND_REST * self._took_s, REST_MS_MAX / 1000)",
                "ROUND_REST * self._took_s",
            ),
        ),
        {
            unit(
                "leadership/test_rounds",
                "test_i29_who_was_stopped_in_the_middle_of_a_round_stands_again_at_once",
            ): "it rests for what others did to it"
        },
    ),
    Bug(
        "one-change-has-all-looked-at",
        "a change of one partition among thousands costs what one costs",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._view_changed",
                "key.startswith(BOOTS)",
                "key.startswith((BOOTS, PARTITIONS))",
            ),
        ),
        {
            unit(
                "leadership/test_rounds", "test_a_change_of_one_partition_has_no_other_looked_at"
            ): "each change of one has all looked at"
        },
    ),
    Bug(
        "what-waits-is-looked-at-with-every-other",
        "a change of one partition among thousands costs what one costs",
        (
            Edit(
                "oncelog_server.runtime.leadership.rounds:Rounds.begin",
                "else frozenset(self._due)",
                "else frozenset(self._due | self._unfinished)",
            ),
        ),
        {
            unit(
                "leadership/test_rounds",
                "test_what_is_not_done_is_due_after_a_moment_and_not_with_every_other",
            ): "what waits is not looked at with every other"
        },
    ),
    Bug(
        "who-lives-calls-for-no-round",
        "I29: whoever could lead looks again when a process is gone",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._view_changed",
                "if any(key.startswith(BOOTS) for key in changed):",
                "if False:",
            ),
        ),
        {
            unit(
                "leadership/test_rounds",
                "test_i29_who_could_lead_looks_again_when_a_leader_is_gone",
            ): "nobody leads"
        },
    ),
    Bug(
        "all-woken-by-each-change",
        "what changes in etcd wakes those who wait for it, all at once",
        (
            Edit(
                "oncelog_server.runtime.pace:Pace.call",
                "if self._pause is not None:",
                "if self._is_due:",
            ),
        ),
        {
            unit(
                "runtime/test_pace",
                "test_what_is_called_for_often_is_done_seldom_and_after_the_last_call",
            ): "each call has all done anew"
        },
    ),
    Bug(
        "the-last-change-wakes-nobody",
        "whoever waits for something in etcd is woken after it changed",
        (
            Edit(
                "oncelog_server.runtime.pace:Pace.call",
                "self._is_due = True",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_pace",
                "test_what_is_called_for_often_is_done_seldom_and_after_the_last_call",
            ): "the last call was forgotten"
        },
    ),
    Bug(
        "rounds-without-a-rest",
        "I18: a process with a thousand partitions keeps its lease while they change",
        (
            Edit(
                "oncelog_server.runtime.leadership.rounds:Rounds.next",
                "if self._took_s:",
                "if self._took_s < 0:",
            ),
        ),
        {
            unit(
                "leadership/test_rounds", "test_i18_rounds_leave_most_of_the_loop_to_others"
            ): "rounds take the whole loop"
        },
    ),
    Bug(
        "deleted-topic-led-on",
        "a leader leaves a topic that stands no more, whatever became of its partitions' keys",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._of_topics",
                "if self._view.topic_by_id(partition.topic_id) is None",
                "if False",
            ),
        ),
        {
            unit(
                "leadership/test_election",
                "test_a_topic_is_left_although_who_deleted_it_died_before_its_partitions_went",
            ): "nobody leads what is no more"
        },
    ),
    Bug(
        "new-topic-wakes-all",
        "a topic that is made or deleted stirs no replica of another one",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._of_topics",
                "if self._view.topic_by_id(partition.topic_id) is None",
                "if True",
            ),
        ),
        {
            unit(
                "leadership/test_election",
                "test_a_topic_that_is_made_or_deleted_is_news_to_its_own_replicas_alone",
            ): "they are ticked for nothing"
        },
    ),
)

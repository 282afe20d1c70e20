"""Bugs of how etcd is followed and asked, and of an election that is answered late."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "asked-of-a-process-that-stops",
        "I29: a call ends when its process stops",
        (
            Edit(
                "oncelog_server.runtime.etcd.deletions:Deletions.stop",
                "_refuse(self._asked, _STOPPING)",
                "pass",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i29_who_asks_what_is_gone_does_not_wait_for_a_process_that_stops",
            ): "nobody answers them any more",
        },
    ),
    Bug(
        "etcd-emptied-is-topics-deleted",
        "I18: a revision that ends the cluster tells of no deleted topic",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._apply",
                "self._require_our_cluster(event.value, event.mod_revision)",
                "pass",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i18_a_revision_that_ends_the_cluster_is_told_to_nobody[nothing]",
            ): "it believed that everything was deleted",
            unit(
                "leadership/test_election",
                "test_i18_no_log_is_put_aside_where_all_keys_are_deleted_at_once",
            ): "its log is in orphans/",
        },
    ),
    Bug(
        "a-refused-etcd-is-followed",
        "I18: once etcd was refused, nothing of it is applied",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView.refuse",
                "self._refusal, self._reachable = error, False",
                "self._reachable = False",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view", "test_i18_after_a_refusal_no_watch_is_believed"
            ): "it believed another history",
        },
    ),
    Bug(
        "too-large-a-reply-is-asked-for-again",
        "I29: a watch whose next reply is too large goes on with a list",
        (
            Edit(
                "oncelog_server.runtime.etcd.client:EtcdClient._watch_once",
                "if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:",
                "if False:",
            ),
        ),
        {
            unit(
                "etcd/test_client",
                "test_i29_a_reply_that_is_too_large_for_a_message_is_replaced_by_a_list",
            ): "it tries the same again",
        },
    ),
    Bug(
        "much-at-once-holds-up-the-loop",
        "I29: a reply of many revisions lets others run in between",
        (
            Edit(
                "oncelog_server.runtime.etcd.client:EtcdClient.watch",
                "if number % REVISIONS_AT_ONCE == 0:",
                "if False:",
            ),
        ),
        {
            unit(
                "etcd/test_client",
                "test_i29_who_hears_of_much_at_once_lets_others_run_in_between",
            ): "nothing else had a turn",
        },
    ),
    Bug(
        "etcd-back-between-two-pages",
        "I25: an etcd that goes back between two pages of a list is refused",
        (
            Edit(
                "oncelog_server.runtime.etcd.client:EtcdClient._range_at_one_revision",
                "raise EtcdRefused(",
                "raise RuntimeError(",
            ),
        ),
        {
            unit(
                "etcd/test_client",
                "test_i25_an_etcd_that_goes_back_between_two_pages_is_refused",
            ): "is not told what to do",
        },
    ),
    Bug(
        "put-aside-by-a-late-read",
        "I18: a log that leads is not put aside by a read from before",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections._put_aside",
                "if history is not None and self._has_overtaken(partition, history, found):",
                "if False:",
            ),
        ),
        {
            unit(
                "leadership/test_whom_to_follow",
                "test_i18_a_late_read_puts_no_log_aside_that_leads",
            ): "the log that leads is put aside",
        },
    ),
    Bug(
        "put-aside-while-it-is-elected",
        "I18: a log that an operator has elected is not put aside before the answer is there",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing.unclean_elect",
                "history.see(bid.old, bid.mod_revision)",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_whom_to_follow",
                "test_i18_a_late_read_puts_no_log_aside_that_leads[being elected]",
            ): "the log that leads is put aside",
        },
    ),
    Bug(
        "who-won-is-not-looked-at-again",
        "I29: of what was won with a replica that may stand no more, nothing is led",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing._granted",
                "if can_lead:",
                "if True:",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i29_who_cannot_lead_any_more_when_it_hears_that_it_won_lets_others_stand",
            ): "it would try to open its log for ever"
        },
    ),
    Bug(
        "unanswered-election-waits-for-its-log",
        "I29: who cannot lead what etcd says that it has won resigns it",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing.adopt",
                "or history.led_epoch:",
                "or history.led_epoch or self._host.candidate(partition) is None:",
            ),
        ),
        {
            unit(
                "leadership/test_late_answers",
                "test_i29_an_unanswered_election_of_who_cannot_lead_any_more_is_resigned",
            ): "nobody else can stand"
        },
    ),
    Bug(
        "log-that-does-not-open-kept",
        "I29: who is to lead and cannot open its log says so",
        (
            Edit(
                "oncelog_server.runtime.replica.opening:Opening.attempt",
                "isinstance(self._state.target, Lead)",
                "False",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_i29_a_log_that_cannot_be_opened_is_resigned_while_it_is_to_lead",
            ): "whoever is granted and cannot lead says so"
        },
    ),
)

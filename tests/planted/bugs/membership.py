"""Bugs of consumer groups: who owns what, who may commit it, who lives."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

MEMBERSHIP: Final = "oncelog_server.offset_manager.membership:Membership."
OWNERSHIP: Final = unit("offset_manager/test_ownership", "test_i23_at_most_one_owner_at_any_moment")

_WIRE: Final = "oncelog_server.offset_manager.wire:"

BUGS: Final = (
    Bug(
        "subscriptions-of-any-length",
        "a member subscribes to names that a topic can have: what it says of itself is a record",
        (
            Edit(
                _WIRE + "_require_subscription",
                '        _require_bytes("subscribed_topics", name, TOPIC_NAME_BYTES_MAX)\n',
                "",
            ),
        ),
        {
            unit(
                "offset_manager/test_wire",
                "test_a_member_subscribes_to_names_that_a_topic_can_have",
            ): "DID NOT RAISE InvalidArgument",
        },
    ),
    Bug(
        "subscriptions-without-end",
        "what a member subscribes to has a limit, by its name",
        (Edit(_WIRE + "_require_subscription", "> SUBSCRIPTION_BYTES_MAX", "< 0"),),
        {
            unit(
                "offset_manager/test_wire", "test_what_a_member_subscribes_to_has_a_limit_in_all"
            ): "DID NOT RAISE TooLarge",
        },
    ),
    Bug(
        "partition-taken-from-its-owner",
        "I23: a partition moves only after its owner let go of it",
        (
            Edit(
                MEMBERSHIP + "_aim",
                "        if owner is None:\n            return\n",
                "        if owner is not None and owner.member_id != member_id:\n"
                "            self._disown(partition)\n            return\n"
                "        if owner is None:\n            return\n",
            ),
        ),
        {
            story(
                "offset_manager/i23_a_partition_moves_after_its_owner_let_go"
            ): "+beat g b 2 topics=orders -> generation=2 orders/2 orders/3",
            OWNERSHIP: "AssertionError",
        },
    ),
    Bug(
        "late-heartbeat-lets-go",
        "I23: a heartbeat from before the partition was revoked last lets go of nothing",
        (
            Edit(
                MEMBERSHIP + "released_by",
                "0 < self.owners[partition].revoked <= heartbeat.member.generation",
                "self.owners[partition].revoked\n"
                "            and self.owners[partition].since <= heartbeat.member.generation",
            ),
        ),
        {
            story(
                "offset_manager/i23_a_heartbeat_of_before_a_grant_releases_nothing"
            ): "+@5 RELEASED g b:orders/0",
            OWNERSHIP: "AssertionError",
        },
    ),
    Bug(
        "unheard-of-partition-let-go",
        "I23: who lacks a partition that is in its target has not heard of it yet",
        (
            Edit(
                MEMBERSHIP + "released_by",
                "0 < self.owners[partition].revoked",
                "self.owners[partition].revoked",
            ),
        ),
        {story("offset_manager/i23_a_join_that_comes_again"): "RELEASED"},
    ),
    Bug(
        "lost-and-got-again",
        "I23: nobody commits what he read before he lost the partition",
        (
            Edit(
                MEMBERSHIP + "require_owned",
                "if not is_owner or not since <= identity.generation <= self.generation:",
                "if not is_owner:",
            ),
        ),
        {
            story(
                "offset_manager/i23_what_was_read_before_it_was_lost_is_not_committed"
            ): "-commit g orders/1:none>4 by=a,2 -> ILLEGAL_GENERATION",
        },
    ),
    Bug(
        "fenced-by-the-groups-generation",
        "members that lose nothing commit on through a rebalance",
        (
            Edit(
                MEMBERSHIP + "require_owned",
                "since <= identity.generation <= self.generation",
                "identity.generation == self.generation",
            ),
        ),
        {
            story(
                "offset_manager/i23_nobody_who_loses_nothing_is_fenced"
            ): "-commit g orders/0:none>4 by=a,1 -> OK",
            OWNERSHIP: "is fenced from what it holds",
        },
    ),
    Bug(
        "anybody-commits-for-a-member",
        "I23: an offset of a partition that the member does not own is refused",
        (
            Edit(
                MEMBERSHIP + "require_owned",
                "is_owner = owner is not None and owner.member_id == identity.member_id",
                "is_owner = owner is not None",
            ),
        ),
        {
            story(
                "offset_manager/i23_only_members_commit"
            ): "-commit g orders/1:7>8 by=b,7 -> ILLEGAL_GENERATION",
        },
    ),
    Bug(
        "outgrown-in-silence",
        "limits: what a group may not have of a topic that grew is shown",
        (
            Edit(
                "oncelog_server.offset_manager.outgrown:_lacks",
                "known.partitions < topic.partitions",
                "known.partitions > topic.partitions",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_what_outgrew_its_group_is_said_once_and_shown",
            ): "a topic outgrew its group"
        },
    ),
    Bug(
        "made-again-in-silence",
        "limits: a topic that is made again, and is too large for its group, is shown",
        (
            Edit(
                "oncelog_server.offset_manager.outgrown:_lacks",
                "return any(",
                "return False and any(",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_a_topic_that_is_made_again_too_large_is_gone_and_shown",
            ): "('orders', 3, 0)"
        },
    ),
    Bug(
        "deleted-and-still-owned",
        "what was deleted is nobody's, also where what came in its place is too large",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:_require_partitions",
                "if before is not None and before.topic_id != topic.topic_id:",
                "if False:",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_a_topic_that_is_made_again_too_large_is_gone_and_shown",
            ): "the topic that was deleted is no member's any more"
        },
    ),
    Bug(
        "outgrown-keeps-members-out",
        "limits: what outgrew its group is nobody's fault, least of all of who is started again",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:_require_partitions",
                "if topic.partitions and topic.name in wanted",
                "if False",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_what_outgrew_its_group_keeps_nobody_and_nothing_else_out",
            ): "LIMIT_EXCEEDED"
        },
    ),
    Bug(
        "standalone-beside-members",
        "I23: while a group has members, only they commit",
        (
            Edit(
                "oncelog_server.offset_manager.decide_commit:_require_right",
                "if membership.member_states:",
                "if False:",
            ),
        ),
        {
            story(
                "offset_manager/i23_only_members_commit"
            ): "-commit g orders/0:1>2 -> UNKNOWN_MEMBER",
        },
    ),
    Bug(
        "member-beside-a-query",
        "I23: while a query commits for a group alone, nobody joins it",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:decide_heartbeat",
                "group.require_unclaimed(command.group)",
                "pass",
            ),
        ),
        {
            story("offset_manager/i23_a_query_keeps_joiners_out"): "members beside a claim",
        },
    ),
    Bug(
        "query-beside-members",
        "I23: while a group has members, nobody claims it",
        (
            Edit(
                "oncelog_server.offset_manager.decide_claim:decide_claim",
                "if group.has_members:",
                "if False:",
            ),
        ),
        {
            story("offset_manager/i23_a_query_keeps_joiners_out"): "members beside a claim",
        },
    ),
    Bug(
        "renewed-and-not-heard",
        "I23: a claim that is renewed lasts",
        (
            Edit(
                "oncelog_server.offset_manager.service:OffsetManagerService.claim_group",
                "replica.signal(ClaimHeard(command.group, command.claim.claim_id))",
                "pass",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_i23_who_claims_a_group_is_named_to_who_joins",
            ): "assert"
        },
    ),
    Bug(
        "claim-for-ever",
        "I29: the claim of a query that died is over within seconds",
        (
            Edit(
                "oncelog_server.offset_manager.decide_time:decide_tick",
                "claims.over(EXPIRED_GROUPS_PER_TICK_MAX)",
                "{}",
            ),
        ),
        {
            story("offset_manager/i23_a_claim_that_nobody_renews_is_over"): "-@3 UNCLAIMED g q2",
        },
    ),
    Bug(
        "inherited-claims-for-ever",
        "I29: a new leader gives each claim its time, and no more",
        (
            Edit(
                "oncelog_server.offset_manager.machine:OffsetManagerMachine.apply",
                "self._claims.is_member(name, claim.claim_id, claim.timeout_ms)",
                "pass",
            ),
        ),
        {
            story("offset_manager/i23_a_claim_that_nobody_renews_is_over"): "-@5 UNCLAIMED g q1",
        },
    ),
    Bug(
        "late-join-fences-the-living",
        "who was replaced and whose join comes late must not replace its successor",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:_member_state",
                " and member.member_id not in membership.gone",
                "",
            ),
        ),
        {
            story("offset_manager/i23_a_late_join_fences_nobody"): "group g: gone and a member",
        },
    ),
    Bug(
        "join-fences-whoever-holds",
        "I23: a join that names nobody, or an older holder of its instance, fences nobody",
        (
            Edit(
                MEMBERSHIP + "require_named",
                'if holder not in ("", replaces):',
                "if False:",
            ),
        ),
        {
            story(
                "offset_manager/i23_a_late_join_fences_nobody"
            ): "+@2 MEMBERS g +b@one -a (replaced by b)",
            unit(
                "offset_manager/test_static_members", "test_i23_a_late_join_never_fences_who_lives"
            ): "a dead process has fenced the living one",
        },
    ),
    Bug(
        "transaction-outlives-its-member",
        "KIP-447: a transaction holds positions no longer than its member's session",
        (
            Edit(
                "oncelog_server.offset_manager.decide_commit:_require_right",
                "command.timeout_ms > session_ms:",
                "False:",
            ),
        ),
        {
            story(
                "offset_manager/i23_a_transaction_within_its_members_session"
            ): "-pend 3.5 100 1 g orders/0:none>10 by=a,1 timeout=60000 -> INVALID_TIMEOUT",
        },
    ),
    Bug(
        "same-step-of-the-next-owner-is-a-repeat",
        "who lost a partition is not told that the next owner's commit was his",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.has_taken",
                "            and committed.member_id == member_id\n",
                "",
            ),
        ),
        {
            story(
                "offset_manager/i23_a_repeat_of_what_was_done_is_told_so"
            ): "+commit g orders/0:4>9 by=a,1 -> OK",
        },
    ),
    Bug(
        "living-group-expires",
        "I24: a group with members never expires",
        (
            Edit(
                "oncelog_server.offset_manager.decide_time:_idle_groups",
                " and not state.groups[name].is_attended",
                "",
            ),
        ),
        {story("offset_manager/living_groups_never_expire"): "FORGOTTEN g"},
    ),
    Bug(
        "pause-of-the-leader-is-silence",
        "who was stopped for a minute must not take all members for dead",
        (
            Edit(
                "oncelog_server.offset_manager.liveness:Liveness._ran",
                "min(now_ms - self._looked_ms, STEP_MS_MAX)",
                "now_ms - self._looked_ms",
            ),
        ),
        {story("offset_manager/a_leader_that_was_stopped_expires_nobody"): "-a (expired)"},
    ),
    Bug(
        "inherited-members-live-for-ever",
        "a new leader gives each member a session, and no more",
        (
            Edit(
                "oncelog_server.offset_manager.machine:OffsetManagerMachine.apply",
                "self._listen_to(name, group.members())",
                "pass",
            ),
        ),
        {story("offset_manager/members_survive_failover"): "-@5 MEMBERS g -b (expired)"},
    ),
    Bug(
        "topic-shrinks",
        "a view that is behind takes no partitions away",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:_topic_news",
                "before.partitions < topic.partitions",
                "before.partitions != topic.partitions",
            ),
        ),
        {story("offset_manager/topics_of_a_group_change"): "orders=2"},
    ),
    Bug(
        "topic-gone-by-hearsay",
        "a topic of a group is gone where etcd says so",
        (
            Edit(
                "oncelog_server.offset_manager.subscribing:with_topics",
                "gone=frozenset(gone)",
                "gone=frozenset(doubted)",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats", "test_a_view_that_is_behind_takes_nothing_away"
            ): "AssertionError"
        },
    ),
    Bug(
        "refused-heartbeat-is-silence",
        "whoever sends heartbeats lives, whatever he is told",
        (
            Edit(
                "oncelog_server.offset_manager.service:OffsetManagerService.heartbeat",
                "replica.signal(MemberHeard(command.group, command.member.member_id))",
                "pass",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats", "test_i23_who_sends_heartbeats_lives"
            ): "UNKNOWN_MEMBER"
        },
    ),
    Bug(
        "late-description-believed",
        "a late copy of what a member said before changes nothing back",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:_described",
                "if same or identity.generation < member_state.described:",
                "if same:",
            ),
        ),
        {story("offset_manager/what_a_member_says_late"): "+@3 MEMBERS g +a"},
    ),
    Bug(
        "news-heard-at-the-end-of-a-third",
        "I29: what a member left or lost is heard of soon",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:decide_heartbeat",
                "min(assigned.heartbeat_interval_ms, news_ms)",
                "assigned.heartbeat_interval_ms",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_i29_news_is_asked_for_often_where_few_ask",
            ): "assert 3333 == 500"
        },
    ),
    Bug(
        "all-ask-often-however-many",
        "what the heartbeats of all members cost together has a bound",
        (
            Edit(
                "oncelog_server.offset_manager.decide_membership:decide_heartbeat",
                "max(NEWS_MS, NEWS_MS_PER_MEMBER * members_here)",
                "NEWS_MS",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_i29_news_is_asked_for_often_where_few_ask",
            ): "assert 500 == 1600"
        },
    ),
)

"""Bugs of creating and deleting topics, and of the view of them: a name is one topic's at a time,
and no view goes back."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "numbers-of-all-scripts",
        "a setting that a process takes can be read by all others",
        (Edit("oncelog_server.core.numbers:is_number", "text.isascii() and ", ""),),
        {unit("partition_leader/test_topics", "test_refused"): "DID NOT RAISE InvalidArgument"},
    ),
    Bug(
        "all-topics-described-in-one-turn",
        "what goes by the number of partitions leaves the loop to others, the lease first of all",
        (
            Edit(
                "oncelog_server.partition_leader.topic_admin:_Turns.spend",
                "if self._spent >= DESCRIBED_PER_TURN",
                "if False",
            ),
        ),
        {
            unit(
                "partition_leader/test_topics", "test_who_lists_topics_leaves_the_loop_to_others"
            ): "assert count >= 5 * (1 + 9) // 4"
        },
    ),
    Bug(
        "control-topics-shown-with-one-replica",
        "a control topic is shown with as many replicas as its partitions have",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._count_replicas",
                "min(counts, default=1)",
                "1",
            ),
        ),
        {
            unit(
                "etcd/test_topics",
                "test_i25_control_partitions_with_three_replicas_wait_for_three_processes",
            ): "as its partitions have"
        },
    ),
    Bug(
        "abandoned-name-kept",
        "I29: who gives a creation up frees its name, for nobody else may",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics.free_names",
                "if marker is None or not await self._remove_abandoned(marker):",
                "if True:",
            ),
        ),
        {
            unit(
                "etcd/test_topics",
                "test_i29_a_creator_that_gave_up_and_lives_frees_the_name_for_others",
            ): "is being created by another call"
        },
    ),
    Bug(
        "compacted-revision-cannot-be-read",
        "the etcd in memory means what etcd means: at the compacted revision all can be read",
        (
            Edit(
                "oncelog_server.runtime.etcd.memory:MemoryEtcdServer.get_at",
                "return self._at_compaction.get(key)",
                "found = self.get(key)\n"
                "        return found if found and found.mod_revision <= self._compacted else None",
            ),
        ),
        {
            unit(
                "etcd/test_memory",
                "test_the_compacted_revision_can_still_be_read_whatever_was_written_since",
            ): "assert None =="
        },
    ),
    Bug(
        "late-creation-never-looked-for",
        "I29: what was sent and not answered may arrive after nobody waits for it",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics._found_nothing",
                "abandoned.looks_left -= 1",
                "abandoned.looks_left = 0",
            ),
        ),
        {
            unit(
                "etcd/test_topics", "test_a_creation_that_arrives_late_is_found_too"
            ): "is being created by another call"
        },
    ),
    Bug(
        "creation-lies-about-anothers-topic",
        "I29: what is said of a creation is what stands",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics._publish",
                "if found is None or _decode(found).topic_id != value.topic_id:",
                "if found is None:",
            ),
        ),
        {
            unit(
                "etcd/test_topics",
                "test_a_creator_that_lost_the_name_to_another_does_not_take_its_topic_for_its_own",
            ): "DID NOT RAISE Unavailable"
        },
    ),
    Bug(
        "partitions-without-the-name",
        "each step of a creation compares that the name is still taken",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics._write_partitions",
                "[Compare(marker.key, marker.mod_revision)]",
                "[]",
            ),
        ),
        {
            unit(
                "etcd/test_topics", "test_a_creator_that_lost_its_lease_meanwhile_creates_nothing"
            ): "'] == []"
        },
    ),
    Bug(
        "deletion-takes-the-next-topic",
        "I29: a deletion is of a topic id, not of a name",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics.delete",
                "if standing is None or _decode(standing).topic_id != topic.topic_id:",
                "if standing is None:",
            ),
        ),
        {
            unit(
                "etcd/test_topics", "test_a_deletion_spares_the_next_topic_of_that_name"
            ): "it deleted what another has made since"
        },
    ),
    Bug(
        "version-of-a-topic-stays",
        "of two memories of a topic the later version counts",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics.alter",
                "version=topic.version + 1",
                "version=topic.version",
            ),
        ),
        {
            unit(
                "etcd/test_topics", "test_each_change_makes_a_later_version"
            ): "assert [0, 0, 0] == [0]"
        },
    ),
    Bug(
        "added-partitions-without-comparison",
        "I18, ADR 32: keys of new partitions are written while the topic is as it was read",
        (
            Edit(
                "oncelog_server.runtime.etcd.topics:EtcdTopics._write_added",
                "self._etcd.txn([unchanged], batch)",
                "self._etcd.txn([], batch)",
            ),
        ),
        {
            unit(
                "etcd/test_added_partitions",
                "test_i18_keys_that_come_late_do_not_unseat_a_leader",
            ): "epochs(other, after) == before"
        },
    ),
    Bug(
        "partitions-known-before-the-topic-counts-them",
        "I18, ADR 32: nobody leads a partition before its topic counts it",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._counts",
                "return topic is not None and partition.number < topic.partitions",
                "return topic is not None",
            ),
        ),
        {
            unit(
                "etcd/test_added_partitions",
                "test_i18_who_dies_in_between_leaves_nothing_that_anybody_can_use",
            ): "is None"
        },
    ),
    Bug(
        "list-of-an-earlier-revision-taken",
        "I25: a view never goes back",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._list_until_answered",
                "if revision >= self.revision:",
                "if True:",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view", "test_i25_a_list_of_an_earlier_revision_is_not_taken"
            ): "it believed that a topic was gone"
        },
    ),
    Bug(
        "list-of-another-past-taken",
        "I25: a view never goes back",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._require_our_past",
                "kv.mod_revision <= self.revision and known",
                "False and known",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i25_a_list_in_which_a_key_is_older_than_it_was_is_not_taken",
            ): "assert [] == [True]"
        },
    ),
    Bug(
        "what-was-never-told-is-taken",
        "I25: a list holds nothing of a revision that was passed and did not show it",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._require_our_past",
                "kv.mod_revision <= self.revision and known != (kv.value, kv.mod_revision)",
                "kv.mod_revision < known[1]",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i25_a_list_that_holds_what_was_never_told_is_not_taken",
            ): "assert [] == [True]"
        },
    ),
    Bug(
        "what-a-list-lacks-is-gone",
        "I18: what a list lacks is gone once that etcd was confirmed",
        (
            Edit(
                "oncelog_server.runtime.etcd.cluster_view:ClusterView._list_until_answered",
                "await self._confirm()",
                "pass",
            ),
        ),
        {
            unit(
                "etcd/test_cluster_view",
                "test_i18_what_a_list_lacks_is_gone_once_etcd_was_confirmed",
            ): "it believed a store of another past"
        },
    ),
    Bug(
        "compacted-proof-is-proof",
        "a key that stands older than it was seen written is of another history",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:has_history_of",
                "if found is None or found.mod_revision > witness.revision:",
                "if True:",
            ),
        ),
        {
            unit(
                "etcd/test_identity",
                "test_a_restored_etcd_that_was_compacted_is_refused_by_the_key_that_stands[older]",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "orphans-by-the-word-of-an-old-etcd",
        "I25: nothing is put aside where etcd is behind what a replica has noted",
        (
            Edit(
                "oncelog_server.runtime.hosting:Hosting.put_orphans_aside",
                "if orphans else ()",
                "if False else ()",
            ),
        ),
        {
            unit(
                "runtime/test_hosting",
                "test_i25_nothing_is_moved_where_etcd_is_behind_what_a_replica_has_noted",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "two-replicas-on-one-node",
        "I25: copies of a partition stand on different nodes",
        (Edit("oncelog_server.runtime.etcd.placement:_choose", "left.remove(best)", "pass"),),
        {
            unit(
                "etcd/test_placement", "test_i25_replicas_stand_on_different_nodes"
            ): "AssertionError"
        },
    ),
    Bug(
        "racks-not-told-apart",
        "I25: copies of a partition stand in as many racks as there are",
        (
            Edit(
                "oncelog_server.runtime.etcd.placement:_choose",
                "in_rack[holder.rack],",
                "0,",
            ),
        ),
        {
            unit(
                "etcd/test_placement",
                "test_i25_replicas_stand_in_as_many_racks_as_there_are",
            ): "AssertionError"
        },
    ),
    Bug(
        "control-partitions-on-whoever-comes-first",
        "control partitions are spread over the living nodes of their role",
        (
            Edit(
                "oncelog_server.runtime.etcd.placed:holders",
                "for node in view.nodes() if role in node.roles]",
                "for node in view.nodes() if role in node.roles][:1]",
            ),
        ),
        {
            unit(
                "etcd/test_topics",
                "test_control_partitions_are_spread_over_the_nodes_that_run_their_role",
            ): "'n0': 16"
        },
    ),
    Bug(
        "control-partitions-taken-from-their-journals",
        "I25: what was ever led stays on the node that has its records",
        (
            Edit(
                "oncelog_server.runtime.etcd.control_partitions:_spread_again",
                "if entry.state.epoch == 0}",
                "if entry.state.epoch >= 0}",
            ),
        ),
        {
            unit(
                "etcd/test_topics",
                "test_i25_processes_that_start_at_the_same_time_share_the_control_partitions_"
                "that_nobody_led",
            ): "AssertionError"
        },
    ),
    Bug(
        "control-partitions-spread-over-an-election",
        "I25: spreading control partitions again and electing a leader exclude each other",
        (
            Edit(
                "oncelog_server.runtime.etcd.control_partitions:_spread_again",
                "[Compare(put.key, entry.mod_revision)]",
                "[]",
            ),
        ),
        {
            unit(
                "etcd/test_topics",
                "test_i25_processes_that_start_at_the_same_time_share_the_control_partitions_"
                "that_nobody_led",
            ): "AssertionError"
        },
    ),
)

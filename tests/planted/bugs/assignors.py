"""Bugs of the assignors: who gets nothing, too much, or what another one had."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

_ROOM: Final = "oncelog_server.offset_manager"


def _caught_by(test: str, shows: str = "AssertionError") -> dict[str, str]:
    return {unit("offset_manager/test_assignors", test): shows}


BUGS: Final = (
    Bug(
        "range-by-member-ids-alone",
        "range: static members come first, in the order of their instance ids",
        (
            Edit(
                f"{_ROOM}.assignors:_range",
                "sorted(subscribers[topic_id], key=place), 0",
                "sorted(subscribers[topic_id]), 0",
            ),
        ),
        _caught_by("test_range_puts_static_members_first_in_the_order_of_their_instances"),
    ),
    Bug(
        "subscriptions-without-a-limit",
        "limits: a group has not more different subscriptions than its assignor can look at",
        (
            Edit(
                f"{_ROOM}.decide_membership:_require_few_subscriptions",
                "wanted not in known and",
                "False and",
            ),
        ),
        {story("offset_manager/limits_of_subscriptions"): "LIMIT_EXCEEDED"},
    ),
    Bug(
        "instances-return-with-any-subscription",
        "limits: who takes an instance over does not pass the limit of different subscriptions",
        (
            Edit(
                f"{_ROOM}.decide_membership:_described",
                "_require_few_subscriptions(membership, config, command, before)",
                "replaced or _require_few_subscriptions(membership, config, command, before)",
            ),
        ),
        {story("offset_manager/limits_of_subscriptions"): "LIMIT_EXCEEDED"},
    ),
    Bug(
        "kept-without-a-subscription",
        "each partition has one owner, who subscribes to its topic",
        (Edit(f"{_ROOM}.uniform:_held", "if bit & may:", "if bit:"),),
        {
            **_caught_by("test_each_partition_has_one_owner_that_subscribes_to_it"),
            **_caught_by("test_what_is_gone_is_given_to_nobody"),
        },
    ),
    Bug(
        "only-one-kind-is-dealt",
        "each partition has one owner",
        (
            Edit(
                f"{_ROOM}.uniform:_choose",
                "enumerate(held.by_nobody)",
                "enumerate(held.by_nobody[:1])",
            ),
        ),
        _caught_by("test_each_partition_has_one_owner_that_subscribes_to_it"),
    ),
    Bug(
        "two-more-is-equal-enough",
        "uniform: equal members have as much but for one",
        (Edit(f"{_ROOM}.balancing:balance", "top - 2", "top - 3"),),
        _caught_by("test_uniform_gives_equal_members_as_much_but_for_one"),
    ),
    Bug(
        "eased-by-neighbours-alone",
        "uniform: as equal as the subscriptions permit, over others too",
        (Edit(f"{_ROOM}.balancing:_search", "found = reached", "found = givers"),),
        _caught_by("test_uniform_eases_a_member_over_another_one"),
    ),
    Bug(
        "needless-moves-stay",
        "uniform: no move that a smaller set of moves would have made unnecessary",
        (
            Edit(
                f"{_ROOM}.uniform:uniform",
                "    undo_needless_moves(shares, group.alike)\n",
                "",
            ),
        ),
        {
            **_caught_by("test_uniform_undoes_what_turned_out_to_be_needless"),
            **_caught_by(
                "test_where_all_subscribe_differently_no_part_of_the_moves_could_be_left_out"
            ),
        },
    ),
    Bug(
        "needless-moves-stay-in-large-groups",
        "uniform: no part of the moves could be left out, where all subscribe differently too",
        (
            Edit(
                f"{_ROOM}.fewest_moves:undo_needless_moves",
                "(_all_positions, _changed_positions)",
                "(_all_positions,)",
            ),
        ),
        _caught_by("test_where_all_subscribe_differently_no_part_of_the_moves_could_be_left_out"),
    ),
    Bug(
        "only-moves-undone",
        "uniform: the fewest moves of all assignments that are as equal",
        (
            Edit(
                f"{_ROOM}.fewest_moves:undo_needless_moves",
                "(_all_positions, _changed_positions)",
                "(_changed_positions,)",
            ),
        ),
        _caught_by("test_uniform_finds_other_moves_where_those_are_fewer"),
    ),
    Bug(
        "shared-out-anew",
        "uniform is sticky",
        (
            Edit(
                f"{_ROOM}.uniform:_held",
                'previous.get(partition, "")',
                'previous.get(partition, "") if len(previous) < 2 else ""',
            ),
        ),
        {
            **_caught_by("test_who_joins_takes_from_others_and_nothing_moves_among_them"),
            **_caught_by("test_what_moves_when_one_leaves_is_what_it_had"),
            **_caught_by("test_partitions_that_are_added_go_where_least_is"),
        },
    ),
    Bug(
        "a-whole-topic-given-away",
        "uniform: who gives keeps as many of each topic as it can",
        (Edit(f"{_ROOM}.uniform:_last_of_each_topic", "    by_rank.sort()\n", ""),),
        _caught_by("test_uniform_gives_away_some_of_each_topic"),
    ),
    Bug(
        "members-in-the-order-of-their-telling",
        "the same arguments give the same assignment",
        (
            Edit(
                f"{_ROOM}.uniform:_group",
                "member_ids = sorted(subscriptions)",
                "member_ids = list(subscriptions)",
            ),
        ),
        _caught_by("test_the_order_in_which_it_is_told_makes_no_difference"),
    ),
    Bug(
        "topics-in-the-order-of-their-hashes",
        "the same arguments give the same assignment in each process",
        (
            Edit(
                f"{_ROOM}.uniform:_group",
                "for topic_id in sorted(subscribers):",
                "for topic_id in subscribers:",
            ),
        ),
        _caught_by("test_the_hashes_of_ids_make_no_difference"),
    ),
    Bug(
        "one-more-for-too-many",
        "range: neighbours, the first ones one more",
        (
            Edit(
                f"{_ROOM}.assignors:_range",
                "index < more",
                "index <= more",
            ),
        ),
        {
            **_caught_by("test_range_gives_neighbours_and_the_same_numbers_of_topics_of_one_size"),
            **_caught_by("test_range_gives_each_subscriber_of_a_topic_neighbours"),
        },
    ),
)

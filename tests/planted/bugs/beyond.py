"""Bugs of what lies beyond the position of who reads across: in commits, and behind a seek."""

from __future__ import annotations

from typing import Final

from tests.planted.bugs.across import ACROSS
from tests.planted.planting import Bug, Edit, unit

BESIDE: Final = "client/test_metadata_of_commits"
FORGOTTEN: Final = "client/test_forgotten_transactions"

BUGS: Final = (
    Bug(
        "consume-forgets-what-was-given-beyond",
        "I15, I21: `oncelog consume --group` gives nothing twice, and forgets nothing",
        (Edit("oncelog_server.cli.reading:Group.fetch", "if _has_beyond(metadata):", "if False:"),),
        {
            unit(
                "cli/test_records",
                "test_i21_a_group_that_was_given_more_than_its_offset_says_is_refused",
            ): "== (1, '')",
        },
    ),
    Bug(
        "consume-overruns-what-stands-beside",
        "I21: who starts from other metadata than stand beside the group's offset is refused",
        (
            Edit(
                "oncelog_server.cli.reading:Group._step",
                "            step.from_metadata = self._metadata[number]\n",
                "            step.from_metadata = 'oncelog-across/1 3:1200'\n",
            ),
        ),
        {
            unit(
                "cli/test_records",
                "test_i21_who_read_on_across_partitions_meanwhile_is_not_overrun",
            ): "assert 0 == 1",
        },
    ),
    Bug(
        "seek-forward-forgets-what-lies-beyond",
        "I21: who leaves out a forgotten transaction gives nothing twice that lies behind it",
        (
            Edit(
                "oncelog._core.positions:Positions.seek_across",
                "if before is not None and offset > before.position:",
                "if False:",
            ),
        ),
        {
            unit(
                FORGOTTEN,
                "test_i21_a_seek_behind_it_gives_nothing_twice_and_loses_nothing[True]",
            ): "== []",
        },
    ),
    Bug(
        "seek-forward-counts-as-a-commit",
        "I21: what was given beyond and not committed comes again after an abort behind a seek",
        (
            Edit(
                "oncelog._core.positions:Positions.seek_across",
                "place.base_beyond = _behind(offset, before.base_beyond)",
                "place.base_beyond = place.beyond",
            ),
        ),
        {
            unit(
                FORGOTTEN,
                "test_i21_a_seek_behind_it_gives_nothing_twice_and_loses_nothing[False]",
            ): "is not False",
        },
    ),
    Bug(
        "seek-back-gives-not-all",
        "a seek back gives again all that lies behind it",
        (
            Edit(
                "oncelog._core.positions:Positions.seek_across",
                "offset > before.position",
                "True",
            ),
        ),
        {
            unit(FORGOTTEN, "test_who_seeks_back_is_given_all_from_there_again[seek]"): "assert []",
        },
    ),
    Bug(
        "seek-before-the-group-was-asked",
        "I21: who seeks before he has read anything keeps what his predecessor gave beyond",
        (
            Edit(
                "oncelog.aio.consumer:Consumer._seek",
                "await self._start_unknown()",
                "pass",
            ),
        ),
        {
            unit(
                FORGOTTEN, "test_i21_a_successor_that_seeks_at_once_gives_nothing_twice"
            ): "assert",
        },
    ),
    Bug(
        "forgotten-told-before-what-waits",
        "I21: the seek that leaves out a forgotten transaction leaves out nothing else",
        (
            Edit(
                f"{ACROSS}.foremost",
                "            if self._lines[partition].entries[0].unit is unit\n",
                "",
            ),
        ),
        {
            unit(
                FORGOTTEN, "test_i21_it_is_not_told_while_another_one_waits_before_it"
            ): "== '0004000000000009'",
        },
    ),
    Bug(
        "commit-does-not-say-what-stands-beside",
        "I21: a commit starts also from the metadata of the group's offset",
        (
            Edit(
                "oncelog._core.positions:Positions._offset",
                "if place.beside is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                BESIDE,
                "test_i21_who_stands_alone_reads_across_and_says_what_it_starts_from",
            ): "None",
            unit(BESIDE, "test_i21_a_transaction_says_what_it_starts_from[False]"): "None",
        },
    ),
    Bug(
        "what-was-put-beside-is-forgotten",
        "I21: the next commit starts from the metadata that the last one has left",
        (
            Edit(
                "oncelog._core.positions:Positions.committed",
                "place.beside, place.asked = place.asked, None",
                "pass",
            ),
        ),
        {
            unit(
                BESIDE, "test_i21_each_commit_starts_from_what_the_last_one_has_left"
            ): "'whatever the group has'",
        },
    ),
    Bug(
        "named-offsets-do-not-say-what-stands-beside",
        "I21: offsets that are sent start also from the metadata of the group's offset",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.add",
                "if beside is not None:",
                "if False:",
            ),
        ),
        {
            unit(BESIDE, "test_i21_a_transaction_says_what_it_starts_from[True]"): "None",
        },
    ),
)

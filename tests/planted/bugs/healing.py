"""Bugs of replicas that heal what rots in their data logs."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_HEALING: Final = "oncelog_server.runtime.replica.healing:Healing"
_SCRUBBING: Final = "oncelog_server.runtime.replica.scrubbing:Scrubbing"
_FITTING: Final = "oncelog_server.runtime.replica.fitting"
_DRIVER: Final = "oncelog_server.runtime.replica.driver:Driver"
_LOG: Final = "oncelog_server.runtime.storage.data_log:DataLog"
_CLEANNESS: Final = "oncelog_server.core.cleaning:Cleanness"
_ALIKE: Final = "test_i26_what_nobody_reads_is_found_and_healed_in_leader_and_followers_alike"


def _heals(test: str) -> str:
    return unit("runtime/test_healing", test)


BUGS: Final = (
    Bug(
        "blocks-given-in-any-epoch",
        "I25: a replica gives blocks only in the epoch in which both of them are",
        (
            Edit(
                f"{_DRIVER}._require_agrees_in",
                "if not agrees_in or agrees_in != epoch:",
                "if not agrees_in:",
            ),
        ),
        {
            _heals("test_i25_blocks_of_another_epoch_are_not_taken"): "DID NOT RAISE",
        },
    ),
    Bug(
        "blocks-read-while-a-log-is-cut",
        "I25: who gives blocks looks again once it has read them",
        (
            Edit(
                f"{_DRIVER}._blocks",
                "        finally:\n            self._require_agrees_in(epoch)",
                "        finally:\n            pass",
            ),
        ),
        {
            _heals("test_i25_a_donor_that_is_cut_while_it_reads_gives_nothing"): "DID NOT RAISE",
        },
    ),
    Bug(
        "healed-after-the-epoch",
        "I25: nothing is put in place once this replica agrees no more",
        (
            Edit(
                f"{_HEALING}._heal",
                "if self._is_halted or self._agrees_in() != epoch:",
                "if not donors:",
            ),
        ),
        {
            _heals(
                "test_i25_what_came_is_not_put_in_place_once_the_epoch_is_over"
            ): "assert None == (24, 32)",
        },
    ),
    Bug(
        "donors-blocks-put-in-place-as-they-are",
        "I26: what is put in place covers exactly what is damaged",
        (
            Edit(
                f"{_FITTING}:_pieces",
                "        return [block]\n    return settler.split(block)",
                "        return [block]\n    return [block]",
            ),
        ),
        {_heals(_ALIKE): "assert False"},
    ),
    Bug(
        "healed-blocks-from-beyond-what-is-settled",
        "I26: a unit that was taken out of a block became readable by what was settled from",
        (Edit(f"{_FITTING}:fitted", "min(it.exposed_below, exposed_max)", "it.exposed_below"),),
        {
            unit(
                "runtime/test_fitting",
                "test_i26_what_is_taken_out_of_a_block_became_readable_by_what_is_known_here",
            ): "assert [50] == [45]",
        },
    ),
    Bug(
        "nothing-is-scrubbed",
        "I26: what nobody reads is read through, so that rot in it is found",
        (
            Edit(
                f"{_SCRUBBING}.is_due",
                "if self._data.settled_end == self._data.begin:",
                "if self._data.settled_end >= self._data.begin:",
            ),
        ),
        {_heals(_ALIKE): "assert False"},
    ),
    Bug(
        "a-leader-hands-over-what-can-be-healed",
        "I26: a leader goes on while what is damaged is healed",
        (
            Edit(
                f"{_HEALING}.takes",
                "and not self.is_hopeless",
                "and self.is_hopeless",
            ),
        ),
        {
            _heals(
                "test_i26_a_reader_waits_for_what_is_healed_and_the_leader_goes_on"
            ): "it is told to try again",
        },
    ),
    Bug(
        "waits-for-who-has-it-in-a-journal",
        "I26: readers do not wait for what another replica could serve at once",
        (
            Edit(
                f"{_HEALING}.is_hopeless",
                "self._is_in_a_journal or self._is_asked_seldom",
                "self._is_asked_seldom",
            ),
        ),
        {
            _heals(
                "test_i26_a_leader_hands_over_at_once_to_who_has_it_in_a_journal_alone"
            ): "NotLeader",
        },
    ),
    Bug(
        "tombstones-gone-there-and-values-kept-here",
        "I33: no value stays whose tombstone is gone",
        (
            Edit(
                f"{_HEALING}._require_as_clean",
                "if here.with_part_inside(there, first=first, end=damage.end_offset) is None:",
                "if first > damage.end_offset:",
            ),
        ),
        {
            _heals(
                "test_of_replicas_that_compact_no_value_stays_whose_tombstone_is_gone"
            ): "assert may",
        },
    ),
    Bug(
        "values-there-and-their-tombstones-gone-here",
        "I33: no value comes whose tombstone is gone",
        (
            Edit(
                f"{_CLEANNESS}.with_part_inside",
                "if self.tombstones_to > first and there.compacted_to < self.tombstones_to:",
                "if False:",
            ),
        ),
        {
            _heals(
                "test_of_replicas_that_compact_no_value_stays_whose_tombstone_is_gone"
            ): "assert may",
            _heals(
                "test_i33_tombstones_that_a_pass_dropped_and_did_not_note_count_as_gone"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "tombstones-of-a-pass-that-did-not-end-are-forgotten",
        "I33: a pass that did not come to its end may have dropped tombstones",
        (
            Edit(
                f"{_HEALING}._require_as_clean",
                "max(here.tombstones_to, dropped_to)",
                "here.tombstones_to",
            ),
        ),
        {
            _heals(
                "test_i33_tombstones_that_a_pass_dropped_and_did_not_note_count_as_gone"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "damage-that-a-pass-meets-is-not-known",
        "I26: damage that ends a pass of compaction is healed",
        (
            Edit(
                "oncelog_server.runtime.storage.data_view:DataView.found_damaged",
                "self._known_damage.found(file.path, damage)",
                "type(self._known_damage)(self.directory).found(file.path, damage)",
            ),
        ),
        {
            unit(
                "storage/test_data_cleaning",
                "test_i26_damage_ends_a_pass_and_is_known_until_it_is_replaced",
            ): "it is healed",
        },
    ),
    Bug(
        "holes-of-a-donor-are-not-noted",
        "I33: what was taken out of a donor is noted with its blocks",
        (
            Edit(
                f"{_LOG}.replace",
                "self._note_cleanness(self._cleanness_with(donor, first, end), dropped_at)",
                "pass",
            ),
        ),
        {
            _heals(
                "test_what_was_taken_out_of_a_donor_is_noted_before_its_blocks_are_there"
            ): "the next pass takes it up again",
        },
    ),
)

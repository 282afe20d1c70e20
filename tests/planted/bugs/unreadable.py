"""Bugs of what is made of bytes that the disk does not give back."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "what-cannot-be-read-taken-for-a-passing-error",
        "I26: what the disk does not give back is damage",
        (
            Edit(
                "oncelog_server.runtime.storage.unreadable:is_unreadable",
                "return error.errno in _UNREADABLE",
                "return False",
            ),
        ),
        {
            unit(
                "storage/test_unreadable", "test_i26_one_bad_sector_hides_nothing_beside_it"
            ): "up to the end of the file",
        },
    ),
    Bug(
        "any-error-taken-for-damage",
        "I26: an error that says nothing of the bytes is no damage",
        (
            Edit(
                "oncelog_server.runtime.storage.unreadable:is_unreadable",
                "return error.errno in _UNREADABLE",
                "return True",
            ),
        ),
        {
            unit(
                "storage/test_unreadable", "test_what_says_nothing_of_the_bytes_is_an_error"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "unreadable-tail-taken-for-a-torn-one",
        "I26: only what is seen to be torn is cut",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "(walk.end.offset < noted.synced_end or walk.is_unreadable)",
                "walk.end.offset < noted.synced_end",
            ),
        ),
        {
            unit(
                "storage/test_unreadable", "test_i26_a_tail_that_cannot_be_read_is_no_torn_one"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "unreadable-note-written-in-part",
        "a note that cannot be read is begun anew",
        (
            Edit(
                "oncelog_server.runtime.storage.identity:SyncedEnd._load",
                "if file.has_unreadable:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_unreadable",
                "test_i26_a_slot_that_can_be_read_is_kept_beside_one_that_cannot",
            ): "synced_end.damaged",
        },
    ),
)

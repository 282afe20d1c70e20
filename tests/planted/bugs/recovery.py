"""Bugs of the opening of a journal: what is kept is synced, what is lost is made again."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "full-file-with-one-unsynced-frame",
        "I25: what was kept is synced before a log end is reported",
        (
            Edit(
                "services.runtime.storage.recovery:_keep",
                "walk.segments[number + 1].base > noted_end",
                "walk.segments[number + 1].base > noted_end + 1",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i25_a_full_file_of_which_only_the_last_frame_is_unsynced_is_synced_too",
            ): "assert ['a'] == ['a', 'b', 'c', 'd']"
        },
    ),
)

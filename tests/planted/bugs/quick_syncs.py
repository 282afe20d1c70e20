"""Bugs of commits that the loop does by itself."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "quick-commit-goes-past-the-writer",
        "one commit at a time, so the bytes of a journal reach the disk in order (I5)",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.commit",
                "if not self._under_way and self._is_quick(held):",
                "if self._is_quick(held):",
            ),
        ),
        {
            unit(
                "storage/test_quick_syncs",
                "test_i5_while_the_writer_has_one_nothing_goes_past_it",
            ): "it went past the writer"
        },
    ),
    Bug(
        "quick-commit-whose-name-is-not-durable",
        "I5: a commit is durable when it returns: bytes, file sizes and the names of new files",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk._is_quick",
                "and file.full_path in self._durable_names",
                "",
            ),
        ),
        {unit("storage/test_quick_syncs", "test_all_else_is_handed_to_the_writer"): "here"},
    ),
)

"""Bugs of the real disk and of the group commit over it, beside those in `storage`."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "timers-meet-a-failed-journal",
        "I29: what a disk says reaches nobody who submits; a write that failed is a step down",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.submit",
                "if not self._journal.takes_frames:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_driver",
                "test_i29_who_comes_between_a_failed_write_and_the_step_down_is_sent_elsewhere",
            ): "nobody who submits catches what a disk says"
        },
    ),
    Bug(
        "failed-syncfs-ignored",
        "I25: acknowledged means synced",
        (
            Edit(
                "oncelog_server.runtime.storage.syscalls:syncfs_call",
                "if call(fd) != 0:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_syscalls", "test_i25_a_failed_syncfs_is_an_error"
            ): "DID NOT RAISE OSError"
        },
    ),
    Bug(
        "failed-replacement-stays",
        "a full disk is not filled by what could not be written",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.replace_file",
                "os.unlink(temporary)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk", "test_a_replacement_that_fails_leaves_nothing"
            ): "Left contains 2 more items"
        },
    ),
    Bug(
        "cut-off-replacement-stays",
        "what a crash left of a replacement is gone after a start",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "disk.remove_cut_off(directory)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk",
                "test_what_a_crash_left_of_a_replacement_is_gone_after_a_start",
            ): "left.exists()"
        },
    ),
    Bug(
        "syncfs-of-an-old-kernel-trusted",
        "I25: acknowledged means synced, whatever the kernel does not tell",
        (
            Edit(
                "oncelog_server.runtime.storage.syscalls:syncfs_call",
                "_kernel() < SYNCFS_KERNEL_MIN",
                "_kernel() < (5, 8)",
            ),
        ),
        {
            unit(
                "storage/test_syscalls",
                "test_i25_syncfs_is_used_only_where_it_reports_every_error",
            ): "== False"
        },
    ),
    Bug(
        "parents-of-a-data-directory-not-synced",
        "I25: losing power everywhere at once loses nothing acknowledged, names included",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:_make_root",
                "_make_root(parent)",
                "os.makedirs(parent, exist_ok=True)",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i25_a_data_directory_is_durable_with_all_directories_on_the_way",
            ): "assert ['mkdir a/b'"
        },
    ),
    Bug(
        "rename-not-synced-where-it-left",
        "I25: losing power everywhere at once loses nothing acknowledged, names included",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.rename",
                "{os.path.dirname(old), os.path.dirname(new)}",
                "{os.path.dirname(new)}",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i25_a_rename_is_durable_where_it_left_and_where_it_came",
            ): "assert ['rename part"
        },
    ),
    Bug(
        "unsynced-file-rests",
        "I25: what is not synced keeps its descriptor, which hears of errors",
        (
            Edit(
                "oncelog_server.runtime.storage.real_file:RealFile.may_rest",
                "self._written == self._synced",
                "True",
            ),
        ),
        {
            unit(
                "storage/test_real_file", "test_i25_what_is_not_synced_keeps_its_descriptor"
            ): "assert ["
        },
    ),
    Bug(
        "unsynced-blocks-rest",
        "I25: what is not synced keeps its descriptor, which hears of errors",
        (
            Edit(
                "oncelog_server.runtime.storage.data_file:DataFile.rest",
                "if not self._has_unsynced:",
                "if True:",
            ),
        ),
        {
            unit(
                "storage/test_data_log",
                "test_i25_what_was_appended_is_synced_by_the_file_that_it_was_written_with",
            ): "is written"
        },
    ),
    Bug(
        "failed-sync-lets-a-file-rest",
        "I25: what a failed sync leaves in doubt keeps its descriptor",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk._sync_touched",
                "has_names = self._sync_all(list(touched))\n"
                "        for file, last in written:\n            file.synced(last)",
                "for file, last in written:\n            file.synced(last)\n"
                "        has_names = self._sync_all(list(touched))",
            ),
        ),
        {
            unit(
                "storage/test_real_file", "test_i25_a_sync_that_failed_leaves_it_open"
            ): "assert False"
        },
    ),
    Bug(
        "another-file-taken-for-one-at-rest",
        "a file that is opened again is the same file",
        (
            Edit(
                "oncelog_server.runtime.storage.real_file:RealFile.open_again",
                "if (found.st_dev, found.st_ino) != self._identity:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_real_file", "test_another_file_of_its_name_is_not_taken_for_it"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "file-at-rest-lost-by-a-rename",
        "a file at rest is found by its new name",
        (
            Edit(
                "oncelog_server.runtime.storage.real_file:Descriptors.renaming",
                "file.full_path = new + file.full_path[len(old) :]",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_real_file",
                "test_a_file_at_rest_is_renamed",
            ): "assert FileNotFoundError("
        },
    ),
    Bug(
        "allocation-outlives-a-cut",
        "what follows a cut is allocated anew",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.truncate_and_sync",
                "real.allocated = length",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i26_a_cut_is_durable_and_what_follows_it_is_allocated_anew",
            ): "assert 0 == 10"
        },
    ),
    Bug(
        "one-callback-keeps-the-others-waiting",
        "I25: everybody in a commit is told of it",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._tell",
                "except Exception as error:",
                "except LookupError as error:",
            ),
        ),
        {
            unit(
                "storage/test_commit",
                "test_a_callback_that_raises_does_not_keep_the_others_from_being_told",
            ): "== [(1, 2)]"
        },
    ),
)

"""Bugs of what is done about a data directory that is an older state of itself."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_MARK: Final = "etcd/test_directory_mark"
_RECOVERED: Final = "test_i25_a_directory_that_was_put_back_is_intact_in_no_recovery"
_FOUND: Final = "test_i25_an_older_state_of_a_directory_is_found_before_it_says_anything"

BUGS: Final = (
    Bug(
        "older-directory-keeps-its-names",
        "I25: an older state of a data directory is in sync under none of its names",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:ClusterIdentity.join",
                "await self._offload(self._on_older)",
                "pass",
            ),
        ),
        {
            unit(_MARK, f"{_FOUND}[False]"): "once, and the file said nothing newer by then",
            "tests/simulation/test_copies.py::"
            "test_i25_a_machine_whose_disk_is_as_it_was_once_counts_for_nothing_that_it_lacks": (
                "I25: "
            ),
        },
    ),
    Bug(
        "older-directory-forgets-that-it-is",
        "I25: nothing newer is noted before all replicas of an older directory have new names",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:ClusterIdentity.join",
                "await self._offload(self._on_older)",
                "self._revision = revision; await self._write_if_it_can(); "
                "await self._offload(self._on_older)",
            ),
        ),
        {
            unit(
                _MARK, "test_i25_it_is_found_again_until_its_replicas_have_new_names"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "one-replica-of-an-older-directory-has-a-new-name",
        "I25: all replicas of an older directory count as new",
        (
            Edit(
                "oncelog_server.runtime.hosting:Hosting.count_as_new",
                "in disk.list(PARTITIONS_DIRECTORY):",
                "in disk.list(PARTITIONS_DIRECTORY)[:1]:",
            ),
        ),
        {
            unit(
                "runtime/test_hosting",
                "test_i25_every_replica_of_an_older_directory_has_a_new_name",
            ): "assert not "
        },
    ),
    Bug(
        "told-before-it-is-noted",
        "etcd is told what a data directory has durably, and no more",
        (
            Edit(
                "oncelog_server.runtime.etcd.identity:ClusterIdentity.mark",
                "self._mark.tell(self._remembered.noted)",
                "self._mark.tell(DirectoryValue(self._revision, self._remembered.recovery))",
            ),
        ),
        {unit(_MARK, "test_what_the_disk_did_not_take_is_not_told"): "assert "},
    ),
    Bug(
        "marks-in-the-way-of-a-recovery",
        "an etcd that was wiped holds nothing that a recovery would have to replace",
        (
            Edit(
                "oncelog_server.runtime.etcd.directory_mark:DirectoryMark.tell",
                "[Exists(CLUSTER)]",
                "[]",
            ),
        ),
        {unit(_MARK, "test_an_etcd_that_was_wiped_is_told_nothing"): "assert not "},
    ),
    Bug(
        "mark-of-before-a-recovery-counts",
        "a directory is compared with what it noted since the recovery, not before",
        (
            Edit(
                "oncelog_server.runtime.etcd.directory_mark:_is_above",
                "mark.recovery == noted.recovery and ",
                "",
            ),
        ),
        {
            unit(
                _MARK, "test_what_a_process_tells_that_slept_through_a_recovery_is_of_no_account"
            ): "it is no older state of itself"
        },
    ),
    Bug(
        "marks-outlive-a-recovery",
        "a directory is compared with what it noted of this etcd, not of one before",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:perform",
                "for prefix in OURS]",
                "for prefix in OURS[:-1]]",
            ),
        ),
        {
            unit(
                "cluster_recovery/test_perform",
                "test_a_recovery_from_the_beginning_forgets_what_directories_had_noted",
            ): "is None"
        },
    ),
    Bug(
        "older-than-a-recovery-and-taken-for-new",
        "I25: a directory of before a recovery that its process ran after is an older state",
        (
            Edit(
                "oncelog_server.runtime.etcd.directory_mark:was_put_back",
                "mark.recovery > noted.recovery or ",
                "",
            ),
        ),
        {unit("cluster_recovery/test_perform", f"{_RECOVERED}[took part before]"): "DID NOT RAISE"},
    ),
    Bug(
        "older-directory-renamed-in-etcd-alone",
        "I25: the replicas of an older directory have their new names on its disk, too",
        (
            Edit(
                "oncelog_server.runtime.cluster_recovery.perform:perform",
                "_rename(directory)",
                "pass",
            ),
        ),
        {unit("cluster_recovery/test_perform", f"{_RECOVERED}[of before it]"): "assert "},
    ),
)

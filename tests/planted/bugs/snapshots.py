"""Bugs of what a machine's snapshot holds: one field forgotten. The comparison that catches them
does not ask the snapshot (`tests/golden/remembered.py`), so most stories catch most of them."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

REPLAY_GIVES_THE_STATE: Final = "I35: replaying a journal gives the state that the live machine had"
LEFT_OUT: Final = "leaves out what the machine remembers"
PARTITION: Final = "oncelog_server.partition_leader.machine:PartitionMachine.snapshot"
COORDINATOR: Final = "oncelog_server.coordinator.state:CoordinatorState.encode"

BUGS: Final = (
    Bug(
        "sweep-time-not-in-the-snapshot",
        REPLAY_GIVES_THE_STATE,
        (Edit(PARTITION, "self._next_sweep_ms,", "0,"),),
        {story("partition_leader/fences_are_forgotten_after_seven_days"): LEFT_OUT},
    ),
    Bug(
        "resolutions-not-in-the-snapshot",
        "I35: a repeated resolution gets its old answer from every leader",
        (
            Edit(
                "oncelog_server.partition_leader.damage:Damage.dump",
                "[(tx_id, *done) for tx_id, done in self._resolved.items()]",
                "[]",
            ),
        ),
        {story("partition_leader/damaged_part_is_dropped"): LEFT_OUT},
    ),
    Bug(
        "coordinator-epoch-not-in-the-snapshot",
        REPLAY_GIVES_THE_STATE,
        (Edit(COORDINATOR, "self.epoch,", "0,"),),
        {story("coordinator/commit"): LEFT_OUT},
    ),
    Bug(
        "replaced-instances-not-in-the-snapshot",
        "without it a late duplicate of an old InitProducer fences the living instance",
        (
            Edit(
                COORDINATOR,
                "sorted(self.producers, key=lambda p: p.producer_id)",
                "sorted((msgspec.structs.replace(p, replaced=[]) for p in self.producers), "
                "key=lambda p: p.producer_id)",
            ),
        ),
        {story("coordinator/init_replaced_instances"): LEFT_OUT},
    ),
    Bug(
        "rows-counted-as-saved-once-they-are-taken",
        "I35: a snapshot leaves out only rows that stand on the disk",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots._taken",
                "taken = machine.snapshot(self._journal.rows_saved)",
                "taken = machine.snapshot(getattr(self, '_rows', {}))\n"
                "        self._rows = {name: table.first_row + len(table.rows) // table.row_bytes\n"
                "                      for name, table in taken.tables.items()}",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i35_a_snapshot_that_failed_leaves_no_gap_in_the_next_one",
            ): "no snapshot is whole"
        },
    ),
    Bug(
        "rows-of-a-cut-log-taken-for-saved",
        "I35: rows of frames that were cut are of another log",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:SnapshotFiles.drop_above",
                "self._tables = {}",
                "pass",
            ),
            Edit(
                "oncelog_server.runtime.storage.snapshots:SnapshotFiles.load",
                "self._tables, self.newest = {}, 0",
                "self.newest = 0",
            ),
        ),
        {
            unit(
                "storage/test_snapshots",
                "test_i35_rows_of_frames_that_were_cut_are_not_taken_for_saved",
            ): "rows_saved"
        },
    ),
    Bug(
        "a-failed-snapshot-waits-for-an-append",
        "I28: a quiet partition, too, writes a snapshot when there is room again",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots._write",
                "self.is_owed = self._wanted",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i28_a_quiet_partition_writes_another_snapshot_for_one_that_failed",
            ): "only an append brings the next one"
        },
    ),
    Bug(
        "snapshot-notes-what-it-gave",
        "a snapshot is a function of the state: asked twice, it says the same",
        (
            Edit(
                PARTITION,
                "table = self.committed.table(rows_saved.get(COMMITTED_TABLE, 0))",
                "table = self.committed.table(getattr(self, '_given', 0))\n"
                "        self._given = self.committed.final_rows",
            ),
        ),
        {story("partition_leader/i03_a_transaction_is_seen_whole"): "a look at it"},
    ),
    Bug(
        "snapshot-of-the-next-start-let-go-of",
        "I25: a log that begins later has the snapshot at which it begins",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:SnapshotFiles.sweep",
                " | {self._next_start}",
                "",
            ),
        ),
        {
            "tests/unit/storage/test_trimming.py::"
            "test_i25_a_snapshot_that_is_written_while_the_start_moves_lets_go_of_neither_start": (
                "AssertionError: the log will begin there"
            ),
        },
    ),
)

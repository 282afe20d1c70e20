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
        "captured-snapshot-replaced",
        "table rows that a snapshot hands over are handed over once",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.capture",
                "if self._captured is None and self._saving is None and self._wanted:",
                "if self._wanted:",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_what_was_captured_is_written_before_the_next_is_taken",
            ): "no snapshot is whole"
        },
    ),
)

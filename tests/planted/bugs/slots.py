"""Bugs of slots: outcomes of ended transactions beside the journal."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "outcome-slots-not-synced",
        "I4: a snapshot leaves outcomes behind only when they are durable",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.save_snapshot",
                "self.flush_slots()",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_snapshots",
                "test_slots_are_synced_before_the_snapshot_that_leaves_them_behind",
            ): "assert None == b'kept'",
        },
    ),
    Bug(
        "slot-let-go-of-twice",
        "two flushes at once do no harm",
        (
            Edit(
                "oncelog_server.runtime.storage.slots:SlotFiles.flush",
                "self._held.get(offset) is slot",
                "self._held[offset] is slot",
            ),
        ),
        {
            unit(
                "storage/test_snapshots",
                "test_slots_that_two_flushes_write_at_once_are_let_go_of_once",
            ): "one of them breaks",
        },
    ),
    Bug(
        "outcome-of-another-slot",
        "I4, I26: a slot in the place of another is noticed",
        (
            Edit(
                "oncelog_server.runtime.storage.slots:SlotFiles._read_stored",
                "if encode_slot(offset, slot) != stored or len(slot) != self.slot_bytes:",
                "if len(slot) != self.slot_bytes:",
            ),
        ),
        {
            unit(
                "storage/test_snapshots", "test_i26_a_slot_in_the_place_of_another_is_noticed"
            ): "DID NOT RAISE CorruptLog",
            unit(
                "storage/test_snapshots", "test_i26_a_damaged_slot_is_named"
            ): "DID NOT RAISE CorruptLog",
        },
    ),
    Bug(
        "slots-forgotten-by-a-failed-sync",
        "I4: what a sync failed for is written again, for no later sync tells whether it is safe",
        (
            Edit(
                "oncelog_server.runtime.storage.slots:SlotFiles.flush",
                "batch = dict(self._held)",
                "batch, self._held = self._held, {}",
            ),
        ),
        {
            unit(
                "storage/test_snapshots", "test_i4_slots_whose_sync_failed_are_written_again"
            ): "assert",
        },
    ),
    Bug(
        "answer-waits-for-its-outcome-slot",
        "I4, I28: a disk that does not take an outcome keeps no answer back",
        (
            Edit(
                "oncelog_server.runtime.storage.slots:SlotFiles.write",
                "with self._lock:",
                "self._write_file(_first_of(offset), [(offset, slot)])\n        with self._lock:",
            ),
        ),
        {
            unit(
                "runtime/test_slots_in_need",
                "test_i4_i28_an_answer_goes_out_though_its_outcome_cannot_be_written[28]",
            ): "it hangs until the next append",
        },
    ),
)

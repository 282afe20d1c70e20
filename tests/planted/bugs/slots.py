"""Bugs of slots: outcomes of ended transactions beside the journal."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

SLOTS: Final = "oncelog_server.runtime.storage.slots:SlotFiles"

BUGS: Final = (
    Bug(
        "outcome-slots-not-synced",
        "I4: a snapshot leaves outcomes behind only when they are durable",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.save_snapshot",
                "self.slots.flush()",
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
    Bug(
        "slot-file-goes-an-age-too-early",
        "I4: an outcome is told until its time is over: a file goes when all in it are",
        (
            Edit(
                f"{SLOTS}.remove_gone",
                "begin = _first_of(self._begin)",
                "begin = _first_of(self._begin) + SLOT_RANGE_OFFSETS",
            ),
        ),
        {
            unit(
                "storage/test_slots_gone", "test_i4_no_slot_goes_before_it_is_let_go_of"
            ): "told too short",
        },
    ),
    Bug(
        "slot-files-never-go",
        "files of outcomes that nobody is told any more go",
        (Edit(f"{SLOTS}.remove_gone", "if first < begin", "if False"),),
        {
            unit(
                "storage/test_slots_gone", "test_i4_no_slot_goes_before_it_is_let_go_of"
            ): "a file stays behind",
        },
    ),
    Bug(
        "slots-of-a-crash-stay",
        "what a crash left of slots that nobody asks for goes after it",
        (
            Edit(
                f"{SLOTS}.has_gone",
                "_first_of(self._begin) > self._removed_below",
                "_first_of(self._begin) > self._removed_below > 0",
            ),
        ),
        {
            unit(
                "storage/test_slots_gone", "test_what_a_crash_left_goes_after_it"
            ): "assert slots.has_gone",
        },
    ),
    Bug(
        "slots-let-go-of-by-cut-frames",
        "I4: what frames said of slots is taken back where the frames are cut",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.cut", "self.slots.cut(end)", "pass"
            ),
        ),
        {
            unit(
                "storage/test_slots_gone", "test_i4_a_cut_takes_back_what_cut_frames_said"
            ): "assert None == b'anew'",
        },
    ),
    Bug(
        "slots-let-go-of-by-what-may-be-lost",
        "I4: what a leader lets go of was said by a state below the high watermark",
        (
            Edit(
                "oncelog_server.runtime.replica.trimming:Trimming.sampled",
                "self._sample = (log_end, needs)",
                "self._sample = (log_end, needs)\n        self._learned(needs)",
            ),
        ),
        {
            unit(
                "runtime/test_slots_trimmed", "test_i4_what_may_be_lost_lets_go_of_no_slot"
            ): "told too short",
        },
    ),
    Bug(
        "slot-files-forgotten-by-the-driver",
        "files of outcomes that nobody is told any more go, on followers, too",
        (
            Edit(
                "oncelog_server.runtime.replica.trimming:Trimming._learned",
                "self._journal.slots.let_go(needs.slots_from)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_slots_trimmed", "test_a_follower_removes_slots_that_nobody_asks_for"
            ): "a file stays behind",
        },
    ),
)

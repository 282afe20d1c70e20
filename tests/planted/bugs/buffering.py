"""Bugs of a consumer that makes commit order itself, and of what it holds meanwhile."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

PENDING: Final = "oncelog._core.pending:PendingTransactions"
HELD: Final = "oncelog._held:HeldBatches"
ORDER: Final = unit("client/test_pending", "test_i8_a_buffering_reader_sees_the_committed_log")
RESUMED: Final = unit(
    "client/test_pending",
    "test_i15_stopped_and_resumed_anywhere_it_goes_on_with_the_next_record",
)
TUPLE: Final = unit(
    "client/test_pending", "test_the_tuple_says_where_the_earliest_pending_transaction_begins"
)

BUGS: Final = (
    Bug(
        "every-writer-is-exposed",
        "I3: exactly the writers that the marker names, in its order, are exposed",
        (
            Edit(
                f"{PENDING}._committed",
                "            for writer, count in marker.parts\n"
                "            if writer in transaction.parts",
                "            for writer, count in [\n"
                "                (w, p.records) for w, p in transaction.parts.items()\n"
                "            ]",
            ),
        ),
        {ORDER: "assert"},
    ),
    Bug(
        "damage-is-shown",
        "I3: nothing of a damaged part is exposed before an operator has decided",
        (
            Edit(
                f"{PENDING}._expose",
                "                self._keep_damaged(arrived)\n                return None",
                "                self._keep_damaged(arrived)\n"
                "                return self._resolved(arrived)",
            ),
        ),
        {ORDER: "assert"},
    ),
    Bug(
        "what-an-operator-exposes-stays-hidden",
        "I8: a buffering reader gives what an operator has exposed, too",
        (
            Edit(
                f"{PENDING}._expose",
                "                return self._resolved(arrived)",
                "                return None",
            ),
        ),
        {ORDER: "assert"},
    ),
    Bug(
        "resolution-told-as-nothing",
        "I8: a reader of RAW is told what became of a damaged part",
        (
            Edit(
                "oncelog_server.partition_leader.heads:_control_kind",
                "Head.KIND_CONTROL if resolution is None else _RESOLUTION_KINDS[resolution]",
                "Head.KIND_CONTROL",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads",
                "test_i8_raw_says_what_became_of_a_damaged_part",
            ): "assert",
        },
    ),
    Bug(
        "resumed-at-the-iterator",
        "I15: reading goes on where the earliest transaction begins that was pending",
        (
            Edit(
                f"{PENDING}.__init__",
                "        self.next = resume.earliest",
                "        self.next = resume.iterator",
            ),
        ),
        {TUPLE: "assert"},
    ),
    Bug(
        "exposed-again-below-the-iterator",
        "I15: what was exposed before the iterator is not given again, plain records included",
        (
            Edit(
                f"{PENDING}._alone",
                "        if arrived.journal_offset < self._iterator:",
                "        if False:",
            ),
        ),
        {RESUMED: "assert"},
    ),
    Bug(
        "given-forgotten",
        "I15: of the transaction that was being given, what was given is not given again",
        (
            Edit(
                f"{PENDING}._at",
                "        skip = min(count, max(0, self._wanted - first))",
                "        skip = 0",
            ),
        ),
        {RESUMED: "assert"},
    ),
    Bug(
        "tuple-forgets-what-is-pending",
        "I15: the tuple names the start of the earliest pending transaction",
        (
            Edit(
                f"{PENDING}.point",
                "        return ResumePoint(min(self._earliest(), self.next), self.next, 0)",
                "        return ResumePoint(self.next, self.next, 0)",
            ),
        ),
        {TUPLE: "assert"},
    ),
    Bug(
        "held-without-a-limit",
        "buffer_memory_bytes: what is above goes to disk",
        (
            Edit(
                f"{HELD}.make_room",
                "        while self._resident and self.memory_bytes + wanted > self._bytes_max:",
                "        while False:",
            ),
        ),
        {
            unit(
                "client/test_held",
                "test_memory_stays_below_its_limit_and_everything_comes_back_in_order",
            ): "assert",
        },
    ),
    Bug(
        "a-failed-write-counts",
        "I28: what could not be written to a full disk stays in memory",
        (
            Edit(
                f"{HELD}._spill",
                "        except OSError as error:\n            raise",
                "        except OSError as error:\n"
                "            part.spilled_bytes += size\n"
                "            part.held.clear()\n"
                "            raise",
            ),
        ),
        {
            unit(
                "client/test_held", "test_i28_a_full_disk_is_said_and_nothing_is_lost"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "disk-believed",
        "I26: what the disk gives back is compared with its checksum",
        (
            Edit(
                f"{HELD}._read",
                " or records.checksum(payload) != crc32c",
                "",
            ),
        ),
        {
            unit(
                "client/test_held", "test_i26_what_the_disk_gives_back_is_checked"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "the-dead-leave-their-files",
        "what a process that died has left is removed by the next one",
        (
            Edit(
                f"{HELD}.__init__",
                "        remove_abandoned(self._parent)",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_held",
                "test_close_removes_it_and_the_next_one_removes_what_the_dead_left",
            ): "assert",
        },
    ),
    Bug(
        "removed-folder-missed-for-ever",
        "I28: a folder that was removed while nothing was in it is made again",
        (
            Edit(
                f"{HELD}._spill",
                "            if not self.disk_bytes and self._is_gone():",
                "            if False:",
            ),
        ),
        {
            unit(
                "client/test_held",
                "test_a_folder_that_was_removed_while_it_was_empty_is_made_again",
            ): "BufferFailed",
        },
    ),
    Bug(
        "the-living-taken-for-dead",
        "a folder that a living process has locked is left alone",
        (
            Edit(
                "oncelog._held:_locked",
                "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_held",
                "test_who_cleans_up_files_by_their_age_takes_no_living_folder",
            ): "BufferFailed",
        },
    ),
    Bug(
        "another-users-folder-removed",
        "of folders that are left over, only this user's own are removed",
        (
            Edit(
                "oncelog._held:_is_own",
                " and found.st_uid == os.getuid()",
                "",
            ),
        ),
        {
            unit("client/test_held", "test_only_this_users_own_folders_are_removed"): "assert",
        },
    ),
    Bug(
        "transaction-given-in-parts",
        "I3: a unit is a whole transaction",
        (
            Edit(
                "oncelog._core.units:Units.add",
                "        if piece.is_last or not piece.written.tx_id:",
                "        if True:",
            ),
        ),
        {
            unit(
                "client/test_units",
                "test_i3_a_transaction_is_given_when_something_else_follows",
            ): "assert",
        },
    ),
    Bug(
        "whole-transaction-waits-for-the-next",
        "a transaction is known to be whole where nothing more can be read",
        (
            Edit(
                "oncelog._core.units:Units.add",
                "        if piece.is_last or not piece.written.tx_id:",
                "        if not piece.written.tx_id:",
            ),
        ),
        {
            unit(
                "client/test_units",
                "test_i3_a_transaction_is_given_when_nothing_more_can_be_read",
            ): "assert",
        },
    ),
    Bug(
        "gathered-without-a-bound",
        "I28: of whole transactions one is read ahead, the rest waits in the queue",
        (
            Edit(
                "oncelog.aio.gathering:Gathering.take",
                "        while not self._settle() and not self._take_following(editions):",
                "        while True:",
            ),
            Edit(
                "oncelog.aio.gathering:Gathering._gather",
                "            if self._settle():",
                "            if False:",
            ),
        ),
        {
            unit(
                "client/test_gathering",
                "test_i28_what_is_read_ahead_of_whole_transactions_is_bounded",
            ): "assert",
        },
    ),
    Bug(
        "full-disk-hides-what-is-whole",
        "I28: what is whole is given though what follows it finds no room",
        (
            Edit(
                "oncelog.aio.gathering:Gathering._gather",
                "            if self._settle():",
                "            if False:",
            ),
        ),
        {
            unit(
                "client/test_gathering",
                "test_i28_the_end_of_a_transaction_is_seen_though_the_next_has_no_room",
            ): "BufferFailed",
        },
    ),
    Bug(
        "gathered-outlives-its-position",
        "I14: what was gathered goes when its partition is sought or rewound",
        (
            Edit(
                "oncelog._core.units:Units.drop_changed",
                "            if editions.get(partition) != unit.edition:",
                "            if False:",
            ),
        ),
        {
            unit(
                "client/test_units", "test_i14_what_was_gathered_goes_with_its_position"
            ): "assert",
        },
    ),
    Bug(
        "committed-without-its-tuple",
        "I15: a commit says where in the journal to go on",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher.annotate",
                "            commit.metadata = reading.points.at(commit.to_offset).encode()",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i15_a_commit_says_where_in_the_journal_to_go_on",
            ): "assert",
        },
    ),
    Bug(
        "read-on-though-the-disk-is-full",
        "I28: a batch for which there is no room is not passed over",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._queue_batch",
                "                self.held.make_room(len(arrived.batch.payload))",
                "                try:\n"
                "                    self.held.make_room(len(arrived.batch.payload))\n"
                "                except BufferFailed:\n"
                "                    return",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i28_a_full_disk_is_told_by_each_poll_and_reading_goes_on_when_there_is_room",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "one-bad-file-ends-another-stream",
        "I28: what cannot be read back of one partition costs that partition alone",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._begin_again",
                "        self._leave_streams([partition])",
                "        raise error",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i28_what_one_partition_cannot_read_back_costs_the_others_nothing",
            ): "assert",
        },
    ),
    Bug(
        "read-ahead-for-who-is-paused",
        "I28: what is not wanted now counts as what is queued does",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._room",
                "        while self._unwanted_bytes() > self._bytes_max:",
                "        while False:",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i28_who_changes_a_position_and_does_not_poll_is_not_read_ahead_for",
            ): "assert",
        },
    ),
    Bug(
        "paused-holds-back-the-others",
        "what waits for a paused partition goes, so that the others are read on",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher.follow_positions",
                "            if has_moved or (reading.due and",
                "            if False and (reading.due and",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_what_waits_for_a_paused_partition_holds_back_no_other",
            ): "assert",
        },
    ),
    Bug(
        "revoked-and-held-still",
        "what is held of a partition goes with it, also where nothing is read any more",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher.follow_positions",
                "        self._let_go()",
                "        return",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_who_has_no_partition_any_more_holds_nothing",
            ): "assert",
        },
    ),
    Bug(
        "sought-and-read-on",
        "I14: a partition that was sought is begun anew",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._begins",
                "return reading.pending is None or reading.next_offset != wanted",
                "return reading.pending is None",
            ),
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher.follow_positions",
                "            if has_moved or",
                "            if False or",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i14_a_seek_gives_what_lies_there_whatever_was_read_ahead",
            ): "assert",
        },
    ),
    Bug(
        "begins-at-a-position-that-nobody-was-asked-of",
        "I14: a buffered reader begins where its leader says, also when it seeks meanwhile",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._next",
                "self._begin(reading, reading.told[0])",
                "reading.told = None\n"
                "            self._begin(reading, self._positions.fetch_position(partition) or 0)",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i14_a_seek_while_its_leader_is_asked_gives_nothing_that_was_deleted",
            ): "where what the leader said is",
        },
    ),
)

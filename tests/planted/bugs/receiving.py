"""Bugs of logs that begin in the middle, and of replicas that end before their leader's begins."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_JOURNAL: Final = "oncelog_server.runtime.storage.journal:Journal"
_RECEIVING: Final = "oncelog_server.runtime.replica.receiving:Receiving"
_RECEIVING_DATA: Final = "oncelog_server.runtime.replica.receiving_data:ReceivingData"
_FOLLOWERSHIP: Final = "oncelog_server.runtime.replica.followership:Followership"


def _receiving(test: str) -> str:
    return unit("runtime/test_receiving", test)


def _data(test: str) -> str:
    return unit("runtime/test_receiving_data", test)


BUGS: Final = (
    Bug(
        "settled-records-left-behind",
        "I35: who begins where the leader's log begins gets what is settled before it",
        (Edit(f"{_RECEIVING_DATA}.copy", "if self._settler is None:", "if self._settler:"),),
        {
            _data(
                "test_i35_who_begins_where_the_leaders_log_begins_gets_what_is_settled_before_it"
            ): "assert [] == [Block("
        },
    ),
    Bug(
        "what-a-replica-has-settled-goes-with-its-log",
        "I35: who begins where the leader's log begins keeps what it has settled of it",
        (
            Edit(
                f"{_JOURNAL}.begin_at",
                "        self.allowed = self._least_noted = max(self.allowed, allowed)\n"
                "        self.cut(self.log_start)\n",
                "        self.cut(self.log_start)\n"
                "        self.allowed = self._least_noted = max(self.allowed, allowed)\n",
            ),
        ),
        {
            unit(
                "storage/test_settled_journal",
                "test_i35_who_begins_where_its_leaders_log_does_keeps_what_it_has_settled",
            ): "assert 0 == 2",
            _data(
                "test_i35_who_has_settled_as_far_as_its_leader_keeps_it_where_its_log_begins_anew"
            ): "assert [] == [Block(",
        },
    ),
    Bug(
        "settled-records-copied-below-the-floor",
        "what a leader has settled is not copied to a disk that is nearly full",
        (
            Edit(
                f"{_RECEIVING_DATA}._copy_what_rests_on",
                "self._around.require_room_to_settle()",
                "pass",
            ),
        ),
        {
            _data(
                "test_what_a_leader_has_settled_waits_below_half_of_the_floor_until_there_is_room"
            ): "of each part it is asked"
        },
    ),
    Bug(
        "leader-of-an-earlier-version-not-followed",
        "I35: a leader of an earlier version is followed, also from before its log begins",
        (
            Edit(
                f"{_RECEIVING_DATA}._settled_there",
                'if error.metadata.get("field") != "content":',
                "if True:",
            ),
        ),
        {
            _data(
                "test_i35_a_leader_of_an_earlier_version_which_settles_nothing_is_followed"
            ): "assert 0 == 100"
        },
    ),
    Bug(
        "any-refusal-taken-for-nothing-settled",
        "I35: what a leader has settled is left out only where it settles nothing",
        (
            Edit(
                f"{_RECEIVING_DATA}._settled_there",
                'if error.metadata.get("field") != "content":',
                "if False:",
            ),
        ),
        {
            _data(
                "test_i35_a_leader_that_refuses_for_another_reason_may_have_settled_something"
            ): "assert 100 == 0"
        },
    ),
    Bug(
        "what-a-leader-does-not-know-asked-for-again",
        "I35: what a leader does not know is asked for once",
        (Edit(f"{_RECEIVING}._part", "except InvalidArgument:", "except NotImplementedError:"),),
        {
            _data(
                "test_i35_a_leader_of_an_earlier_version_which_settles_nothing_is_followed"
            ): "assert 0 == 100"
        },
    ),
    Bug(
        "what-was-settled-meanwhile-left-behind",
        "I35: what is copied of the settled records reaches the beginning that is installed",
        (Edit(f"{_RECEIVING}._receive", "await self._data.copy()", "pass"),),
        {_data("test_i35_what_the_leader_settles_meanwhile_is_not_missed"): "assert 60 == 80"},
    ),
    Bug(
        "first-block-looked-at-for-what-is-there-already",
        "a data log that begins within a unit, and has nothing, takes that unit whole",
        (Edit(f"{_RECEIVING_DATA}._fit", " and self._next > self._data.begin", ""),),
        {_data("test_who_begins_within_a_unit_gets_it_whole"): "assert 0 == 100"},
    ),
    Bug(
        "blocks-that-do-not-fit-kept",
        "blocks that the leader's do not fit are given up, and copied anew",
        (
            Edit(
                f"{_RECEIVING_DATA}._copy_what_rests_on",
                "await self._begin_anew(error)",
                "raise CorruptLog(str(error)) from error",
            ),
        ),
        {
            _data(
                "test_who_has_blocks_that_do_not_fit_the_leaders_gets_all_of_them_anew"
            ): "assert 0 == 100"
        },
    ),
    Bug(
        "copied-blocks-rest-on-nothing",
        "I25: what the blocks of a leader rest on is noted before the first of them is kept",
        (Edit(f"{_RECEIVING_DATA}._rest_on", "self._journal.rest_on(there.allowed)", "pass"),),
        {
            _data(
                "test_i25_blocks_of_a_leader_are_kept_for_those_who_have_what_they_rest_on"
            ): "assert 0 < 0"
        },
    ),
    Bug(
        "blocks-above-the-log-kept-by-who-is-elected",
        "I25: who is elected uncleanly gives up blocks that became readable above its log",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.load",
                "if self._journal.may_lack_front:",
                "if False:",
            ),
        ),
        {
            _data("test_i25_who_is_elected_with_blocks_above_its_log_gives_them_up"): "== 0",
        },
    ),
    Bug(
        "settled-records-fetched-from-the-first-one",
        "what a replica has of the settled records is not fetched again",
        (
            Edit(
                f"{_RECEIVING_DATA}.copy",
                "self._next, self._unsynced_bytes = self._data.settled_end, 0",
                "self._next = self._unsynced_bytes = 0",
            ),
        ),
        {
            _data("test_who_has_some_of_it_gets_what_is_behind_however_its_blocks_are_cut"): (
                "assert 0 == 36"
            ),
            _data("test_i25_what_came_before_a_kill_is_not_fetched_again"): "assert 0 == ",
        },
    ),
    Bug(
        "frames-behind-its-beginning-in-an-older-file",
        "I5: a log that begins anew appends to no file of what it was before",
        (Edit(f"{_JOURNAL}.begin_at", "self._segments.remove_from(0)", "pass"),),
        {
            unit(
                "storage/test_beginning",
                "test_i5_a_file_without_frames_takes_none_of_those_behind_the_beginning",
            ): "([], 50",
        },
    ),
    Bug(
        "who-is-too-far-behind-waits",
        "I35: who ends before the leader's log begins gets what was before",
        (Edit(f"{_FOLLOWERSHIP}.told", "self._receiving.begin()", "pass"),),
        {
            _receiving(
                "test_i35_a_replica_without_anything_begins_with_the_leaders_snapshot_and_can_lead"
            ): "waits until 2 replicas"
        },
    ),
    Bug(
        "another-state-below-the-same-frames",
        "I7: a log that begins with a snapshot agrees with the leader's in that, or is given up",
        (
            Edit(
                "oncelog_server.runtime.replica.following:Following._parted",
                "if end < self._log.log_start:",
                "if end < 0:",
            ),
        ),
        {
            unit(
                "replica/test_following",
                "test_i7_a_log_that_begins_with_another_state_is_given_up",
            ): "another state stands below",
            _receiving(
                "test_i7_who_begins_with_another_state_than_the_leaders_begins_anew"
            ): "assert 100 == 0",
        },
    ),
    Bug(
        "epoch-before-its-beginning-forgotten-by-a-cut",
        "I7: a log that is cut to its beginning knows in which epoch that is",
        (Edit(f"{_JOURNAL}.cut", "self._epochs.epoch_at(end - 1)", "0"),),
        {
            unit(
                "storage/test_beginning",
                "test_i7_a_log_that_is_cut_to_its_beginning_knows_the_epoch_before_it",
            ): "(50, 0) == (50, 3)"
        },
    ),
    Bug(
        "what-was-before-a-log-is-let-go-of",
        "I35: the snapshot that a log begins with stays as long as it begins there",
        (
            Edit(
                "oncelog_server.runtime.storage.keeping:kept_snapshots",
                "if offset == log_start}",
                "if offset < 0}",
            ),
        ),
        {
            unit(
                "storage/test_beginning",
                "test_i35_the_snapshot_that_a_log_begins_with_is_kept",
            ): "JournalDamaged"
        },
    ),
    Bug(
        "begins-in-the-middle-of-nothing",
        "I26: a log that begins above 0 is refused without what was before",
        (Edit(f"{_JOURNAL}.load_snapshot", "self.log_start > 0", "self.log_start < 0"),),
        {
            unit(
                "storage/test_beginning",
                "test_i26_without_what_was_before_a_log_that_begins_in_the_middle_is_refused",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "rot-spread-with-a-snapshot",
        "I26: what is received is compared with the CRCs that it was written with",
        (Edit(f"{_RECEIVING}._table", "crc32c(data) != chunk.crc", "size < 0"),),
        {
            _receiving("test_i26_what_rots_at_the_leader_is_not_spread"): "assert 100 == 101",
        },
    ),
    Bug(
        "snapshot-offered-at-each-append",
        "who needs a snapshot is told once in a dialog",
        (
            Edit(
                "oncelog_server.runtime.replica.follower:Follower.next_step",
                "return None if offered else",
                "return",
            ),
        ),
        {
            unit(
                "replica/test_following",
                "test_who_ends_before_the_leaders_log_begins_is_told_once_in_a_dialog",
            ): "it is at it"
        },
    ),
    Bug(
        "thread-that-writes-received-slots-left-alone",
        "I35: nothing else touches a log that a thread has",
        (Edit(f"{_RECEIVING}.halt", "and not self._has_log", ""),),
        {
            _receiving("test_i35_a_thread_that_writes_received_slots_is_waited_for"): (
                "a thread has the log still"
            )
        },
    ),
    Bug(
        "snapshot-that-does-not-fit-fetched-at-once",
        "I29: what the disk refused is not fetched again and again",
        (
            Edit(
                f"{_RECEIVING}._work",
                "await asyncio.sleep(self._installs.pause_ms / 1000)",
                "pass",
            ),
        ),
        {
            _receiving("test_i29_a_snapshot_that_does_not_fit_is_fetched_more_and_more_seldom"): (
                "< 8"
            )
        },
    ),
    Bug(
        "word-of-an-earlier-dialog-heard",
        "I18: what was said in one dialog is not heard in the next one",
        (
            Edit(
                "oncelog_server.runtime.replication.links:_Link._hear",
                "message.dialog == dialog.number",
                "message.incarnation == dialog.incarnation",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_i18_what_was_said_in_one_dialog_is_not_heard_in_the_next_one",
            ): "a word of an earlier dialog"
        },
    ),
    Bug(
        "snapshot-installed-over-what-it-begot",
        "what a peer says twice ends no process, and costs no log",
        (Edit(f"{_FOLLOWERSHIP}._install", "journal.log_end >= offset", "offset < 0"),),
        {
            _receiving("test_who_is_offered_a_snapshot_that_it_needs_no_more_keeps_its_log"): (
                "a peer's word ends the process"
            )
        },
    ),
    Bug(
        "snapshot-that-rots-at-the-leader-not-shown",
        "I26: who cannot follow says why",
        (
            Edit(
                f"{_RECEIVING}._failed",
                "self._damaged >= RECEIVED_DAMAGED_MAX",
                "self._damaged < 0",
            ),
        ),
        {
            _receiving("test_i26_who_is_given_a_damaged_snapshot_again_and_again_says_so"): (
                "cannot take its leader's snapshot"
            )
        },
    ),
    Bug(
        "snapshots-of-all-replicas-at-once",
        "one replica of a process receives at a time: it has all of it in memory",
        (
            Edit(
                f"{_RECEIVING}._work",
                "async with self._around.replication.replaying:",
                "async with asyncio.Lock():",
            ),
        ),
        {_receiving("test_one_replica_of_a_process_receives_at_a_time"): "== []"},
    ),
    Bug(
        "acknowledged-while-a-thread-gives-up-the-log",
        "I25: what is acknowledged counts for the name under which the dialog began",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._give_sign_of_life",
                " and not self.is_cutting",
                "",
            ),
        ),
        {
            unit(
                "runtime/test_receiving",
                "test_i25_nothing_is_acknowledged_while_a_thread_gives_up_the_log",
            ): "under its old name"
        },
    ),
)

"""Bugs of what a leader sends its followers, and of what becomes of it there."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_SUPPLY: Final = "oncelog_server.runtime.replica.supply:Supply"
_FOLLOWERS: Final = "oncelog_server.runtime.replica.followers:Followers"
_TESTS: Final = "runtime/test_followers"

BUGS: Final = (
    Bug(
        "a-full-disk-is-tried-at-once",
        "I29: a follower that cannot write does nothing but try, without end",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver._write_failed",
                "self._pauses = self._state.follows",
                "pass",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_i29_a_follower_on_a_full_disk_tries_again_now_and_then_until_there_is_room",
            ): "assert 30 <= 11",
        },
    ),
    Bug(
        "a-message-for-each-move-of-the-high-watermark",
        "the high watermark travels with frames, or alone where none follow",
        (
            Edit(
                f"{_SUPPLY}.high_watermark_moved",
                "loop.call_later(TELL_ALONE_MS / 1000, self._tell_high_watermark)",
                "loop.call_later(0, self._tell_high_watermark)",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_a_high_watermark_travels_with_frames_or_alone_where_none_follow",
            ): "no message for each of its moves"
        },
    ),
    Bug(
        "who-found-no-room-sleeps",
        "I29: a dialog that found no room on its stream goes on once there is some",
        (
            Edit(
                f"{_SUPPLY}._send_next",
                "self._follower.waits_for.wait(self.wake)",
                "pass",
            ),
        ),
        {
            unit(
                _TESTS, "test_who_finds_no_room_is_sent_frames_once_others_are_done"
            ): "assert two.journal.log_end == one.journal.log_end"
        },
    ),
    Bug(
        "a-stream-without-a-window",
        "what is on its way on one stream is bounded",
        (
            Edit(
                "oncelog_server.runtime.replica.follower:Follower.sent",
                "self._stream.take(size)",
                "self._stream.take(0)",
            ),
        ),
        {
            unit(
                "replica/test_following", "test_all_dialogs_of_a_stream_share_what_is_on_its_way"
            ): "assert"
        },
    ),
    Bug(
        "rot-that-is-met-is-only-told",
        "I26: a leader that cannot read its log gives up the epoch, where others can",
        (
            Edit(
                f"{_FOLLOWERS}.unreadable",
                "book.has_others(self._now_ms())",
                "book.has_others(self._now_ms()) is None",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_i26_a_leader_that_finds_its_own_rot_gives_up_the_epoch_"
                "and_copies_its_log_anew",
            ): "it cannot serve who is behind"
        },
    ),
    Bug(
        "the-only-log-is-given-up",
        "I5: who is alone in sync keeps its log, whatever part of it is damaged",
        (
            Edit(
                f"{_FOLLOWERS}.unreadable",
                "book.has_others(self._now_ms())",
                "book.has_others(self._now_ms()) is not None",
            ),
        ),
        {
            unit(
                _TESTS, "test_i26_a_leader_that_is_alone_with_its_rot_stays"
            ): "no other log has more"
        },
    ),
    Bug(
        "damaged-takes-are-asked-for-without-end",
        "a replica that cannot follow says so, and asks more and more seldom",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._refused",
                "BEGIN_AGAIN_MS << min(self._refusals, 16)",
                "BEGIN_AGAIN_MS",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_i26_takes_that_are_damaged_on_the_way_are_asked_for_more_and_more_seldom",
            ): "more and more seldom"
        },
    ),
    Bug(
        "damaged-log-under-its-old-name",
        "I25: who gives up a damaged log counts under its old name no more",
        (
            Edit(
                "oncelog_server.runtime.replica.state:ReplicaState.may_stand",
                "self.in_doubt or self.is_damaged or self.is_leaving",
                "self.in_doubt or self.is_leaving",
            ),
        ),
        {
            unit(
                "runtime/test_replica_state", "test_i18_what_can_happen_to_a_replica"
            ): "it would win without what it lost"
        },
    ),
    Bug(
        "an-error-is-taken-while-a-log-is-cut",
        "a follower takes nothing that it hears while its log is cut",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership.told",
                "if self._cutting is not None:",
                "if self._cutting is not None and not isinstance(told.what, OncelogError):",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_a_leader_that_resigns_while_a_log_is_cut_is_asked_again_later",
            ): "a process ended"
        },
    ),
    Bug(
        "noted-beside-a-cut",
        "I25: nothing is written to a log while a thread cuts it",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver._is_in_a_thread",
                "self._state.is_damaged or is_cut",
                "self._state.is_damaged or (is_cut and not is_cut)",
            ),
        ),
        {
            unit(
                _TESTS, "test_i25_a_log_that_is_being_cut_is_not_written_to"
            ): "it says what it does not have"
        },
    ),
    Bug(
        "streams-share-what-they-send",
        "I29: what is said on a stream is sent on that one",
        (
            Edit(
                "oncelog_server.runtime.replication.links:_Link._stream",
                "outgoing = _Outgoing()",
                "outgoing = self.__dict__.setdefault('_shared', _Outgoing())",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_i29_what_is_said_on_a_stream_is_not_lost_to_one_that_broke",
            ): "the question was sent on each stream"
        },
    ),
    Bug(
        "dropped-when-the-replies-have-ended",
        "I29: a follower that says nothing is dropped, whether it takes what is sent or not",
        (
            Edit(
                "oncelog_server.runtime.replication.serving:_Stream.read",
                "self.close()",
                "self._is_over = True\n            self._woken.set()",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_i29_a_follower_that_neither_says_nor_takes_anything_is_dropped",
            ): "its leader waits for it"
        },
    ),
    Bug(
        "rights-asked-at-the-beginning-alone",
        "a stream of replication ends with the right to it",
        (
            Edit(
                "oncelog_server.runtime.rpc.server:RpcServer._said",
                "if method.gate is not None:",
                "if method.gate is None:",
            ),
            Edit(
                "oncelog_server.runtime.rpc.server:RpcServer._pump_exchange",
                "method.gate.require_still(None, call)",
                "pass",
            ),
        ),
        {
            unit(
                "rpc/test_followers_rights",
                "test_a_stream_that_stands_ends_with_the_right_to_it",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "acknowledged-for-another-node",
        "I5: an acknowledgement counts for the node whose process says it",
        (
            Edit(
                "oncelog_server.runtime.replication.serving:_Stream._introduce",
                "if not await self._service.lives(node, boot_id):",
                "if not node:",
            ),
        ),
        {
            unit(
                "rpc/test_followers_rights",
                "test_i5_an_acknowledgement_counts_for_the_node_that_says_it",
            ): "it follows under that name"
        },
    ),
    Bug(
        "each-high-watermark-queued",
        "I29: what is queued for a follower that reads nothing is bounded",
        (
            Edit(
                "oncelog_server.runtime.replication.serving:_Stream._tell",
                "if waiting is not None:",
                "if waiting is not None and not waiting.epoch:",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_i29_a_follower_that_reads_nothing_is_told_one_high_watermark_however_long",
            ): "the queue grows"
        },
    ),
    Bug(
        "older-name-heard-in-the-newer-ones-dialog",
        "I5: what a replica said under an older incarnation counts for nothing",
        (
            Edit(
                "oncelog_server.runtime.replication.serving:_Stream._hear",
                "supply.incarnation != heard.incarnation",
                "not supply.incarnation",
            ),
        ),
        {
            unit(
                "runtime/test_silent_streams",
                "test_i5_what_a_replica_was_before_says_nothing_for_what_it_is_now",
            ): "its older name ended"
        },
    ),
    Bug(
        "run-before-heard-beside-the-next",
        "I5: of a node one run is heard, the newest",
        (
            Edit(
                "oncelog_server.runtime.replication.serving:_Stream._introduce",
                "self._service.begin(self, node)",
                "self._service.begin(self, boot_id.hex())",
            ),
        ),
        {
            unit(
                "rpc/test_followers_rights",
                "test_i5_the_run_of_a_node_before_is_not_heard_beside_the_next_one",
            ): "both are heard"
        },
    ),
    Bug(
        "noted-while-a-damaged-log-is-closed",
        "I26: nobody writes the files of a log beside the thread that closes it",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver._is_in_a_thread",
                "self._state.is_damaged or ",
                "",
            ),
        ),
        {
            unit(
                "runtime/test_replicas",
                "test_nothing_is_noted_beside_the_thread_that_closes_the_log",
            ): "two threads write its files"
        },
    ),
)

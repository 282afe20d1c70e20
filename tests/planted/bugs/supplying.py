"""Bugs of what a leader sends its followers, and of what becomes of it there."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_SUPPLY: Final = "oncelog_server.runtime.replica.supply:Supply"
_FOLLOWERS: Final = "runtime/test_followers"

BUGS: Final = (
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
                _FOLLOWERS,
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
                _FOLLOWERS, "test_who_finds_no_room_is_sent_frames_once_others_are_done"
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
)

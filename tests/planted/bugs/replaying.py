"""Bugs of how a log becomes a machine: when it is loaded, and on a follower that keeps its snapshot
fresh."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "replay-slices-by-frames-alone",
        "I18: a loop that replays large frames ticks, or the lease is lost while it loads",
        (
            Edit(
                "oncelog_server.runtime.replica.replaying:Slice.is_full",
                "self._bytes += encoded_bytes(stored.frame)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replaying",
                "test_i18_the_loop_has_a_turn_after_so_many_bytes_of_a_replay",
            ): "the lease is not kept by a loop that stands"
        },
    ),
    Bug(
        "snapshot-says-nothing-of-the-high-watermark",
        "I4: what a snapshot holds was durable when it was written",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._covered_by_snapshot",
                "max(self._hw, offset)",
                "self._hw",
            ),
        ),
        {
            unit(
                "runtime/test_replaying",
                "test_i4_what_a_snapshot_holds_is_known_to_be_durable_after_a_restart",
            ): "all below was durable when it was written"
        },
    ),
)

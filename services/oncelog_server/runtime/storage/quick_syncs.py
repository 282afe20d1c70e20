"""Whether a commit may be written and synced in the loop's own thread (docs/adr/0081). PURE.

Handing a commit to the writer's thread and back costs two wake-ups and two fights for the
interpreter: more than a quick sync takes. But whatever the loop's thread does holds up everybody.
So only what is small is done there, and only while the disk is quick: the mean of its recent
commits counts, so that one that was slow sends the next ones to the thread for a while.

Left out: a commit that never returns. Nobody can be answered without the disk, but a loop that
stands renews no lease either: others take over where they can, as they do from a process that was
stopped, and this one answers nothing when it goes on, for its lease is over.
"""

from __future__ import annotations

from typing import Final

# What is larger takes its time to be written.
BYTES_MAX: Final = 16 << 10
# Above this mean of recent commits the loop waits for none, milliseconds.
QUICK_MS_MAX: Final = 1.0
# The share of the latest commit in that mean: one of 100 ms sends the next 28 to the thread.
LATEST_SHARE: Final = 1 / 16
# A disk that nothing is known of is taken for a slow one.
UNKNOWN_MS: Final = 2.0


class QuickSyncs:
    """Of one disk."""

    __slots__ = ("_mean_ms",)

    def __init__(self) -> None:
        self._mean_ms = UNKNOWN_MS

    def may_wait(self, size_bytes: int) -> bool:
        """The loop may wait for one write of that size, and its sync."""
        return self._mean_ms <= QUICK_MS_MAX and size_bytes <= BYTES_MAX

    def took(self, milliseconds: float) -> None:
        """A commit, wherever it was done."""
        self._mean_ms += (milliseconds - self._mean_ms) * LATEST_SHARE

"""PURE. Which snapshots of a log are kept, and at which of them it may begin (docs/adr/0068).

    frames     │ gone │ could go    │ needed                │
    segments   ┊......│──────────│──────────│──────────│─────
    snapshots         S      x   │   ^   x  │  ^   x      2 1
                      │          │   │      │  │          └ the two newest
                      log start  │   └ the first one behind each segment's begin

The log start moves in these steps of a journal (docs/log_format.md, "Where a log begins"):

    prepare_start    1  its snapshot is whole; the index of what will be the first file is synced
    move_start       2  the next two notes say where the log begins; nothing before it is read
    remove_front     3  once both are durable: files, snapshots and rows in front go

Invariants:
  * a log begins at one of its own snapshots, at or below what is still needed; so a start has a
    snapshot and every frame from there on;
  * a start rests on what a state said, and stands no longer than the frames of that state
    (`Allowance`);
  * so many are kept, however long the log is; the log start may move at all as long as one of them
    is reached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from oncelog_server.core.machine import Needs

SNAPSHOTS_KEPT: Final = 2
# Where a log may begin later. Where there are more, those stay that are far from each other.
CANDIDATES_MAX: Final = 16


class Allowance(NamedTuple):
    """What a log start rests on: a state said that nothing before it is read again. Where the log
    is taken back below that, by an unclean election, nobody says so any more."""

    # End of the frames that the state had; 0: of a log that begins at 0, nothing.
    at: int = 0
    # Of the last of these.
    epoch: int = 0

    def is_of(self, epoch: int, end: int) -> bool:
        """A log has all of these frames whose `end_of_epoch` of that epoch is this: logs that share
        a frame share all before it."""
        return epoch == self.epoch and end >= self.at


def kept_snapshots(offsets: Sequence[int], *, log_start: int, bases: Sequence[int]) -> set[int]:
    """Of those at these offsets. `bases`: where segments begin. Both ascend."""
    live = [offset for offset in offsets if offset >= log_start]
    kept = set(live[-SNAPSHOTS_KEPT:]) | {offset for offset in live if offset == log_start}
    candidates = _first_of_each_segment(live, bases, log_start=log_start)
    while len(candidates) > CANDIDATES_MAX:
        # The one whose neighbours are nearest to each other.
        gaps = [after - before for before, after in pairwise([log_start, *candidates])]
        around = [near + far for near, far in pairwise(gaps)]
        del candidates[around.index(min(around))]
    return kept | set(candidates)


def _first_of_each_segment(
    offsets: Sequence[int], bases: Sequence[int], *, log_start: int
) -> list[int]:
    """Who begins there lets go of all segments before; so nobody does in the first one."""
    found: list[int] = []
    number = bisect_right(bases, log_start)
    for offset in offsets:
        segment = bisect_right(bases, offset)
        if segment > number:
            found.append(offset)
            number = segment
    return found


def next_log_start(
    snapshots: Sequence[int],
    needs: Needs,
    *,
    log_start: int,
    bases: Sequence[int],
    bytes_between: Callable[[int, int], int],
    wanted_bytes_max: int,
) -> int | None:
    """Where the log should begin; None: where it does, for a later start would free no segment.

    What is wanted and not needed stays while it is no more than `wanted_bytes_max`."""
    possible = [it for it in snapshots if log_start < it <= needs.needed_from]
    if not possible:
        return None
    chosen = [it for it in possible if it <= needs.wanted_from][-1:]
    kept_from = chosen[0] if chosen else log_start
    if bytes_between(kept_from, needs.needed_from) > wanted_bytes_max:
        fitting = [
            it for it in possible if bytes_between(it, needs.needed_from) <= wanted_bytes_max
        ]
        chosen = fitting[:1] or possible[-1:]
    if not chosen or not frees_a_segment(chosen[0], bases):
        return None
    return chosen[0]


def frees_a_segment(start: int, bases: Sequence[int]) -> bool:
    """One that is wholly below."""
    return any(base <= start for base in bases[1:])

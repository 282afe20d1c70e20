"""Where reading of a journal begins, so that what is exposed goes on at a certain offset. PURE.

A reader that puts records in commit order by itself has read further than it has given: what it
holds for open transactions is lost with its process. So its position is a tuple, as the proposal
"Transactional Messaging in Kafka" has it:

    earliest   journal offset where the earliest transaction begins that is pending at `iterator`
    iterator   journal offset from which on what is exposed counts: a batch that stands alone, or a
               marker; nothing that is exposed below it is given again
    given      records that were exposed from `iterator` on, and given already

It belongs to an offset of the committed log, and travels beside it, as the metadata of the group's
offset. A leader knows a point of each offset that is kept, and is asked where reading begins: the
front of a journal goes, and a point that lies there leads nowhere any more.

Invariant: any point of an offset whose `earliest` is kept leads to the same records; a later one
leads there sooner. What a leader names is kept, and of the journal that it has: where one was
elected uncleanly, what was known before leads somewhere else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

# Points that are kept, of one partition. Above, every second one is dropped: going back means to
# read a little more.
POINTS_MAX: Final = 10_000
# How the metadata of a group's offset begins where a point stands in it, and in which layout.
FORMAT: Final = "oncelog-buffered/1"


class ResumePoint(NamedTuple):
    """See the module."""

    earliest: int
    iterator: int
    given: int

    def encode(self) -> str:
        """As metadata of a group's offset."""
        return f"{FORMAT} {self.earliest} {self.iterator} {self.given}"


def decode(metadata: str) -> ResumePoint | None:
    """None: it says something else, or in a layout that we do not know."""
    words = metadata.split(" ")
    if len(words) != 4 or words[0] != FORMAT:
        return None
    if not all(word.isascii() and word.isdigit() for word in words[1:]):
        return None
    point = ResumePoint(*map(int, words[1:]))
    return point if point.earliest <= point.iterator else None


class ResumePoints:
    """Those of one partition that its reader knows."""

    def __init__(self) -> None:
        # Offsets (of the committed log) that the points lead to, growing; and the points, whose
        # `given` is 0.
        self._offsets: list[int] = [0]
        self._points: list[ResumePoint] = [ResumePoint(0, 0, 0)]

    def learn(self, offset: int, point: ResumePoint) -> None:
        """What a group has committed."""
        if point.given <= offset:
            self.add(offset - point.given, point._replace(given=0))

    def add(self, offset: int, point: ResumePoint) -> None:
        """`point` leads to this offset. Of several that do, the latest counts."""
        assert point.given == 0
        place = bisect_left(self._offsets, offset)
        if place < len(self._offsets) and self._offsets[place] == offset:
            if point.iterator >= self._points[place].iterator:
                self._points[place] = point
            return
        self._offsets.insert(place, offset)
        self._points.insert(place, point)
        if len(self._offsets) > POINTS_MAX:
            # Never the first one: it leads everywhere.
            del self._offsets[1::2], self._points[1::2]

    def at(self, offset: int) -> ResumePoint:
        """The latest point that leads to this offset."""
        place = bisect_right(self._offsets, offset) - 1
        return self._points[place]._replace(given=offset - self._offsets[place])

    def forget_below(self, offset: int) -> None:
        """Nobody goes back below it, but by a seek; that begins at the front."""
        place = bisect_right(self._offsets, offset) - 1
        del self._offsets[1:place], self._points[1:place]

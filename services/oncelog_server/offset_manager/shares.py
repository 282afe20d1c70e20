"""How many partitions each member of a group has, in numbers alone. PURE.

Partitions that the same members may have are of one *kind*: for balance, and for how many of them
move, one is as good as another. So an assignment is a table, kinds by members, of how many; which
ones is said at the end (`uniform`).

A set of members is an int, one bit for each. Two sets of a thousand meet in the time of one
addition, and a search looks at kinds (a few), not at members (many).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Shares:
    """The table, and what is asked of it.

    Invariant: `has[m][kind]` is never 0, and `load[m]` its sum.
    Invariant: `holders`, `gainers`, `losers` are the members that have one of this kind, that have
    more of it than they had, that have fewer.
    """

    def __init__(self, may: Sequence[int], had: Sequence[dict[int, int]]) -> None:
        # Kind -> the members that may have it.
        self.may = may
        # Member -> kind -> how many it had.
        self.had = had
        self.has = [dict(counts) for counts in had]
        self.load = [sum(counts.values()) for counts in had]
        # Load -> the members that have it.
        self.at: dict[int, int] = {}
        for member, load in enumerate(self.load):
            self.at[load] = self.at.get(load, 0) | 1 << member
        self.holders = [0] * len(may)
        self.gainers = [0] * len(may)
        self.losers = [0] * len(may)
        for member, counts in enumerate(had):
            for kind in counts:
                self.holders[kind] |= 1 << member

    def add(self, member: int, kind: int) -> None:
        """It gets one more of this kind."""
        self._change(member, kind, 1)

    def move(self, kind: int, giver: int, taker: int) -> None:
        """One of this kind goes from here to there."""
        self._change(giver, kind, -1)
        self._change(taker, kind, 1)

    def least(self, members: int) -> int:
        """Of these, the first one of those that have least."""
        for load in sorted(self.at):
            found = self.at[load] & members
            if found:
                return lowest(found)
        raise AssertionError("asked of nobody")

    def up_to(self, load: int) -> int:
        """The members that have at most so many."""
        members = 0
        for each, there in self.at.items():
            if each <= load:
                members |= there
        return members

    def _change(self, member: int, kind: int, by: int) -> None:
        bit, counts = 1 << member, self.has[member]
        count = counts.get(kind, 0) + by
        assert count >= 0, "gives what it does not have"
        if count:
            counts[kind] = count
        else:
            del counts[kind]
        _put(self.holders, kind, bit, there=count > 0)
        had = self.had[member].get(kind, 0)
        _put(self.gainers, kind, bit, there=count > had)
        _put(self.losers, kind, bit, there=count < had)
        self._reload(member, bit, by)

    def _reload(self, member: int, bit: int, by: int) -> None:
        load = self.load[member]
        left = self.at[load] & ~bit
        if left:
            self.at[load] = left
        else:
            del self.at[load]
        self.load[member] = load + by
        self.at[load + by] = self.at.get(load + by, 0) | bit


def lowest(members: int) -> int:
    """The first one of a set."""
    return (members & -members).bit_length() - 1


def each(members: int) -> Iterator[int]:
    """All of a set, in order."""
    while members:
        first = members & -members
        yield first.bit_length() - 1
        members ^= first


def _put(sets: list[int], kind: int, bit: int, *, there: bool) -> None:
    if there:
        sets[kind] |= bit
    else:
        sets[kind] &= ~bit

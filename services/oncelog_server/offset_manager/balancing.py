"""Makes shares as equal as the subscriptions permit. PURE.

What is reached: no member could be eased in favour of one that has two less, neither directly nor
over others (a gives one to b, who gives another one to c, who may not have what a has). That is the
best there is in every sense of the word at once: the largest share is as small as it can be, then
the second largest, and so on, and the sum of the squares is as small as it can be. (N. Harvey,
R. Ladner, L. Lovasz, T. Tamir, "Semi-matchings for bipartite graphs and load balancing", 2003,
theorem 3.1: an assignment is optimal where there is no cost-reducing path.)

Each such path takes one from a member of the largest share. Where none leads on from these members,
whatever they reach is done, for good: so the searches that fail cost together no more than one that
looks at everything.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_server.offset_manager.shares import Shares, lowest


class _Step(NamedTuple):
    """Partitions of this kind bring the search from these members to those."""

    kind: int
    givers: int
    takers: int


def balance(shares: Shares) -> None:
    """Moves what has to move."""
    left = (1 << len(shares.load)) - 1
    while left:
        top = max(load for load, members in shares.at.items() if members & left)
        givers, takers = shares.at[top] & left, shares.up_to(top - 2) & left
        if not takers:
            break
        reached, steps = _search(shares, givers, takers)
        if steps:
            _follow(shares, steps, givers, shares.least(steps[-1].takers & takers))
        else:
            left &= ~reached


def _search(shares: Shares, givers: int, takers: int) -> tuple[int, list[_Step]]:
    """Whom the givers reach; and how they reached a taker, in as few moves as possible, if they do.
    What somebody gained is given on for nothing: it moves anyway."""
    reached, steps = givers, list[_Step]()
    unused = [kind for kind, holders in enumerate(shares.holders) if holders]
    while unused:
        before = len(unused)
        # All that costs nothing more, then all that costs one move more.
        for having in (shares.gainers, shares.holders):
            found = reached
            for kind in [kind for kind in unused if having[kind] & found]:
                step = _Step(kind, having[kind] & found, shares.may[kind] & ~reached)
                unused.remove(kind)
                reached |= step.takers
                steps.append(step)
                if step.takers & takers:
                    return reached, steps
            if len(unused) < before:
                break
        else:
            break
    return reached, []


def _follow(shares: Shares, steps: list[_Step], givers: int, taker: int) -> None:
    """Moves one partition at each step of the way that ends at this taker."""
    for step in reversed(steps):
        if step.takers >> taker & 1:
            giver = lowest(step.givers)
            shares.move(step.kind, giver, taker)
            taker = giver
            if givers >> giver & 1:
                return
    raise AssertionError("a way begins at a giver")

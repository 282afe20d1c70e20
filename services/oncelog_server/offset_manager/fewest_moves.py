"""Of all assignments that are as equal, one that moves fewest partitions. PURE.

An assignment is a flow, and the cheapest flow is the one without a cycle of negative cost
(M. Klein, "A primal method for minimal cost flows", 1967). Here a cycle is some members each of
whom gives one partition to the next; or a way to a member from one that has one more, which only
changes who of them has it. A partition costs 1 where its member has it new, so

    giving what one gained            -1
    giving what one had                0
    getting back what one lost         0
    getting what is new               +1

Members in the same position are one node of the search: a thousand members of a few subscriptions
are a few dozen nodes. Where there are too many (each member subscribes to something else), the
search keeps to what can be undone, giving what was gained to who lost it: then no part of the moves
could be left out and the shares be as equal, but other moves might do with fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from oncelog_server.offset_manager.shares import Shares, each

# Positions times kinds, up to which the fewest moves are looked for.
POSITIONS_MAX: Final = 10_000
# How many arcs are looked at for the sake of fewer moves, each a tenth of a microsecond: what the
# loop can spare. Behind it what was found so far is good enough.
LOOKS_MAX: Final = 200_000


class _Arc(NamedTuple):
    """From a node to a node, at a cost."""

    start: int
    end: int
    cost: int


class _Graph(NamedTuple):
    """Nodes: the kinds, then the positions, then the loads."""

    kinds: int
    # A member of each position.
    members: list[int]
    arcs: list[_Arc]
    nodes: int


class _Position(NamedTuple):
    """Members in the same position, by one of them."""

    member: int
    gives: list[tuple[int, int]]
    takes: list[tuple[int, int]]


def undo_needless_moves(shares: Shares, alike: Sequence[int]) -> None:
    """Until no move is needless. The shares stay as equal as they are. `alike`: the sets of members
    with the same subscription."""
    looks = LOOKS_MAX
    for positions in (_all_positions, _changed_positions):
        while any(shares.losers) and looks > 0:
            graph = _graph(shares, positions(shares, alike))
            if graph is None:
                break
            cycle, looked = _negative_cycle(graph)
            looks -= looked
            if not cycle:
                return
            _apply(shares, graph, cycle)


def _all_positions(shares: Shares, alike: Sequence[int]) -> list[_Position] | None:
    """All that anybody may give and get; None where there is too much of it."""
    found: dict[object, int] = {}
    for index, members in enumerate(alike):
        for member in each(members):
            found.setdefault((index, shares.load[member], *_standing(shares, member)), member)
    if len(found) * len(shares.may) > POSITIONS_MAX:
        return None
    return [
        _Position(
            member,
            [
                (kind, -1 if shares.gainers[kind] >> member & 1 else 0)
                for kind in shares.has[member]
            ],
            [
                (kind, 0 if shares.losers[kind] >> member & 1 else 1)
                for kind, may in enumerate(shares.may)
                if may >> member & 1
            ],
        )
        for member in found.values()
    ]


def _standing(shares: Shares, member: int) -> Iterator[tuple[int, int, bool]]:
    """For each kind that it has or had: whether it gained, kept or lost, and has any."""
    has, had = shares.has[member], shares.had[member]
    for kind in sorted(has.keys() | had.keys()):
        now, before = has.get(kind, 0), had.get(kind, 0)
        yield kind, (now > before) - (now < before), now > 0


def _changed_positions(shares: Shares, alike: Sequence[int]) -> list[_Position]:
    """What those who gained may give to those who lost."""
    gives: dict[int, list[tuple[int, int]]] = {}
    takes: dict[int, list[tuple[int, int]]] = {}
    for kind, (gainers, losers) in enumerate(zip(shares.gainers, shares.losers, strict=True)):
        if gainers and losers:
            for member in each(gainers):
                gives.setdefault(member, []).append((kind, -1))
            for member in each(losers):
                takes.setdefault(member, []).append((kind, 0))
    return [
        _Position(member, gives.get(member, []), takes.get(member, []))
        for member in sorted(gives.keys() | takes.keys())
    ]


def _graph(shares: Shares, positions: list[_Position] | None) -> _Graph | None:
    if positions is None:
        return None
    kinds, arcs = len(shares.may), list[_Arc]()
    # A way ends at a member with as much as the one where it begins has without what it gives.
    ends: dict[int, int] = {}
    nodes = kinds + len(positions)
    for node, position in enumerate(positions, kinds):
        arcs += [_Arc(node, kind, cost) for kind, cost in position.gives]
        arcs += [_Arc(kind, node, cost) for kind, cost in position.takes]
        load = shares.load[position.member]
        arcs.append(_Arc(node, nodes + ends.setdefault(load, len(ends)), 0))
        arcs.append(_Arc(nodes + ends.setdefault(load - 1, len(ends)), node, 0))
    return _Graph(kinds, [position.member for position in positions], arcs, nodes + len(ends))


def _negative_cycle(graph: _Graph) -> tuple[list[_Arc], int]:
    """One, if there is any (R. Bellman, L. Ford; the cycle shows in the arcs that came last), and
    how many arcs were looked at."""
    costs = [0] * graph.nodes
    came: dict[int, _Arc] = {}
    looked, changed = 0, True
    while changed:
        changed = False
        looked += len(graph.arcs)
        for arc in graph.arcs:
            cost = costs[arc.start] + arc.cost
            if cost < costs[arc.end]:
                costs[arc.end], came[arc.end] = cost, arc
                changed = True
        cycle = _cycle(came)
        if cycle:
            return cycle, looked
    return [], looked


def _cycle(came: dict[int, _Arc]) -> list[_Arc]:
    """The arcs of one, in order, beginning anywhere."""
    seen: dict[int, int] = {}
    for first in came:
        node = first
        while node in came and node not in seen:
            seen[node] = first
            node = came[node].start
        if node in came and seen[node] == first:
            cycle, start = [came[node]], node
            while cycle[-1].start != start:
                cycle.append(came[cycle[-1].start])
            return cycle[::-1]
    return []


def _apply(shares: Shares, graph: _Graph, cycle: list[_Arc]) -> None:
    assert sum(arc.cost for arc in cycle) < 0
    for arc, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        if arc.end < graph.kinds:
            giver, taker = arc.start - graph.kinds, following.end - graph.kinds
            shares.move(arc.end, graph.members[giver], graph.members[taker])

"""ListGroups: a page of the groups of all partitions that this process leads, by name, in turns of
the loop that stay short however many there are.

    names of all partitions ──a slice per turn──► the first `limit` behind `after` that are seen
    these ──a slice per turn──► submitted, so that what is told is durable

What is made or goes meanwhile may be in it or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, PartitionId, control_partition
from oncelog_server.offset_manager.commands import GroupSummary, ListGroups
from oncelog_server.offset_manager.ports import OffsetManagerEnv
from oncelogpb.errors import NotLeader

# Names that one turn looks at, and groups that one turn describes: a millisecond or two.
NAMES_PER_TURN: Final = 1_000
GROUPS_PER_TURN: Final = 100

T = TypeVar("T")


class Page(NamedTuple):
    """Which groups are asked for."""

    prefix: str
    # Only names behind it.
    after: str
    limit: int
    # Whether the caller may know of this group.
    sees: Callable[[str], bool]


async def list_page(env: OffsetManagerEnv, page: Page) -> tuple[list[GroupSummary], bool]:
    """By name, and whether there are more. Raises NotLeader where a partition was lost meanwhile:
    asked again, it is whole."""
    names = await _first_names(env, page)
    listed = names[: page.limit]
    by_partition = sorted((_partition_of(name), name) for name in listed)
    found: list[GroupSummary] = []
    for partition, members in groupby(by_partition, key=lambda pair: pair[0]):
        for some in _slices([name for _, name in members], GROUPS_PER_TURN):
            found += await env.replicas.lead(partition).submit(ListGroups(tuple(some)))
            await asyncio.sleep(0)
    return sorted(found), len(names) > page.limit


async def _first_names(env: OffsetManagerEnv, page: Page) -> list[str]:
    """In order; one more than the page has room for, where there is one."""
    first: list[str] = []
    for replica in env.replicas.led():
        if replica.machine is None:
            raise NotLeader(f"{replica.partition} was lost while its groups were listed; ask again")
        for some in _slices(replica.machine.group_names(), NAMES_PER_TURN):
            # Behind a full page nobody need be judged.
            end = first[-1] if len(first) > page.limit else None
            fresh = [
                name
                for name in some
                if name > page.after
                and (end is None or name < end)
                and name.startswith(page.prefix)
                and page.sees(name)
            ]
            first = sorted(first + fresh)[: page.limit + 1]
            await asyncio.sleep(0)
    return first


def _partition_of(name: str) -> PartitionId:
    return control_partition(CONSUMER_OFFSETS_ID, name)


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

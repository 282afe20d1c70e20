"""ListGroups in pages, and in turns of the loop that leave room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, control_partition
from oncelog_server.offset_manager import listing
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.service import OffsetManagerService
from oncelogpb.errors import NotLeader
from oncelogpb.v1 import offset_manager_pb2 as pb
from tests.unit.offset_manager.fakes import Outside
from tests.unit.offset_manager.test_service import CALL, _offsets

NAMES = sorted(f"group-{number}" for number in range(40))
Story = Callable[[OffsetManagerService, Outside], Awaitable[None]]


def story(tell: Story) -> None:
    async def main() -> None:
        outside = Outside(*range(16))
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        for name in NAMES:
            request = pb.CommitOffsetsRequest(offsets=_offsets(1, group=name))
            await service.commit_offsets(request, CALL)
        await tell(service, outside)

    asyncio.run(main())


async def listed(service: OffsetManagerService, **wanted: Any) -> tuple[list[str], bool]:
    reply = await service.list_groups(pb.ListGroupsRequest(**wanted), CALL)
    return [group.group for group in reply.groups], reply.more


@pytest.mark.parametrize("limit", [1, 7, 39, 40, 41])
def test_pages_show_each_group_once_and_say_whether_there_are_more(limit: int) -> None:
    async def tell(service: OffsetManagerService, _: Outside) -> None:
        seen: list[str] = []
        more = True
        while more:
            page, more = await listed(service, limit=limit, after=seen[-1] if seen else "")
            assert len(page) <= limit
            seen += page
            assert more == (len(seen) < len(NAMES))
        assert seen == NAMES

    story(tell)


def test_a_prefix_and_a_place_go_together() -> None:
    async def tell(service: OffsetManagerService, _: Outside) -> None:
        of_prefix = [name for name in NAMES if name.startswith("group-1")]
        assert await listed(service, prefix="group-1") == (of_prefix, False)
        page = await listed(service, prefix="group-1", after=of_prefix[2], limit=2)
        assert page == (of_prefix[3:5], True)
        assert await listed(service, after="h") == ([], False)

    story(tell)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_page_is_filled_with_what_its_caller_sees_and_says_nothing_of_the_rest(
    limit: int,
) -> None:
    class Narrow:
        def sees(self, need: Need) -> bool:
            assert (need.verb, need.kind) == (Verb.DESCRIBE, ResourceKind.GROUP)
            return need.name.endswith("7")

    async def tell(service: OffsetManagerService, _: Outside) -> None:
        mine = [name for name in NAMES if name.endswith("7")]
        seen: list[str] = []
        more = True
        while more:
            request = pb.ListGroupsRequest(limit=limit, after=seen[-1] if seen else "")
            reply = await service.list_groups(request, Narrow())  # type: ignore[arg-type]
            assert len(reply.groups) == min(limit, len(mine) - len(seen))
            seen += [group.group for group in reply.groups]
            more = reply.more
        assert seen == mine

    story(tell)


def test_others_get_the_loop_while_many_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "NAMES_PER_TURN", 1)
    monkeypatch.setattr(listing, "GROUPS_PER_TURN", 1)

    async def tell(service: OffsetManagerService, _: Outside) -> None:
        asking, turns = asyncio.create_task(listed(service)), 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert asking.result() == (NAMES, False)
        assert turns > 2 * len(NAMES)

    story(tell)


def test_what_goes_while_it_is_listed_is_left_out_and_a_lost_partition_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "GROUPS_PER_TURN", 1)

    async def tell(service: OffsetManagerService, outside: Outside) -> None:
        asking = asyncio.create_task(listed(service))
        await asyncio.sleep(0)
        await service.delete_group(pb.DeleteGroupRequest(group=NAMES[-1]), CALL)
        assert await asking == (NAMES[:-1], False)
        asking = asyncio.create_task(listed(service))
        await asyncio.sleep(0)
        lost = control_partition(CONSUMER_OFFSETS_ID, NAMES[0])
        del outside.replicas.by_number[lost.number]
        with pytest.raises(NotLeader):
            await asking

    story(tell)

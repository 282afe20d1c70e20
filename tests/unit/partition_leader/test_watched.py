"""With the answer to markers a leader says whether somebody looks for what they bring."""

from __future__ import annotations

import asyncio

from oncelog_server.participant.handler import ParticipantHandler
from oncelog_server.partition_leader.role import PartitionLeaderRole
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import SECOND
from tests.unit.partition_leader.messages import (
    batch,
    commit,
    fetch,
    partition_of,
    plain,
    values_of,
)
from tests.unit.partition_leader.test_reads import Session, run


def a_session() -> Session:
    session = Session()
    role = PartitionLeaderRole(session.world.config)
    handler = role.services(session.world.env)["Participant"]
    assert isinstance(handler, ParticipantHandler)
    session.participant = handler
    return session


async def unwatched(session: Session, number: int) -> bool:
    """Brings one record, and gives what was said with that."""
    request = commit(number, number, one_shot=batch([b"%d" % number]))
    reply = await session.participant.write_markers(request, session.call)
    (group,) = reply.groups
    assert not group.HasField("error"), reply
    return group.unwatched


def test_a_leader_says_whether_somebody_reads() -> None:
    async def story(_: Session) -> None:
        session = a_session()
        assert await unwatched(session, 1), "nobody has read yet"
        waiting = asyncio.ensure_future(session.fetch(offset=1, max_wait_ms=5_000))
        await asyncio.sleep(0)
        assert not await unwatched(session, 2), "somebody waits for it"
        assert values_of(await waiting) == [b"2"]
        # Who has read without waiting, too: he looks again.
        assert (await session.fetch(offset=2)).end_offset == 2
        assert not await unwatched(session, 3)
        assert await unwatched(session, 4), "he has not looked since"
        await session.fetch(partition=SECOND)
        assert await unwatched(session, 5), "somewhere else"
        raw = await session.fetch(isolation=pb.ISOLATION_UNCOMMITTED, offset=0)
        assert raw.batches
        assert not await unwatched(session, 6), "whichever way"

    run(story)


def test_a_fetch_that_has_ended_watches_nothing_more() -> None:
    async def story(session: Session) -> None:
        first, second = session.world.first, session.world.second
        await session.produce(plain(batch([b"0"])))
        assert (await session.fetch(offset=1, max_wait_ms=1)).end_offset == 1
        assert not first.watchers, "its time was over"
        waiting = asyncio.ensure_future(session.fetch(offset=1, max_wait_ms=5_000))
        await asyncio.sleep(0)
        assert first.watchers
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not first.watchers, "its caller is gone"
        # One of two has news, or an error: the other is given up, too.
        request = fetch(offset=1, max_wait_ms=5_000)
        request.partitions.add(partition=partition_of(SECOND), offset=0)
        both = asyncio.ensure_future(session.fetch_all(request))
        await asyncio.sleep(0)
        await session.produce(plain(batch([b"1"])))
        assert len(await both) == 2
        assert not first.watchers
        assert not second.watchers
        request.partitions[1].offset = 9
        (_, refused) = await session.fetch_all(request)
        assert refused.HasField("error")
        assert not first.watchers
        assert not second.watchers

    run(story)

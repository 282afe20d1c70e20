"""A reply that takes several reads, while the epoch of its replica ends."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_server.partition_leader.machine import PartitionMachine
from oncelogpb import errors
from tests.unit.partition_leader.fakes import FIRST
from tests.unit.partition_leader.messages import batch, plain
from tests.unit.partition_leader.test_reads import Session, a_log, run


@pytest.mark.parametrize("leads_anew", [False, True])
@pytest.mark.parametrize("first", ["read", "read_frames"])
def test_who_steps_down_between_two_reads_of_a_reply_says_so(first: str, leads_anew: bool) -> None:
    """Or leads another epoch, and has nothing that is durable as far as it knows yet."""

    async def story(session: Session) -> None:
        await a_log(session)
        await session.produce(plain(batch([b"c"], sequence=2)))
        replica: Any = session.world.replicas.replicas[FIRST]
        real, real_read = getattr(replica, first), replica.read

        async def read(*arguments: Any, **options: Any) -> Any:
            # As the driver: what is above its high watermark it does not give.
            return await real_read(*arguments, **options) if replica.high_watermark else []

        async def read_and_step_down(*arguments: Any, **options: Any) -> Any:
            found = await real(*arguments, **options)
            replica.machine = PartitionMachine(session.world.config) if leads_anew else None
            replica.high_watermark = 0
            return found

        replica.read = read
        setattr(replica, first, read_and_step_down)
        try:
            fetched = await session.fetch()
        except AssertionError:
            pytest.fail("an assertion, and not who leads now")
        assert errors.from_status(fetched.error).reason == "NOT_LEADER"

    run(story)

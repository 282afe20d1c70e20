"""A data log that begins behind its committed log: what is before is read from the journal, and
settled again."""

from __future__ import annotations

import pytest

from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.disk import Tear
from tests.unit.partition_leader.fakes import FIRST
from tests.unit.partition_leader.messages import batch, partition_of, send
from tests.unit.partition_leader.test_over_the_journal import CALL, Process, story
from tests.unit.partition_leader.test_settling_over_the_journal import (
    commit_small,
    configure,
    found_by_the_leader,
    turns,
    values_settled,
)

TOO_LATE = "data log begins behind its committed log"


async def settled(process: Process, *, count: int, beside: int = 0) -> list[bytes]:
    """So many, and nothing is deleted. `beside`: TxId of a transaction that is open."""
    configure(process, 1, materialization="copy")
    await process.lead(1)
    if beside:
        await process.produce(send(beside, batch([b"open"])))
    expected = await commit_small(process, count=count)
    await turns(process, 700)
    assert process.driver.settled_end == count
    return expected


def test_i26_what_the_journal_has_is_not_called_deleted() -> None:
    async def tell(process: Process) -> None:
        expected = await settled(process, count=100)
        process.driver.journal.data.begin_at(60, begun_at=1 << 40)
        assert await process.values() == expected
        data = process.driver.journal.data
        data.begin_at(100, begun_at=1 << 40)
        assert await process.values() == expected

    story(tell, 1 << 30)


def test_i25_a_begin_that_a_later_state_contradicts_is_taken_back() -> None:
    """As a version before left it, which took back no begin when a journal was cut."""

    async def tell(process: Process) -> None:
        expected = await settled(process, count=100, beside=1_000_001)
        assert process.driver.log_start == 0, "what is open needs its frame"
        data = process.driver.journal.data
        data.begin_at(100, begun_at=0)
        await turns(process, 2)
        assert process.reporter.events.count(TOO_LATE) == 1
        assert data.begin == 0
        await turns(process, 20)
        assert await values_settled(process) == expected
        assert await process.values() == expected

    story(tell, 1 << 30)


def test_i25_an_older_state_contradicts_nothing() -> None:
    """Of a snapshot that rots, the one before says less."""

    async def tell(process: Process) -> None:
        await settled(process, count=100)
        request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), offset=100)
        await process.service.truncate_partition(request, CALL)
        await turns(process, 1_300)
        data = process.driver.journal.data
        assert data.begin == 100
        assert 0 < data.begun_at <= process.driver.journal.snapshot_offset
        await turns(process, 1_300)
        assert TOO_LATE not in process.reporter.events

    story(tell, 1 << 30)


def test_i26_what_neither_has_and_nobody_deleted_is_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await commit_small(process, count=400)
        await turns(process, 120)
        again = process.lose_power(Tear.NOTHING)
        await again.lead(2)
        journal = again.driver.journal
        assert journal.log_start > 0
        journal.data.begin_at(400, begun_at=1 << 40)
        assert await again.values() == []
        assert found, "it is told, and copied anew where others have it"
        assert "is committed" in str(found[0])

    story(tell, 20_000)

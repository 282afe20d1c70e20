"""What was settled, and is in neither data log nor journal, is found before anybody asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog_server.runtime.target import Lead, StandBy
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.partition_leader.fakes import FIRST
from tests.unit.partition_leader.messages import batch, partition_of, send
from tests.unit.partition_leader.test_over_the_journal import CALL, Process, story
from tests.unit.partition_leader.test_settling_over_the_journal import (
    commit_small,
    configure,
    found_by_the_leader,
    turns,
)

DATA = "partitions/p/data"
# Of four files of data.
COUNT = 900
MISSING = "settled records are missing"
# By what was wanted, and what was open beside it: each test loses something of a copy.
SETTLED: dict[tuple[str, int], FakeDisk] = {}


def data_files(disk: FakeDisk) -> list[str]:
    return sorted(f"{DATA}/{name}" for name in disk.list(DATA) if name.endswith(".data"))


def lose_first(disk: FakeDisk) -> str:
    path = data_files(disk)[0]
    disk.remove(path)
    return DATA


def lose_last(disk: FakeDisk) -> str:
    *_, before, path = data_files(disk)
    disk.remove(path)
    return before


def shorten(disk: FakeDisk) -> str:
    path = data_files(disk)[-2]
    disk.damage(path, lambda content: content.__delitem__(slice(len(content) // 2, None)))
    return path


def lose_note_beside_rot(disk: FakeDisk) -> str:
    """The last block is not counted, and its journal went."""
    disk.remove(f"{DATA}/settled")
    disk.damage(data_files(disk)[-1], lambda content: content.__setitem__(-1, content[-1] ^ 1))
    return DATA


LOSSES = [lose_first, lose_last, shorten, lose_note_beside_rot]


async def after_loss(
    process: Process,
    lose: Callable[[FakeDisk], str],
    *,
    wanted: str = "copy",
    unclean_epoch: int = 0,
    beside: int = 0,
) -> tuple[Process, str]:
    """The next process leads, on a disk that lost something of what is settled. `wanted`: as the
    topic is by then. `beside`: TxId of a transaction that is open from the beginning."""
    if (wanted, beside) not in SETTLED:
        SETTLED[wanted, beside] = await settle(process, wanted, beside)
    disk = SETTLED[wanted, beside].copied()
    assert len(data_files(disk)) > 3, "else this loses all"
    lost = lose(disk)
    again = Process(process.loop, disk, process.snapshot_every_bytes)
    configure(again, 1 if wanted == "copy" else 2, materialization=wanted)
    again.driver.aim(Lead(2, unclean_epoch))
    await again.driver.settled()
    await turns(again, 2)
    return again, lost


async def settle(process: Process, wanted: str, beside: int) -> FakeDisk:
    """What a loss of power leaves of it."""
    configure(process, 1, materialization="copy")
    await process.lead(1)
    if beside:
        await process.produce(send(beside, batch([b"open"])))
    await commit_small(process, count=COUNT)
    await turns(process, 700)
    assert process.driver.settled_end == COUNT
    assert (process.driver.log_start == 0) == bool(beside)
    if wanted != "copy":
        configure(process, 2, materialization=wanted)
        await turns(process, 1_400)
    assert MISSING not in process.reporter.events
    process.disk.crash(Tear.NOTHING)
    return process.disk.reopen()


@pytest.mark.parametrize("wanted", ["copy", "reference"])
@pytest.mark.parametrize("lose", LOSSES)
def test_i26_records_that_are_missing_are_told_when_a_log_is_opened(
    monkeypatch: pytest.MonkeyPatch, lose: Callable[[FakeDisk], str], wanted: str
) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        again, lost = await after_loss(process, lose, wanted=wanted)
        assert again.reporter.events.count(MISSING) == 1
        assert again.reporter.counted["records_missing"] > 0
        assert str(found[0]).startswith("CORRUPT_LOG: offsets"), "it is copied anew where it can be"
        assert lost in str(found[0])
        again.driver.aim(StandBy())
        await again.driver.settled()
        assert again.reporter.counted["records_missing"] == 0, "an alarm that would never end"

    story(tell, 4_000)


def test_i26_records_that_are_missing_after_an_unclean_election_are_told_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        again, _ = await after_loss(process, lose_first, unclean_epoch=1)
        assert MISSING in again.reporter.events
        assert not found, "no other replica has more"

    story(tell, 4_000)


@pytest.mark.parametrize("lose", LOSSES)
def test_i26_what_the_journal_has_is_not_missing(
    monkeypatch: pytest.MonkeyPatch, lose: Callable[[FakeDisk], str]
) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        again, _ = await after_loss(process, lose, beside=1_000_001)
        assert MISSING not in again.reporter.events
        assert not found
        assert len(set(await again.values())) == COUNT

    story(tell, 4_000)


def test_i26_what_stands_behind_the_start_of_the_journal_is_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last file is gone, and what was in it is settled again."""
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await commit_small(process, count=600)
        await turns(process, 700)
        await process.produce(send(1_000_001, batch([b"open"])))
        await commit_small(process, count=300, first=601)
        await turns(process, 700)
        process.disk.crash(Tear.NOTHING)
        disk = process.disk.reopen()
        lose_last(disk)
        again = Process(process.loop, disk, process.snapshot_every_bytes)
        configure(again, 1, materialization="copy")
        await again.lead(2)
        assert again.driver.log_start > 0
        await turns(again, 2)
        assert MISSING not in again.reporter.events
        assert not found
        assert len(set(await again.values())) == COUNT

    story(tell, 4_000)


def test_i26_what_was_deleted_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await commit_small(process, count=COUNT)
        await turns(process, 700)
        request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), offset=COUNT - 1)
        await process.service.truncate_partition(request, CALL)
        await turns(process, 1_400)
        again = process.lose_power(Tear.NOTHING)
        configure(again, 1, materialization="copy")
        await again.lead(2)
        await turns(again, 2)
        assert MISSING not in again.reporter.events
        assert not found

    story(tell, 4_000)

"""What is readable of a topic with materialization `copy` is settled, over the real driver and
journal on a disk that loses power."""

from __future__ import annotations

import asyncio
import random
from errno import ENOSPC

import pytest

from oncelog_server.core.settling import BLOCK_BYTES
from oncelog_server.runtime.replica import settling, settling_source
from oncelog_server.runtime.replica.compacting import COMPACT_AT_LAST_MS
from oncelog_server.runtime.replica.followers import Followers
from oncelog_server.runtime.replica.leading import LOOK_AT_WORK_MS
from oncelog_server.runtime.target import Lead
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.partition_leader.fakes import FIRST, TOPIC
from tests.unit.partition_leader.messages import abort, batch, partition_of, plain, send
from tests.unit.partition_leader.settled import records_of
from tests.unit.partition_leader.test_keys import keyed
from tests.unit.partition_leader.test_over_the_journal import CALL, Process, story

FILLING = b"." * 3_000


def configure(process: Process, version: int, **configs: str) -> None:
    """As etcd shows the topic from now on."""
    process.world.metadata.by_name[TOPIC.name] = TOPIC._replace(configs=configs, version=version)


async def values_settled(process: Process, offset: int = 0) -> list[bytes | None]:
    """All that stands in the data log from there on."""
    data = process.driver.journal.data
    read: list[bytes | None] = []
    while offset < data.settled_end:
        for block in await data.read(offset, 10_000):
            read += [it.value for it in records_of(block.encoding, block.payload)]
            offset = block.end_offset
    return read


@pytest.mark.parametrize("tear", list(Tear))
@pytest.mark.parametrize("seed", [1, 2])
def test_i09_i14_what_is_settled_is_the_committed_log(seed: int, tear: Tear) -> None:
    chance = random.Random(seed)

    async def tell(process: Process) -> None:
        expected: list[bytes] = []
        open_: list[int] = []
        sequence = settled_end = 0
        for epoch in range(1, 5):
            configure(process, 1, materialization="copy")
            await process.lead(epoch)
            data = process.driver.journal.data
            assert data.settled_end >= settled_end, "what was noted is durable"
            assert await values_settled(process) == expected[: data.settled_end]
            for n in range(40):
                value = b"%d.%d" % (epoch, n)
                match chance.choice(["plain", "plain", "send", "commit"]):
                    case "plain":
                        await process.produce(plain(batch([value, FILLING], sequence=sequence)))
                        sequence += 2
                        expected += [value, FILLING]
                    case "send":
                        open_.append(epoch * 100 + n)
                        await process.produce(send(open_[-1], batch([b"%d" % open_[-1], FILLING])))
                    case "commit" if open_:
                        tx_id = open_.pop(0)
                        await process.commit(tx_id, 2)
                        expected += [b"%d" % tx_id, FILLING]
                process.driver.report()
                await asyncio.sleep(0.3)
            settled = await values_settled(process)
            assert settled == expected[: len(settled)]
            assert len(settled) > len(expected) // 2, "it keeps up"
            assert await process.values() == expected
            settled_end = len(settled)
            process = process.lose_power(tear)

    story(tell, 20_000)


async def commit_small(process: Process, *, count: int, first: int = 1) -> list[bytes]:
    """So many transactions of one record, each with an aborted neighbour; their values."""
    expected: list[bytes] = []
    for n in range(first, first + count):
        value = b"%d " % n + b"x" * 200
        await process.produce(send(2 * n, batch([value])))
        await process.produce(send(2 * n + 1, batch([b"aborted" * 30])))
        await process.commit(2 * n, 1)
        await process.participant.write_markers(abort(2 * n + 1), CALL)
        expected.append(value)
    return expected


async def turns(process: Process, seconds: int) -> None:
    """As the process gives them, about every second."""
    for _ in range(seconds):
        process.world.clock.monotonic_ms += 1_000
        process.driver.tick()
        process.driver.report()
        await asyncio.sleep(1)


def test_i32_what_is_settled_outlives_its_journal() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await process.produce(send(1_000_001, batch([b"open"])))
        expected = await commit_small(process, count=300)
        await turns(process, 60)
        assert process.driver.log_start == 0, "what is open needs its frame"
        await process.commit(1_000_001, 1)
        expected.append(b"open")
        expected += await commit_small(process, count=100, first=600_000)
        await turns(process, 120)
        assert process.driver.log_start > 600, "nothing is deleted, and the front is gone"
        assert await process.values() == expected
        again = process.lose_power(Tear.NOTHING)
        await again.lead(2)
        assert again.driver.log_start > 600
        assert await again.values() == expected

    story(tell, 20_000)


def test_i25_a_start_that_rests_on_blocks_says_where_they_were_settled_from() -> None:
    """Of a log that is cut below that, blocks go, and frames that were before its start."""

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await commit_small(process, count=400)
        await turns(process, 120)
        journal = process.driver.journal
        assert "log begins later" in process.reporter.events, "its front goes"
        assert journal.log_start < journal.allowed.at <= journal.data.settled_at

    story(tell, 20_000)


def test_i31_a_step_holds_so_many_bytes_however_much_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[int] = []

    async def next_units(source: settling_source.Source) -> settling_source.Units:
        units = await original(source)
        steps.append(sum(len(stored.frame.payload) for _, stored in units))
        return units

    original = settling_source.Source.next_units
    monkeypatch.setattr(settling_source.Source, "next_units", next_units)
    monkeypatch.setattr(settling_source, "STEP_BYTES", 1 << 20)

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        for n in range(60):
            await process.produce(send(1, batch([b"." * 100_000], sequence=n)))
        await process.commit(1, 60)
        await turns(process, 700)
        assert process.driver.settled_end == 60
        assert max(steps) < (1 << 20) + 101_000, "more than a step was held"
        assert len(steps) >= 6

    story(tell, 1 << 30)


def test_a_topic_that_is_quiet_is_settled_in_the_end() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        expected = await commit_small(process, count=5)
        await turns(process, settling.SNAPSHOT_AT_LAST_MS // 1000 - 10)
        assert process.driver.settled_end == 0
        assert process.driver.rests_ms <= LOOK_AT_WORK_MS, "it would not be asked any more"
        await turns(process, 20)
        assert await values_settled(process) == expected
        before = process.driver.journal.snapshot_offset
        await turns(process, 2 * settling.SNAPSHOT_AT_LAST_MS // 1000)
        assert process.driver.journal.snapshot_offset == before, "one was enough"

    story(tell, 1 << 30)


def test_tombstones_of_a_topic_that_is_quiet_go_in_the_end() -> None:
    """A replica drops them by a snapshot that lets them go, and nothing else makes one."""

    async def tell(process: Process) -> None:
        configure(process, 1, **{"cleanup.policy": "compact", "delete.retention.ms": "1000"})
        await process.lead(1)
        await turns(process, 2)
        for number in range(20):
            await process.produce(plain(keyed([b"%d" % (number % 5)], sequence=number)))
        data = process.driver.journal.data
        await turns(process, (settling.SNAPSHOT_AT_LAST_MS + COMPACT_AT_LAST_MS) // 1000 + 60)
        assert data.compacted_to == 20
        await turns(process, settling.SNAPSHOT_AT_LAST_MS // 1000 + 60)
        says = process.driver.machine.settled().compaction
        assert says.tombstones_below == 19, "the journal says so by now"
        await turns(process, COMPACT_AT_LAST_MS // 1000 + 60)
        assert data.cleanness.tombstones_to == 19, "they stay for ever"
        before = process.driver.journal.snapshot_offset
        await turns(process, 2 * settling.SNAPSHOT_AT_LAST_MS // 1000)
        assert process.driver.journal.snapshot_offset == before, "one was enough"

    story(tell, 1 << 30)


def test_materialization_changes_on_a_living_topic_both_ways() -> None:
    async def tell(process: Process) -> None:
        await process.lead(1)
        expected = await commit_small(process, count=100)
        await turns(process, 30)
        assert process.driver.settled_end == 0
        configure(process, 1, materialization="copy")
        await turns(process, 1)
        expected += await commit_small(process, count=100, first=101)
        await turns(process, 30)
        end = process.driver.settled_end
        assert end > 100, "what was there before is settled too"
        configure(process, 2, materialization="reference")
        await turns(process, 1)
        expected += await commit_small(process, count=100, first=201)
        await turns(process, 30)
        stayed = process.driver.settled_end
        assert end <= stayed < 250
        expected += await commit_small(process, count=100, first=301)
        await turns(process, 1_000)
        assert process.driver.settled_end == stayed
        assert await process.values() == expected
        configure(process, 3, materialization="copy")
        expected += await commit_small(process, count=100, first=401)
        await turns(process, 700)
        assert process.driver.settled_end == 500
        assert await process.values() == expected

    story(tell, 20_000)


def test_a_full_disk_makes_settling_wait_and_nothing_else() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        reporter = process.reporter
        process.disk.fail_files(".data", ENOSPC)
        expected = await commit_small(process, count=200)
        await turns(process, 60)
        assert process.driver.settled_end == 0
        assert reporter.counted["settling_waits"] == 1
        told = reporter.events.count("settling waits, trying again")
        assert 3 <= told <= 8, "it is told every ten seconds"
        assert await process.values() == expected, "readers and writers go on"
        assert process.driver.log_start == 0, "nothing is settled, and all of the journal is needed"
        process.disk.fail_files("", 0)
        await turns(process, 30)
        assert process.driver.settled_end > 150
        assert reporter.counted["settling_waits"] == 0
        assert reporter.events.count("settling goes on") == 1
        assert await process.values() == expected

    story(tell, 20_000)


def test_i31_what_was_deleted_before_it_was_settled_is_passed_over_and_asked_for_once() -> None:
    """A data log that has nothing has nothing to remove, wherever the committed log begins."""

    async def tell(process: Process) -> None:
        await process.lead(1)
        await commit_small(process, count=50)
        request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), offset=50)
        await process.service.truncate_partition(request, CALL)
        configure(process, 1, materialization="copy")
        await turns(process, 1)
        expected = await commit_small(process, count=100, first=51)
        # In a loop that never sleeps, no second of this would pass.
        await turns(process, 700)
        assert process.driver.settled_end == 150
        assert await values_settled(process, 50) == expected

    story(tell, 2_000)


def test_below_half_of_the_floor_of_the_disk_nothing_is_settled() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        expected = await commit_small(process, count=200)
        process.has_room = process.may_settle = False
        await turns(process, 700)
        assert process.driver.settled_end == 0, "what is settled stands twice"
        assert process.reporter.counted["settling_waits"] == 1
        # Data is refused still: it is settling that gives the disk its room back.
        process.may_settle = True
        await turns(process, 20)
        assert process.reporter.counted["settling_waits"] == 0
        assert await values_settled(process) == expected

    story(tell, 1 << 30)


def test_blocks_are_large_however_the_steps_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last block of a step lacks to its size, the next step adds."""
    monkeypatch.setattr(settling_source, "STEP_BYTES", BLOCK_BYTES + BLOCK_BYTES // 4)

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        expected: list[bytes] = []
        for n in range(1, 61):
            expected += [b"%d" % n, b"." * 100_000]
            await process.produce(send(n, batch(expected[-2:])))
            await process.commit(n, 2)
        await turns(process, 700)
        assert await values_settled(process) == expected
        data, sizes, offset = process.driver.journal.data, [], 0
        while offset < data.settled_end:
            (block, *_) = await data.read(offset, 1)
            sizes.append(len(block.payload))
            offset = block.end_offset
        assert min(sizes[:-1]) > BLOCK_BYTES // 2, "each step left a small one"

    story(tell, 1 << 30)


def found_by_the_leader(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What it takes for damage: where others keep up, its log is copied anew."""
    found: list[Exception] = []
    monkeypatch.setattr(Followers, "unreadable", lambda _, error: found.append(error))
    return found


async def without_blocks(process: Process, unclean_epoch: int = 0) -> Process:
    """The next process leads; note and blocks are gone, and the journal of them went."""
    configure(process, 1, materialization="copy")
    await process.lead(1)
    await commit_small(process, count=400)
    await turns(process, 120)
    assert process.driver.log_start > 0
    assert "settling waits, trying again" not in process.reporter.events
    process.disk.crash(Tear.NOTHING)
    disk = process.disk.reopen()
    for name in disk.list("partitions/p/data"):
        disk.remove(f"partitions/p/data/{name}")
    return await leads_again(process, disk, unclean_epoch)


async def leads_again(process: Process, disk: FakeDisk, unclean_epoch: int = 0) -> Process:
    """The next process, which has in memory nothing of what went from the disk."""
    again = Process(process.loop, disk, process.snapshot_every_bytes)
    configure(again, 1, materialization="copy")
    again.driver.aim(Lead(2, unclean_epoch))
    await again.driver.settled()
    await turns(again, 5)
    return again


def test_i26_what_is_in_neither_data_log_nor_journal_is_found_and_copied_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        await without_blocks(process)
        assert found, "who has a hole says so, and is copied anew where others have it"
        assert "neither the data log nor the journal" in str(found[0])
        assert "partitions/p/data lacks them" in str(found[0])

    story(tell, 20_000)


def test_i26_a_hole_after_an_unclean_election_is_told_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        again = await without_blocks(process, unclean_epoch=1)
        assert not found, "no other replica has more"
        assert again.reporter.counted["settling_waits"] == 1
        assert "settling waits, trying again" in again.reporter.events

    story(tell, 20_000)


def test_i26_what_was_deleted_and_is_not_settled_is_no_hole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest snapshot has records that were deleted since, and the journal of them went."""
    found = found_by_the_leader(monkeypatch)

    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        process.may_settle = False
        await commit_small(process, count=400)
        await turns(process, 5)
        request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), offset=400)
        await process.service.truncate_partition(request, CALL)
        await turns(process, 60)
        journal = process.driver.journal
        assert 0 < journal.log_start <= journal.snapshot_offset < journal.allowed.at
        process.disk.crash(Tear.NOTHING)
        again = await leads_again(process, process.disk.reopen())
        assert "settling waits, trying again" in again.reporter.events, "it came to that"
        assert not found, "a healthy replica is not copied anew"

    story(tell, 20_000)

"""A replica that ends before the leader's log begins gets what the leader has settled, too."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import pytest

from oncelog_server.core.block import Block, Units, block_of
from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.settling import Settler
from oncelog_server.partition_leader.settling import PartitionSettler
from oncelog_server.runtime.replica import receiving_data
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY
from oncelog_server.runtime.storage import snapshot_parts
from oncelog_server.runtime.storage.data_blocks import (
    BLOCK_HEADER_BYTES,
    decode_block,
    encoded_block_bytes,
)
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from oncelog_server.runtime.target import StandBy
from oncelogpb import records
from oncelogpb.errors import InvalidArgument, NotLeader
from tests.simulation.disk import Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import DIRECTORY, Bench
from tests.unit.runtime.counter import Add
from tests.unit.runtime.test_followers import Trio
from tests.unit.runtime.test_receiving import (
    BEGINS_AT,
    WithSlots,
    begin_in_the_middle,
    follow,
    wires_of,
)
from tests.unit.runtime.test_trimming import live

SETTLER: Final = PartitionSettler()
# Records that the leader has settled, two to a unit.
SETTLED: Final = 60
# Journal offset of the snapshot that they were settled from, in epoch 2.
SETTLED_AT: Final = 90


class Settles(WithSlots):
    def settler(self) -> Settler | None:
        return SETTLER


def unit(first: int) -> Block:
    values: list[bytes | None] = [f"record {at:03d}".encode() * 20 for at in (first, first + 1)]
    rows = records.make_rows([None, None], values, [first, first], [(), ()])
    payload = rows.SerializeToString()
    return block_of(
        Units(*(array("q", [number]) for number in (2, 0, 0, 0, 0, 0, first + 10, 1_000 + first))),
        payload,
        first_offset=first,
        exposed_below=first + 12,
        max_timestamp_us=first,
        encoding=records.ROWS,
        client_crc=records.checksum(payload),
    )


def units_of(blocks: Iterable[Block]) -> list[Block]:
    found = [unit for block in blocks for unit in SETTLER.split(block)]
    return [unit._replace(exposed_below=0) for unit in found]


def read_all(log: DataLog) -> list[Block]:
    found: list[Block] = []
    while (offset := found[-1].end_offset if found else log.begin) < log.settled_end:
        part, at = memoryview(log.parts_from(offset, 1 << 20)), 0
        while at < len(part):
            found.append(decode_block(part, at))
            at += encoded_block_bytes(found[-1])
    return found


def settled(log: DataLog, start: int, end: int, *, units_each: int) -> None:
    """These records, in blocks of so many units."""
    units = [unit(first) for first in range(start, end, 2)]
    for number in range(0, len(units), units_each):
        log.append([SETTLER.joined(units[number : number + units_each])])
    log.sync_and_note(SETTLED_AT)


def story(tell: Callable[[Trio], Coroutine[Any, Any, None]]) -> None:
    """The leader's log begins in the middle, and half of what was before is settled."""
    loop = VirtualTimeLoop()

    async def main() -> None:
        trio = Trio(loop)
        for bench in trio.benches:
            bench.role = Settles()
            bench.driver = bench._open()
        begin_in_the_middle(trio.benches[0])
        settled(trio.benches[0].journal.data, 0, SETTLED, units_each=5)
        await tell(trio)

    run(main(), loop)


def rot(bench: Bench) -> None:
    """A bit of the first block."""
    path = f"{DIRECTORY}/data/{0:020d}.data"
    data = bytearray(bench.disk.bytes_of(path))
    data[BLOCK_HEADER_BYTES + 5] ^= 1
    bench.disk.write_and_sync(bench.disk.open(path), 0, bytes(data))


def asked_for(trio: Trio, follower: Bench) -> list[int]:
    """Offsets of the data log, as they were fetched."""
    wires = wires_of(trio, follower)
    return [it.position for wire in wires for it in wire.fetched if it.content is Content.DATA]


def require_same(one: Bench, other: Bench) -> None:
    theirs = units_of(read_all(one.journal.data))
    assert units_of(read_all(other.journal.data)) == theirs
    assert [it.first_offset for it in theirs] == list(range(0, SETTLED, 2))
    assert other.journal.log_start == one.journal.log_start == BEGINS_AT
    assert other.journal.log_end == one.journal.log_end


async def after_a_kill(trio: Trio, number: int, *, keeps_page_cache: bool = False) -> Bench:
    """The node starts again, on what its disk has. `keeps_page_cache`: of the process alone."""
    old = trio.benches[number]
    old.driver.aim(StandBy())
    if not keeps_page_cache:
        old.disk.crash(Tear.NOTHING)
    new = trio.benches[number] = Bench(
        old.loop, old.disk.reopen(), min_insync_replicas=2, node_id=old.node_id
    )
    new.follow = functools.partial(trio._wire, new)
    new.role = Settles()
    new.driver = new._open()
    return new


async def killed_on_the_way(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Two, when it had some parts of what one has settled, and nothing else."""
    monkeypatch.setattr(snapshot_parts, "PART_BYTES_MAX", 64)
    monkeypatch.setattr(receiving_data, "SYNC_EVERY_BYTES", 1)
    one, two, _ = trio.benches
    await trio.elect(one, 3, followers=0)
    two.driver.aim(follow(one))
    for _ in range(3_000):
        if len(asked_for(trio, two)) == 5:
            break
        two.driver.report()
        await asyncio.sleep(0.001)
    two = await after_a_kill(trio, 1)
    assert 0 < two.journal.data.settled_end < SETTLED
    assert two.journal.log_end == 0
    return two


def test_i35_who_begins_where_the_leaders_log_begins_gets_what_is_settled_before_it() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        assert await one.driver.submit(Add(7)) > 0
        for bench in (two, three):
            require_same(one, bench)
            assert bench.journal.allowed == Allowance(BEGINS_AT, 2)
        again = await after_a_kill(trio, 1)
        require_same(one, again)

    story(tell)


def test_a_role_without_a_committed_log_asks_for_none() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        two.role = WithSlots()
        two.driver = two._open()
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=5)
        assert two.journal.log_start == BEGINS_AT
        assert asked_for(trio, two) == []

    story(tell)


def test_who_has_some_of_it_gets_what_is_behind_however_its_blocks_are_cut() -> None:
    """A follower that was away for an hour does not fetch what it settled in the years before."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        settled(two.journal.data, 0, 36, units_each=4)
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        assert min(asked_for(trio, two)) == 36
        require_same(one, two)
        firsts = [block.first_offset for block in read_all(two.journal.data)]
        assert firsts[:7] == [0, 8, 16, 24, 32, 36, 40], "its own, the end of one, and the leader's"

    story(tell)


def require_same_from(one: Bench, other: Bench, begin: int) -> None:
    assert other.journal.log_start == BEGINS_AT
    assert other.journal.data.begin == begin, "what is deleted stays deleted"
    found = units_of(read_all(other.journal.data))
    theirs = [it for it in units_of(read_all(one.journal.data)) if it.end_offset > begin]
    assert [it for it in found if it.end_offset > begin] == theirs


def test_who_begins_within_a_unit_gets_it_whole() -> None:
    """Records were deleted up to the middle of a transaction, and nothing is settled behind yet."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        two.journal.data.begin_at(23, begun_at=0)
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        require_same_from(one, two, 23)

    story(tell)


def test_who_has_blocks_that_do_not_fit_the_leaders_gets_all_of_them_anew() -> None:
    """Whatever they are: no block of the leader's ever begins where they end."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        settled(two.journal.data, 1, 23, units_each=4)
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        require_same_from(one, two, 1)
        assert two.reporter.events.count("settled records do not fit the leader's") == 1

    story(tell)


def test_i35_who_has_settled_as_far_as_its_leader_keeps_it_where_its_log_begins_anew() -> None:
    """It was away since, and there is nothing to fetch."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        two.journal.append(Frame(FrameKind.EPOCH_START), epoch=1, time_ms=0)
        writes, end = two.journal.take_writes()
        for write in writes:
            two.disk.write_and_sync(write.file, write.position, b"".join(write.chunks))
        two.journal.mark_synced(end)
        for first in range(0, SETTLED, 2):
            two.journal.data.append([unit(first)._replace(exposed_below=1)])
        two.journal.data.sync_and_note(1)
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        require_same(one, two)
        require_same(one, await after_a_kill(trio, 1))

    story(tell)


def test_i25_what_came_before_a_kill_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(trio: Trio) -> None:
        two = await killed_on_the_way(trio, monkeypatch)
        one, had = trio.benches[0], two.journal.data.settled_end
        trio.wires.clear()
        two.driver.aim(follow(one))
        await live(*trio.benches, seconds=15)
        assert min(asked_for(trio, two)) == had
        require_same(one, two)

    story(tell)


def test_i25_blocks_of_a_leader_are_kept_for_those_who_have_what_they_rest_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader is lost, and another one led uncleanly: its log was never that far, and may show
    other records at these offsets."""

    async def tell(trio: Trio) -> None:
        two = await killed_on_the_way(trio, monkeypatch)
        one, _, three = trio.benches
        assert two.journal.allowed == Allowance(SETTLED_AT, 2), "noted before the first block"
        one.depose()
        await trio.elect(three, 4)
        await live(*trio.benches, seconds=10)
        assert two.disk.list(ORPHANS_DIRECTORY), "these records are of no log that there is"
        assert two.journal.data.settled_end == 0
        assert two.journal.log_end == three.journal.log_end

    story(tell)


def test_i25_who_is_elected_with_blocks_above_its_log_gives_them_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell(trio: Trio) -> None:
        two = await killed_on_the_way(trio, monkeypatch)
        one, _, three = trio.benches
        one.depose()
        await trio.elect(two, 4)
        await live(two, three, seconds=10)
        assert await two.driver.submit(Add(1)) == 1
        assert two.journal.data.settled_end == 0
        assert three.journal.log_end == two.journal.log_end

    story(tell)


def test_what_the_leader_deletes_meanwhile_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell(trio: Trio) -> None:
        two = await killed_on_the_way(trio, monkeypatch)
        one = trio.benches[0]
        one.journal.data.begin_at(50, begun_at=0)
        settled(one.journal.data, 50, SETTLED, units_each=5)
        two.driver.aim(follow(one))
        await live(*trio.benches, seconds=15)
        assert two.journal.data.begin == 50
        assert units_of(read_all(two.journal.data)) == units_of(read_all(one.journal.data))
        assert two.journal.log_start == BEGINS_AT

    story(tell)


def test_i35_what_the_leader_settles_meanwhile_is_not_missed() -> None:
    """Its log begins where it does because of that, too, by the time its snapshot is fetched."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        real, more = one.driver.snapshot_part, SETTLED + 20

        async def snapshot_part(*asked: Any, **options: Any) -> Any:
            if asked[0].content is Content.FILE and one.journal.data.settled_end < more:
                settled(one.journal.data, SETTLED, more, units_each=5)
            return await real(*asked, **options)

        one.driver.snapshot_part = snapshot_part  # type: ignore[method-assign]
        await trio.elect(one, 3, followers=1)
        await live(*trio.benches, seconds=15)
        assert two.journal.log_start == BEGINS_AT
        assert two.journal.data.settled_end == more

    story(tell)


def test_what_a_leader_has_settled_waits_below_half_of_the_floor_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other partitions write to the same disk meanwhile: what is left is theirs."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        monkeypatch.setattr(snapshot_parts, "PART_BYTES_MAX", 64)
        real = one.driver.snapshot_part

        async def snapshot_part(*asked: Any, **options: Any) -> Any:
            two.may_settle = two.may_settle and asked[0].position < 30
            return await real(*asked, **options)

        one.driver.snapshot_part = snapshot_part  # type: ignore[method-assign]
        await trio.elect(one, 3, followers=1)
        await live(*trio.benches, seconds=30)
        asked = asked_for(trio, two)
        assert two.journal.data.settled_end <= max(asked) < SETTLED - 10, "of each part it is asked"
        assert two.journal.log_start == 0
        assert "disk_free_floor" in two.driver.unfit
        assert "snapshot not received, trying again" in two.reporter.events
        one.driver.snapshot_part = real  # type: ignore[method-assign]
        two.may_settle = True
        await live(*trio.benches, seconds=60)
        require_same(one, two)
        assert not two.driver.unfit

    story(tell)


def refusing(one: Bench, field: str) -> None:
    """The leader, asked for what it has settled."""
    real = one.driver.snapshot_part

    async def snapshot_part(*asked: Any, **options: Any) -> Any:
        if asked[0].content is Content.DATA:
            raise InvalidArgument("it does not know that", field=field)
        return await real(*asked, **options)

    one.driver.snapshot_part = snapshot_part  # type: ignore[method-assign]


def test_i35_a_leader_of_an_earlier_version_which_settles_nothing_is_followed() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        refusing(one, "content")
        await trio.elect(one, 3, followers=1)
        await live(*trio.benches, seconds=5)
        assert two.journal.log_start == BEGINS_AT
        assert two.journal.data.settled_end == 0
        assert len(asked_for(trio, two)) == 2, "what is not known is not asked for again and again"

    story(tell)


def test_i35_a_leader_that_refuses_for_another_reason_may_have_settled_something() -> None:
    """Its process is another one by now."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        refusing(one, "leader_boot_id")
        await trio.elect(one, 3, followers=1)
        await live(*trio.benches, seconds=30)
        assert two.journal.log_start == 0
        assert "snapshot not received, trying again" in two.reporter.events

    story(tell)


def test_i26_a_block_that_rots_at_the_leader_is_not_spread() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        rot(one)
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=120)
        assert two.journal.data.settled_end == 0
        assert two.journal.log_start == 0, "nothing is installed that is not whole"
        assert "snapshot not received, trying again" in two.reporter.events
        assert two.driver.unfit

    story(tell)


def test_i26_a_leader_whose_blocks_rot_gets_them_from_who_leads_next() -> None:
    """Found by who copies, as by who reads: another one in sync has what lacks here."""

    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        require_same(one, three)
        rot(one)
        assert one.journal.data.damaged_at(5) == (0, 10)
        with pytest.raises(NotLeader, match="copied anew"):
            await one.driver.snapshot_part(PartOf(Content.DATA), epoch=3)
        assert one.driver.unfit
        await trio.elect(three, 4, two)
        await live(*trio.benches, seconds=15)
        assert one.disk.list(ORPHANS_DIRECTORY), "it began anew"
        require_same(three, one)

    story(tell)


def test_i26_a_part_that_is_damaged_on_its_way_is_asked_for_again() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        real = one.driver.snapshot_part
        bent = 0

        async def snapshot_part(*asked: Any, **options: Any) -> Any:
            nonlocal bent
            part = await real(*asked, **options)
            if part.part.data and asked[0].content is Content.DATA and bent < 2:
                bent += 1
                wrong = part.part.data[:-1] + bytes([part.part.data[-1] ^ 1])
                return part._replace(part=part.part._replace(data=wrong))
            return part

        one.driver.snapshot_part = snapshot_part  # type: ignore[method-assign]
        await trio.elect(one, 3, followers=1)
        await live(*trio.benches, seconds=30)
        assert bent == 2
        require_same(one, two)

    story(tell)

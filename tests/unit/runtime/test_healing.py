"""What rots in a data log is found, and comes from another replica, however its blocks are cut."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import pytest

from oncelog_server.core import failpoints
from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import BootId, PartitionId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.replica import healing, scrubbing
from oncelog_server.runtime.replica.dialog import SnapshotPart
from oncelog_server.runtime.replica.healing import HEAL_WITHIN_MS
from oncelog_server.runtime.storage.data_blocks import BLOCK_HEADER_BYTES
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.snapshot_parts import Content, Part, PartOf
from oncelog_server.runtime.target import Follow, StandBy
from oncelogpb.errors import CorruptLog, NotLeader, OncelogError, Unavailable
from tests.simulation.disk import Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import DIRECTORY, PARTITION, Bench
from tests.unit.runtime.counter import Add
from tests.unit.runtime.test_followers import Trio
from tests.unit.runtime.test_receiving_data import (
    SETTLER,
    Settles,
    after_a_kill,
    read_all,
    unit,
    units_of,
)

# Records that each has settled, two to a unit.
SETTLED: Final = 60
# Units of a block of each replica.
UNITS_EACH: Final = (5, 4, 3)


class World(Trio):
    """Each has settled the same, cut differently, and each reaches the others."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__(loop)
        # Who was asked for which offset.
        self.asked: list[tuple[str, int]] = []
        # Nodes that cannot be reached.
        self.gone: set[str] = set()
        for bench in self.benches:
            bench.role = Settles()
            bench.driver = bench._open()
            self.connect(bench)

    def connect(self, bench: Bench) -> None:
        def others(partition: PartitionId, epoch: int) -> Sequence[Address]:
            there = [it for it in self.benches if it.node_id != bench.node_id]
            there.sort(key=lambda it: not it.driver.leads)
            return [Address(it.node_id, BootId(b"l" * 16), "h", 1, epoch) for it in there]

        bench.copies, bench.others, bench.fetch = 3, others, self.fetch

    async def fetch(
        self, to: Address, partition: PartitionId, wanted: PartOf, epoch: int
    ) -> SnapshotPart:
        self.asked.append((to.node_id, wanted.position))
        await asyncio.sleep(0.001)
        if to.node_id in self.gone:
            raise Unavailable("it cannot be reached")
        donor = next(bench for bench in self.benches if bench.node_id == to.node_id)
        return await donor.driver.snapshot_part(wanted, epoch=epoch)

    async def settle(self) -> None:
        """As all of them have it in their journals, which they share."""
        one, two, three = self.benches
        await self.elect(one, 1)
        while one.driver.high_watermark <= SETTLED + 20:
            await one.driver.submit(Add(1))
        await asyncio.sleep(2)
        for bench, units_each in zip(self.benches, UNITS_EACH, strict=True):
            cut = [unit(first) for first in range(0, SETTLED, 2)]
            for number in range(0, len(cut), units_each):
                bench.journal.data.append([SETTLER.joined(cut[number : number + units_each])])
            bench.journal.data.sync_and_note(SETTLED + 12)
        assert one.journal.log_end == two.journal.log_end == three.journal.log_end


def story(tell: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        world = World(loop)
        await world.settle()
        await tell(world)

    run(main(), loop)


def rot(bench: Bench, *numbers: int) -> tuple[int, int]:
    """A bit of the payload of each of these blocks. The offsets of the first one."""
    data = bench.journal.data
    blocks = read_all(data)
    raw = [data.parts_from(blocks[number].first_offset, 1) for number in numbers]
    (path,) = (file.path for file in data._files)
    for one in raw:
        at = bench.disk.bytes_of(path).find(one) + BLOCK_HEADER_BYTES + 150
        bench.disk.damage(path, functools.partial(flip, position=at))
    return blocks[numbers[0]].first_offset, blocks[numbers[0]].end_offset


def flip(content: bytearray, position: int) -> None:
    content[position] ^= 4


async def look(world: World, *, seconds: int) -> None:
    """As processes do, about every second."""
    for _ in range(seconds):
        for bench in world.benches:
            if bench.driver.is_open:
                bench.driver.report()
        await asyncio.sleep(1)


def require_healed(bench: Bench) -> None:
    data = bench.journal.data
    assert all(data.damaged_at(offset) is None for offset in range(SETTLED))
    assert data.damaged == []
    found = units_of(read_all(data))
    assert found == [it._replace(exposed_below=0) for it in map(unit, range(0, SETTLED, 2))]
    assert all(block.exposed_below <= data.settled_at for block in read_all(data))


def damaged_records(bench: Bench) -> float:
    """What the alarm says."""
    return bench.reporter.gauges["damaged_records", str(PARTITION)]


async def read(bench: Bench, offset: int) -> list[Block]:
    return await bench.driver.read_settled(offset, 1, below=SETTLED)


def test_i26_what_nobody_reads_is_found_and_healed_in_leader_and_followers_alike() -> None:
    async def tell(world: World) -> None:
        for bench, number in zip(world.benches, (2, 0, 9), strict=True):
            rot(bench, number)
        await look(world, seconds=60)
        for bench in world.benches:
            require_healed(bench)
            events = bench.reporter.events
            assert events.count("settled records are damaged") == 1
            assert events.count("damaged records healed from another replica") == 1
            assert damaged_records(bench) == 0
            assert bench.driver.journal is bench.journal, "nothing was copied anew"
        assert world.benches[0].driver.is_ready

    story(tell)


def test_i26_what_was_healed_outlives_a_loss_of_power() -> None:
    async def tell(world: World) -> None:
        _, two, _ = world.benches
        rot(two, 3)
        await look(world, seconds=60)
        require_healed(two)
        require_healed(await after_a_kill(world, 1))

    story(tell)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("tear", list(Tear))
def test_i26_a_kill_around_what_is_put_in_place_leaves_what_was_or_what_is(
    side: str, tear: Tear
) -> None:
    class Killed(BaseException):
        pass

    async def tell(world: World) -> None:
        _, two, _ = world.benches
        first, end = rot(two, 3)
        struck: list[str] = []

        def strike(name: str) -> None:
            if name == f"driver.heal_replace.{side}" and not struck:
                struck.append(name)
                raise Killed

        two.journal.data.look_at(first)
        failpoints.arm(strike)
        try:
            while not struck:
                await look(world, seconds=1)
        finally:
            failpoints.disarm()
        assert struck
        two.driver.aim(StandBy())
        two.disk.crash(tear)
        data = DataLog.open(two.disk.reopen(), f"{DIRECTORY}/data")
        assert data.settled_end == SETTLED
        damage = data.damaged_at(first)
        assert damage == ((first, end) if side == "before" else None)

    story(tell)


def test_i26_a_reader_waits_for_what_is_healed_and_the_leader_goes_on() -> None:
    async def tell(world: World) -> None:
        one, _, _ = world.benches
        first, end = rot(one, 2)
        with pytest.raises(CorruptLog) as refused:
            await read(one, first)
        error = one.driver.unreadable(refused.value)
        assert isinstance(error, Unavailable), "it is told to try again"
        assert "being healed" in str(error)
        assert (await read(one, end))[0].first_offset == end, "all else is served"
        assert await one.driver.submit(Add(1)) > 0
        assert not one.failures, "nothing is handed over"
        await look(world, seconds=5)
        assert (await read(one, first))[0].first_offset <= first
        require_healed(one)
        assert one.driver.is_ready

    story(tell)


def test_i26_who_is_damaged_there_too_is_passed_over() -> None:
    async def tell(world: World) -> None:
        one, two, three = world.benches
        first, _ = rot(one, 3)
        with pytest.raises(CorruptLog):
            await read(one, first)
        for bench in (two, three):
            rot(bench, 2, 3, 4, 5)
        await look(world, seconds=4)
        assert one.journal.data.damaged, "nobody has it"
        assert {"n2", "n3"} <= {node for node, _ in world.asked}
        assert not one.failures, "who asks is no reason to hand over"

    story(tell)


def test_i26_a_part_comes_from_one_and_the_rest_from_another() -> None:
    """What is damaged here is larger than what the first donor has of it."""

    async def tell(world: World) -> None:
        one, two, three = world.benches
        name = next(it for it in one.disk.list(f"{DIRECTORY}/data") if it.endswith(".data"))
        one.disk.remove(f"{DIRECTORY}/data/{name}")
        reopened = DataLog.open(one.disk, f"{DIRECTORY}/data")
        one.journal.data = reopened
        assert reopened.damaged_at(5) == (0, SETTLED)
        rot(two, 3)
        rot(three, 1)
        one.driver.aim(StandBy())
        await one.driver.settled()
        one.driver = one._open()
        await world.elect(two, 2, one, three)
        await look(world, seconds=30)
        for bench in world.benches:
            require_healed(bench)

    story(tell)


@pytest.mark.parametrize("bytes_at_once", [1, 64 << 20])
def test_i26_a_file_that_is_gone_is_healed_piece_by_piece(
    bytes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "HEAL_BYTES", bytes_at_once)
    monkeypatch.setattr("oncelog_server.runtime.storage.snapshot_parts.PART_BYTES_MAX", 64)

    async def tell(world: World) -> None:
        one, two, _three = world.benches
        two.disk.remove(f"{DIRECTORY}/data/{0:020d}.data")
        again = await after_a_kill(world, 1)
        world.connect(again)
        leader = Address(one.node_id, BootId(b"l" * 16), "h", 1, one.driver.epoch)
        again.driver.aim(Follow(leader))
        await asyncio.sleep(1)
        assert again.journal.data.settled_end == SETTLED, "what was promised is not taken back"
        assert again.journal.data.damaged_at(7) == (0, SETTLED)
        await look(world, seconds=40)
        require_healed(again)
        assert {node for node, _ in world.asked} == {"n1"}, "the leader is asked first"
        require_healed(await after_a_kill(world, 1))

    story(tell)


def test_i25_blocks_of_another_epoch_are_not_taken() -> None:
    """Who was deposed, or has not heard of the new leader, may have other records there."""

    async def tell(world: World) -> None:
        one, two, three = world.benches
        first, _ = rot(two, 3)
        two.journal.data.look_at(first)
        epoch = one.driver.epoch
        wanted = PartOf(Content.BLOCKS, position=first)
        for bench in (one, three):
            assert (await bench.driver.snapshot_part(wanted, epoch=epoch)).part.data
            for other in (0, epoch - 1, epoch + 1):
                with pytest.raises(NotLeader):
                    await bench.driver.snapshot_part(wanted, epoch=other)
        one.depose()
        three.driver.aim(StandBy())
        await asyncio.sleep(1)
        for bench in (one, three):
            with pytest.raises(NotLeader):
                await bench.driver.snapshot_part(wanted, epoch=epoch)
        await look(world, seconds=5)
        assert two.journal.data.damaged, "it follows who is gone, and nobody else is in that epoch"

    story(tell)


def test_i25_a_donor_that_is_cut_while_it_reads_gives_nothing() -> None:
    async def tell(world: World) -> None:
        one, _two, three = world.benches
        first, _ = rot(one, 3)
        one.journal.data.look_at(first)

        async def deposed(work: Callable[[], None]) -> None:
            work()
            three.driver.aim(StandBy())

        three.offload = deposed
        with pytest.raises(NotLeader):
            await three.driver.snapshot_part(
                PartOf(Content.BLOCKS, position=first), epoch=one.driver.epoch
            )

    story(tell)


@pytest.mark.parametrize("how", ["deposed", "it asks anew where the logs part"])
def test_i25_what_came_is_not_put_in_place_once_the_epoch_is_over(how: str) -> None:
    async def tell(world: World) -> None:
        _, two, _ = world.benches
        first, end = rot(two, 3)
        two.journal.data.look_at(first)
        real = world.fetch

        async def late(*asked: Any) -> SnapshotPart:
            part = await real(*asked)
            if how == "deposed":
                two.driver.aim(StandBy())
            elif (followed := two.driver._epochs.followed) is not None:
                for wire in world.wires:
                    wire.is_cut = True
                followed.begun()
            return part

        two.fetch = late
        await look(world, seconds=5)
        assert two.journal.data.damaged_at(first) == (first, end)

    story(tell)


def test_i26_what_comes_damaged_or_is_of_other_offsets_is_refused() -> None:
    async def tell(world: World) -> None:
        one, two, _three = world.benches
        first, end = rot(two, 3)
        two.journal.data.look_at(first)
        real = world.fetch
        bends: list[Callable[[bytes], bytes]] = [
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            lambda data: b"",
            lambda data: data[:-5],
            lambda data: one.journal.data.parts_from(SETTLED - 1, 1),
        ]
        tried: list[int] = []

        async def bent(*asked: Any) -> SnapshotPart:
            part = await real(*asked)
            tried.append(len(tried))
            bend = bends[(len(tried) - 1) // 2]
            return part._replace(part=Part(bend(part.part.data), None))

        two.fetch = bent
        for number in range(len(bends)):
            await look(world, seconds=6)
            assert two.journal.data.damaged_at(first) == (first, end), "nothing wrong is put there"
            assert len(tried) >= 2 * number
            tried[2 * (number + 1) :] = []
        two.fetch = real
        await look(world, seconds=70)
        require_healed(two)

    story(tell)


def test_i26_where_nobody_gives_it_in_time_a_leader_hands_over_as_it_did() -> None:
    async def tell(world: World) -> None:
        one, _, _ = world.benches
        world.gone |= {"n2", "n3"}
        first, _ = rot(one, 3)

        async def refusal() -> OncelogError:
            with pytest.raises(CorruptLog) as refused:
                await read(one, first)
            return one.driver.unreadable(refused.value)

        assert isinstance(await refusal(), Unavailable)
        await look(world, seconds=HEAL_WITHIN_MS // 1000 - 10)
        assert isinstance(await refusal(), Unavailable)
        assert not one.failures
        await look(world, seconds=20)
        assert damaged_records(one) > 0
        assert isinstance(await refusal(), NotLeader), "it is copied anew; ask who leads"
        assert one.failures

    story(tell)


def test_i26_a_leader_hands_over_at_once_to_who_has_it_in_a_journal_alone() -> None:
    """Settling a quiet log may take ten minutes there."""

    async def tell(world: World) -> None:
        one, two, _ = world.benches
        world.gone.add("n3")
        two.journal.data.begin_at(0, begun_at=0)
        first, _ = rot(one, 3)
        with pytest.raises(CorruptLog) as refused:
            await read(one, first)
        assert isinstance(one.driver.unreadable(refused.value), Unavailable)
        await look(world, seconds=3)
        assert "has not settled" in one.leadership.healing.says
        assert isinstance(one.driver.unreadable(refused.value), NotLeader)
        assert one.failures

    story(tell)


def test_with_one_replica_it_is_told_what_to_do() -> None:
    async def tell(world: World) -> None:
        one, _, _ = world.benches
        one.copies, one.others = 1, lambda partition, epoch: ()
        first, end = rot(one, 3)
        with pytest.raises(CorruptLog) as refused:
            await read(one, first)
        await look(world, seconds=3)
        assert f"truncate --before {end}" in one.leadership.healing.says
        assert damaged_records(one) == end - first
        assert not one.leadership.healing.takes(refused.value), "nobody waits"

    story(tell)


def test_i26_where_no_other_process_runs_readers_wait_for_one() -> None:
    async def tell(world: World) -> None:
        one, _, _ = world.benches
        others, one.others = one.others, lambda partition, epoch: ()
        first, _ = rot(one, 3)
        with pytest.raises(CorruptLog) as refused:
            await read(one, first)
        await look(world, seconds=8)
        assert isinstance(one.driver.unreadable(refused.value), Unavailable)
        assert "start one" in one.leadership.healing.says
        one.others = others
        await look(world, seconds=8)
        require_healed(one)

    story(tell)


def test_nothing_is_healed_on_a_disk_that_is_nearly_full() -> None:
    async def tell(world: World) -> None:
        _, two, _ = world.benches
        first, end = rot(two, 3)
        two.journal.data.look_at(first)
        two.may_settle = False
        await look(world, seconds=8)
        assert two.journal.data.damaged_at(first) == (first, end)
        two.may_settle = True
        await look(world, seconds=8)
        require_healed(two)

    story(tell)


def test_a_log_is_read_through_again_after_a_week() -> None:
    async def tell(world: World) -> None:
        one, _, _ = world.benches
        await look(world, seconds=30)
        assert one.reporter.events.count("data log read through") == 1
        rot(one, 1)
        await look(world, seconds=30)
        assert one.journal.data.damaged_at(12) is not None, "it is not its time"
        await asyncio.sleep(scrubbing.SCRUB_EVERY_MS / 1000)
        await look(world, seconds=30)
        require_healed(one)

    story(tell)


def test_of_replicas_that_compact_no_value_stays_whose_tombstone_is_gone() -> None:
    cases = [
        # What is gone there, and here; whether its blocks of offsets 24 to 32 may come here.
        (Cleanness(0, 0, 0), Cleanness(0, 0, 0), True),
        (Cleanness(60, 0, 60), Cleanness(0, 0, 0), True),
        (Cleanness(60, 24, 60), Cleanness(0, 0, 0), True),
        (Cleanness(60, 25, 60), Cleanness(0, 0, 0), False),
        (Cleanness(60, 25, 60), Cleanness(25, 0, 60), True),
        (Cleanness(60, 60, 60), Cleanness(31, 0, 60), False),
        (Cleanness(60, 60, 60), Cleanness(32, 0, 60), True),
        (Cleanness(0, 0, 0), Cleanness(60, 24, 60), True),
        (Cleanness(0, 0, 0), Cleanness(60, 25, 60), False),
        (Cleanness(25, 0, 0), Cleanness(60, 25, 60), True),
    ]

    async def tell(world: World) -> None:
        _, two, _ = world.benches
        first, end = rot(two, 3)
        assert (first, end) == (24, 32)
        damage = two.journal.data.look_at(first)
        assert damage is not None
        assert two.driver._epochs.followed is not None
        healing_ = two.driver._epochs.followed.healing
        for there, here, may in cases:
            settled = two.journal.data._settled
            two.journal.data._settled = settled._replace(**here._asdict())
            try:
                healing_._require_as_clean(damage, there)
                assert may, (there, here)
            except Unavailable:
                assert not may, (there, here)

    story(tell)


def test_what_was_taken_out_of_a_donor_is_noted_before_its_blocks_are_there() -> None:
    async def tell(world: World) -> None:
        one, two, three = world.benches
        first, _end = rot(two, 3)
        data, there = two.journal.data, Cleanness(30, 10, 50)
        data._save(data._settled._replace(compacted_to=60, tombstones_to=20, holes_below=40))
        for bench in (one, three):
            theirs = bench.journal.data
            theirs._save(theirs._settled._replace(**there._asdict()))
        data.look_at(first)
        await look(world, seconds=5)
        assert data.damaged_at(first) is None
        assert data.cleanness == Cleanness(30, 32, 50), "the next pass takes it up again"
        reopened = DataLog.open(two.disk.reopen(), f"{DIRECTORY}/data")
        assert reopened.cleanness == data.cleanness
        assert reopened.dropped_at == data.dropped_at == one.journal.data.settled_at

    story(tell)


def test_i33_blocks_without_tombstones_are_taken_by_who_has_the_state_that_says_so() -> None:
    """Else a restart, which cuts at the end of its journal, would give the data log up."""

    async def tell(world: World) -> None:
        one, two, three = world.benches
        first, _end = rot(two, 3)
        data, end = two.journal.data, two.journal.synced_end
        for bench in (one, three):
            theirs = bench.journal.data
            theirs._save(theirs._settled._replace(tombstones_to=1, dropped_at=end + 1))
        data._save(data._settled._replace(compacted_to=60))
        damage = data.look_at(first)
        await look(world, seconds=5)
        assert data.look_at(first) == damage, "it has not got that far"
        for bench in (one, three):
            theirs = bench.journal.data
            theirs._save(theirs._settled._replace(dropped_at=end))
        await look(world, seconds=10)
        assert (data.damaged_at(first), data.dropped_at) == (None, end)

    story(tell)


def test_i33_tombstones_that_a_pass_dropped_and_did_not_note_count_as_gone() -> None:
    async def tell(world: World) -> None:
        _, two, _ = world.benches
        first, _end = rot(two, 3)
        data = two.journal.data
        damage = data.look_at(first)
        assert damage is not None
        assert two.driver._epochs.followed is not None
        healing_ = two.driver._epochs.followed.healing
        here, there = Cleanness(40, 0, 60), Cleanness(45, 0, 45)
        data._settled = data._settled._replace(**here._asdict())
        healing_._require_as_clean(damage, there)
        healing_._tombstones_below = lambda: 50
        with pytest.raises(Unavailable):
            healing_._require_as_clean(damage, there)
        healing_._require_as_clean(damage, there._replace(compacted_to=50))

    story(tell)

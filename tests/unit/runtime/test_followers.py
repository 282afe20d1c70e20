"""A leader and followers, each over a disk of its own: what is copied, cut and acknowledged."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from errno import ENOSPC
from typing import Any

import pytest

from oncelog_server.core.ids import BootId, Incarnation, PartitionId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.replica.dialog import Hears, Said, SnapshotPart, Told
from oncelog_server.runtime.replica.follower import STREAM_WINDOW_BYTES, Room
from oncelog_server.runtime.replica.followership import REFUSED_PAUSE_MS_MAX
from oncelog_server.runtime.replica.log import ANEW_MAX
from oncelog_server.runtime.replica.opening import RETRY_MS
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.replica.supply import Supply
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.segment import base_of
from oncelog_server.runtime.storage.snapshot_parts import PartOf
from oncelog_server.runtime.target import Close, Follow, Isr, StandBy
from oncelogpb.errors import CorruptLog, NotLeader, OncelogError, UnknownOutcome
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import DIRECTORY, PARTITION, Bench
from tests.unit.runtime.bench import story as alone
from tests.unit.runtime.counter import Add


class Failures(list[Exception]):
    """A disk that is full until it was tried so often: who never pauses would never end."""

    ENOUGH = 30

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def append(self, error: Exception) -> None:
        super().append(error)
        if len(self) == self.ENOUGH:
            self._bench.disk.left_bytes = None


class Wire:
    """A follower's dialog with the leader's driver; what is said arrives a turn later."""

    def __init__(self, leader: Bench, follower: Bench, epoch: int, hears: Hears) -> None:
        self.leader, self.follower, self.epoch, self.hears = leader, follower, epoch, hears
        self.is_cut = False
        self.supply: Supply | None = None
        self.room = Room(STREAM_WINDOW_BYTES)
        # What the leader told.
        self.heard: list[Told] = []
        # Frames are damaged on their way.
        self.bends = False
        # What was asked for of what was before the leader's log; so many answers are lost.
        self.fetched: list[PartOf] = []
        self.losses = 0
        self._soon(hears.begun)

    def _soon(self, what: Callable[..., None], *arguments: object) -> None:
        self.leader.loop.call_soon(lambda: None if self.is_cut else what(*arguments))

    def say(self, said: Said) -> None:
        self._soon(self._arrives, said)

    def _arrives(self, said: Said) -> None:
        if self.supply is None or self.supply.is_over:
            try:
                self.supply = self.leader.driver.supply(
                    Incarnation(self.follower.journal.incarnation),
                    node=self.follower.node_id,
                    epoch=self.epoch,
                    stream=self.room,
                    tell=self._tell,
                )
            except OncelogError as error:
                self._soon(self.hears.told, Told(said.epoch, 0, error))
                return
        self.supply.said(said)

    def _tell(self, told: Told) -> None:
        self.heard.append(told)
        if self.bends and isinstance(told.what, bytes):
            told = told._replace(what=told.what[:-1] + bytes([told.what[-1] ^ 1]))
        self._soon(self.hears.told, told)

    async def fetch(self, wanted: PartOf) -> SnapshotPart:
        self.fetched.append(wanted)
        await asyncio.sleep(0.001)
        if self.losses:
            self.losses -= 1
            raise UnknownOutcome("the answer was lost")
        return await self.leader.driver.snapshot_part(wanted, epoch=self.epoch)

    def close(self) -> None:
        self.is_cut = True
        if self.supply is not None:
            self.supply.end()


class Trio:
    """n1, n2 and n3, and the wires between them."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        *,
        snapshot_every_bytes: int = 1 << 30,
        segment_bytes: int = 1 << 16,
    ) -> None:
        self.benches = [
            Bench(
                loop,
                min_insync_replicas=2,
                node_id=f"n{number}",
                snapshot_every_bytes=snapshot_every_bytes,
                segment_bytes=segment_bytes,
            )
            for number in (1, 2, 3)
        ]
        self.wires: list[Wire] = []
        self.revision = 1
        for bench in self.benches:
            bench.follow = functools.partial(self._wire, bench)

    def _wire(
        self,
        follower: Bench,
        partition: PartitionId,
        target: Follow,
        incarnation: Incarnation,
        hears: Hears,
    ) -> Wire:
        leader = next(b for b in self.benches if b.node_id == target.leader.node_id)
        self.wires.append(Wire(leader, follower, target.epoch, hears))
        return self.wires[-1]

    async def elect(self, leader: Bench, epoch: int, *isr: Bench, followers: int = 2) -> None:
        """The others follow it; returns when it answers, or a while has passed."""
        self.revision += 10
        members = tuple(Incarnation(bench.journal.incarnation) for bench in (leader, *isr))
        leader.grant(epoch, isr=Isr(self.revision, members), replication_factor=3)
        address = Address(leader.node_id, BootId(b"l" * 16), "h", 1, epoch)
        others = [bench for bench in self.benches if bench is not leader]
        for bench in others[:followers]:
            bench.driver.aim(Follow(address))
        await asyncio.sleep(1)

    def frames(self, bench: Bench) -> list[object]:
        return list(bench.journal.replay(0))


def story(tell: Callable[[Trio], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Trio(loop))

    run(main(), loop)


def test_i5_what_is_answered_is_synced_by_all_in_sync() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        assert one.driver.is_ready, "the two others have joined"
        for number in range(1, 50):
            await one.driver.submit(Add(number))
            for bench in (two, three):
                assert bench.journal.synced_end >= one.driver.high_watermark
        await asyncio.sleep(1)
        assert trio.frames(two) == trio.frames(three) == trio.frames(one)
        assert not two.driver.is_ready
        with pytest.raises(NotLeader):
            two.driver.submit(Add(1))

    story(tell)


def test_i5_what_was_answered_is_there_after_a_failover() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        assert await one.driver.submit(Add(5)) == 5
        one.depose()
        await trio.elect(two, 2, one, three)
        assert two.driver.is_ready
        assert await two.driver.submit(Add(1)) == 6
        await asyncio.sleep(1)
        assert trio.frames(one) == trio.frames(two) == trio.frames(three)

    story(tell)


def test_i7_what_was_never_acknowledged_is_cut() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        for wire in trio.wires:
            wire.is_cut = True
        lost = one.driver.submit(Add(10))
        await asyncio.sleep(0.1)
        one.depose()
        with pytest.raises(UnknownOutcome):
            await lost
        assert one.journal.log_end > two.journal.log_end
        await trio.elect(two, 2, one, three)
        assert await two.driver.submit(Add(1)) == 1
        await asyncio.sleep(1)
        assert trio.frames(one) == trio.frames(two)
        assert "log cut" in one.reporter.events

    story(tell)


def test_i5_a_follower_that_is_gone_leaves_the_isr_and_comes_back() -> None:
    async def tell(trio: Trio) -> None:
        one, _, three = trio.benches
        await trio.elect(one, 1)
        gone = next(wire for wire in trio.wires if wire.follower is three)
        gone.is_cut = True
        answer = one.driver.submit(Add(5))
        for _ in range(30):
            await asyncio.sleep(0.1)
            one.driver.tick()
        assert await answer == 5
        assert three.journal.log_end < one.journal.log_end
        gone.is_cut = False
        gone.hears.begun()
        await asyncio.sleep(1)
        assert trio.frames(three) == trio.frames(one)
        assert one.changes[-1][0].who == three.journal.incarnation

    story(tell)


def test_i18_who_is_told_otherwise_hears_its_leader_no_more() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        end = two.journal.log_end
        two.depose()
        one.driver.submit(Add(1))
        await asyncio.sleep(1)
        assert two.journal.log_end == end
        assert two.driver.stage is Stage.STANDBY

    story(tell)


def test_i29_a_follower_whose_disk_failed_abandons_it_and_follows_again() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        two.disk.fail_next()
        answer = one.driver.submit(Add(3))
        await asyncio.sleep(2)
        assert await answer == 3
        assert len(two.failures) == 1
        assert trio.frames(two) == trio.frames(one)

    story(tell)


def test_i29_a_follower_on_a_full_disk_tries_again_now_and_then_until_there_is_room() -> None:
    """Its own notes are small enough, what it copies is not."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        two.failures = Failures(two)
        two.disk.left_bytes = 5_000
        two.disk.fail_next(ENOSPC)
        answers = [one.driver.submit(Add(1)) for _ in range(500)]
        await asyncio.sleep(10 * RETRY_MS / 1000)
        assert 5 <= len(two.failures) <= 11
        two.disk.left_bytes = None
        await asyncio.sleep(2 * RETRY_MS / 1000)
        assert await answers[-1] == 500
        assert trio.frames(two) == trio.frames(one)

    story(tell)


def test_catching_up_takes_many_reads() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1, followers=1)
        for number in range(1, 3_000):
            one.driver.submit(Add(number))
        await asyncio.sleep(1)
        assert three.journal.log_end == 0
        three.driver.aim(two.driver._state.target)
        await asyncio.sleep(5)
        assert trio.frames(three) == trio.frames(one)
        assert three.journal.incarnation.hex() in {m.hex() for c, _ in one.changes for m in c.isr}

    story(tell)


def test_a_high_watermark_travels_with_frames_or_alone_where_none_follow() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        wire = next(wire for wire in trio.wires if wire.follower is two)
        wire.heard.clear()
        for number in range(1, 101):
            await one.driver.submit(Add(number))
        await asyncio.sleep(1)
        assert two.driver._epochs.followership is not None
        assert two.driver._epochs.followership.high_watermark == one.driver.high_watermark
        alone = [told for told in wire.heard if told.what is None]
        assert len(alone) == 1, "no message for each of its moves"
        assert len(wire.heard) == 101

    story(tell)


def test_what_is_appended_in_one_turn_is_one_message() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        wire = next(wire for wire in trio.wires if wire.follower is two)
        wire.heard.clear()
        answers = [one.driver.submit(Add(number)) for number in range(1, 101)]
        await asyncio.gather(*answers)
        assert len([told for told in wire.heard if told.what is not None]) == 1

    story(tell)


def test_who_finds_no_room_is_sent_frames_once_others_are_done() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1, followers=1)
        wire = trio.wires[-1]
        wire.room.take(STREAM_WINDOW_BYTES)
        answer = one.driver.submit(Add(1))
        await asyncio.sleep(0.1)
        assert two.journal.log_end < one.journal.log_end
        wire.room.give_back(STREAM_WINDOW_BYTES)
        await asyncio.sleep(0.01)
        assert two.journal.log_end == one.journal.log_end
        assert await answer == 1
        assert wire.room.used_bytes == 0

    story(tell)


# ---------------------------------------------------------------------------------- damaged frames


def flip_a_bit(bench: Bench, at: int) -> None:
    """Of the first segment, behind everybody's back."""
    path = next(
        f"{DIRECTORY}/{name}" for name in sorted(bench.disk.list(DIRECTORY)) if base_of(name) == 0
    )

    def flip(content: bytearray) -> None:
        content[at] ^= 1

    bench.disk.damage(path, flip)


async def fill(leader: Bench) -> None:
    """More than memory keeps."""
    leader.journal._tail._max_bytes = 4_000
    for number in range(1, 300):
        await leader.driver.submit(Add(number))


def test_i26_a_leader_that_finds_its_own_rot_gives_up_the_epoch_and_copies_its_log_anew() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1, followers=1)
        await fill(one)
        before = one.journal.incarnation
        flip_a_bit(one, 3_000)
        three.driver.aim(two.driver._state.target)
        await asyncio.sleep(1)
        assert not one.driver.leads, "it cannot serve who is behind"
        assert [type(error) for error in one.failures] == [CorruptLog]
        assert one.journal.log_end == 0
        assert one.journal.incarnation != before, "it holds less than it said"
        assert one.disk.exists(f"{ORPHANS_DIRECTORY}/p"), "nothing is deleted"
        await trio.elect(two, 2)
        assert two.driver.is_ready
        assert await two.driver.submit(Add(1)) == sum(range(300)) + 1
        await asyncio.sleep(1)
        assert trio.frames(one) == trio.frames(two) == trio.frames(three)

    story(tell)


def test_i26_a_reader_who_meets_rot_is_sent_to_who_leads_next() -> None:
    async def tell(trio: Trio) -> None:
        one, _, _ = trio.benches
        await trio.elect(one, 1)
        await fill(one)
        flip_a_bit(one, 3_000)
        with pytest.raises(NotLeader):
            for offset in range(300):
                await one.driver.read(offset, 100, below=300)
        assert not one.driver.leads

    story(tell)


def test_i26_a_leader_that_is_alone_with_its_rot_stays() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await fill(bench)
        flip_a_bit(bench, 3_000)
        with pytest.raises(OncelogError) as met:
            for offset in range(300):
                await bench.driver.read(offset, 100, below=300)
        assert bench.driver.is_ready, "no other log has more"
        assert isinstance(met.value, CorruptLog)
        assert await bench.driver.submit(Add(1)) == sum(range(300)) + 1

    alone(tell)


@pytest.mark.parametrize(
    "damage",
    [
        JournalDamaged("a file", 7, "a bit flipped"),
        CorruptLog("what is settled would lack what was superseded"),
    ],
)
def test_i26_a_follower_that_finds_its_log_damaged_copies_it_anew(damage: Exception) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await fill(one)
        two.depose()
        await asyncio.sleep(0.1)
        two.driver.aim(StandBy())
        await two.driver.settled()
        follow = next(b.driver._state.target for b in trio.benches if b.driver.follows)
        two.failing_opens = [damage]
        # As a process that starts finds it.
        two.driver = two._open()
        two.driver.aim(follow)
        await asyncio.sleep(5)
        assert two.driver.follows
        assert trio.frames(two) == trio.frames(one)
        assert two.disk.exists(f"{ORPHANS_DIRECTORY}/p")

    story(tell)


def test_i26_a_log_that_is_damaged_again_and_again_is_given_up() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        follow = two.driver._state.target
        two.driver.aim(Close())
        await two.driver.settled()
        two.failing_opens = [JournalDamaged("a file", 7, "a bit flipped")] * 20
        two.driver = two._open()
        two.driver.aim(follow)
        await asyncio.sleep(60)
        assert len(two.failing_opens) == 20 - ANEW_MAX - 1
        assert two.driver.stage is Stage.CLOSED
        assert two.reporter.gauges["replica_unusable", str(PARTITION)] == 1
        two.driver.aim(Close())

    story(tell)


def test_i26_takes_that_are_damaged_on_the_way_are_asked_for_more_and_more_seldom() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        wire = next(wire for wire in trio.wires if wire.follower is two)
        wire.bends = True
        answer = one.driver.submit(Add(5))
        before = two.journal.log_end
        await asyncio.sleep(60)
        assert two.journal.log_end == before, "of a damaged take nothing is kept"
        takes = [told for told in wire.heard if isinstance(told.what, bytes)]
        assert len(takes) < 15, "more and more seldom"
        assert two.reporter.gauges["replica_unusable", str(PARTITION)] == 1
        assert two.reporter.events.count("replica cannot follow") == 1
        assert "cannot take what its leader sends" in two.driver.unfit
        assert one.driver.leads, "it is not the leader's log"
        wire.bends = False
        await asyncio.sleep(REFUSED_PAUSE_MS_MAX / 1000)
        assert trio.frames(two) == trio.frames(one)
        assert two.reporter.gauges["replica_unusable", str(PARTITION)] == 0
        assert two.driver.unfit == ""
        assert await answer == 5

    story(tell)


async def _cut_that_waits(trio: Trio) -> asyncio.Event:
    """n1 has frames of its own when n2 is elected, and waits for a thread to cut them."""
    one, two, three = trio.benches
    await trio.elect(one, 1)
    for wire in trio.wires:
        wire.is_cut = True
    for number in range(1, 11):
        one.driver.submit(Add(number))
    await asyncio.sleep(0.1)
    one.depose()
    await one.driver.settled()
    assert one.journal.synced_end > two.journal.synced_end, "it is synced there alone"
    gate = asyncio.Event()

    async def offload(work: Callable[[], None]) -> None:
        await gate.wait()
        work()

    one.offload = offload
    await trio.elect(two, 2, one, three)
    assert "log cut" in one.reporter.events, "it is about to be cut"
    return gate


def test_a_leader_that_resigns_while_a_log_is_cut_is_asked_again_later() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        gate = await _cut_that_waits(trio)
        # Before etcd shows its followers whom to follow next.
        two.depose()
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.sleep(1)
        assert not one.fatal, "a process ended"
        await trio.elect(three, 3, one, two)
        assert await three.driver.submit(Add(1)) == 1
        await asyncio.sleep(1)
        assert trio.frames(one) == trio.frames(two) == trio.frames(three)

    story(tell)


def test_i25_a_log_that_is_being_cut_is_not_written_to() -> None:
    async def tell(trio: Trio) -> None:
        one, _, _ = trio.benches
        gate = await _cut_that_waits(trio)
        one.disk.hold_commits()
        # About every second, of all replicas: it notes what is synced, in a commit.
        one.driver.report()
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.sleep(0.1)
        one.disk.let_commits()
        await asyncio.sleep(1)
        assert not one.fatal, "a process ended"
        assert one.journal.synced_end == one.journal.log_end, "it says what it does not have"

    story(tell)


# -------------------------------------------------------------------------------------- what shows


def test_metrics_tell_who_is_missing_how_far_behind_and_that_writes_are_refused() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches

        def shown(bench: Bench, name: str) -> float:
            return bench.reporter.gauges[name, str(PARTITION)]

        await trio.elect(one, 1)
        one.driver.report()
        assert shown(one, "in_sync_replicas") == 3
        assert shown(one, "missing_replicas") == 0
        assert shown(two, "following") == 1
        for wire in trio.wires:
            wire.is_cut = True
        lost = one.driver.submit(Add(1))
        await asyncio.sleep(5)
        one.driver.report()
        assert shown(one, "replica_lag") == 1
        assert shown(one, "replica_lag_ms") > 0
        assert shown(one, "writes_refused") == 1
        one.driver.tick()
        await asyncio.sleep(0.1)
        assert shown(one, "missing_replicas") == 1, "the ISR never shrinks below two"
        two.depose()
        three.depose()
        await asyncio.sleep(0.1)
        assert shown(two, "following") == 0
        one.depose()
        with pytest.raises(UnknownOutcome):
            await lost
        await asyncio.sleep(0.1)
        assert ("missing_replicas", str(PARTITION)) not in one.reporter.gauges

    story(tell)

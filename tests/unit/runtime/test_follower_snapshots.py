"""Followers that keep their snapshot fresh: what is in it, when it is written, and who replays what
when a follower is elected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from errno import ENOSPC
from typing import Any

import pytest

from oncelog_server.core.frame import Frame
from oncelog_server.core.machine import Compaction, Needs, Settled, Snapshot
from oncelog_server.runtime.replica import follower_snapshots, snapshots
from oncelog_server.runtime.replica.follower_snapshots import FollowerSnapshots
from oncelog_server.runtime.replica.snapshots import SNAPSHOT_RETRY_MS
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.target import StandBy
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import PARTITION, Bench
from tests.unit.runtime.counter import Add, Added, CounterCodec
from tests.unit.runtime.test_followers import Trio, flip_a_bit
from tests.unit.runtime.test_receiving_data import Settles
from tests.unit.storage.cleaned_logs import unit_of

EVERY_BYTES = 4_000
FRAMES = 300


class Counting(CounterCodec):
    """Counts what is replayed; refuses what a later version wrote."""

    def __init__(self) -> None:
        self.decoded = 0
        self.unknown: int | None = None

    def decode(self, frame: Frame) -> Added:
        self.decoded += 1
        record = super().decode(frame)
        if record.number == self.unknown:
            raise ValueError("of a later version")
        return record


def counting(bench: Bench) -> Counting:
    codec = Counting()
    bench.role.codec = codec
    return codec


def story(tell: Callable[[Trio], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Trio(loop, snapshot_every_bytes=EVERY_BYTES))

    run(main(), loop)


async def write(leader: Bench, frames: int = FRAMES) -> None:
    await asyncio.gather(*(leader.driver.submit(Add(number)) for number in range(1, frames + 1)))
    await asyncio.sleep(1)


async def look(bench: Bench) -> None:
    """As its process does about every second."""
    bench.driver.report()
    await asyncio.sleep(1)


def saved_offset(bench: Bench) -> int:
    saved = bench.journal.load_snapshot()
    return 0 if saved is None else saved[0]


async def mid_replay(bench: Bench, codec: Counting) -> None:
    """Returns when some was replayed, and not all."""
    before = codec.decoded
    bench.driver.report()
    for _ in range(1_000):
        if codec.decoded < before + 10:
            await asyncio.sleep(0)
    assert before + 10 <= codec.decoded < before + FRAMES


def test_i35_a_follower_that_is_elected_replays_what_is_behind_its_snapshot_only() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        await write(one)
        await look(two)
        offset = saved_offset(two)
        assert offset == two.driver.known_high_watermark, "a follower has no snapshot"
        await write(one, 5)
        total, sums = one.driver.machine.total, one.driver.machine.sums
        codec = counting(two)
        one.depose()
        await trio.elect(two, 2, one, three)
        assert two.driver.is_ready
        assert codec.decoded == 5, "it replays its whole log"
        assert (two.driver.machine.total, two.driver.machine.sums) == (total, sums)
        two.driver.machine.check()

    story(tell)


def test_i4_what_a_followers_snapshot_leaves_behind_was_shown_to_the_projection() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one)
        await look(two)
        assert two.role.projected == one.role.projected, "nobody replays these records again"

    story(tell)


class Endless:
    """Something to settle that takes days, as FollowerSnapshots sees it."""

    is_due = is_waiting = True

    async def step(self) -> bool:
        await asyncio.sleep(1)
        return True

    def drop(self) -> None: ...


@pytest.mark.parametrize("what", ["_turns", "healing"])
def test_i35_what_goes_on_for_days_keeps_no_follower_from_its_snapshot(what: str) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one, 20)
        followed = two.driver._epochs.followership
        assert followed is not None
        # Trimming has its turn first.
        await look(two)
        setattr(followed._snapshots, what, Endless())
        await look(two)
        await write(one)
        assert saved_offset(two) == 0
        for _ in range(4):
            await look(two)
        assert saved_offset(two) == two.driver.known_high_watermark, "it would replay all of it"

    story(tell)


def test_a_snapshot_is_not_written_for_few_frames_and_again_after_as_many() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one, 20)
        await look(two)
        assert saved_offset(two) == 0
        await write(one)
        await look(two)
        first = saved_offset(two)
        assert first > 0
        await write(one, 20)
        await look(two)
        assert saved_offset(two) == first
        codec = counting(two)
        await write(one)
        await look(two)
        assert saved_offset(two) == two.driver.known_high_watermark > first
        assert codec.decoded == 20 + FRAMES, "it goes on from its last one"

    story(tell)


def test_i5_small_frames_are_worth_a_snapshot_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a failover waits for half a million frames that are a few bytes each."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY_FRAMES", FRAMES)
    loop = VirtualTimeLoop()

    async def main() -> None:
        trio = Trio(loop)
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one, FRAMES // 2)
        await look(two)
        assert (saved_offset(one), saved_offset(two)) == (0, 0)
        for _ in range(2):
            await write(one, FRAMES)
            await look(two)
            for bench in (one, two):
                behind = bench.journal.log_end - saved_offset(bench)
                assert behind < FRAMES, "so many frames are replayed when it is elected"

    run(main(), loop)


def test_a_snapshot_that_is_larger_than_the_frames_behind_it_is_not_read_for_them() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        for _ in range(10):
            await write(one)
            await look(two)
        first = saved_offset(two)
        assert two.journal.bytes_between(0, first) > 10 * EVERY_BYTES
        # When it was read last, it had 8 bytes for each of 2,700 sums.
        codec = counting(two)
        await write(one, 100)
        assert two.journal.bytes_between(first, two.driver.known_high_watermark) > EVERY_BYTES
        await look(two)
        assert codec.decoded == 0, "20 kB of sums are read for 8 kB of frames"
        await write(one)
        await look(two)
        assert saved_offset(two) == two.driver.known_high_watermark

    story(tell)


def test_i27_i35_nothing_above_the_high_watermark_is_in_a_followers_snapshot() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        await write(one)
        covered = two.driver.known_high_watermark
        for wire in trio.wires:
            wire.is_cut |= wire.follower is three
        answers = [one.driver.submit(Add(1)) for _ in range(FRAMES)]
        await asyncio.sleep(1)
        assert two.journal.synced_end > covered == two.driver.known_high_watermark
        await look(two)
        assert saved_offset(two) == covered, "it may be in no other log"
        assert all(offset < covered for offset, _ in two.role.projected)
        one.depose()
        await asyncio.gather(*answers, return_exceptions=True)

    story(tell)


async def two_goes_on_without_three(trio: Trio) -> int:
    """What one and two have then is durable, and not in the log of three; which ends there."""
    one, _, three = trio.benches
    await trio.elect(one, 1)
    await write(one, 20)
    for wire in trio.wires:
        wire.is_cut |= wire.follower is three
    answers = [one.driver.submit(Add(1)) for _ in range(FRAMES)]
    for _ in range(30):
        await asyncio.sleep(0.1)
        one.driver.tick()
    await asyncio.gather(*answers)
    return three.journal.log_end


def test_i35_a_cut_in_the_middle_of_a_replay_leaves_no_snapshot_of_what_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_snapshots, "SLICE_FRAMES", 1)

    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        cut_to = await two_goes_on_without_three(trio)
        await mid_replay(two, counting(two))
        one.depose()
        # Operators forced it: what one and two have goes.
        await trio.elect(three, 2, followers=2)
        assert "log cut" in two.reporter.events
        assert saved_offset(two) <= cut_to, "it holds what is gone"
        await write(three)
        await look(two)
        assert saved_offset(two) == two.driver.known_high_watermark > cut_to
        three.depose()
        await trio.elect(two, 3, one, three)
        assert two.driver.machine.sums == [*trio_sums(20), *trio_sums(FRAMES, 210)]

    story(tell)


def trio_sums(frames: int, before: int = 0) -> list[int]:
    """What a machine remembers of `write`."""
    return [before + number * (number + 1) // 2 for number in range(1, frames + 1)]


@pytest.mark.parametrize("blocked", [1, 2, 3], ids=["restoring", "encoding", "writing"])
def test_i35_nothing_else_touches_a_log_while_a_thread_has_its_snapshot(blocked: int) -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        cut_to = await two_goes_on_without_three(trio)
        may_go_on, calls = asyncio.Event(), 0

        async def offload(work: Callable[[], None]) -> None:
            nonlocal calls
            calls += 1
            if calls == blocked:
                await may_go_on.wait()
            work()

        two.offload = offload
        two.driver.report()
        await asyncio.sleep(0.1)
        one.depose()
        await trio.elect(three, 2)
        assert two.driver.stage is Stage.CLOSING, "it is cut under a thread that writes"
        assert two.journal.log_end > cut_to
        may_go_on.set()
        await asyncio.sleep(1)
        assert two.driver.follows
        assert trio.frames(two) == trio.frames(three)
        assert saved_offset(two) <= cut_to, "it holds what is gone"

    story(tell)


def test_a_replay_ends_with_the_following(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_snapshots, "SLICE_FRAMES", 1)

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one)
        codec = counting(two)
        await mid_replay(two, codec)
        replayed = codec.decoded
        two.driver.aim(StandBy())
        await two.driver.settled()
        assert codec.decoded <= replayed + 1, "an election waits for it"
        assert saved_offset(two) == 0

    story(tell)


def test_one_replica_of_a_process_replays_at_a_time() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one)
        async with two.around.replication.replaying:
            await look(two)
            assert saved_offset(two) == 0, "each has a machine in memory"
            two.driver.aim(StandBy())
            await asyncio.sleep(0.1)
            assert two.driver.stage is Stage.STANDBY, "an election waits for another partition"
        await trio.elect(one, 2)
        await look(two)
        assert saved_offset(two) > 0

    story(tell)


def test_the_loop_has_turns_while_a_follower_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_snapshots, "SLICE_BYTES", 500)

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one)
        codec = counting(two)
        two.driver.report()
        most = 0
        while codec.decoded < FRAMES:
            before = codec.decoded
            await asyncio.sleep(0)
            most = max(most, codec.decoded - before)
        assert most <= 20, "others of the process wait for it"

    story(tell)


def test_i28_a_disk_that_takes_no_snapshot_stops_no_follower() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        codec = counting(two)
        two.disk.fail_files(".rows", ENOSPC)
        await write(one)
        await look(two)
        gauge = ("snapshot_failing", str(PARTITION))
        assert two.reporter.gauges[gauge] == 1
        assert two.driver.follows
        for _ in range(5):
            await look(two)
        assert codec.decoded == FRAMES, "it is tried again after a while, for it reads all anew"
        two.disk.fail_files("no file", 0)
        await asyncio.sleep(SNAPSHOT_RETRY_MS / 1000)
        await look(two)
        assert saved_offset(two) == two.driver.known_high_watermark
        assert two.reporter.gauges[gauge] == 0
        assert two.fatal == two.failures == []

    story(tell)


def test_a_record_of_a_later_version_stops_no_follower() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        counting(two).unknown = 50
        await write(one)
        await look(two)
        assert "snapshot failed" in two.reporter.events
        assert saved_offset(two) == 0
        assert await one.driver.submit(Add(1)) > 0
        assert two.driver.follows
        assert two.fatal == []
        two.depose()
        await two.driver.settled()
        assert two.reporter.gauges["snapshot_failing", str(PARTITION)] == 0, "it alarms for ever"

    story(tell)


def test_i26_rot_that_a_replay_finds_is_copied_anew() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        two.journal._tail._max_bytes = 1_000
        await write(one)
        before = two.journal.incarnation
        flip_a_bit(two, 3_000)
        await look(two)
        await asyncio.sleep(2)
        assert two.journal.incarnation != before, "it holds less than it said"
        assert trio.frames(two) == trio.frames(one)

    story(tell)


def test_i35_a_followers_snapshot_survives_a_loss_of_power() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one)
        await look(two)
        offset = saved_offset(two)
        sums = one.driver.machine.sums
        two.disk.crash()
        after = Bench(one.loop, two.disk.reopen())
        assert saved_offset(after) == offset > 0
        await after.lead(2)
        assert after.driver.machine.sums == sums

    story(tell)


def test_who_starts_with_a_long_log_and_no_snapshot_writes_one_as_soon_as_it_follows() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await write(one)
        two.disk.crash()
        again = Bench(
            one.loop,
            two.disk.reopen(),
            min_insync_replicas=2,
            node_id="n2",
            snapshot_every_bytes=EVERY_BYTES,
        )
        again.follow = two.follow
        trio.benches[1] = again
        await trio.elect(one, 2)
        await look(again)
        assert saved_offset(again) == again.driver.known_high_watermark > FRAMES

    story(tell)


def test_what_a_follower_would_replay_is_shown_while_it_follows() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        gauge = ("follower_replay_bytes", str(PARTITION))
        await write(one)
        two.driver.report()
        assert two.reporter.gauges[gauge] >= EVERY_BYTES
        await asyncio.sleep(1)
        two.driver.report()
        assert two.reporter.gauges[gauge] < EVERY_BYTES
        await write(one, 100)
        two.driver.report()
        two.depose()
        await two.driver.settled()
        assert two.reporter.gauges[gauge] == 0, "it says this for ever"

    story(tell)


def test_i25_a_deletion_that_is_cut_with_the_journal_is_not_done_by_a_snapshot_that_went() -> None:
    """Whatever was read of snapshots before the cut."""
    loop = VirtualTimeLoop()

    async def main() -> None:
        bench = Bench(loop)
        await bench.lead()
        for number in range(30):
            await bench.driver.submit(Add(number))
        bench.depose()
        await bench.driver.settled()
        journal, data = bench.journal, bench.journal.data
        for at in range(4):
            data.append([unit_of(at, [(b"%d" % at, b"v")])])
            data.sync_and_note(2 * at + 2)
            data.seal()
        says = Settled(3, 4, 20, wanted=True, compaction=Compaction(True, 0, 2))
        journal.save_snapshot(20, Snapshot(b"", {}, needs=Needs(20, 20), settled=says))
        follower = FollowerSnapshots(
            PARTITION,
            Settles(),
            journal,
            bench.around,
            covered=lambda: journal.log_end,
            agrees_in=lambda: 1,
            found_damage=lambda error: None,
        )
        await follower.settling.step()
        await follower.trimming.step()
        assert follower.settling.counted == says
        assert follower.trimming.needs.needed_from == 20
        follower.halt()
        await follower.halted()
        assert data.begin == 0, "it was not its turn yet"
        journal.cut(12)
        follower.go_on()
        for _ in range(10):
            await follower.settling.step()
            await asyncio.sleep(1)
        assert data.begin == 0, "what a state that was taken back deleted is there"
        assert follower.compacting.asked == Compaction(), "no snapshot stands"
        assert follower.trimming.needs.needed_from == 0, "nobody says that less is needed"
        follower.end()

    run(main(), loop)

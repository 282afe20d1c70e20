"""A replica that ends before its leader's log begins: it gets what was before, under the joiner's
rule, and loses nothing of its name's worth when it dies in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from errno import EIO, ENOSPC
from typing import Any

import pytest

from oncelog_server.core.frame import At
from oncelog_server.core.ids import BootId, JournalOffset, LeaderEpoch
from oncelog_server.core.ports import Address, Slots
from oncelog_server.runtime.replica import receiving
from oncelog_server.runtime.replica.dialog import Said, Told
from oncelog_server.runtime.replica.follower import SendSnapshot
from oncelog_server.runtime.replica.receiving import PART_ATTEMPTS_MAX, RECEIVE_PAUSE_MS_MAX
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY
from oncelog_server.runtime.storage import snapshot_parts
from oncelog_server.runtime.storage.epochs import EpochEntry
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from oncelog_server.runtime.target import Follow, StandBy
from oncelogpb.errors import InvalidArgument, NotLeader
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import DIRECTORY, PARTITION, Bench
from tests.unit.runtime.counter import Add, Added, CounterMachine, CounterRole
from tests.unit.runtime.test_followers import Trio, Wire

BEGINS_AT = 100
EPOCHS = (EpochEntry(1, 0, 0), EpochEntry(2, 60, 60))
ALLOWED = Allowance(BEGINS_AT, 2)
# Of what was before: 1 + 2 + ... + 98.
TOTAL = sum(range(1, BEGINS_AT - 1))


class WithSlots(CounterRole):
    """Writes each sum that it is shown into a slot."""

    def projection(self, partition: Any, slots: Callable[[str, int], Slots]) -> WithSlots:
        self.slots = slots("sums", 8)
        return self

    def project(self, record: Added, at: At) -> None:
        super().project(record, at)
        self.slots.write(at.offset, record.number.to_bytes(8, "big"))


def before() -> CounterMachine:
    """What the frames below BEGINS_AT made."""
    machine = CounterMachine()
    for number in range(1, BEGINS_AT - 1):
        at = JournalOffset(number if number < 60 else number + 1)
        machine.apply(Added(number), At(at, LeaderEpoch(1 if number < 60 else 2), 0))
    machine.epoch = 2
    return machine


def begin_in_the_middle(bench: Bench) -> None:
    """As one whose log no longer begins at 0."""
    slots = bench.journal.slots.open("sums", 8)
    for number in range(1, BEGINS_AT):
        slots.write(number, number.to_bytes(8, "big"))
    bench.journal.begin_at(BEGINS_AT, before().snapshot(), EPOCHS, time_ms=0, allowed=ALLOWED)


def story(
    tell: Callable[[Trio], Coroutine[Any, Any, None]], *, snapshot_every_bytes: int = 1 << 30
) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        trio = Trio(loop, snapshot_every_bytes=snapshot_every_bytes)
        for bench in trio.benches:
            bench.role = WithSlots()
            bench.driver = bench._open()
        begin_in_the_middle(trio.benches[0])
        await tell(trio)

    run(main(), loop)


def follow(leader: Bench) -> Follow:
    return Follow(Address(leader.node_id, BootId(b"l" * 16), "h", 1, leader.driver.epoch))


def wires_of(trio: Trio, follower: Bench) -> list[Wire]:
    return [wire for wire in trio.wires if wire.follower is follower]


def fetched(trio: Trio, follower: Bench) -> list[Content]:
    return [part.content for wire in wires_of(trio, follower) for part in wire.fetched]


def require_same(one: Bench, other: Bench) -> None:
    assert other.journal.log_start == one.journal.log_start == BEGINS_AT
    assert list(other.journal.replay(BEGINS_AT)) == list(one.journal.replay(BEGINS_AT))
    assert other.journal.end_of_epoch(1) == (1, 60)
    slots = other.journal.slots.open("sums", 8)
    for number in (1, 50, BEGINS_AT - 1):
        assert slots.read(number) == number.to_bytes(8, "big")


def test_i35_a_replica_without_anything_begins_with_the_leaders_snapshot_and_can_lead() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        name = two.journal.incarnation
        await trio.elect(one, 3)
        await asyncio.sleep(5)
        assert await one.driver.submit(Add(7)) == TOTAL + 7
        await asyncio.sleep(1)
        for bench in (two, three):
            require_same(one, bench)
        assert two.journal.incarnation == name, "it had nothing to lose"
        one.depose()
        await trio.elect(two, 4, one, three)
        assert await two.driver.submit(Add(1)) == TOTAL + 8
        assert two.driver.machine.sums[: BEGINS_AT - 2] == before().sums
        two.driver.machine.check()

    story(tell)


def test_i25_who_had_frames_gives_up_its_log_under_another_name() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(two, 1, followers=0)
        three.driver.aim(follow(two))
        await asyncio.sleep(1)
        two.driver.submit(Add(1)).cancel()
        await asyncio.sleep(1)
        assert three.journal.log_end > 1
        two.depose()
        name = three.journal.incarnation
        await trio.elect(one, 3, followers=0)
        three.driver.aim(follow(one))
        await asyncio.sleep(5)
        require_same(one, three)
        assert three.journal.incarnation != name
        assert await one.driver.submit(Add(7)) == TOTAL + 7

    story(tell)


def test_i25_nothing_is_acknowledged_while_a_thread_gives_up_the_log() -> None:
    """Its end moves before the leader hears of its new name."""

    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(two, 1, followers=0)
        three.driver.aim(follow(two))
        await asyncio.sleep(1)
        two.depose()
        await trio.elect(one, 3, followers=0)
        said: list[list[Said]] = []

        async def slow(work: Callable[[], None]) -> None:
            before = three.journal.log_end
            work()
            if three.journal.log_end >= BEGINS_AT > before:
                said.append([])
                wires_of(trio, three)[-1].say = said[-1].append  # type: ignore[method-assign, assignment]
                await asyncio.sleep(3)

        three.offload = slow
        three.driver.aim(follow(one))
        await asyncio.sleep(10)
        assert said == [[]], f"under its old name: {said}"
        require_same(one, three)

    story(tell)


def test_i5_who_gets_a_snapshot_is_in_sync_once_it_has_all_behind_it() -> None:
    """The joiner's rule: EPOCH_START and the leader's high watermark, in acknowledgements of this
    epoch."""

    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 3, followers=1)
        await asyncio.sleep(5)
        await one.driver.submit(Add(1))
        joined: list[int] = []
        after = one.etcd_says

        async def says(change: Any, revision: int) -> Any:
            if three.journal.incarnation in change.isr:
                joined.append(three.journal.synced_end)
                assert three.journal.synced_end >= one.driver.high_watermark > BEGINS_AT
            return await after(change, revision)

        one.etcd_says = says
        three.driver.aim(two.driver._state.target)
        for number in range(200):
            await one.driver.submit(Add(number + 1))
            await asyncio.sleep(0.02)
        assert joined
        require_same(one, three)

    story(tell)


@pytest.mark.parametrize("losses", [1, 3, PART_ATTEMPTS_MAX + 2])
def test_a_part_whose_answer_is_lost_is_asked_for_again(losses: int) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        two.driver.aim(follow(one))
        await two.driver.settled()
        wires_of(trio, two)[0].losses = losses
        await asyncio.sleep(30)
        require_same(one, two)
        begun_anew = "snapshot not received, trying again" in two.reporter.events
        assert begun_anew == (losses > PART_ATTEMPTS_MAX)

    story(tell)


def test_it_is_sent_in_parts_and_writes_go_on_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_parts, "PART_BYTES_MAX", 100)

    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 3, followers=1)
        await asyncio.sleep(5)
        written = 0
        three.driver.aim(two.driver._state.target)
        while three.journal.log_start == 0:
            await one.driver.submit(Add(1))
            written += 1
        assert written > 10
        contents = fetched(trio, three)
        assert contents.count(Content.TABLE) >= 8 * (BEGINS_AT - 2) // 100
        assert contents.count(Content.SLOTS) > 10
        await asyncio.sleep(1)
        require_same(one, three)

    story(tell)


def damage(bench: Bench, path: str) -> None:
    def flip(data: bytearray) -> None:
        data[10] ^= 1

    bench.disk.damage(f"{DIRECTORY}/{path}", flip)


@pytest.mark.parametrize(
    "path", [f"snapshot-{BEGINS_AT:020d}", "tables/sums.rows", f"slots/sums/{0:020d}.slots"]
)
def test_i26_what_rots_at_the_leader_is_not_spread(path: str) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        one.journal.slots.flush()
        damage(one, path)
        two.driver.aim(follow(one))
        await asyncio.sleep(20)
        assert two.journal.log_start == two.journal.log_end == 0
        assert "snapshot not received, trying again" in two.reporter.events
        assert not two.failures

    story(tell)


@pytest.mark.parametrize("path", [f"snapshot-{BEGINS_AT:020d}", "tables/sums.rows"])
def test_i26_who_is_given_a_damaged_snapshot_again_and_again_says_so(path: str) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        damage(one, path)
        two.driver.aim(follow(one))
        await asyncio.sleep(0.5)
        assert two.driver.unfit == "", "it may be of a moment"
        await asyncio.sleep(60)
        gauge = ("replica_unusable", str(PARTITION))
        assert "cannot take its leader's snapshot" in two.driver.unfit
        assert two.reporter.gauges[gauge] == 1
        assert two.reporter.events.count("replica cannot follow") == 1
        damage(one, path)
        await asyncio.sleep(RECEIVE_PAUSE_MS_MAX / 1000)
        require_same(one, two)
        assert (two.driver.unfit, two.reporter.gauges[gauge]) == ("", 0)

    story(tell)


@pytest.mark.parametrize("steps", range(14))
def test_i29_a_disk_that_fails_at_the_install_costs_another_attempt(steps: int) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        two.driver.aim(follow(one))
        await asyncio.sleep(0.001)
        two.disk.fail_next(EIO, after=steps)
        await asyncio.sleep(30)
        require_same(one, two)
        end = two.journal.synced_end
        assert two.lose_power().journal.log_end == end

    story(tell)


def test_i29_a_snapshot_that_does_not_fit_is_fetched_more_and_more_seldom() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        two.disk.fail_files(".rows", ENOSPC)
        two.driver.aim(follow(one))
        await asyncio.sleep(60)
        assert 4 < fetched(trio, two).count(Content.FILE) < 8
        gauge = ("replica_unusable", str(PARTITION))
        assert "cannot install its leader's snapshot" in two.driver.unfit
        assert two.reporter.gauges[gauge] == 1
        two.disk.fail_files("no file", 0)
        await asyncio.sleep(RECEIVE_PAUSE_MS_MAX / 1000)
        require_same(one, two)
        assert (two.driver.unfit, two.reporter.gauges[gauge]) == ("", 0)

    story(tell)


def test_who_is_offered_a_snapshot_that_it_needs_no_more_keeps_its_log() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        two.driver.aim(follow(one))
        await asyncio.sleep(5)
        end, name = two.journal.log_end, two.journal.incarnation
        for wire in wires_of(trio, two):
            wire.hears.told(Told(LeaderEpoch(3), 0, SendSnapshot(JournalOffset(0))))
        await asyncio.sleep(20)
        assert (two.fatal, two.failures) == ([], []), "a peer's word ends the process"
        assert (two.journal.log_end, two.journal.incarnation) == (end, name)
        require_same(one, two)

    story(tell)


@pytest.mark.parametrize("parts", range(8))
def test_i18_who_is_told_otherwise_asks_for_no_more_of_it(parts: int) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        two.driver.aim(follow(one))
        for _ in range(10_000):
            if len(fetched(trio, two)) > parts:
                break
            await asyncio.sleep(0)
        two.driver.aim(StandBy())
        await two.driver.settled()
        assert two.driver.stage is Stage.STANDBY
        asked = fetched(trio, two)
        end = two.journal.log_end
        await asyncio.sleep(10)
        assert (fetched(trio, two), two.journal.log_end) == (asked, end)
        two.driver.aim(follow(one))
        await asyncio.sleep(10)
        require_same(one, two)

    story(tell)


@pytest.mark.parametrize("met", [[], [OSError(EIO, "the disk fails")]])
def test_i35_a_thread_that_writes_received_slots_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, met: list[OSError]
) -> None:
    """A thread goes on when who waits for it is cancelled; the log is closed or led meanwhile."""
    monkeypatch.setattr(receiving, "SLOTS_WORTH_A_FLUSH", 10)

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        threads: list[str] = []

        async def offload(work: Callable[[], None]) -> None:
            async def thread() -> None:
                threads.append("runs")
                await asyncio.sleep(0.5)
                threads.remove("runs")
                if met:
                    raise met.pop()
                work()

            await asyncio.shield(asyncio.ensure_future(thread()))

        two.offload = offload
        two.driver.aim(follow(one))
        while not threads:
            await asyncio.sleep(0.001)
        two.driver.aim(StandBy())
        await two.driver.settled()
        assert not threads, "a thread has the log still"
        asked = fetched(trio, two)
        await asyncio.sleep(5)
        assert fetched(trio, two) == asked
        assert "snapshot not received, trying again" not in two.reporter.events
        assert two.journal.log_start == 0
        two.driver.aim(follow(one))
        await asyncio.sleep(30)
        require_same(one, two)

    story(tell)


def test_i7_who_begins_with_another_state_than_the_leaders_begins_anew() -> None:
    """An unclean election gave up what the snapshot stands for."""

    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(two, 7, followers=0)
        three.driver.aim(follow(two))
        await asyncio.sleep(1)
        await two.driver.submit(Add(5))
        name = one.journal.incarnation
        one.driver.aim(follow(two))
        await asyncio.sleep(5)
        assert one.journal.log_start == 0
        assert list(one.journal.replay(0)) == list(two.journal.replay(0))
        assert one.journal.incarnation != name
        assert len(one.disk.list(ORPHANS_DIRECTORY)) == 1, "nothing is deleted"

    story(tell)


def test_one_replica_of_a_process_receives_at_a_time() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        turn = two.around.replication.replaying
        await turn.acquire()
        two.driver.aim(follow(one))
        await asyncio.sleep(5)
        assert fetched(trio, two) == []
        turn.release()
        await asyncio.sleep(5)
        require_same(one, two)

    story(tell)


def test_only_who_leads_the_epoch_sends_and_only_what_there_is() -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3, followers=0)
        await trio.elect(two, 4, followers=0)
        for content in (Content.TABLE, Content.SLOTS):
            with pytest.raises(InvalidArgument, match="none"):
                await one.driver.snapshot_part(PartOf(content, "none"), epoch=3)
        with pytest.raises(InvalidArgument, match="begins at 0"):
            await two.driver.snapshot_part(PartOf(Content.FILE), epoch=4)
        for epoch in (2, 4):
            with pytest.raises(NotLeader):
                await one.driver.snapshot_part(PartOf(Content.FILE), epoch=epoch)

    story(tell)


def test_i7_epochs_that_lack_the_one_before_the_log_are_not_taken() -> None:
    """With them a follower would part from other logs where it does not."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        one.journal._epochs.entries.pop()
        await trio.elect(one, 3)
        await asyncio.sleep(5)
        assert two.journal.log_start == 0, "it agrees with nobody where logs part"
        assert "snapshot not received, trying again" in two.reporter.events

    story(tell)

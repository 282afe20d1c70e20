"""One replica: durable before visible, one epoch per leadership, failures that end an epoch."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.machine import Decision
from oncelog_server.runtime.replica.epochs import UNCLEAN_SKIP
from oncelog_server.runtime.replica.leading import TURNS_TO_ANSWER
from oncelog_server.runtime.replica.snapshots import SNAPSHOT_RETRY_MS
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.storage.frames import FRAME_PAYLOAD_BYTES_MAX
from oncelog_server.runtime.target import Close
from oncelogpb.errors import (
    DiskFull,
    InvalidArgument,
    Loading,
    NotLeader,
    TooLarge,
    UnknownOutcome,
)
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench, story
from tests.unit.runtime.counter import Add, Added


def test_i5_a_reply_waits_for_the_sync() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        # Nothing else is on its way to the disk when it hangs.
        await asyncio.sleep(1)
        bench.disk.hold_commits()
        reply = bench.driver.submit(Add(3))
        await asyncio.sleep(1)
        assert not reply.done()
        assert bench.driver.high_watermark == 1
        bench.disk.let_commits()
        assert await reply == 3
        assert bench.driver.high_watermark == 2

    story(tell)


def test_refusals_and_reads_wait_for_what_they_were_decided_on() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        added = bench.driver.submit(Add(3))
        read = bench.driver.submit(Add(0))
        refused = bench.driver.submit(Add(-1))
        await asyncio.sleep(0)
        assert not read.done()
        assert not refused.done()
        assert await read == 3
        assert added.done()
        with pytest.raises(InvalidArgument) as caught:
            await refused
        assert caught.value.metadata == {"total": "3"}

    story(tell)


def test_all_of_a_loop_turn_goes_down_in_one_sync() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        before = bench.commits
        await asyncio.gather(*(bench.driver.submit(Add(1)) for _ in range(100)))
        assert bench.commits == before + 1

    story(tell)


def test_what_is_owed_goes_out_behind_the_answer() -> None:
    """The marker of a commit on its way took the processor from who waits for the answer."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        await asyncio.sleep(1)
        outbox = bench.outboxes[0]
        before = outbox.wakes
        await bench.driver.submit(Add(1))
        for _ in range(TURNS_TO_ANSWER):
            assert outbox.wakes == before
            await asyncio.sleep(0)
        assert outbox.wakes == before + 1

    story(tell)


def test_nobody_is_woken_who_stepped_down_meanwhile() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await asyncio.sleep(1)
        await bench.driver.submit(Add(1))
        before = bench.outboxes[0].wakes
        bench.depose()
        await asyncio.sleep(1)
        assert bench.outboxes[0].wakes == before

    story(tell)


def test_nothing_is_answered_before_epoch_start_is_durable() -> None:
    async def tell(bench: Bench) -> None:
        with pytest.raises(NotLeader):
            bench.driver.submit(Add(1))
        bench.grant(1)
        await bench.driver.settled()
        with pytest.raises(Loading):
            bench.driver.submit(Add(1))
        assert not bench.outboxes, "nothing is owed while loading"
        await asyncio.sleep(1)
        assert await bench.driver.submit(Add(1)) == 1

    story(tell)


def test_i31_who_steps_down_says_that_the_outcome_is_unknown() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        recorded = bench.driver.submit(Add(1))
        read = bench.driver.submit(Add(0))
        bench.depose()
        with pytest.raises(UnknownOutcome):
            await recorded
        with pytest.raises(NotLeader):
            await read
        with pytest.raises(NotLeader):
            bench.driver.submit(Add(1))
        await bench.driver.settled()
        assert bench.outboxes[0].stopped

    story(tell)


def test_a_cancelled_call_abandons_its_reply_never_its_records() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        bench.driver.submit(Add(5)).cancel()
        assert await bench.driver.submit(Add(0)) == 5

    story(tell)


def test_i18_nothing_is_acknowledged_past_the_lease() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        reply = bench.driver.submit(Add(1))
        bench.lease_valid = False
        with pytest.raises(UnknownOutcome):
            await reply
        end = bench.driver.log_end
        with pytest.raises(NotLeader):
            await bench.driver.submit(Add(2))
        assert bench.driver.log_end == end, "nothing is appended for an answer that cannot be given"
        with pytest.raises(NotLeader):
            bench.driver.require_lease()

    story(tell)


def test_i31_who_waits_for_the_high_watermark_is_answered_when_the_lease_runs_out() -> None:
    """Cut off from its followers and from etcd, it hears of no new leader; its caller waits."""

    async def main() -> None:
        bench = Bench(loop, FakeDisk(seed=1, delay_ms=(1_000.0, 1_000.0)))
        await bench.lead()
        recorded, read = bench.driver.submit(Add(1)), bench.driver.submit(Add(0))
        bench.driver.tick()
        await asyncio.sleep(0)
        assert not recorded.done(), "the lease is valid"
        bench.lease_valid = False
        bench.driver.tick()
        assert recorded.done(), "nobody is told"
        with pytest.raises(UnknownOutcome):
            recorded.result()
        with pytest.raises(NotLeader):
            read.result()
        await asyncio.sleep(5)

    loop = VirtualTimeLoop()
    run(main(), loop)


@pytest.mark.parametrize("tear", list(Tear))
def test_i25_i35_what_was_acknowledged_survives_power_loss(tear: Tear) -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        for number in range(1, 20):
            await bench.driver.submit(Add(number))
        total = bench.driver.machine.total
        lost = bench.driver.submit(Add(1000))
        after = bench.lose_power(tear)
        await after.lead(2)
        assert after.driver.machine.total in (total, total + 1000)
        assert after.driver.machine.epoch == 2
        after.driver.machine.check()
        lost.cancel()

    story(tell)


def test_i18_an_epoch_is_never_continued() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(4)
        after = bench.lose_power()
        after.grant(4)
        await after.driver.settled()
        assert [str(error) for error in after.fatal] == ["an epoch is never continued"]
        assert not after.driver.is_ready

    story(tell)


def test_a_failed_sync_ends_the_epoch_and_its_bytes_are_gone() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await bench.driver.submit(Add(1))
        bench.disk.fail_next()
        doubtful = bench.driver.submit(Add(10))
        with pytest.raises(UnknownOutcome):
            await doubtful
        assert len(bench.failures) == 1
        with pytest.raises(NotLeader):
            bench.driver.submit(Add(1))
        await bench.driver.settled()
        await bench.lead(2)
        assert await bench.driver.submit(Add(0)) == 1

    story(tell)


def test_i29_who_comes_between_a_failed_write_and_the_step_down_is_sent_elsewhere() -> None:
    """The disk's thread has marked the journal, and the loop has not heard of it: timers submit
    then, too, and nobody would catch what a disk says."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        bench.driver.journal.mark_failed()
        end = bench.driver.log_end
        with pytest.raises((NotLeader, OSError)) as told:
            bench.driver.submit(Add(1))
        assert isinstance(told.value, NotLeader), "nobody who submits catches what a disk says"
        assert bench.driver.log_end == end

    story(tell)


def test_snapshots_hold_only_what_is_durable() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        for number in range(1, 50):
            await bench.driver.submit(Add(number))
        bench.leadership.capture_snapshot()
        durable = bench.driver.machine.total
        bench.driver.submit(Add(7)).add_done_callback(lambda done: done.exception())
        bench.leadership.capture_snapshot()
        after = bench.lose_power()
        saved = after.journal.load_snapshot()
        assert saved is None or saved[0] <= after.journal.log_end
        await after.lead(2)
        assert after.driver.machine.total == durable

    story(tell)


def test_i35_a_snapshot_waits_until_what_it_holds_is_durable() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await bench.driver.submit(Add(1))
        first = bench.driver.submit(Add(2))
        await asyncio.sleep(0)
        # The state is taken while the next record waits for its own sync.
        bench.driver.submit(Add(3)).add_done_callback(lambda done: done.exception())
        bench.leadership.capture_snapshot()
        await first
        await asyncio.sleep(0)
        assert bench.driver.high_watermark < bench.driver.log_end
        assert bench.driver.journal.load_snapshot() is None, "it runs ahead of the log"
        await asyncio.sleep(1)
        saved = bench.driver.journal.load_snapshot()
        assert saved is not None
        assert saved[0] == bench.driver.log_end

    story(tell)


def test_i28_a_snapshot_that_found_no_room_is_written_when_there_is_some() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        for number in range(1, 6):
            await bench.driver.submit(Add(number))
        bench.disk.fail_next(ENOSPC, after=1)
        bench.leadership.capture_snapshot()
        await bench.driver.submit(Add(6))
        await asyncio.sleep(1)
        assert bench.driver.stage is Stage.READY, "a snapshot is a convenience"
        assert bench.driver.journal.load_snapshot() is None
        await asyncio.sleep(SNAPSHOT_RETRY_MS / 1000)
        await bench.driver.submit(Add(7))
        await asyncio.sleep(1)
        saved = bench.driver.journal.load_snapshot()
        assert saved is not None
        assert saved[0] == bench.driver.log_end, "a newer one, not the one that failed"
        await bench.driver.submit(Add(8))
        await bench.driver.checkpoint()
        newest = bench.driver.journal.load_snapshot()
        assert newest is not None
        assert newest[0] == bench.driver.log_end

    story(tell)


def test_i35_a_restart_from_a_snapshot_gives_the_live_state() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        for number in range(1, 30):
            await bench.driver.submit(Add(number))
        await bench.driver.checkpoint()
        for number in range(30, 40):
            await bench.driver.submit(Add(number))
        sums = bench.driver.machine.sums
        after = bench.lose_power()
        saved = after.journal.load_snapshot()
        assert saved is not None
        assert saved[0] == 30, "EPOCH_START and 29 records"
        await after.lead(2)
        assert after.driver.machine.sums == sums
        # The projection is shown again only what the snapshot does not cover.
        assert [number for _, number in after.role.projected] == list(range(30, 40))

    story(tell)


def test_i35_an_apply_that_fails_ends_the_process_and_leaves_nothing_of_itself() -> None:
    """It was an INTERNAL for its caller, and the machine, half changed, went on."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        await bench.driver.submit(Add(1))
        machine = bench.driver.machine
        apply = machine.apply

        def broken(record: object, at: object) -> None:
            machine.total += 1_000
            raise ZeroDivisionError("a bug")

        machine.apply = broken
        before = bench.driver.submit(Add(0))
        with pytest.raises(ZeroDivisionError):
            bench.driver.submit(Add(10))
        machine.apply = apply
        assert [type(error) for error in bench.fatal] == [ZeroDivisionError]
        assert await before == 1
        with pytest.raises(NotLeader):
            bench.driver.submit(Add(0))
        # A clean stop follows.
        await bench.driver.checkpoint()
        await bench.driver.settled()
        after = bench.lose_power()
        await after.lead(2)
        assert after.driver.machine.total == 1, "what could not be applied is not in the log"

    story(tell)


def test_i35_a_decision_with_a_record_that_is_too_large_changes_nothing() -> None:
    """Its first record was applied by then, so the process ended; and so did the next leader's,
    where the caller tried again."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        machine, codec = bench.driver.machine, bench.role.codec
        too_large = Frame(FrameKind.RECORD, bytes(FRAME_PAYLOAD_BYTES_MAX + 1))
        decide, encode = machine.decide, codec.encode
        machine.decide = lambda command, now: Decision((Added(1), Added(2)), 3)
        bench.role.codec.encode = lambda record: (  # type: ignore[method-assign]
            too_large if record == Added(2) else encode(record)
        )
        end = bench.driver.log_end
        outcomes = []
        try:
            await bench.driver.submit(Add(3))
        except TooLarge as error:
            outcomes.append(error.reason)
        assert (outcomes, bench.fatal) == (["TOO_LARGE"], [])
        assert (bench.driver.log_end, machine.total) == (end, 0)
        machine.decide = decide
        assert await bench.driver.submit(Add(3)) == 3

    story(tell)


def test_i26_what_is_on_its_way_when_a_record_fails_is_waited_for_before_the_log_is_cut() -> None:
    """The disk's answer came after the cut, so the promise ended behind the log: the next process
    found less than it had promised, and its partition stayed offline."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        bench.disk._delay_ms = (1_000, 1_000)
        bench.driver.submit(Add(1))
        await asyncio.sleep(0.1)
        bench.driver.machine.apply = None
        with pytest.raises(TypeError):
            bench.driver.submit(Add(10))
        await asyncio.sleep(10)
        await bench.driver.settled()
        assert bench.journal.synced_end <= bench.journal.log_end, "it promises what it cut"
        bench.driver.aim(Close())
        await bench.driver.settled()
        after = bench.lose_power()
        assert after.journal.incarnation == bench.journal.incarnation, "it lost what it promised"
        await after.lead(2)
        assert after.driver.machine.total == 1

    story(tell)


def test_projections_see_durable_records_in_order() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        replies = [bench.driver.submit(Add(number)) for number in (4, 5, 6)]
        await asyncio.sleep(0)
        assert bench.role.projected == []
        await asyncio.gather(*replies)
        assert bench.role.projected == [(1, 4), (2, 5), (3, 6)]

    story(tell)


def test_a_control_journal_skips_offsets_after_an_unclean_election() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        await bench.driver.submit(Add(1))
        bench.depose()
        await bench.lead(2, unclean_epoch=2)
        assert bench.driver.log_end == 2 + UNCLEAN_SKIP + 1
        assert await bench.driver.submit(Add(1)) == 2
        after = bench.lose_power()
        await after.lead(3)
        assert after.driver.machine.total == 2

    story(tell)


def test_i28_data_is_refused_by_name_where_the_disk_is_full() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        bench.has_room = False
        with pytest.raises(DiskFull):
            bench.driver.require_room()
        assert await bench.driver.submit(Add(0)) == 0

    story(tell)


def test_who_watches_is_called_once_and_who_has_ended_that_never() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        called: list[str] = []
        bench.driver.watch(lambda: called.append("patient"))
        end = bench.driver.watch(lambda: called.append("impatient"))
        end()
        await bench.driver.submit(Add(1))
        assert called == ["patient"]
        end()
        await bench.driver.submit(Add(1))
        assert called == ["patient"]

    story(tell)


def test_it_is_watched_from_a_look_until_the_high_watermark_moves() -> None:
    async def tell(bench: Bench) -> None:
        def watched() -> bool:
            return bench.driver.is_watched

        assert not watched(), "nobody leads"
        await bench.lead()
        assert not watched()
        end = bench.driver.watch(lambda: None)
        assert watched()
        end()
        assert watched(), "who has looked looks again"
        await bench.driver.submit(Add(1))
        assert not watched()

    story(tell)

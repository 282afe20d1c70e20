"""What operators are told of a replica: what it does, what is wrong with it, and of a leader,
whether it takes writes and who keeps up."""

from __future__ import annotations

import asyncio
from errno import EIO

from oncelog_server.core.machine import Needs, Snapshot, Table
from oncelog_server.runtime.replication.describing import add_disk_use, describe
from oncelogpb.v1 import replication_pb2 as pb
from tests.unit.runtime import bench as one_replica
from tests.unit.runtime.bench import PARTITION, Bench
from tests.unit.runtime.counter import Add
from tests.unit.runtime.test_replicas_in_sync import B, C, acknowledge, lead, story


def described(bench: Bench) -> pb.ReplicaDescription:
    return describe(PARTITION, bench.driver, bench.loop.now().monotonic_ms)


def test_a_leader_says_whether_it_takes_writes_and_who_keeps_up() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B)
        waits = described(bench)
        assert waits.stage == pb.REPLICA_STAGE_LOADING
        assert (waits.min_insync_replicas, waits.takes_writes) == (2, False)
        acknowledge(bench, B)
        ready = described(bench)
        assert (ready.stage, ready.takes_writes) == (pb.REPLICA_STAGE_READY, True)
        written = bench.driver.submit(Add(1))
        await asyncio.sleep(2)
        acknowledge(bench, C)
        halted = described(bench)
        assert halted.stage == pb.REPLICA_STAGE_READY
        assert not halted.takes_writes, "nobody else keeps up"
        assert [(f.incarnation, f.in_sync, f.keeps_up) for f in halted.followers] == [
            (B, True, False),
            (C, False, True),
        ]
        assert all(follower.has_dialog for follower in halted.followers)
        book = bench.driver.book
        assert book is not None
        book.closed(B, now_ms=bench.loop.now().monotonic_ms)
        assert not described(bench).followers[0].has_dialog
        assert not written.done()
        written.cancel()

    story(tell)


def test_a_replica_that_cannot_be_opened_says_why_until_it_is() -> None:
    async def tell(bench: Bench) -> None:
        bench.failing_opens = [OSError(EIO, "segment 7 cannot be read")]
        bench.grant(1)
        await asyncio.sleep(0.1)
        closed = described(bench)
        assert closed.stage == pb.REPLICA_STAGE_CLOSED
        assert "segment 7 cannot be read" in closed.unfit
        await asyncio.sleep(2)
        opened = described(bench)
        assert (opened.stage, opened.unfit) == (pb.REPLICA_STAGE_READY, "")
        assert (opened.epoch, opened.takes_writes) == (1, True)
        bench.depose()
        await bench.driver.settled()
        assert described(bench).stage == pb.REPLICA_STAGE_STANDBY

    one_replica.story(tell)


def test_a_replica_says_what_it_takes_and_what_holds_its_log() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B)
        acknowledge(bench, B)
        bench.journal.slots.open("sums", 8).write(1, b"outcome!")
        end = bench.journal.synced_end
        table = Table(8, 0, bytes(80))
        needs = Needs(end, end - 1, 0)
        bench.journal.save_snapshot(end, Snapshot(b"state", {"t": table}, needs))
        trimming = bench.leadership.trimming
        trimming.snapshot_stood(9, needs)
        trimming.held_by = "n2"
        found = described(bench)
        assert not found.HasField("disk"), "files are looked at only where that is asked"
        assert (found.needed_from, found.wanted_from, found.held_by) == (end, end - 1, "n2")
        await add_disk_use(found, bench.driver)
        directory = bench.journal.directory
        sizes = {
            name: len(bench.disk.bytes_of(f"{directory}/{name}"))
            for name in (
                f"{0:020d}.log",
                "tables/t.rows",
                f"snapshot-{end:020d}",
                f"slots/sums/{0:020d}.slots",
            )
        }
        assert list(sizes.values()) == [
            found.disk.segment_bytes,
            found.disk.table_bytes,
            found.disk.snapshot_bytes,
            found.disk.slot_bytes,
        ]
        assert min(sizes.values()) > 0

    story(tell)

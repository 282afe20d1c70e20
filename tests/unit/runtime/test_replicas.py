"""The replicas of one role: which of them answer, what an election that was granted makes of one,
and what its directory says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from errno import EIO
from typing import Any, cast

import pytest

from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import Incarnation, PartitionId, TopicId
from oncelog_server.core.ports import Address, ClusterMetadata, PartitionInfo, TopicInfo
from oncelog_server.runtime.agenda import Agenda
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.epochs import UNCLEAN_SKIP
from oncelog_server.runtime.replica.record import load_record
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.replicas import RoleReplicas, directory_of, put_aside
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.port import Write
from oncelog_server.runtime.storage.tail import TailBudget
from oncelog_server.runtime.target import Close, Lead, Leave, StandBy, Target
from oncelogpb.errors import (
    CorruptLog,
    Loading,
    NotLeader,
    Unavailable,
    UnknownOutcome,
    UnknownPartition,
)
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add, Quiet

PARTITION = PartitionId(TopicId(b"c" * 16), 0)


class OneTopic:
    """As much of the ClusterMetadata port as replicas ask."""

    def __init__(self) -> None:
        self.info = TopicInfo("t", PARTITION.topic_id, 1, 1, {}, 0)

    def partition(self, partition: PartitionId) -> PartitionInfo | None:
        return PartitionInfo(partition, ["n1"], [], None, 1)

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        return self.info

    def leader_of(self, partition: PartitionId) -> Address | None:
        return None


class Shelf(Bench):
    """Replicas over the disk of a bench."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__(loop)
        self.metadata = OneTopic()
        self.make_outbox: Callable[[], Quiet] = Quiet
        self.agenda = Agenda(lambda: loop.now().monotonic_ms)
        self.replicas = RoleReplicas(
            self.role,
            self.disk,
            cast(ClusterMetadata, self.metadata),
            self.around,
            lambda driver: self.make_outbox(),
            1 << 16,
            lambda count: bytes(count),
            TailBudget(),
            self.agenda,
        )

    async def granted(self, epoch: int, *, unclean_epoch: int = 0) -> None:
        """etcd granted it; returns when it answers, or has given up."""
        await self.aimed(Lead(epoch, unclean_epoch))
        while self.replica.stage is Stage.LOADING:
            await asyncio.sleep(0.001)

    @property
    def replica(self) -> Driver:
        return self.replicas._drivers[PARTITION]

    async def aimed(self, target: Target, partition: PartitionId = PARTITION) -> None:
        """Returns when it is where it should be."""
        self.replicas.aim(partition, target)
        await self.replicas._drivers[partition].settled()


def story(tell: Callable[[Shelf], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Shelf(loop))

    run(main(), loop)


def test_i19_a_control_journal_skips_offsets_once_after_an_unclean_election() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        await shelf.granted(2, unclean_epoch=2)
        end = shelf.replicas.lead(PARTITION).log_end
        assert end > UNCLEAN_SKIP, "a TxId may be one that was lost"
        await shelf.granted(3, unclean_epoch=2)
        assert shelf.replicas.lead(PARTITION).log_end == end + 1, "it has skipped already"

    story(tell)


def test_i18_a_grant_and_the_loss_of_it_are_obeyed_in_the_order_in_which_etcd_said_them() -> None:
    """Both come in one turn of the loop, before anything that they start has run."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        shelf.replicas.aim(PARTITION, Lead(2))
        shelf.replicas.aim(PARTITION, StandBy())
        await asyncio.sleep(1)
        with pytest.raises(NotLeader):
            shelf.replicas.lead(PARTITION)
        assert shelf.replica.journal.last_epoch == 1
        shelf.replicas.aim(PARTITION, StandBy())
        shelf.replicas.aim(PARTITION, Lead(3))
        await asyncio.sleep(1)
        assert shelf.replicas.lead(PARTITION).epoch == 3

    story(tell)


def test_topics_of_users_never_skip() -> None:
    async def tell(shelf: Shelf) -> None:
        shelf.role.control_topic = None
        await shelf.granted(1)
        await shelf.granted(2, unclean_epoch=2)
        assert shelf.replicas.lead(PARTITION).log_end == 2

    story(tell)


def test_a_journal_that_cannot_be_replayed_is_resigned_and_the_process_goes_on() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)

        def replay(from_offset: int) -> Iterator[StoredFrame]:
            raise JournalDamaged("0.log", 100, "as told")

        driver.journal.replay = replay  # type: ignore[method-assign]
        await shelf.aimed(Lead(2))
        assert len(shelf.failures) == 1, "whoever is granted and cannot lead says so"
        with pytest.raises(NotLeader):
            shelf.replicas.lead(PARTITION)

    story(tell)


def test_i29_a_log_that_cannot_be_opened_is_resigned_while_it_is_to_lead() -> None:
    async def tell(shelf: Shelf) -> None:
        shelf.disk.fail_next()
        shelf.replicas.aim(PARTITION, Lead(1))
        await asyncio.sleep(0.5)
        assert len(shelf.failures) == 1, "whoever is granted and cannot lead says so"

    story(tell)


def test_i27_a_replica_that_is_loading_does_not_answer() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.aimed(Lead(1))
        assert shelf.replica.stage is Stage.LOADING
        with pytest.raises(Loading):
            shelf.replicas.lead(PARTITION)
        assert list(shelf.replicas.led()) == []

    story(tell)


def test_what_changed_about_a_topic_is_written_down() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        shelf.metadata.info = shelf.metadata.info._replace(configs={"a": "b"}, version=1)
        shelf.replicas.topics_changed({PARTITION.topic_id})
        await shelf.replicas.remember()
        record = load_record(shelf.disk, directory_of(PARTITION))
        assert record is not None
        assert record.topic is not None
        assert (record.topic.configs, record.topic.version) == ({"a": "b"}, 1)

    story(tell)


def test_one_that_is_put_aside_replaces_no_other() -> None:
    async def tell(shelf: Shelf) -> None:
        for content in (b"first", b"second"):
            shelf.disk.make_directory("partitions/x-0")
            shelf.disk.replace_file("partitions/x-0/file", content)
            put_aside(shelf.disk, "partitions/x-0")
        assert shelf.disk.list("orphans") == ["x-0", "x-0.1"]
        assert shelf.disk.bytes_of("orphans/x-0/file") == b"first"

    story(tell)


def test_one_seed_draws_the_incarnations_too() -> None:
    async def tell(shelf: Shelf) -> None:
        candidate = await shelf.replicas.opened(PARTITION)
        drawn = bytes(6) + b"\x40" + bytes(1) + b"\x80" + bytes(7)
        assert Incarnation(candidate.incarnation) == drawn, "of `random_bytes`, not of the system"

    story(tell)


def test_of_a_deleted_partition_nothing_is_shown_any_more() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        assert ("leading", str(PARTITION)) in shelf.reporter.gauges
        await shelf.aimed(Leave())
        assert shelf.reporter.gauges == {}

    story(tell)


def test_an_opening_that_ends_after_the_deletion_leaves_nothing_behind() -> None:
    """It left a replica over a directory in `orphans/`, whose files it kept open."""

    async def tell(shelf: Shelf) -> None:
        opened, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly(work: Callable[[], None]) -> None:
            work()
            opened.set()
            await goes_on.wait()

        shelf.offload = slowly
        shelf.replicas.aim(PARTITION, StandBy())
        await opened.wait()
        shelf.replicas.aim(PARTITION, Leave())
        await asyncio.sleep(1)
        goes_on.set()
        await shelf.replica.settled()
        assert not shelf.replicas.is_open(PARTITION), "nobody closes it any more"
        assert not shelf.disk.exists(directory_of(PARTITION))
        assert shelf.disk.exists(f"orphans/{directory_of(PARTITION).rsplit('/', 1)[-1]}")

    story(tell)


def test_what_is_deleted_before_it_was_opened_leaves_no_directory() -> None:
    """An election that waited for its turn to open the replica made an empty one."""

    async def tell(shelf: Shelf) -> None:
        shelf.replicas.aim(PARTITION, StandBy())
        await shelf.aimed(Leave())
        assert not shelf.replicas.is_open(PARTITION)
        assert not shelf.disk.exists(directory_of(PARTITION))

    story(tell)


def test_i31_who_reads_while_the_partition_is_deleted_gets_an_error_with_a_name() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        for number in range(1, 200):
            await driver.submit(Add(number))
        driver.aim(StandBy(), why="restarted")
        await shelf.granted(2)
        # From its file, not from memory.
        driver.journal._tail.cut(0)
        driver.journal._tail.start = driver.journal.log_end
        reading = asyncio.create_task(driver.read(1, 1 << 20, below=100))
        await asyncio.sleep(0)
        await shelf.aimed(Leave())
        late = [driver.read(1, 1 << 20, below=100), driver.read_frames([1, 50])]
        found, *refused = await asyncio.gather(reading, *late, return_exceptions=True)
        assert [type(error) for error in refused] == [NotLeader] * 2, "no other error"
        assert isinstance(found, list), "who is under way is let end"
        assert len(found) == 99

    story(tell)


def test_i25_a_deleted_partition_is_put_aside_when_the_disk_is_done_with_it() -> None:
    """Its name gone, the commit would fail for all who are in it."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        begun, goes_on, commit = asyncio.Event(), asyncio.Event(), shelf.disk.commit

        async def slow(writes: Sequence[Write]) -> None:
            begun.set()
            await goes_on.wait()
            await commit(writes)

        shelf.disk.commit = slow  # type: ignore[method-assign]
        lost = shelf.replicas.lead(PARTITION).submit(Add(1))
        await begun.wait()
        shelf.replicas.aim(PARTITION, Leave())
        await asyncio.sleep(1)
        assert shelf.disk.exists(directory_of(PARTITION)), "it was moved under a commit"
        goes_on.set()
        await shelf.replica.settled()
        assert not shelf.disk.exists(directory_of(PARTITION))
        with pytest.raises(UnknownOutcome):
            await lost

    story(tell)


def test_a_write_that_fails_while_the_process_stops_does_not_open_the_log_again() -> None:
    """The resignation said "stand by" after the stop had said "close": where the disk went on
    failing, the stop waited for ever."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        shelf.disk._delay_ms = (1_000, 1_000)
        lost = shelf.replicas.lead(PARTITION).submit(Add(1))
        await asyncio.sleep(0.1)
        shelf.disk.fail_next()
        stopping = asyncio.create_task(shelf.replicas.close())
        await asyncio.sleep(0.1)
        assert not stopping.done(), "the write is on its way"
        shelf.replicas.aim(PARTITION, StandBy())
        await stopping
        assert shelf.replica.stage is Stage.CLOSED
        assert not shelf.replicas.is_open(PARTITION)
        with pytest.raises(UnknownOutcome):
            await lost

    story(tell)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_nothing_is_noted_beside_the_thread_that_closes_the_log(is_damaged: bool) -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        journal = shelf.replica.journal

        def note() -> bool:
            raise AssertionError("two threads write its files")

        async def beside(work: Callable[[], None]) -> None:
            for replica in shelf.agenda.busy:
                replica.report()
            work()

        shelf.offload = beside
        journal.note_synced_end = note  # type: ignore[method-assign]
        if is_damaged:
            # And its directory moves to `orphans/`, with files that a commit would write.
            shelf.replica._found_damage(CorruptLog("as told"))
            await shelf.replica.settled()
            assert shelf.replica.journal is not journal, "it begins anew"
        else:
            await shelf.aimed(Leave())
        assert not shelf.fatal, str(shelf.fatal)

    story(tell)


def test_i18_a_grant_that_is_heard_after_the_deletion_is_not_led() -> None:
    """An adoption asks etcd while the view shows that the topic is gone."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        shelf.replicas.aim(PARTITION, Leave())
        assert shelf.replicas.candidate(PARTITION) is None, "it stands in no election"
        shelf.replicas.aim(PARTITION, Lead(2))
        await asyncio.sleep(1)
        assert not shelf.disk.exists(directory_of(PARTITION))

    story(tell)


@pytest.mark.parametrize(
    ("target", "error"), [(Leave(), UnknownPartition), (Close(), Unavailable)], ids=str
)
def test_i31_who_waits_for_a_log_that_is_never_opened_is_told(
    target: Target, error: type[Exception]
) -> None:
    """It waited for ever: an unclean election of a damaged replica whose topic is deleted."""

    async def tell(shelf: Shelf) -> None:
        async def fail(work: Callable[[], None]) -> None:
            raise OSError(EIO, "the disk is broken")

        shelf.offload = fail
        shelf.replicas.aim(PARTITION, StandBy())
        await asyncio.sleep(0.1)
        driver = shelf.replica
        waiting = asyncio.create_task(shelf.replicas.opened(PARTITION))
        await asyncio.sleep(0.1)
        driver.aim(target)
        with pytest.raises(error):
            async with asyncio.timeout(10):
                await waiting
        with pytest.raises(error):
            async with asyncio.timeout(10):
                await driver.opened()

    story(tell)

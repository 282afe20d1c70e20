"""The same program on several machines: each partition is processed exactly once, whatever dies
(I21, I23). Real processes; sessions are short."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from tests.integration.cluster import ROLES, Cluster, until
from tests.integration.group_job import Job

pytestmark = pytest.mark.integration


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    with cluster.connect(timeout_ms=60_000) as log:
        yield Job(log, cluster.bootstrap, request.node.name[:40], tmp_path)


def test_i21_members_share_and_who_dies_is_replaced(job: Job) -> None:
    with job.working("works", "works", "works") as workers:
        until(lambda: all(worker.has_said("assigned") for worker in workers), "all have a share")
        job.feed(2_000)
        job.all_is_copied_once()
        assert all(worker.has_said("step") for worker in workers)
        job.feed(2_000)
        workers[0].process.kill()
        job.feed(2_000)
        job.all_is_copied_once()


def test_i23_a_process_that_was_stopped_beyond_its_session_commits_nothing(
    cluster: Cluster, job: Job
) -> None:
    """KIP-447's zombie: stopped between its poll and its commit, while the offset manager restarts;
    another one processes its input; then it wakes up and commits."""
    with job.working("waits") as (zombie,):
        job.feed(100)
        until(lambda: zombie.has_said("step"), "it has polled")
        zombie.process.send_signal(signal.SIGSTOP)
        cluster.kill("offset_manager")
        cluster.start("offset_manager")
        cluster.wait_ready()
        with job.working("works") as (successor,):
            job.all_is_copied_once()
            zombie.process.send_signal(signal.SIGCONT)
            zombie.go_on()
            until(lambda: zombie.has_said("lost"), "it hears that all is lost")
            job.feed(100)
            for _ in range(20):
                # It is a member again, and works.
                zombie.go_on()
            job.all_is_copied_once()
            assert successor.has_said("step")


def test_i21_exactly_once_while_every_service_restarts(cluster: Cluster, job: Job) -> None:
    with job.working("works", "static", "works") as workers:
        # One that begins while nobody is there is told so, and ends.
        until(lambda: all(worker.has_said("assigned") for worker in workers), "all have a share")
        for role in (*ROLES, *ROLES):
            job.feed(300)
            cluster.kill(role)
            cluster.start(role)
            cluster.wait_ready()
        job.all_is_copied_once()
        for worker in workers:
            assert worker.process.poll() is None, worker.said()


def test_a_program_that_is_told_to_end_finishes_its_batch_and_leaves(job: Job) -> None:
    with job.working("waits", "works") as (first, second):
        until(lambda: first.has_said("assigned") and second.has_said("assigned"), "they share")
        job.feed(200)
        until(lambda: first.has_said("step"), "it is in the middle of a batch")
        first.process.terminate()
        time.sleep(0.2)
        assert first.process.poll() is None, "it finishes its batch"
        first.go_on()
        assert first.process.wait(10) == 0
        assert first.has_said("ended 1")
        job.all_is_copied_once()


def test_a_run_goes_on_where_a_topic_is_deleted_and_made_again(cluster: Cluster) -> None:
    kept, replaced = "kept-of-two", "replaced-of-two"
    with cluster.connect() as log:
        seen: list[bytes | None] = []

        def fill(topic: str, value: bytes) -> None:
            with log.producer() as producer:
                for partition in (0, 1):
                    producer.send(topic, value, partition=partition)

        for topic in (kept, replaced):
            log.admin.create_topic(topic, partitions=2)
            fill(topic, b"first")
        consumer = log.consumer([kept, replaced], group="of-two")
        runner = threading.Thread(
            target=lambda: log.run(
                consumer,
                lambda batch, tx: seen.extend(record.value for record in batch),
                log.transactional_producer(),
            )
        )
        runner.start()
        try:
            until(lambda: seen.count(b"first") == 4, "all is processed")
            log.admin.delete_topic(replaced)
            until(lambda: len(consumer.assignment) == 2, "what was deleted is taken back")
            log.admin.create_topic(replaced, partitions=2)
            fill(replaced, b"second")
            fill(kept, b"second")
            until(lambda: seen.count(b"second") == 4, "the new topic is read, and the other one")
            assert runner.is_alive()
        finally:
            consumer.close()
            runner.join(30)


def test_i21_the_output_keeps_its_inputs_order_where_a_partition_moves_before_it_is_visible(
    cluster: Cluster,
) -> None:
    """The first owner's commit is decided while the leader of its output is gone; it leaves, and
    the next one, whose producer is of another transaction group, goes on behind it."""
    source, copy, half = "order-in", "order-out", 5
    with cluster.connect(timeout_ms=60_000) as first, cluster.connect(timeout_ms=60_000) as second:
        for topic in (source, copy):
            first.admin.create_topic(topic, partitions=1)
        with first.producer() as producer:
            for number in range(2 * half):
                producer.send(source, b"%d" % number)
        leaves = first.consumer([source], group="order", batch_records_max=half)
        writes = first.transactional_producer()
        batch = leaves.poll(30)
        assert batch is not None
        goes_on = second.consumer([source], group="order", batch_records_max=half)
        copies = second.transactional_producer()
        with writes.transaction(leaves) as tx:
            for record in batch:
                tx.send(copy, record.value)
            tx.flush()
            cluster.kill("partition_leader")
        cluster.start("partition_leader")
        leaves.close()
        cluster.wait_ready()

        def step(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
            for record in batch:
                tx.send(copy, record.value)

        second.run(goes_on, step, copies, idle_timeout_s=4.0)
        reader = second.consumer([copy])
        found: list[bytes | None] = []
        while (batch := reader.poll(2)) is not None:
            found.extend(record.value for record in batch)
    assert found == [b"%d" % number for number in range(2 * half)]

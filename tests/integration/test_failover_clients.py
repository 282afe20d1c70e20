"""Clients ride through the loss of a leader: a producer's transactions go on, and a consumer's
position is never reset."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog_server.core.roles import ROLES
from tests.integration.cluster import until
from tests.integration.failover import NODES, all_in_sync, frozen_leader, led_by
from tests.integration.reading import read_all
from tests.integration.test_faults_random_kills import Background
from tests.integration.up import Up, up_over

pytestmark = pytest.mark.integration

PARTITIONS = 2
# What is read after each failover, at least.
MORE = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failover") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with up_over(folder, f"--nodes={NODES}") as made:
        yield made


def write(log: oncelog.Log, topic: str, told: threading.Event) -> None:
    """Numbered transactions, each to all partitions. None is begun again here: what passes by
    itself passes inside of the client."""
    number = 0
    with log.transactional_producer(topic) as producer:
        while not told.wait(0.02):
            with producer.transaction() as tx:
                for partition in range(PARTITIONS):
                    tx.send(topic, b"%d" % number, partition=partition)
                # Begun and written, then committed.
                tx.flush()
            number += 1


def write_plainly(log: oncelog.Log, topic: str, told: threading.Event) -> None:
    number = 0
    with log.producer() as producer:
        while not told.wait(0.02):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            producer.flush()
            number += 1


def read(log: oncelog.Log, topic: str, told: threading.Event, seen: list[int]) -> None:
    """Each record comes once, in its order, and where it stands is committed."""
    next_offsets = [0] * PARTITIONS
    with log.consumer([topic], group=topic) as consumer:
        while not told.is_set():
            batch = consumer.poll(1.0)
            if batch is None:
                continue
            for record in batch:
                assert record.offset == next_offsets[record.partition], "it was reset, or skipped"
                next_offsets[record.partition] += 1
            consumer.commit()
            seen.append(sum(next_offsets))


@pytest.mark.parametrize("role", ROLES)
def test_i15_i21_i29_clients_ride_through_the_loss_of_a_leader(
    up: Up, folder: Path, role: str
) -> None:
    topic, plain = f"by-{role}", f"plain-{role}"
    with (
        oncelog.connect(up.bootstrap) as log,
        oncelog.connect(up.bootstrap) as looking,
    ):
        for name in (topic, plain):
            log.admin.create_topic(name, partitions=PARTITIONS, replication_factor=NODES)
        until(lambda: all_in_sync(looking), "all replicas are in sync")
        seen: list[int] = [0]
        reader = Background(lambda told: read(log, topic, told, seen))
        writers = [
            Background(lambda told: write(log, topic, told)),
            Background(lambda told: write_plainly(log, plain, told)),
        ]
        everybody = [reader, *writers]

        def goes_on(count: int) -> bool:
            for one in everybody:
                one.check()
            return seen[-1] >= count

        until(lambda: goes_on(MORE), "records come")
        partition = led_by(role, topic=topic, group=topic)
        with frozen_leader(up, folder, looking, *partition):
            count = seen[-1] + MORE
            until(lambda: goes_on(count), "records come under another leader")
        count = seen[-1] + MORE
        until(lambda: goes_on(count), "and when the old one is back")
        for one in writers:
            one.end()
        end = sum(log.admin.offsets(topic))
        until(lambda: goes_on(end), "all is read")
        reader.end()
        for number in range(PARTITIONS):
            found = [int(r.value or b"") for r in read_all(log, topic) if r.partition == number]
            assert found == list(range(len(found))), "each transaction once, in order"
            plainly = [int(r.value or b"") for r in read_all(log, plain) if r.partition == number]
            assert plainly == list(range(number, len(plainly) * PARTITIONS + number, PARTITIONS))

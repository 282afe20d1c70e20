"""Consume, transform, produce, while all three services are killed at random."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

import oncelog
from oncelog.protocol import Protocol
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from tests.integration.cluster import ROLES, Cluster, until
from tests.integration.reading import read_all, values

pytestmark = pytest.mark.integration

SECONDS = 20.0
PARTITIONS = 3
GROUP = "enricher"


class Background:
    """A thread whose error is the test's. It must end soon after it was told to."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self.told = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[threading.Event], None]) -> None:
        try:
            work(self.told)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.told.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "it hangs (I31)"
        self.check()

    def has_failed(self) -> bool:
        return self.error is not None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def test_i21_i14_i22_exactly_once_over_random_kills_of_all_services(cluster: Cluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with cluster.connect(timeout_ms=60_000) as log:
        for topic in ("in", "out", "boundaries"):
            log.admin.create_topic(topic, partitions=PARTITIONS)
        stable: list[dict[int, int]] = []
        feeder = Background(lambda told: feed(cluster, told))
        looker = Background(lambda told: look(cluster, told, stable))
        worker = Background(lambda told: enrich(cluster, told))
        kill_at_random(cluster, random.Random(seed), feeder, looker, worker)
        feeder.end()
        ends = log.admin.offsets("in")
        until(lambda: group_offsets(log) == ends or worker.has_failed(), "all input is committed")
        looker.end()
        worker.end()
        sent = values(log, "in")
        assert len(sent) > 100, "it got nowhere"
        assert Counter(sent).most_common(1)[0][1] == 1, "a plain producer's record stands twice"
        assert Counter(values(log, "out")) == Counter(value.upper() for value in sent)
        check_stable(stable, log)


def feed(cluster: Cluster, told: threading.Event) -> None:
    """Plain records, each acknowledged in the end."""
    with cluster.connect(timeout_ms=60_000) as log, log.producer() as producer:
        number = 0
        while not told.is_set():
            for _ in range(20):
                producer.send("in", b"record %d" % number, key=b"%d" % number)
                number += 1
            producer.flush()
            told.wait(0.05)


def enrich(cluster: Cluster, told: threading.Event) -> None:
    """Every batch's records in upper case, and where the batch ended, in one transaction."""
    with cluster.connect(timeout_ms=60_000) as log:
        consumer = log.consumer(["in"], group=GROUP, batch_records_max=50)
        producer = log.transactional_producer("enricher")

        def step(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
            for record in batch:
                tx.send("out", (record.value or b"").upper(), key=record.key)
            for place, to in batch.next_offsets().items():
                tx.send("boundaries", b"%d" % to, partition=place.partition)
            if random.random() < 0.5:
                # Begun, written and committed, where the others go as one message.
                tx.flush()

        while not told.is_set():
            log.run(consumer, step, producer, idle_timeout_s=0.5)


def look(cluster: Cluster, told: threading.Event, found: list[dict[int, int]]) -> None:
    """Stable offsets, again and again."""
    with Protocol(cluster.bootstrap, timeout_ms=2_000) as protocol:
        request = offsets_pb.FetchOffsetsRequest(group=GROUP, stable=True)
        while not told.is_set():
            try:
                reply = protocol.call("offset_manager.fetch_offsets", request)
                found.append({place.partition.number: place.offset for place in reply.offsets})
            except (errors.TryAgain, errors.UnknownOutcome):
                # Pending, or the offset manager is away.
                pass
            told.wait(0.02)


def kill_at_random(cluster: Cluster, chance: random.Random, *watched: Background) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.2, 2.0))
        for background in watched:
            background.check()
        roles = chance.sample(ROLES, chance.choice((1, 1, 1, 2, 3)))
        cluster.kill(*roles)
        time.sleep(chance.choice((0.0, 0.0, 0.5)))
        cluster.start(*roles)
        if chance.random() < 0.5:
            cluster.wait_ready()
    cluster.wait_ready()


def group_offsets(log: oncelog.Log) -> list[int | None]:
    return [place.offset for place in log.admin.group_offsets(GROUP)]


def check_stable(stable: list[dict[int, int]], log: oncelog.Log) -> None:
    """Each was the end of a batch that was committed, and they only grow."""
    ends: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
    for record in read_all(log, "boundaries"):
        ends[record.partition].add(int(record.value or b""))
    assert stable, "nothing stable was ever seen"
    for number in range(PARTITIONS):
        seen = [offsets[number] for offsets in stable if number in offsets]
        assert seen == sorted(seen), f"a stable offset of partition {number} went back"
        assert set(seen) <= ends[number], f"partition {number}: an offset that was not committed"

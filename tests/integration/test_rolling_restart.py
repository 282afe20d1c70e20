"""A rolling restart of the production overlay, rehearsed with real processes that obey its probes
and grace periods: three of each role, every set rolled at once, while clients write and copy.

Everything has three replicas: a process hands over what it leads before it stops. A write costs a
retry at most, inside the client, and nothing is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from tests.integration.cluster import make_etcd, until
from tests.integration.pods import Pods

pytestmark = pytest.mark.integration

OVERLAY = "production"
PARTITIONS = 6
# Between two writes: enough of them meet each restart, and two cores bear it.
PAUSE_S = 0.05


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    etcd = make_etcd(tmp_path / "etcd")
    made = Pods(OVERLAY, tmp_path, "")
    try:
        etcd.start()
        made = Pods(OVERLAY, tmp_path, etcd.endpoint)
        made.start()
        yield made
    finally:
        made.stop()
        etcd.stop()


class Writer(threading.Thread):
    """Writes numbers, each to its partition, one transaction or one plain record after the other,
    and keeps what was acknowledged. What it raises ends it."""

    def __init__(self, log: oncelog.Log, topic: str, *, transactional: bool) -> None:
        super().__init__()
        self._log = log
        self._topic = topic
        self._transactional = transactional
        self.acknowledged: list[int] = []
        # Of a write.
        self.longest_s = 0.0
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            if self._transactional:
                self._transact()
            else:
                self._send()
        except BaseException as failure:
            self.failure = failure

    def _transact(self) -> None:
        with self._log.transactional_producer("rolled") as producer:
            while not self.stopping.wait(PAUSE_S):
                number, begun = len(self.acknowledged), time.monotonic()
                with producer.transaction() as tx:
                    for partition in range(PARTITIONS):
                        tx.send(self._topic, b"%d" % number, partition=partition)
                self._note(number, begun)

    def _send(self) -> None:
        with self._log.producer() as producer:
            while not self.stopping.wait(PAUSE_S):
                number, begun = len(self.acknowledged), time.monotonic()
                producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS)
                producer.flush()
                self._note(number, begun)

    def _note(self, number: int, begun: float) -> None:
        self.acknowledged.append(number)
        self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def end(self) -> list[int]:
        self.stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        return self.acknowledged


def values_of(log: oncelog.Log, topic: str, count: int) -> list[int]:
    """So many, or what comes within the time."""
    found: list[int] = []
    with log.consumer([topic]) as consumer:
        while len(found) < count and (batch := consumer.poll(timeout_s=10)):
            found += [int(record.value or b"") for record in batch]
        # More than were acknowledged would be doubles.
        for record in consumer.poll(timeout_s=1) or ():
            found.append(int(record.value or b""))
    return found


def test_i5_i6_a_rolling_restart_of_everything_loses_nothing_and_fails_no_write(
    pods: Pods,
) -> None:
    with oncelog.connect(",".join(pod.address for pod in pods.all())) as log:
        for topic in ("plain", "transacted"):
            log.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        writers = [
            Writer(log, "plain", transactional=False),
            Writer(log, "transacted", transactional=True),
        ]
        for writer in writers:
            writer.start()
        until(lambda: all(len(writer.acknowledged) > 5 for writer in writers), "they write")
        pods.roll()
        before = [len(writer.acknowledged) for writer in writers]
        until(
            lambda: all(
                len(writer.acknowledged) > count
                for writer, count in zip(writers, before, strict=True)
            ),
            "they go on writing",
        )
        plain, transacted = (writer.end() for writer in writers)
        assert sorted(values_of(log, "plain", len(plain))) == plain
        copies = sorted(values_of(log, "transacted", PARTITIONS * len(transacted)))
        assert copies == [number for number in transacted for _ in range(PARTITIONS)]
    assert [pod.starts for pod in pods.all()] == [2] * len(pods.all())
    for pod in pods.all():
        [parting] = pod.events("handed over")
        assert parting["partitions"], f"{pod.name} led nothing"
        assert not parting["kept"], f"{pod.name}: {parting}"
    slowest = max(seconds for pod in pods.all() for seconds in pod.stops_s)
    longest = max(writer.longest_s for writer in writers)
    print(
        f"{len(pods.all())} pods restarted; the slowest stop took {slowest:.1f} s, "
        f"the slowest write {longest:.1f} s"
    )

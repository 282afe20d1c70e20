"""`replica.json` is read by the threads that open replicas, all at once at a start."""

from __future__ import annotations

import threading

import pytest

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import TopicInfo
from oncelog_server.runtime.etcd import identity
from oncelog_server.runtime.replica import record as replica_record
from oncelog_server.runtime.replica.record import load_record, make_record, save_record
from tests.simulation.disk import FakeDisk

THREADS = 16
TOPIC = TopicInfo("orders", TopicId(b"t" * 16), 3, 1, {}, 7)


@pytest.mark.parametrize("module", [replica_record, identity])
def test_what_threads_decode_is_described_before_they_start(module: object) -> None:
    """A process that started was killed by SIGSEGV in msgspec: sixteen threads described one type
    at the same time. Seldom, so what is tested is the cure."""
    decoder = getattr(module, "_DECODER", None)
    assert decoder is not None, "build the decoder at import, not at the first decode"


def test_many_threads_read_their_records() -> None:
    disk = FakeDisk()
    disk.make_directory("r")
    partition = PartitionId(TOPIC.topic_id, 1)
    record = make_record(partition, incarnation=b"i" * 16, epoch=2, topic=TOPIC)
    save_record(disk, "r", record)
    found: list[object] = []
    together = threading.Barrier(THREADS)

    def read() -> None:
        together.wait()
        found.append(load_record(disk, "r"))

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [record] * THREADS

"""Programs that end, or let go of what they opened, with records that were never flushed: it is
said loudly, and what can be flushed is."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

import oncelog
import oncelog.testing
from tests.integration.cluster import until
from tests.integration.reading import values

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def log() -> Iterator[oncelog.Log]:
    with oncelog.testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as made:
        made.bootstrap = cluster.bootstrap  # type: ignore[attr-defined]
        yield made


def left_by(source: str, log: oncelog.Log, topic: str) -> tuple[int, str]:
    """Exit code and standard error of a user's program."""
    log.admin.create_topic(topic, partitions=1)
    bootstrap = log.bootstrap  # type: ignore[attr-defined]
    done = subprocess.run(
        [sys.executable, "-c", source, bootstrap, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def named_places(told: str) -> set[str]:
    """Files whose lines a warning shows. None: no line of anybody's, of asyncio's least of all, is
    where the records were lost."""
    return set(re.findall(r"(\S+\.py):\d+: ", told))


def test_a_program_that_forgets_to_flush_is_told_and_loses_nothing(log: oncelog.Log) -> None:
    source = """
import sys, oncelog
log = oncelog.connect(sys.argv[1])
producer = log.producer(linger_ms=30_000)
for number in range(100):
    producer.send(sys.argv[2], b"%d" % number)
"""
    code, told = left_by(source, log, "forgotten")
    assert code == 0
    assert "UnsentRecordsWarning: oncelog: 100 records were sent" in told
    assert named_places(told) == set()
    assert len(values(log, "forgotten")) == 100


def test_one_that_dies_of_an_error_as_well(log: oncelog.Log) -> None:
    source = """
import sys, oncelog
with oncelog.connect(sys.argv[1]) as log:
    producer = log.producer(linger_ms=30_000)
    producer.send(sys.argv[2], b"v")
    raise ValueError("the user's own")
"""
    code, told = left_by(source, log, "failed")
    assert code == 1
    assert "the user's own" in told
    assert len(values(log, "failed")) == 1


def test_an_event_loop_that_ends_before_its_producer_says_what_is_lost(log: oncelog.Log) -> None:
    source = """
import asyncio, sys, oncelog.aio

async def main():
    log = oncelog.aio.connect(sys.argv[1])
    producer = await log.producer(linger_ms=30_000)
    for number in range(7):
        await producer.send(sys.argv[2], b"v")

asyncio.run(main())
"""
    code, told = left_by(source, log, "lost")
    assert code == 0
    assert "UnsentRecordsWarning: oncelog: 7 records were sent and are LOST" in told
    assert named_places(told) == set()


@pytest.mark.parametrize("linger_ms", [0, 30_000])
def test_a_program_that_never_asks_is_told_what_failed(log: oncelog.Log, linger_ms: int) -> None:
    source = f"""
import sys, time, oncelog
log = oncelog.connect(sys.argv[1])
producer = log.producer(linger_ms={linger_ms})
for number in range(100):
    producer.send("there-is-none", b"v")
producer.send(sys.argv[2], b"v")
time.sleep(0 if {linger_ms} else 2)
"""
    _, told = left_by(source, log, f"good-{linger_ms}")
    assert "100 records were not delivered; the first, record 0 of topic 'there-is-none'" in told
    assert "LOST" in told
    assert len(values(log, f"good-{linger_ms}")) == 1


def test_an_event_loop_that_ends_and_never_asked_is_told_what_failed(log: oncelog.Log) -> None:
    source = """
import asyncio, sys, oncelog.aio

async def main():
    log = oncelog.aio.connect(sys.argv[1])
    producer = await log.producer(linger_ms=0)
    await producer.send("there-is-none", b"v")
    await asyncio.sleep(2)

asyncio.run(main())
"""
    _, told = left_by(source, log, "unasked")
    assert "LOST" in told
    assert "no topic 'there-is-none'" in told
    assert named_places(told) == set()


def test_a_program_that_asked_a_receipt_hears_nothing_more(log: oncelog.Log) -> None:
    source = """
import sys, oncelog
log = oncelog.connect(sys.argv[1])
try:
    log.producer().send(sys.argv[2], b"v", partition=99).result()
except oncelog.errors.UnknownPartition:
    pass
log.producer(on_delivery=lambda delivery: None).send("there-is-none", b"v").done()
"""
    _, told = left_by(source, log, "asked")
    assert "LOST" not in told


def test_a_program_that_flushes_or_closes_hears_nothing(log: oncelog.Log) -> None:
    source = """
import sys, oncelog
log = oncelog.connect(sys.argv[1])
producer = log.producer()
producer.send(sys.argv[2], b"v")
producer.flush()
with oncelog.connect(sys.argv[1]) as other, other.producer() as second:
    second.send(sys.argv[2], b"w")
"""
    code, told = left_by(source, log, "flushed")
    assert (code, told) == (0, "")


def test_a_connection_that_is_let_go_of_flushes_first(log: oncelog.Log) -> None:
    bootstrap = log.bootstrap  # type: ignore[attr-defined]
    log.admin.create_topic("let-go", partitions=1)

    def forgetful() -> None:
        oncelog.connect(bootstrap).producer(linger_ms=30_000).send("let-go", b"v")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forgetful()
        gc.collect()
        until(lambda: len(values(log, "let-go")) == 1, "it is flushed")

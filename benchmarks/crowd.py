"""Many producers, each of which commits a record to each partition, over and over, in one or
several processes: `crowded` starts them, and `python -m benchmarks.crowd SIDE ...` is one of them.

    worker: READY ──►  (all are)  GO ──►  works for its time  ──► one line of JSON, and ends

A worker measures its own CPU and switches between GO and its end, so that imports and registering
are in no figure. Producers of one process share its connection: ours as coroutines, Kafka's as
threads, because confluent-kafka waits in its calls.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import TX_PER_S, Result, Task
from benchmarks.observer import Usage, own_usage
from oncelog import aio

OURS: Final = "oncelog"
KAFKA: Final = "kafka"
READY: Final = "ready"
GO: Final = "go"
READY_SECONDS_MAX: Final = 120.0
# Longer than it was told to: then something is wrong.
OVER_SECONDS_MAX: Final = 60.0


def crowded(side: str, bootstrap: str, task: Task) -> Result:
    """All workers at once, over the same time."""
    shape = task.shape
    shares = shared_out(shape.producers, shape.processes)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                _worker(
                    *(side, bootstrap, task.topic, f"{task.topic}-{number}"),
                    *map(str, (share, shape.partitions, shape.value_bytes, task.seconds)),
                )
            )
            for number, share in enumerate(shares)
        ]
        for worker in workers:
            _expect(worker, READY)
        with task.meter as meter:
            for worker in workers:
                _say(worker, GO)
            told = [json.loads(_line(worker)) for worker in workers]
    latencies = tuple(taken for one in told for taken in one["latencies_s"])
    used = Usage()
    for one in told:
        used = used.plus(Usage(one["cpu_s"], one["switches"]))
    return Result(len(latencies), meter.seconds, 0, TX_PER_S, latencies, used)


def shared_out(producers: int, processes: int) -> list[int]:
    """As evenly as it goes; never a process without any."""
    each, more = divmod(producers, processes)
    return [each + (number < more) for number in range(processes) if each or number < more]


@contextmanager
def _worker(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.crowd", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        # Ctrl-C is for whoever waits for it.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # It has told what it knows, or something failed: nobody waits for its end.
            process.kill()
        process.communicate()


def _expect(worker: subprocess.Popen[str], word: str) -> None:
    line = _line(worker)
    if line.strip() != word:
        raise RuntimeError(f"a worker said {line!r} instead of {word!r}; see its output above")


def _line(worker: subprocess.Popen[str]) -> str:
    """The next one; a worker that says nothing for too long is ended, which ends the wait."""
    assert worker.stdout is not None
    timer = threading.Timer(READY_SECONDS_MAX + OVER_SECONDS_MAX, worker.kill)
    timer.start()
    try:
        return worker.stdout.readline()
    finally:
        timer.cancel()


def _say(worker: subprocess.Popen[str], word: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{word}\n")
    worker.stdin.flush()


# ------------------------------------------------------------------------------- in the worker


def main(words: Sequence[str]) -> None:
    side, bootstrap, topic, name, *numbers = words
    producers, partitions, value_bytes = map(int, numbers[:3])
    value = b"v" * value_bytes
    arguments = (bootstrap, topic, producers, partitions, value, float(numbers[3]))
    run = _run_kafka if side == KAFKA else _run_ours
    took = run(*arguments, name)
    used = own_usage().since(_BEGAN[0])
    print(json.dumps({"latencies_s": took, "cpu_s": used.cpu_s, "switches": used.switches}))


# What this process had used when it was told to go.
_BEGAN: Final[list[Usage]] = []


def _wait_for_go() -> None:
    print(READY, flush=True)
    assert sys.stdin.readline().strip() == GO, "whoever started this process is gone"
    _BEGAN.append(own_usage())


def _run_ours(
    bootstrap: str,
    topic: str,
    count: int,
    partitions: int,
    value: bytes,
    seconds: float,
    name: str,
) -> list[float]:
    """Its producers need no names."""
    took: list[float] = []

    async def commit_all(producer: aio.TransactionalProducer, until: float) -> None:
        while (start := time.perf_counter()) < until:
            async with producer.transaction() as tx:
                for partition in range(partitions):
                    await tx.send(topic, value, partition=partition)
            took.append(time.perf_counter() - start)

    async def run() -> None:
        async with aio.connect(bootstrap) as log:
            producers = [await log.transactional_producer() for _ in range(count)]
            for producer in producers:
                await producer.start()
            _wait_for_go()
            until = time.perf_counter() + seconds
            await asyncio.gather(*(commit_all(producer, until) for producer in producers))

    asyncio.run(run())
    return took


def _run_kafka(
    bootstrap: str,
    topic: str,
    count: int,
    partitions: int,
    value: bytes,
    seconds: float,
    name: str,
) -> list[float]:
    from benchmarks.kafka import transactional

    took: list[float] = []
    producers = [transactional(bootstrap, f"{name}-{number}") for number in range(count)]

    def commit_all(producer: Any, until: float) -> None:
        while (start := time.perf_counter()) < until:
            producer.begin_transaction()
            for partition in range(partitions):
                producer.produce(topic, value, partition=partition)
            producer.commit_transaction()
            took.append(time.perf_counter() - start)

    _wait_for_go()
    until = time.perf_counter() + seconds
    _in_threads([lambda each=each: commit_all(each, until) for each in producers])  # type: ignore[misc]
    return took


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])

"""A user's program as a member of a group, on processes that tests kill and stop; sessions are
short."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import oncelog
from tests.integration.cluster import until
from tests.integration.reading import values

PARTITIONS = 6
SESSION_MS = 3_000
# What users write. It says what happens on its standard output. `waits` and `tells` wait in each
# step for a line; `tells` says how each commit ended.
PROGRAM = f"""
import sys, oncelog

bootstrap, job, name, mode = sys.argv[1:]

def say(*words):
    print(*words, flush=True)

def step(batch, tx):
    say("step", sorted(place.partition for place in batch.next_offsets()))
    for record in batch:
        tx.send(job + "-out", record.value, key=record.key)
    if mode in ("waits", "tells"):
        sys.stdin.readline()

with oncelog.connect(bootstrap, timeout_ms=60_000) as log:
    producer = log.transactional_producer()
    consumer = log.consumer(
        [job + "-in"],
        group=job,
        instance_id=name if mode == "static" else "",
        session_timeout_ms={SESSION_MS},
        batch_records_max=20,
        on_assigned=lambda given: say("assigned", *(place.partition for place in given)),
        on_revoked=lambda given: say("revoked", *(place.partition for place in given)),
        on_lost=lambda given: say("lost", *(place.partition for place in given)),
    )
    while mode == "tells":
        try:
            for batch in consumer:
                with producer.transaction(consumer) as tx:
                    step(batch, tx)
                say("committed")
        except oncelog.errors.GroupMoved as error:
            say("refused", error.reason)
    count = log.run(consumer, step, producer)
say("ended", count)
"""


class Worker:
    """The program, running."""

    def __init__(self, job: Job, told: Path, *, mode: str) -> None:
        self._told = told
        with told.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, job.bootstrap, job.name, told.stem, mode],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def said(self) -> str:
        return self._told.read_text()

    def has_said(self, word: str) -> bool:
        return any(line.startswith(word) for line in self.said().splitlines())

    def go_on(self) -> None:
        """Ends the step that waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdin is not None
        self.process.stdin.close()


class Job:
    """Input, output, and the group that copies the one to the other."""

    def __init__(
        self,
        log: oncelog.Log,
        bootstrap: str,
        name: str,
        directory: Path,
        *,
        partitions: int = PARTITIONS,
        replicas: int = 1,
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self._log = log
        self._directory = directory
        self._fed = self._started = 0
        for topic, count in ((f"{name}-in", partitions), (f"{name}-out", 2)):
            log.admin.create_topic(topic, partitions=count, replication_factor=replicas)

    @contextmanager
    def working(self, *modes: str) -> Iterator[list[Worker]]:
        workers = []
        for mode in modes:
            self._started += 1
            workers.append(Worker(self, self._directory / f"worker-{self._started}", mode=mode))
        try:
            yield workers
        finally:
            for worker in workers:
                worker.end()

    def feed(self, count: int) -> None:
        with self._log.producer() as producer:
            for number in range(self._fed, self._fed + count):
                producer.send(f"{self.name}-in", b"%d" % number, key=b"%d" % number)
            producer.flush()
        self._fed += count

    def waiting(self) -> int:
        """Input that is not committed."""
        ends = self._log.admin.offsets(f"{self.name}-in")
        stands = {
            place.partition: place.offset or 0 for place in self._log.admin.group_offsets(self.name)
        }
        return sum(end - stands.get(number, 0) for number, end in enumerate(ends))

    def all_is_copied_once(self) -> None:
        until(lambda: self.waiting() == 0, "all input is committed", within_s=60)
        # The offsets of a transaction may be there a moment before its output.
        until(
            lambda: sum(self._log.admin.offsets(f"{self.name}-out")) >= self._fed, "all is copied"
        )
        copied = Counter(values(self._log, f"{self.name}-out"))
        fed = Counter(b"%d" % number for number in range(self._fed))
        assert copied == fed, f"lost: {fed - copied}, twice: {copied - fed}"

"""What users write, to be killed: consume, transform, produce as one member of a group.

    python worker.py BOOTSTRAP JOB NAME MODE SESSION_MS

    run        `log.run`, which does all that can be done about errors
    by-hand    the same loop written out, with what README says of errors
    static     `log.run` under an instance id
    passer-by  joins, works for a second, leaves, rests for a second, and again

Says on its standard output what it is told of partitions, with the time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import oncelog

# How long a passer-by works, and rests.
PASSES_S = 1.0
BATCH = 200
PASSES_BY_ITSELF = (
    oncelog.errors.TransactionEnded,
    oncelog.errors.GroupMoved,
    oncelog.errors.TryAgain,
    oncelog.errors.InDoubt,
)


def main(bootstrap: str, job: str, name: str, mode: str, session_ms: str) -> None:
    told = threading.Event()
    # A static member's successor is the same member, and what it gets has stayed where it was.
    me = name if mode == "static" else f"{name}.{os.getpid()}"

    def step(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
        for record in batch:
            value = (record.value or b"") + b" by " + me.encode()
            tx.send(f"{job}-out", value, key=record.key, partition=record.partition)

    def joined(log: oncelog.Log) -> oncelog.Consumer:
        return log.consumer(
            [f"{job}-in"],
            group=job,
            instance_id=name if mode == "static" else "",
            client_id=name,
            session_timeout_ms=int(session_ms),
            batch_records_max=BATCH,
            on_assigned=lambda given: say("assigned", given),
            on_revoked=lambda given: say("revoked", given),
            on_lost=lambda given: say("lost", given),
        )

    # It may start while a service is away.
    with oncelog.connect(bootstrap, timeout_ms=60_000, connect_timeout_ms=60_000) as log:
        producer = log.transactional_producer()
        if mode in ("run", "static"):
            log.run(joined(log), step, producer)
            return
        signal.signal(signal.SIGTERM, lambda *_: told.set())
        while not told.is_set():
            with joined(log) as consumer:
                until = time.monotonic() + PASSES_S if mode == "passer-by" else None
                copy(consumer, producer, step, partial(is_over, told, until))
            if mode == "passer-by":
                told.wait(PASSES_S)


def copy(
    consumer: oncelog.Consumer,
    producer: Any,
    step: Callable[[oncelog.Batch, oncelog.Transaction], None],
    is_told: Callable[[], bool],
) -> None:
    while not is_told():
        try:
            batch = consumer.poll(0.2)
            if batch is not None:
                with producer.transaction(consumer) as tx:
                    step(batch, tx)
        except oncelog.errors.FencedInstance:
            raise
        except PASSES_BY_ITSELF as error:
            # The consumer is rewound, or asks its group where it stands.
            say(type(error).__name__, ())


def is_over(told: threading.Event, until: float | None) -> bool:
    return told.is_set() or (until is not None and time.monotonic() > until)


def say(word: str, places: Sequence[oncelog.TopicPartition]) -> None:
    numbers = " ".join(str(place.partition) for place in places)
    print(f"{time.monotonic():.3f} {word} {numbers}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Somebody who writes in transactions while a cluster is changed or fails, and notes what was
acknowledged."""

from __future__ import annotations

import contextlib
import threading

import oncelog
from oncelogpb import errors
from tests.integration.cluster import until


class Writer:
    """A transaction over all partitions after the other: what was acknowledged, and what was merely
    tried."""

    def __init__(
        self, bootstrap: str, name: str, topic: str, partitions: int, *, timeout_ms: int
    ) -> None:
        """`name`: of its producer. `timeout_ms`: of each call."""
        self._bootstrap, self._name = bootstrap, name
        self._topic, self._partitions = topic, partitions
        self._timeout_ms = timeout_ms
        self._over = threading.Event()
        self.acknowledged: list[str] = []
        self.tried: list[str] = []
        self._task = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._task.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._task.join()

    def wrote(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= goal, f"{count} records are acknowledged")

    def _write(self) -> None:
        turn = 0
        with oncelog.connect(self._bootstrap, timeout_ms=self._timeout_ms) as log:
            producer = log.transactional_producer(self._name)
            while not self._over.wait(0.02):
                turn += 1
                values = [f"{self._name}/{turn}/{number}" for number in range(self._partitions)]
                self.tried += values
                with contextlib.suppress(errors.OncelogError):
                    with producer.transaction() as tx:
                        for number, value in enumerate(values):
                            tx.send(self._topic, value.encode(), partition=number)
                    self.acknowledged += values
            with contextlib.suppress(errors.OncelogError):
                producer.close()

"""Tells etcd where the oldest open transaction of each journal began, for tools. Nothing depends on
it, so a write that fails is simply due again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from oncelog_server.core.role import Role
from oncelog_server.runtime.etcd.keys import CLUSTER, HintValue, encode, hint_key
from oncelog_server.runtime.etcd.port import Etcd, EtcdUnavailable, Exists, Put
from oncelog_server.runtime.replica.driver import Driver


class Hints:
    """Of the journals that this node leads: `led` says which, by role."""

    def __init__(self, etcd: Etcd, led: Callable[[], Iterable[tuple[Role[Any], Driver]]]) -> None:
        self._etcd = etcd
        self._led = led
        self._told: dict[str, bytes] = {}

    async def tell(self) -> None:
        """What changed since the last time. Nothing in an etcd that was wiped: it would be in the
        way of `oncelog cluster recover`."""
        for key, value in self._current():
            if self._told.get(key) == value:
                continue
            with contextlib.suppress(EtcdUnavailable):
                if (await self._etcd.txn([Exists(CLUSTER)], [Put(key, value)])).succeeded:
                    self._told[key] = value

    def _current(self) -> list[tuple[str, bytes]]:
        hints = []
        for role, driver in self._led():
            offset = role.checkpoint(driver.machine)
            if offset is not None:
                value = encode(HintValue(journal_offset=offset, epoch=driver.epoch))
                hints.append((hint_key(driver.partition.number), value))
        return hints

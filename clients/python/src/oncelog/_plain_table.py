"""The blocking face of a table view. What is looked up is there already: no call goes to the loop
for it, and any thread may."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView

import pyarrow as pa

from oncelog import aio
from oncelog._loop import LoopThread
from oncelog.aio.table_view import IDLE_S
from oncelog.batch import TopicPartition
from oncelog.errors import Closed


class TableChanges:
    """What changes in a table from here on. See `aio.TableView.changes`."""

    def __init__(self, loop: LoopThread, twin: aio.TableChanges, table: aio.TableView) -> None:
        self._loop = loop
        self._twin = twin
        self._table = table

    def poll(self, timeout_s: float = 1.0) -> dict[bytes, bytes | None] | None:
        """See `aio.TableChanges.poll`."""
        return self._loop.run(self._twin.poll(timeout_s))

    def __iter__(self) -> Iterator[dict[bytes, bytes | None]]:
        """Waits as long as it takes; ends when the table is closed."""
        while not self._table.closed:
            try:
                changed = self.poll(IDLE_S)
            except Closed:
                return
            if changed is not None:
                yield changed


class TableView(Mapping[bytes, bytes]):
    """A dictionary that follows a topic. See `aio.TableView`. Usable from many threads."""

    def __init__(self, loop: LoopThread, twin: aio.TableView) -> None:
        self._loop = loop
        self._twin = twin

    @property
    def topic(self) -> str:
        """Its name."""
        return self._twin.topic

    def __getitem__(self, key: bytes) -> bytes:
        """See `aio.TableView.__getitem__`."""
        self._loop.require_usable()
        return self._twin[key]

    def __contains__(self, key: object) -> bool:
        self._loop.require_usable()
        return key in self._twin

    def __len__(self) -> int:
        self._loop.require_usable()
        return len(self._twin)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.snapshot())

    def keys(self) -> KeysView[bytes]:
        """See `aio.TableView.keys`."""
        return self.snapshot().keys()

    def values(self) -> ValuesView[bytes]:
        """See `aio.TableView.values`."""
        return self.snapshot().values()

    def items(self) -> ItemsView[bytes, bytes]:
        """See `aio.TableView.items`."""
        return self.snapshot().items()

    def snapshot(self, keys: Iterable[bytes] | None = None) -> dict[bytes, bytes]:
        """See `aio.TableView.snapshot`."""
        self._loop.require_usable()
        return self._twin.snapshot(keys)

    def to_arrow(self) -> pa.Table:
        """See `aio.TableView.to_arrow`."""
        self._loop.require_usable()
        return self._twin.to_arrow()

    def caught_up(self, timeout_s: float = 60.0) -> None:
        """See `aio.TableView.caught_up`."""
        self._loop.run(self._twin.caught_up(timeout_s))

    def changes(self) -> TableChanges:
        """See `aio.TableView.changes`."""
        return TableChanges(self._loop, self._loop.ask(self._twin.changes), self._twin)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """See `aio.TableView.positions`."""
        return self._loop.ask(lambda: self._twin.positions)

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """See `aio.TableView.skipped`."""
        return self._loop.ask(lambda: self._twin.skipped)

    @property
    def without_key(self) -> int:
        """See `aio.TableView.without_key`."""
        return self._twin.without_key

    @property
    def memory_bytes(self) -> int:
        """See `aio.TableView.memory_bytes`."""
        return self._loop.ask(lambda: self._twin.memory_bytes)

    def close(self) -> None:
        """See `aio.TableView.close`."""
        try:
            self._loop.run(self._twin.close())
        except Closed:
            # With its connection.
            return

    def __enter__(self) -> TableView:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

"""The hot path: `send`, from any thread, without a lock and without the loop.

Measured to the nanosecond, so written out: no call that is not needed, attributes read once. What
happens once a batch (sealing, waiting for room) and once in a blue moon (two threads at the same
moment) is the recorder's. Why it is safe: `_core.buffers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog._core.buffers import (
    RECORD_OVERHEAD_BYTES,
    HeadersLike,
    check_bytes,
    check_partition,
    make_extra,
)
from oncelog.aio.receipts import Receipt

if TYPE_CHECKING:
    from oncelog.aio.recorder import Recorder


class Front:
    """Puts records into the buffers of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # Emptied when nothing may be put any more.
        self._buffers = recorder.open_buffers

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Takes in a record, and returns how to ask what becomes of it. Waits only while more than
        `buffer_bytes_max` are on their way. Raises InvalidArgument, TooLarge, Closed."""
        try:
            buffer = self._buffers[topic]
        except (KeyError, TypeError):
            buffer = self._recorder.open(topic)
        if type(value) is bytes:
            size = len(value) + RECORD_OVERHEAD_BYTES
        else:
            value = check_bytes("value", value)
            size = RECORD_OVERHEAD_BYTES if value is None else len(value) + RECORD_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes:
                key = check_bytes("key", key)
                assert key is not None, "None stays None"
            size += len(key)
        extra = None
        if headers or timestamp_us is not None:
            extra = make_extra(headers, timestamp_us)
        if partition is not None:
            check_partition(partition)
        room = buffer.room - size
        if room < 0:
            return self._recorder.put_last(buffer, (value, key, extra, partition), size)
        cell = buffer.cell
        # In one line: nobody comes in between.
        busy, cell.busy = cell.busy, True
        if busy:
            return self._recorder.put_aside(buffer, (value, key, extra, partition), size)
        items = cell.items
        place = len(items)
        # BARE, KEYED and COLUMNS of `buffers`, as numbers: a name of the module takes longer.
        width = cell.width
        if width == 1 and key is None and extra is None and partition is None:
            items.append(value)
        elif width == 2 and extra is None and partition is None:
            items.extend((value, key))
        elif width == 4:
            items.extend((value, key, extra, partition))
        else:
            cell.busy = False
            return self._recorder.put_aside(buffer, (value, key, extra, partition), size)
        cell.busy = False
        # Several threads may lose an update here: a hint, not an account.
        buffer.room = room
        if buffer.cell is not cell:
            return self._recorder.rehome(buffer, cell, place, (value, key, extra, partition))
        # After the record is there: whoever finds it armed is sure that the timer sees it.
        if not buffer.armed:
            self._recorder.arm(buffer)
        receipt = Receipt()
        receipt.deliveries = cell.deliveries
        receipt.place = place
        return receipt

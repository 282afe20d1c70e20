"""Records that the driver itself adds to a micro-batch: a summary, a mark, observed metrics."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import threading
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Observation

# They wait in memory until the block ends. What is more belongs into a DataFrame.
DRIVER_RECORDS_MAX: Final = 10_000
DRIVER_BYTES_MAX: Final = 8 * 1024 * 1024
# Metrics are there when the observed frame's job is done; they come by a listener, a moment later.
OBSERVED_SECONDS_MAX: Final = 30


class DriverRecords:
    """Collected, with limits."""

    def __init__(self) -> None:
        self._topics: list[str] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, topic: str, value: bytes | str | None, key: bytes | str | None) -> None:
        """Raises ValueError above the limits."""
        as_bytes, key_bytes = _bytes(value), _bytes(key)
        size = self._bytes + len(as_bytes or b"") + len(key_bytes or b"")
        if len(self) >= DRIVER_RECORDS_MAX or size > DRIVER_BYTES_MAX:
            raise ValueError(
                f"the driver sends at most {DRIVER_RECORDS_MAX} records (DRIVER_RECORDS_MAX) of "
                f"{DRIVER_BYTES_MAX} bytes in all (DRIVER_BYTES_MAX) with a batch: for more, write "
                "a DataFrame"
            )
        self._topics.append(topic)
        self._keys.append(key_bytes)
        self._values.append(as_bytes)
        self._bytes = size

    def batch(self) -> pa.RecordBatch:
        """As a DataFrame's batch comes to the sink."""
        return pa.record_batch(
            {
                "topic": pa.array(self._topics, pa.string()),
                "key": pa.array(self._keys, pa.binary()),
                "value": pa.array(self._values, pa.binary()),
            }
        )


def observed_value(observation: Observation) -> str:
    """The metrics as JSON, by name. Raises TimeoutError where no job ran that was observed by it:
    Spark itself would wait for ever."""
    found: list[dict[str, Any]] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            found.append(observation.get)
        except BaseException as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="oncelog-observed", daemon=True)
    asking.start()
    asking.join(OBSERVED_SECONDS_MAX)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(
            f"no metrics within {OBSERVED_SECONDS_MAX} s (OBSERVED_SECONDS_MAX): write the frame "
            "that `observe` gave, whole, before its metrics are sent"
        )
    return json.dumps(found[0], default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    """Of what metrics may be and JSON is not."""
    if isinstance(value, dt.date | dt.datetime):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    raise TypeError(f"a metric of type {type(value).__name__} has no form in JSON: cast it")


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value

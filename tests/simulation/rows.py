"""Records as readers see them, to be compared."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from oncelogpb import records

# Of a record that is shown where two differ.
SHOWN_BYTES: Final = 40


class Row(NamedTuple):
    """What a reader can see of a record, beside its offset."""

    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: tuple[tuple[str, bytes | None], ...]

    def __str__(self) -> str:
        key, value = (part if part is None else part[:SHOWN_BYTES] for part in self[:2])
        return f"{key!r}: {value!r}"


def rows_of(encoding: int, payload: bytes | memoryview) -> list[Row]:
    """Of a batch of either encoding."""
    decoded: Any = records.decode_rows(records.as_rows(encoding, payload))
    return [
        Row(
            row.key if row.HasField("key") else None,
            row.value if row.HasField("value") else None,
            row.timestamp_us,
            tuple(
                (header.key, header.value if header.HasField("value") else None)
                for header in row.headers
            ),
        )
        for row in decoded.rows
    ]

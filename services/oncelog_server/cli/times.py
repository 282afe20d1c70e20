"""Times on the command line: RFC 3339 (2026-01-31T12:00:00Z; UTC where no zone is named; a date
alone is its first moment), or so long ago (90s, 15m, 2h, 7d)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from oncelog_server.cli.output import EPOCH

_AGO: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_MICROSECOND: Final = timedelta(microseconds=1)


def parse_time(text: str, *, now_us: int) -> int:
    """Microseconds since 1970. Raises ValueError."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_us - int(ago[1]) * _UNITS_US[ago[2]]
    # fromisoformat takes a bare number for a date of the calendar.
    if text.isdecimal():
        raise ValueError(f"{text!r} is no time")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // _MICROSECOND

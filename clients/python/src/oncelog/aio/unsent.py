"""Records that are lost because their program, or its event loop, ends before they were sent, or
before somebody asked what became of them: said loudly, for nothing else would say it."""

from __future__ import annotations

from oncelog._warning import warn_of_no_line
from oncelogpb.errors import OncelogError


class UnsentRecordsWarning(UserWarning):
    """Records were put into a producer and never reached the log. Python shows it without being
    asked, unlike a ResourceWarning."""


def warn_of_unsent(count: int) -> None:
    """Where there are any."""
    if count:
        warn_of_no_line(
            f"{count} records were sent and are LOST: their producer was neither flushed "
            "nor closed before its end. Use `with` (or `async with`), or call close()",
            UnsentRecordsWarning,
        )


def warn_of_failed(why: OncelogError) -> None:
    """`why`: as `flush` would have raised it."""
    warn_of_no_line(
        f"records were sent and are LOST, or may be; nobody asked: {why}. Call flush() "
        "or close(), which raise this, or give the producer an `on_delivery`",
        UnsentRecordsWarning,
    )

"""Warnings about what no line of the user's program does at that moment: it happens at the end of a
program, when something is let go of, or beside all calls. The usual way would show some line of
asyncio, or of ours, which is where nobody has anything to look for."""

from __future__ import annotations

import warnings
from typing import Final

# Shown, and seen by filters, as the place.
PLACE: Final = "oncelog"


def warn_of_no_line(text: str, category: type[Warning]) -> None:
    """Each time: two that read alike are two. Filters count as ever."""
    warnings.warn_explicit(f"oncelog: {text}", category, filename=PLACE, lineno=0, module=PLACE)

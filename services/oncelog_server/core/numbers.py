"""Whole numbers as people write them: in settings and on the command line. PURE."""

from __future__ import annotations

from typing import Final

# Of 64 bits with a sign. Python reads no more than 4,300 of them, and raises ValueError above.
DIGITS_MAX: Final = 19


def is_number(text: str) -> bool:
    """`int(text)` is one from 0, of ASCII digits: Python reads those of all scripts."""
    return len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal()

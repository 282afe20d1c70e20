"""Text that others named, for a terminal: a name with an ESC in it would move the cursor of whoever
looks, or rewrite what stands there. PURE.
"""

from __future__ import annotations

from typing import Final

# ASCII's and Latin-1's control characters, and those that turn the direction of what follows.
_CONTROLS: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPES: Final = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}


def printable(text: str) -> str:
    """With control characters as their escapes, line breaks too."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_lines(text: str) -> str:
    """As `printable`, line by line."""
    return text if text.isprintable() else "\n".join(map(printable, text.splitlines()))

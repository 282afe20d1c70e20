"""The examples below each command's help."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """An epilog that click leaves as it is. Lines that start with # are remarks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)

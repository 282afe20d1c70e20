"""Fixtures of the command line's tests."""

from tests.unit.cli.scripted import run

__all__ = ["run"]

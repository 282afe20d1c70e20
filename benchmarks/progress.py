"""How far a long run is: a bar on a terminal, and a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S: Final = 60.0

# Is told what begins now.
Say = Callable[[str], None]


@contextmanager
def shown(total: int) -> Iterator[Say]:
    """Of so many steps; each is said when it begins."""
    console = Console(stderr=True)
    with _bar(console, total) if console.is_terminal else _lines(total) as say:
        yield say


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Say]:
    with Progress(TextColumn("{task.description}"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def say(words: str) -> None:
            nonlocal begun
            bar.update(task, description=words, completed=begun)
            begun += 1

        yield say


@contextmanager
def _lines(total: int) -> Iterator[Say]:
    begin = said = time.monotonic()
    begun = 0

    def say(words: str) -> None:
        nonlocal begun, said
        now = time.monotonic()
        if begun and now - said >= LINE_EVERY_S:
            left = (now - begin) / begun * (total - begun) / 60
            line = f"{begun} of {total}, about {left:.0f} minutes left: {words}"
            print(line, file=sys.stderr, flush=True)
            said = now
        begun += 1

    yield say

"""`oncelog quickstart`: a cluster that lives for some seconds, and what one does with it."""

from __future__ import annotations

import textwrap
import time
from typing import Any, Final

import click

from oncelog_server.cli import interrupts
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import console, print_json
from oncelog_server.cli.session import json_option

# Of running text.
LINE_CHARACTERS_MAX: Final = 96
LOOK_EVERY_SECONDS: Final = 0.2


@click.command(epilog=examples("oncelog quickstart", "oncelog quickstart --stay"))
@click.option("--stay", is_flag=True, help="Leave the cluster running afterwards, until Ctrl-C.")
@json_option
def quickstart(stay: bool, as_json: bool) -> None:
    """Show in some seconds what a transaction is, and what its readers see.

    It starts a cluster of its own in this process, with its data in a folder that goes away at the
    end. Nothing else on this machine is touched, and nothing needs to be installed: etcd, which a
    real cluster elects its leaders with, is in memory for once.
    """
    with interrupts.importing():
        import oncelog
        from oncelog import testing
        from oncelog_server.cli import lesson

    say = _Said(as_json)
    began = time.monotonic()
    say.welcome()
    with testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as log:
        say.cluster(cluster.bootstrap, time.monotonic() - began)
        for number, step in enumerate(lesson.steps(log), start=2):
            say.step(number, step)
        took_s = time.monotonic() - began
        if not stay:
            say.end(took_s, None)
            return
        with interrupts.stop_signals() as stop:
            say.end(took_s, cluster.bootstrap)
            while not stop():
                time.sleep(LOOK_EVERY_SECONDS)


class _Said:
    """For people, or one JSON value per step."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def welcome(self) -> None:
        if not self._as_json:
            self._print(
                "[bold]Oncelog in seven steps.[/] Each was just done; what is seen was read."
            )

    def cluster(self, bootstrap: str, seconds: float) -> None:
        if self._as_json:
            print_json({"step": 1, "title": "A cluster", "bootstrap": bootstrap})
            return
        self._title(1, "A cluster")
        self._print(f"    up after {seconds:.1f} s, at {bootstrap}")
        self._lesson(
            "A coordinator decides transactions, a partition leader keeps topics, an offset "
            "manager knows where consumer groups stand."
        )

    def step(self, number: int, step: Any) -> None:
        if self._as_json:
            print_json({"step": number, "title": step.title, "seen": dict(step.seen)})
            return
        from rich.markup import escape

        self._title(number, step.title)
        for line in step.code.splitlines():
            self._print(f"    [cyan]{escape(line)}[/]")
        self._print("")
        width = max(len(name) for name, _ in step.seen)
        for name, seen in step.seen:
            self._print(f"    {escape(name):<{width}}   [bold]{escape(seen)}[/]")
        self._lesson(step.lesson)

    def end(self, seconds: float, bootstrap: str | None) -> None:
        if self._as_json:
            print_json({"done": True, "bootstrap": bootstrap})
            return
        self._print("")
        if bootstrap is not None:
            self._print("It goes on running, until Ctrl-C. In another terminal:")
            self._print(f"    export ONCELOG_BOOTSTRAP={bootstrap}")
            self._print("    oncelog consume payments --format long")
            return
        self._print(f"That took {seconds:.0f} s, and is gone. A cluster that stays:")
        self._print("    oncelog up                  # here, with a real etcd; then, elsewhere:")
        self._print("    oncelog topic create payments")
        self._print("    oncelog doctor")

    def _title(self, number: int, title: str) -> None:
        self._print("")
        self._print(f"[bold]{number}  {title}[/]")

    def _lesson(self, text: str) -> None:
        width = min(console().width, LINE_CHARACTERS_MAX)
        for line in textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    "):
            self._print(f"[italic]{line}[/]")

    def _print(self, text: str) -> None:
        console().print(text, soft_wrap=True)

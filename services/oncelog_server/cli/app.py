"""The command `oncelog` and what it consists of. Each command is a file of its own."""

from __future__ import annotations

import importlib
from typing import Final

import click

from oncelog_server import __version__
from oncelog_server.cli import interrupts
from oncelog_server.cli.examples import examples

# Command -> (module, function). Imported when it is run: `oncelog topic list` needs no server.
COMMANDS: Final = {
    "up": ("oncelog_server.cli.up", "up"),
    "serve": ("oncelog_server.cli.serve", "serve"),
    "topic": ("oncelog_server.cli.topics", "topic"),
    "produce": ("oncelog_server.cli.produce", "produce"),
    "consume": ("oncelog_server.cli.consume", "consume"),
    "tx": ("oncelog_server.cli.transactions", "tx"),
    "offsets": ("oncelog_server.cli.offsets", "offsets"),
    "acl": ("oncelog_server.cli.acl", "acl"),
    "quota": ("oncelog_server.cli.quota", "quota"),
    "cluster": ("oncelog_server.cli.cluster", "cluster"),
    "check": ("oncelog_server.cli.check", "check"),
}


class LazyGroup(click.Group):
    """Finds the commands of COMMANDS, in that order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), function)
        interrupts.hear_again()
        assert isinstance(command, click.Command), f"{module}.{function} is no command"
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "oncelog up",
        "oncelog topic create payments --partitions 3",
        "echo alice:10 | oncelog produce payments --key-separator : --transactional",
        "oncelog consume payments",
    )
    + "\n\n\b\nExit codes: 0 done, 1 refused, 2 wrong usage, 3 nobody answers; 4 `serve`: "
    "not this data's etcd.",
)
@click.version_option(__version__, prog_name="oncelog")
def oncelog() -> None:
    """Oncelog, a transactional log."""

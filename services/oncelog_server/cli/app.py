"""The command `oncelog` and what it consists of. Each command is a file of its own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from oncelog_server import __version__
from oncelog_server.cli import interrupts
from oncelog_server.cli.examples import examples

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Listed(NamedTuple):
    """A command as the list of commands shows it, and where it is. Its module is imported when it
    is run: `oncelog topic list` needs no server, and the list of commands none of them."""

    module: str
    function: str
    # The first sentence of its help.
    short: str


_ROOM: Final = "oncelog_server.cli"
COMMANDS: Final = {
    "quickstart": Listed(
        f"{_ROOM}.quickstart",
        "quickstart",
        "Show in some seconds what a transaction is, and what its readers see.",
    ),
    "up": Listed(
        f"{_ROOM}.up", "up", "Run etcd and the three services on this machine, until Ctrl-C."
    ),
    "serve": Listed(
        f"{_ROOM}.serve", "serve", "Run one process of a cluster, with one or several roles."
    ),
    "topic": Listed(f"{_ROOM}.topics", "topic", "Create, look at and change topics."),
    "produce": Listed(f"{_ROOM}.produce", "produce", "Append each line as a record."),
    "consume": Listed(
        f"{_ROOM}.consume",
        "consume",
        "Print a topic's records, one per line: committed ones in commit order.",
    ),
    "tx": Listed(f"{_ROOM}.transactions", "tx", "Look at transactions, and end what hangs."),
    "group": Listed(
        f"{_ROOM}.groups", "group", "Look at consumer groups, and move where they stand."
    ),
    "acl": Listed(f"{_ROOM}.acl", "acl", "Say who may do what (rules), and ask why."),
    "quota": Listed(
        f"{_ROOM}.quota",
        "quota",
        "Limit what identities may do in a second, of each process that they call.",
    ),
    "cluster": Listed(f"{_ROOM}.cluster", "cluster", "Look at the cluster, and repair it."),
    "doctor": Listed(
        f"{_ROOM}.doctor.command",
        "doctor",
        "Look for what is wrong, here and with a cluster, and say what to do.",
    ),
    "profile": Listed(
        f"{_ROOM}.profile", "profile", "Keep addresses and certificates of clusters under names."
    ),
    "completion": Listed(
        f"{_ROOM}.completion",
        "completion",
        "Have the shell complete commands, options, topics and groups.",
    ),
    "check": Listed(
        f"{_ROOM}.check",
        "check",
        "Check what clients were told against the promises I1 to I24 and I32.",
    ),
}
# What was a command once, for who knows it by that name.
MOVED: Final = {
    "offsets": "Offsets are looked at and moved by `oncelog group`: `describe` was `show`, "
    "`reset-offsets` was `set`."
}


class LazyGroup(click.Group):
    """Finds the commands of COMMANDS, in that order."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table: click would import all of them for their first sentences."""
        room = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=listed.short).get_short_help_str(room))
                    for name, listed in COMMANDS.items()
                ]
            )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table, too."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=listed.short)
            for name, listed in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in MOVED:
            raise click.UsageError(MOVED[cmd_name])
        if cmd_name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), function)
        interrupts.hear_again()
        assert isinstance(command, click.Command), f"{module}.{function} is no command"
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "oncelog quickstart",
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

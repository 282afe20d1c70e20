"""`oncelog completion`: has the shell complete commands, options and names of the cluster.

    bash, zsh    a script in the user's data folder, and three marked lines in ~/.bashrc or ~/.zshrc
    fish         a script in the folder that fish looks into by itself

What the script asks is answered by click, and by `names` where a cluster knows it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.output import print_json
from oncelog_server.cli.session import json_option

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAM: Final = "oncelog"
# What the script sets when it asks; click looks for it under this name.
VARIABLE: Final = "_ONCELOG_COMPLETE"
FIRST_LINE: Final = "# >>> oncelog completion >>>"
LAST_LINE: Final = "# <<< oncelog completion <<<"
# zsh knows how to complete only once this ran.
_COMPINIT: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"


class Places(NamedTuple):
    """Where the completion of one shell is kept."""

    script: Path
    # The file that a new shell reads; None: the shell finds the script by itself.
    start_file: Path | None


@click.group()
def completion() -> None:
    """Have the shell complete commands, options, topics and groups."""


_shell_argument: Final = click.argument(
    "shell", type=click.Choice(SHELLS), required=False, metavar=f"[{'|'.join(SHELLS)}]"
)


@completion.command(epilog=examples("oncelog completion install", "oncelog completion install zsh"))
@_shell_argument
@json_option
def install(shell: str | None, as_json: bool) -> None:
    """Install it for a shell, by default the one of this terminal. Once is enough."""
    shell = shell or _own_shell()
    places = places_of(shell, os.environ)
    try:
        places.script.parent.mkdir(parents=True, exist_ok=True)
        places.script.write_text(script_of(shell))
        if places.start_file is not None:
            _write_block(places.start_file, _block(shell, places.script))
    except OSError as error:
        raise CommandFailed(f"cannot install it: {error}") from None
    _say(shell, places, as_json=as_json, done="installed")
    if not as_json:
        click.echo("It works in every new shell.")


@completion.command(epilog=examples("oncelog completion remove", "oncelog completion remove fish"))
@_shell_argument
@json_option
def remove(shell: str | None, as_json: bool) -> None:
    """Take away what `install` wrote."""
    shell = shell or _own_shell()
    places = places_of(shell, os.environ)
    try:
        places.script.unlink(missing_ok=True)
        if places.start_file is not None and places.start_file.exists():
            _write_block(places.start_file, [])
    except OSError as error:
        raise CommandFailed(f"cannot remove it: {error}") from None
    _say(shell, places, as_json=as_json, done="removed")


@completion.command(
    epilog=examples("oncelog completion show", 'eval "$(oncelog completion show bash)"')
)
@_shell_argument
@json_option
def show(shell: str | None, as_json: bool) -> None:
    """Print the script, for who keeps such things in a place of his own."""
    shell = shell or _own_shell()
    if as_json:
        print_json({"shell": shell, "script": script_of(shell)})
    else:
        click.echo(script_of(shell), nl=False)


def script_of(shell: str) -> str:
    """What the shell reads."""
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    assert maker is not None, shell
    made = maker(click.Group(PROGRAM), {}, PROGRAM, VARIABLE)
    # Not `source()`, which starts a bash to ask for its version.
    return str(made.source_template % made.source_vars())


def places_of(shell: str, environment: Mapping[str, str]) -> Places:
    """Where a user's shell looks, by its own variables."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    if shell == "fish":
        config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
        return Places(config / "fish" / "completions" / f"{PROGRAM}.fish", None)
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    script = data / PROGRAM / f"completion.{shell}"
    if shell == "zsh":
        return Places(script, Path(environment.get("ZDOTDIR") or home) / ".zshrc")
    return Places(script, home / ".bashrc")


def _own_shell() -> str:
    """Of whoever runs this. Raises UsageError."""
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.UsageError(
            f"SHELL is {os.environ.get('SHELL')!r}: name one of {', '.join(SHELLS)}."
        )
    return shell


def _block(shell: str, script: Path) -> list[str]:
    place = shlex.quote(str(script))
    return [
        FIRST_LINE,
        *([_COMPINIT] if shell == "zsh" else []),
        f"[ -f {place} ] && . {place}",
        LAST_LINE,
    ]


def _write_block(file: Path, block: list[str]) -> None:
    """In place of the one there is, else at the end. The file is written in place, for it may be a
    link to where somebody keeps it."""
    before = file.read_text() if file.exists() else ""
    lines = before.splitlines()
    if lines.count(FIRST_LINE) != lines.count(LAST_LINE):
        raise CommandFailed(
            f"{file} has {FIRST_LINE!r} without {LAST_LINE!r}, or the other way round: remove what "
            "is left of these lines"
        )
    kept: list[str] = []
    inside = False
    for line in lines:
        if line == FIRST_LINE:
            inside = True
        if not inside:
            kept.append(line)
        if line == LAST_LINE:
            inside = False
    after = "\n".join([*kept, *block])
    if after + "\n" != before:
        file.write_text(f"{after}\n" if after else "")


def _say(shell: str, places: Places, *, as_json: bool, done: str) -> None:
    changed = [str(place) for place in places if place is not None]
    if as_json:
        print_json({"shell": shell, "files": changed, "done": done})
    else:
        click.echo(f"{done} for {shell}: {', '.join(changed)}")

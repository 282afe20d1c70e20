"""`oncelog profile`: ways to reach a cluster, kept under names (`profiles` says where)."""

from __future__ import annotations

import os
from typing import Any

import click

from oncelog_server.cli import names
from oncelog_server.cli.connection import SETTINGS, Connection, connection_options
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_fields, print_json, print_table
from oncelog_server.cli.profiles import Profile, ProfileFile, config_path, require_name
from oncelog_server.cli.session import json_option, require_bootstrap


@click.group()
def profile() -> None:
    """Keep addresses and certificates of clusters under names."""


@profile.command(
    epilog=examples(
        "oncelog profile add staging --bootstrap log-0.example:7400,log-1.example:7400",
        "oncelog profile add live --bootstrap log:7400 --tls-ca ca.pem --tls-cert me.pem "
        "--tls-key me.key --use",
    )
)
@click.argument("name")
@click.option("--use", "in_use", is_flag=True, help="And use it from now on.")
@click.option("--replace", is_flag=True, help="Where there is one of that name.")
@json_option
@connection_options
def add(connection: Connection, name: str, in_use: bool, replace: bool, as_json: bool) -> None:
    """Keep a way to reach a cluster. It is not connected to."""
    require_name(name)
    made = _made(connection)
    file = _file()
    if name in file.profiles and not replace:
        raise click.UsageError(f"There is a profile {name!r} already; --replace changes it.")
    file.put(name, made)
    if in_use:
        _file().use(name)
    if as_json:
        print_json(_json(_file(), name))
        return
    click.echo(f"profile {name} is kept in {file.path}")
    if not in_use:
        click.echo(f"take it once with --profile {name}, or always: oncelog profile use {name}")


@profile.command(name="list", epilog=examples("oncelog profile list"))
@json_option
def list_(as_json: bool) -> None:
    """List the profiles there are."""
    file = _file()
    shown = [_json(file, name) for name in sorted(file.profiles)]
    if as_json:
        print_json(shown)
        return
    print_table(
        ["PROFILE", "IN USE", "BOOTSTRAP", "TLS"],
        [
            [one["name"], "yes" if one["in_use"] else None, one["settings"].get("bootstrap"),
             "yes" if _uses_tls(one["settings"]) else None]
            for one in shown
        ],
        empty="no profiles; keep one with `oncelog profile add NAME --bootstrap HOST:PORT`",
    )  # fmt: skip


@profile.command(epilog=examples("oncelog profile use staging", "oncelog profile use --none"))
@click.argument("name", required=False, shell_complete=names.profiles)
@click.option("--none", "nothing", is_flag=True, help="No profile from now on.")
@json_option
def use(name: str | None, nothing: bool, as_json: bool) -> None:
    """Take a profile for every command that is not told where its cluster is."""
    if (name is None) == (not nothing):
        raise click.UsageError("Name a profile, or say --none.")
    file = _file()
    if name is not None:
        file.find(name)
    file.use(name)
    if as_json:
        print_json({"in_use": name})
    else:
        click.echo("no profile is in use" if name is None else f"profile {name} is in use")


@profile.command(epilog=examples("oncelog profile remove staging"))
@click.argument("name", shell_complete=names.profiles)
@json_option
def remove(name: str, as_json: bool) -> None:
    """Forget a profile. Its certificates stay where they are."""
    file = _file()
    file.find(name)
    file.remove(name)
    if as_json:
        print_json({"removed": name})
    else:
        click.echo(f"removed profile {name}" + (", which was in use" * (file.in_use == name)))


@profile.command(
    epilog=examples(
        "oncelog profile show",
        "oncelog profile show --profile staging",
        "ONCELOG_BOOTSTRAP=log-0:7400 oncelog profile show --json",
    )
)
@json_option
@connection_options
def show(connection: Connection, as_json: bool) -> None:
    """Show how a command with these flags would reach its cluster, and what says so."""
    if as_json:
        print_json(
            {
                "profile": connection.profile,
                "file": str(connection.file),
                "tls": connection.uses_tls,
                "settings": {name: given._asdict() for name, given in connection.settings.items()},
            }
        )
        return
    print_fields(
        [
            ("profile", connection.profile or "none"),
            ("file", f"{connection.file}{'' if connection.file.exists() else ' (not there)'}"),
            ("connections", "TLS" if connection.uses_tls else "plain"),
        ]
    )
    print_table(
        ["SETTING", "VALUE", "FROM"],
        [[name, given.value, given.source] for name, given in connection.settings.items()],
        empty="",
    )


def _file() -> ProfileFile:
    return ProfileFile.read(config_path(os.environ))


def _made(connection: Connection) -> Profile:
    """Of what flags and environment say, with files by their whole path."""
    given: dict[str, Any] = {}
    for setting in SETTINGS:
        value, source = connection.settings[setting.name]
        if source in (setting.flag, setting.variable):
            given[setting.name] = os.path.abspath(value) if _is_file(setting.name) else value
    if "bootstrap" not in given:
        raise click.UsageError("Say where the cluster is: --bootstrap HOST:PORT,...")
    require_bootstrap(given["bootstrap"])
    return Profile(**given)


def _is_file(name: str) -> bool:
    return name in ("tls_ca", "tls_cert", "tls_key")


def _uses_tls(settings: dict[str, Any]) -> bool:
    return bool(settings.get("tls", any(map(_is_file, settings))))


def _json(file: ProfileFile, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in_use": file.in_use == name,
        "settings": file.profiles[name].given(),
    }

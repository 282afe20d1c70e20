"""How a command reaches its cluster. Each setting is taken from the first place that has it:

    1  the flag                  --bootstrap, --timeout, --tls, --tls-ca, ...
    2  the environment           ONCELOG_BOOTSTRAP, ONCELOG_TIMEOUT, ONCELOG_TLS_CA, ...
    3  a profile                 --profile, else ONCELOG_PROFILE, else the one in use
    4  the running `oncelog up`  over ./.oncelog: addresses only
    5  the default               this machine's usual ports, no TLS

The profile *in use* is one cluster's: where a flag or the environment names addresses, nothing of
it is taken, so that no certificate goes to a cluster that it is not of. A profile that is *named*
(by --profile or ONCELOG_PROFILE) fills in whatever was not said.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from oncelog_server.cli import interrupts
from oncelog_server.cli.profiles import (
    FILE_VARIABLE,
    NONE,
    TIMEOUT_SECONDS_MAX,
    Profile,
    ProfileFile,
    config_path,
)
from oncelog_server.cli.running import DEFAULT_FOLDER, running_bootstrap

if TYPE_CHECKING:
    from oncelog.options import Tls

DEFAULT_BOOTSTRAP: Final = "localhost:7400,localhost:7401,localhost:7402"
DEFAULT_TIMEOUT_SECONDS: Final = 15.0
PROFILE_VARIABLE: Final = "ONCELOG_PROFILE"

R = TypeVar("R")
_FILE: Final = click.Path(exists=True, dir_okay=False)


class Setting(NamedTuple):
    """One line of the module's table."""

    # As in a profile; with dashes, the flag; in capitals behind ONCELOG_, the variable.
    name: str
    type: click.ParamType[Any]
    metavar: str | None
    help: str

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"ONCELOG_{self.name.upper()}"


SETTINGS: Final = (
    Setting(
        "bootstrap",
        click.STRING,
        "HOST:PORT,...",
        "Any processes of the cluster. Default: a profile's, else the `oncelog up` over "
        f"./.oncelog, else {DEFAULT_BOOTSTRAP}.",
    ),
    Setting(
        "timeout",
        click.FloatRange(0, TIMEOUT_SECONDS_MAX, min_open=True),
        "SECONDS",
        f"How long each call may take. Default: {DEFAULT_TIMEOUT_SECONDS:g}.",
    ),
    Setting("tls", click.BOOL, None, "TLS; without --tls-ca by the system's authorities."),
    Setting("tls_ca", _FILE, "FILE", "PEM file of the authority; turns TLS on."),
    Setting("tls_cert", _FILE, "FILE", "PEM file of your certificate."),
    Setting("tls_key", _FILE, "FILE", "PEM file of its key."),
    Setting("tls_server_name", click.STRING, "NAME", "The name in the servers' certificates."),
)


class Given(NamedTuple):
    """A value, and who gave it."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Connection:
    """What was decided. `settings` has every name of SETTINGS."""

    settings: Mapping[str, Given]
    # The profile that counts, if any, and the file where profiles are.
    profile: str | None
    file: Path

    @property
    def bootstrap(self) -> str:
        return str(self.settings["bootstrap"].value)

    @property
    def timeout_ms(self) -> int:
        return max(1, int(self.settings["timeout"].value * 1000))

    @property
    def uses_tls(self) -> bool:
        said = self.settings["tls"].value
        if said is not None:
            return bool(said)
        return any(self.settings[name].value for name in ("tls_ca", "tls_cert", "tls_key"))

    @property
    def tls(self) -> Tls | None:
        """For the client. None: plain."""
        if not self.uses_tls:
            return None
        with interrupts.importing():
            from oncelog.options import Tls
        return Tls(
            ca_file=self.settings["tls_ca"].value,
            certificate_file=self.settings["tls_cert"].value,
            key_file=self.settings["tls_key"].value,
            server_name=self.settings["tls_server_name"].value,
        )


def connection_options(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command the flags of SETTINGS and --profile, and a Connection as `connection`."""

    @functools.wraps(command)
    def wrapped(*args: Any, profile: str | None, **kwargs: Any) -> R:
        given = {setting.name: kwargs.pop(setting.name) for setting in SETTINGS}
        connection = resolve(given, profile, source_of=_source_of)
        return command(*args, connection=connection, **kwargs)

    decorated: Callable[..., R] = wrapped
    for setting in reversed(SETTINGS):
        decorated = _option(setting)(decorated)
    return click.option(
        "--profile",
        metavar="NAME",
        envvar=PROFILE_VARIABLE,
        help=f"A way to reach a cluster, see `oncelog profile`; {NONE}: not even the one in use.",
    )(decorated)


def resolve(
    given: Mapping[str, Any],
    named: str | None,
    *,
    source_of: Callable[[str], str | None],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Connection:
    """`given` by name, None where neither flag nor environment said it; `named`: the profile that
    one of them named. Raises UsageError, CommandFailed."""
    file = config_path(os.environ if environment is None else environment)
    name, profile = _profile(file, named, addressed=given["bootstrap"] is not None)
    running = running_bootstrap(folder or Path(DEFAULT_FOLDER))
    settings: dict[str, Given] = {}
    for setting in SETTINGS:
        value = given[setting.name]
        kept = getattr(profile, setting.name)
        if value is not None:
            settings[setting.name] = Given(value, source_of(setting.name) or setting.flag)
        elif kept is not None:
            settings[setting.name] = Given(kept, f"profile {name}")
        elif setting.name == "bootstrap" and running is not None:
            settings[setting.name] = Given(running, f"`oncelog up` over {DEFAULT_FOLDER}")
        else:
            settings[setting.name] = Given(_DEFAULTS.get(setting.name), "default")
    _require_whole(settings)
    return Connection(settings, name, file)


_DEFAULTS: Final = {"bootstrap": DEFAULT_BOOTSTRAP, "timeout": DEFAULT_TIMEOUT_SECONDS}


def _profile(path: Path, named: str | None, *, addressed: bool) -> tuple[str | None, Profile]:
    """The profile that counts. `addressed`: a flag or the environment says where the cluster is.
    The file is read where it matters: a broken one hinders nobody who does without."""
    if named == NONE or (named is None and addressed):
        return None, Profile()
    file = ProfileFile.read(path)
    name = named or file.in_use
    return (None, Profile()) if name is None else (name, file.find(name))


def _require_whole(settings: Mapping[str, Given]) -> None:
    certificate, key = settings["tls_cert"], settings["tls_key"]
    if (certificate.value is None) != (key.value is None):
        raise click.UsageError("--tls-cert and --tls-key go together.")
    for name in ("tls_ca", "tls_cert", "tls_key"):
        value, source = settings[name]
        if value is not None and not Path(value).is_file():
            raise click.UsageError(f"{name} of {source}: there is no file {value}.")


def _option(setting: Setting) -> Callable[[Callable[..., R]], Callable[..., R]]:
    if setting.type is click.BOOL:
        return click.option(
            f"{setting.flag}/--no-{setting.flag[2:]}",
            setting.name,
            default=None,
            envvar=setting.variable,
            help=setting.help,
        )
    return click.option(
        setting.flag,
        setting.name,
        type=setting.type,
        metavar=setting.metavar,
        envvar=setting.variable,
        help=setting.help,
    )


def _source_of(name: str) -> str | None:
    """The flag or variable that a value came from."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source(name)
    setting = next(setting for setting in SETTINGS if setting.name == name)
    if source is click.core.ParameterSource.ENVIRONMENT:
        return setting.variable
    return setting.flag


__all__ = [
    "DEFAULT_BOOTSTRAP",
    "FILE_VARIABLE",
    "PROFILE_VARIABLE",
    "SETTINGS",
    "Connection",
    "Given",
    "connection_options",
    "resolve",
]

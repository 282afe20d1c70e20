"""Profiles: named ways to reach a cluster, in one file, so that nobody types addresses and
certificates at every call.

    # ~/.config/oncelog/config.toml, or the file that ONCELOG_CONFIG names
    profile = "staging"                    # the one in use

    [profiles.staging]
    bootstrap = "log-0.example:7400,log-1.example:7401"
    tls_ca = "ca.pem"                      # relative to this file
    tls_cert = "me.pem"
    tls_key = "me.key"

The same file may hold the settings of `oncelog serve` ([node], [coordinator], ...): each reads its
own. `oncelog profile` changes only the lines that it is about; comments and order stay.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import click

from oncelog_server.cli.failures import CommandFailed

FILE_VARIABLE: Final = "ONCELOG_CONFIG"
# Keys at the top of the file that belong to commands, not to `oncelog serve`.
IN_USE_KEY: Final = "profile"
PROFILES_KEY: Final = "profiles"
# Given as a name: no profile, whichever is in use.
NONE: Final = "none"
TIMEOUT_SECONDS_MAX: Final = 600

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER: Final = re.compile(r"\s*\[")


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to reach a cluster. What is None is left to whoever comes next (see `connection`)."""

    # host:port of any processes, with commas between.
    bootstrap: str | None = None
    # How long each call may take, seconds.
    timeout: float | None = None
    # True: TLS even without any file, with the system's authorities.
    tls: bool | None = None
    # PEM files, absolute once they are read.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    # The name that the servers' certificates carry, where it is not the host.
    tls_server_name: str | None = None

    def given(self) -> dict[str, Any]:
        """What it says, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "bootstrap": (str,),
    "timeout": (int, float),
    "tls": (bool,),
    "tls_ca": (str,),
    "tls_cert": (str,),
    "tls_key": (str,),
    "tls_server_name": (str,),
}
_FILES: Final = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The file as it is read. Change it with `put`, `remove` and `use`, which write it."""

    path: Path
    text: str = ""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    # A name that the file says is in use; it may name none of `profiles`.
    in_use: str | None = None

    @classmethod
    def read(cls, path: Path) -> ProfileFile:
        """Empty where there is none. Raises CommandFailed where it cannot be understood."""
        try:
            text = path.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise CommandFailed(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{path} is not TOML: {error}") from None
        tables = content.get(PROFILES_KEY, {})
        if not isinstance(tables, dict):
            raise CommandFailed(f"{path}: write profiles as [{PROFILES_KEY}.NAME]")
        in_use = content.get(IN_USE_KEY)
        if in_use is not None and not isinstance(in_use, str):
            raise CommandFailed(f"{path}: {IN_USE_KEY} must be a profile's name in quotes")
        found = {name: _profile(path, name, table) for name, table in tables.items()}
        return cls(path, text, found, in_use)

    def find(self, name: str) -> Profile:
        """Raises UsageError that names those there are."""
        if name in self.profiles:
            return self.profiles[name]
        known = ", ".join(sorted(self.profiles)) or "none yet; see `oncelog profile add`"
        raise click.UsageError(f"There is no profile {name!r} in {self.path} (there are: {known}).")

    def put(self, name: str, profile: Profile) -> None:
        """Adds it, or replaces one of that name."""
        block = [f"[{PROFILES_KEY}.{name}]", *_lines(profile)]
        lines = self.text.splitlines()
        place = _block(lines, name)
        if place is None:
            lines += [*([""] if lines and lines[-1].strip() else []), *block]
        else:
            lines[slice(*place)] = block
        self._write(lines, profiles={**self.profiles, name: profile}, in_use=self.in_use)

    def remove(self, name: str) -> None:
        """Also from use."""
        lines = self.text.splitlines()
        place = _block(lines, name)
        if place is not None:
            del lines[slice(*place)]
        in_use = None if self.in_use == name else self.in_use
        rest = {other: kept for other, kept in self.profiles.items() if other != name}
        self._write(_with_in_use(lines, in_use), profiles=rest, in_use=in_use)

    def use(self, name: str | None) -> None:
        """None: no profile is in use."""
        lines = _with_in_use(self.text.splitlines(), name)
        self._write(lines, profiles=self.profiles, in_use=name)

    def _write(
        self, lines: list[str], *, profiles: Mapping[str, Profile], in_use: str | None
    ) -> None:
        """Writes it, if it then says what it should: a file that somebody wrote in another form of
        TOML is left alone. Raises CommandFailed."""
        text = "\n".join(lines).strip("\n") + "\n"
        wanted = _rest(self.text) | {IN_USE_KEY: in_use, PROFILES_KEY: dict(profiles)}
        if _content(self.path, text) != wanted:
            raise CommandFailed(
                f"{self.path} holds profiles in a form that this command does not change (it knows "
                f"[{PROFILES_KEY}.NAME] with one setting per line): edit it by hand"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_name(f"{self.path.name}.new")
            written.write_text(text, encoding="utf-8")
            written.replace(self.path)
        except OSError as error:
            raise CommandFailed(f"cannot write {self.path}: {error.strerror}") from None


def config_path(environment: Mapping[str, str]) -> Path:
    """Where the file is, whether it is there or not."""
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME")
    if not home:
        home = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(home) / "oncelog" / "config.toml"


def require_name(name: str) -> None:
    """Raises UsageError."""
    if not _NAME.fullmatch(name) or name == NONE:
        raise click.UsageError(
            f"{name!r} cannot name a profile: take 1 to 64 letters, digits, '_' and '-', and not "
            f"{NONE!r}, which means no profile."
        )


def _profile(path: Path, name: str, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise CommandFailed(f"{path}: write the profile {name!r} as [{PROFILES_KEY}.{name}]")
    for key, value in table.items():
        kinds = _KINDS.get(key)
        if kinds is None:
            near = difflib.get_close_matches(key, sorted(_KINDS), n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(_KINDS)}"
            raise CommandFailed(f"{path}, profile {name!r}: there is no setting {key!r}; {hint}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise CommandFailed(f"{path}, profile {name!r}: {key} cannot be {value!r}")
    if not 0 < table.get("timeout", 1) <= TIMEOUT_SECONDS_MAX:
        raise CommandFailed(
            f"{path}, profile {name!r}: timeout is above 0 and at most {TIMEOUT_SECONDS_MAX} s"
        )
    files = {key: str(path.parent / table[key]) for key in _FILES if key in table}
    return Profile(**{**table, **files})


# ------------------------------------------------------------------------------------ its lines


def _lines(profile: Profile) -> list[str]:
    # A string of JSON without control characters is one of TOML.
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in profile.given().items()
    ]


def _block(lines: list[str], name: str) -> tuple[int, int] | None:
    """[first, last + 1) of a profile's lines. The blank lines and comments above the next header
    belong to that one."""
    header = re.compile(rf"\s*\[\s*{PROFILES_KEY}\s*\.\s*\"?{re.escape(name)}\"?\s*\]")
    first = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if first is None:
        return None
    following = first + 1 + _before_header(lines[first + 1 :])
    while following > first + 1 and not lines[following - 1].split("#")[0].strip():
        following -= 1
    return first, following


def _with_in_use(lines: list[str], name: str | None) -> list[str]:
    """The line at the top that says which one is in use."""
    top = _before_header(lines)
    kept = [line for line in lines[:top] if not re.match(rf"\s*{IN_USE_KEY}\s*=", line)]
    said = [] if name is None else [f"{IN_USE_KEY} = {json.dumps(name)}"]
    if said and not kept and lines[top:]:
        kept = [""]
    return [*said, *kept, *lines[top:]]


def _before_header(lines: list[str]) -> int:
    return next((n for n, line in enumerate(lines) if _HEADER.match(line)), len(lines))


def _content(path: Path, text: str) -> dict[str, Any] | None:
    """All that the file says; None where that is no TOML, or no profiles."""
    try:
        content = tomllib.loads(text)
        tables = content.get(PROFILES_KEY, {})
        found = {name: _profile(path, name, table) for name, table in tables.items()}
    except (tomllib.TOMLDecodeError, CommandFailed):
        return None
    return _rest(text) | {IN_USE_KEY: content.get(IN_USE_KEY), PROFILES_KEY: found}


def _rest(text: str) -> dict[str, Any]:
    """What it says beside profiles."""
    content = tomllib.loads(text)
    return {key: value for key, value in content.items() if key not in (IN_USE_KEY, PROFILES_KEY)}

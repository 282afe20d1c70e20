"""Settings from a TOML file, the environment and the command line, in that order of growing weight.

A role's settings are a frozen dataclass in its own `config.py`; the comment above a field (or its
metadata "help") says meaning, unit and danger, and is shown by `oncelog cluster config`. This
module loads any set of such dataclasses, each under the name of its section:

    file           [coordinator]
                   transaction_timeout_ms = 30_000
    environment    ONCELOG_COORDINATOR_TRANSACTION_TIMEOUT_MS=30000
    command line   coordinator.transaction_timeout_ms=30000

Lists are written as TOML arrays, or with commas. An unknown section or key is refused with the
nearest name. A variable that starts with ONCELOG_ but with no section is somebody else's.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import textwrap
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "ONCELOG_"
# What `oncelog profile` keeps, perhaps in the same file: of commands, not of processes.
OF_COMMANDS: Final = ("profile", "profiles")


class ConfigError(Exception):
    """A setting that cannot be used; the message says which one, where it stands and what to do."""


class Source(StrEnum):
    """Where a value came from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"
    # Written once in etcd, the same for all processes.
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Value:
    """One setting, for people."""

    # section.key
    name: str
    value: str
    source: Source
    help: str


@dataclass(frozen=True, slots=True)
class _Given:
    """A value before it is converted."""

    value: object
    source: Source
    # As the user wrote it: the place to change.
    place: str


class Settings:
    """All sections, loaded."""

    def __init__(self, configs: Mapping[str, Any], values: Sequence[Value]) -> None:
        self._configs = dict(configs)
        # By section in the order given to `load`, by field within.
        self.values = tuple(values)

    def of(self, kind: type[T]) -> T:
        """The section of that dataclass."""
        for config in self._configs.values():
            if isinstance(config, kind):
                return config
        raise AssertionError(f"{kind.__name__} was not loaded")


def load(
    known: Mapping[str, type[Any]],
    *,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    pairs: Iterable[str] = (),
) -> Settings:
    """Loads the sections named by `known`. Raises ConfigError."""
    given: dict[str, dict[str, _Given]] = {section: {} for section in known}
    for section, key, value in (
        *_from_file(known, file),
        *_from_environment(known, environment or {}),
        *_from_pairs(known, pairs),
    ):
        given[section][key] = value
    configs: dict[str, Any] = {}
    values: list[Value] = []
    for section, kind in known.items():
        configs[section] = _build(section, kind, given[section])
        values.extend(_shown(section, configs[section], given[section]))
    return Settings(configs, values)


# ------------------------------------------------------------------------------------- sources


def _from_file(
    known: Mapping[str, type[Any]], file: str | Path | None
) -> Iterable[tuple[str, str, _Given]]:
    if file is None:
        return
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    for section, table in content.items():
        if section in OF_COMMANDS:
            continue
        _require(section, known, "section", str(file))
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {section!r} must be a section, [{section}]")
        for key, value in table.items():
            _require(key, _names(known[section]), f"key of [{section}]", str(file))
            yield section, key, _Given(value, Source.FILE, f"{file} [{section}] {key}")


def _from_environment(
    known: Mapping[str, type[Any]], environment: Mapping[str, str]
) -> Iterable[tuple[str, str, _Given]]:
    prefixes = {f"{ENVIRONMENT_PREFIX}{section.upper()}_": section for section in known}
    for variable, text in sorted(environment.items()):
        matching = [prefix for prefix in prefixes if variable.startswith(prefix)]
        if matching:
            prefix = max(matching, key=len)
            section, key = prefixes[prefix], variable[len(prefix) :].lower()
            _require(key, _names(known[section]), f"key of {section}", variable)
            yield section, key, _Given(text, Source.ENVIRONMENT, variable)


def _from_pairs(
    known: Mapping[str, type[Any]], pairs: Iterable[str]
) -> Iterable[tuple[str, str, _Given]]:
    for pair in pairs:
        name, equals, text = pair.partition("=")
        section, dot, key = name.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"{pair!r}: write section.key=value, e.g. node.tick_ms=100")
        _require(section, known, "section", pair)
        _require(key, _names(known[section]), f"key of {section}", pair)
        yield section, key, _Given(text.strip(), Source.COMMAND_LINE, pair)


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _require(name: str, known: Iterable[str], what: str, place: str) -> None:
    names = sorted(known)
    if name in names:
        return
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(names)}"
    raise ConfigError(f"{place}: {name!r} is no {what}; {hint}")


# ---------------------------------------------------------------------------------- conversion


def _build(section: str, kind: type[T], given: Mapping[str, _Given]) -> T:
    types = typing.get_type_hints(kind)
    arguments = {key: _convert(item, types[key]) for key, item in given.items()}
    try:
        config = kind(**arguments)
        validate = getattr(config, "validate", None)
        if validate is not None:
            validate()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"section {section}: {error}") from None
    return config


def _convert(given: _Given, kind: Any) -> object:
    value = given.value
    if isinstance(value, str) and typing.get_origin(kind) in (tuple, list):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        # A file has types of its own; the environment and the command line have text only.
        return msgspec.convert(value, kind, strict=given.source is Source.FILE)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{given.place}: {error}") from None


# -------------------------------------------------------------------------------------- people


def _shown(section: str, config: Any, given: Mapping[str, _Given]) -> Iterable[Value]:
    texts = help_of(type(config))
    for field in dataclasses.fields(config):
        source = given[field.name].source if field.name in given else Source.DEFAULT
        value = getattr(config, field.name)
        text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        yield Value(f"{section}.{field.name}", text, source, texts[field.name])


def help_of(kind: type[Any]) -> dict[str, str]:
    """What each field of a settings dataclass says about itself: its metadata "help", else the
    comment above it. Fields without one share the comment of the field above."""
    texts: dict[str, str] = {}
    comment: list[str] = []
    names = {field.name for field in dataclasses.fields(kind)}
    fresh = True
    for line in textwrap.dedent(inspect.getsource(kind)).splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment = [*([] if fresh else comment), stripped.lstrip("# ")]
            fresh = False
        elif stripped.partition(":")[0] in names and line.startswith("    "):
            texts.setdefault(stripped.partition(":")[0], " ".join(comment))
            fresh = True
    for field in dataclasses.fields(kind):
        texts[field.name] = field.metadata.get("help", texts.get(field.name, ""))
    return texts

"""What `oncelog serve` runs with: roles, and settings from file, environment and command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.core.roles import ROLES
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.runtime.access.config import AuthorizationConfig, Mode
from oncelog_server.runtime.config import ConfigError, Settings, Source, load
from oncelog_server.runtime.node_config import NodeConfig

# Sections of the configuration. One file may serve all processes: a process ignores the sections
# of roles that it does not run, but knows them, so that a misspelt one is refused.
SECTIONS: Final[Mapping[str, type[Any]]] = {
    "node": NodeConfig,
    "authorization": AuthorizationConfig,
    "coordinator": CoordinatorConfig,
    "partition_leader": PartitionLeaderConfig,
    "offset_manager": OffsetManagerConfig,
}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One process."""

    # In the order of ROLES, each once, at least one.
    roles: tuple[str, ...]
    # All sections: `loaded.of(CoordinatorConfig)`; `loaded.values` for `oncelog cluster config`.
    loaded: Settings

    @classmethod
    def make(
        cls,
        roles: Iterable[str],
        *,
        file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        pairs: Sequence[str] = (),
    ) -> ServeSettings:
        """`pairs` are section.key=value. Raises ConfigError."""
        asked = set(roles)
        assert asked, "a process has at least one role"
        assert asked <= set(ROLES), f"roles are some of {ROLES}, not {asked}"
        loaded = load(SECTIONS, file=file, environment=environment, pairs=pairs)
        return cls(tuple(role for role in ROLES if role in asked), loaded)

    @property
    def node(self) -> NodeConfig:
        return self.loaded.of(NodeConfig)

    @property
    def authorization(self) -> AuthorizationConfig:
        return self.loaded.of(AuthorizationConfig)

    @property
    def mode(self) -> Mode:
        """Whether rules hold in this process. Raises ConfigError."""
        try:
            return self.authorization.mode_of(tls=self.node.tls)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def role_settings(self) -> dict[str, dict[str, str]]:
        """What was set for the roles of this process, as text."""
        given: dict[str, dict[str, str]] = {role: {} for role in self.roles}
        for value in self.loaded.values:
            section, _, key = value.name.partition(".")
            if section in given and value.source is not Source.DEFAULT:
                given[section][key] = value.value
        return given

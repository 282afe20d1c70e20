"""What `oncelog up` may be told for all of its processes at once. Addresses it may not: several
processes on one port would share its callers at random, or the second one would not start, which
only its log would say. And what nobody knows is refused here, not in three logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from oncelog_server.cli.settings import ServeSettings
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.config import ConfigError, Source, Value
from oncelog_server.runtime.node_config import NodeConfig, split_address

# Given to each process by `up` itself: what to say there instead.
_ITS_OWN: Final = {
    "node.data_dir": "choose the folder of all with --data",
    "node.listen": "choose the ports with --ports-from N",
    "node.etcd_endpoints": "`up` runs an etcd of its own; with another one use `oncelog serve`",
}
# Addresses that one process has.
_OF_ONE: Final = (
    "node.advertise",
    "node.listen_external",
    "node.advertise_external",
    "node.health_listen",
    "node.metrics_listen",
)


def require_shareable(
    pairs: Sequence[str],
    *,
    processes: int,
    file: str | None,
    environment: Mapping[str, str],
) -> NodeConfig:
    """What is the same for all. Raises UsageError that names the setting, where it came from, and
    what to do."""
    try:
        settings = ServeSettings.make(ROLES, file=file, environment=environment, pairs=pairs)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    for value in settings.loaded.values:
        if value.source is Source.DEFAULT or not value.value:
            continue
        if value.name in _ITS_OWN and value.source is Source.COMMAND_LINE:
            raise click.UsageError(
                f"{value.name} is different for each process: {_ITS_OWN[value.name]}."
            )
        if value.name in _OF_ONE and processes > 1 and not _takes_any_port(value):
            raise click.UsageError(
                f"{value.name}={value.value} ({value.source}) would be one address of "
                f"{processes} processes: {_instead(value.name)}"
            )
    return settings.node


def _takes_any_port(value: Value) -> bool:
    return not value.name.startswith("node.advertise") and split_address(value.value)[1] == 0


def _instead(name: str) -> str:
    if name == "node.metrics_listen":
        return (
            "give each its own with --metrics-ports-from N, or port 0 (its log says which it "
            "took), or run --one-process."
        )
    if name == "node.health_listen":
        return "take port 0 (its log says which it took), or run --one-process."
    return "leave it out, or run --one-process."

"""What happens in one simulated day, as data. `swarm` draws one from a seed; a test may write its
own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from oncelog_server.core.roles import PARTITION_LEADER


@dataclass(frozen=True, slots=True)
class Spice:
    """How applications make their transactions. Chances, where nothing else is said."""

    # A record is so large that its transaction overflows the one-shot.
    large: float
    # A transaction is flushed in the middle, at each record.
    flush: float
    # It is aborted, interrupted after a moment.
    abort: float
    interrupt: float
    # It rests in the middle for longer than its timeout.
    slow: float
    # Its commit waits until all is visible.
    visible: float
    # A producer has small batches and little room.
    cramped: float
    # A life ends after an action.
    tired: float
    # Records of a transaction at most.
    records: int
    # What a pause between two actions is chosen of, seconds.
    pauses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One day."""

    applications: tuple[str, ...]
    # Kinds of faults, by name.
    faults: tuple[str, ...]
    # How many of them happen at the same time at most.
    hands: int
    # How many of them happen in all, at most.
    faults_max: int
    # How long there is trouble, seconds.
    trouble_s: float
    # What a pause between two faults is chosen of, seconds.
    between_faults: tuple[float, ...]
    # What the chance of each fate of a call is chosen of: clients' calls, and processes'.
    client_calls: tuple[float, ...]
    process_calls: tuple[float, ...]
    # Of every delay of the network.
    slowness: float
    # Processes by role; what the pace of a machine's clock is chosen of; how far away etcd is.
    nodes: Mapping[str, int]
    paces: tuple[float, ...]
    etcd_ms: float
    # How a cluster is started: "together", or "one by one", so that the first one has the control
    # partitions of its role.
    rollout: str
    # By topic: partitions, and what is configured otherwise.
    partitions: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str]]
    # Replicas of each control partition, and of each topic by name, one where nothing is said. A
    # role with fewer nodes has as many as it has nodes.
    control_replicas: int
    replicas: Mapping[str, int]
    min_insync_replicas: int
    settings: tuple[str, ...]
    spice: Spice
    # After healing, who has succeeded rests; else all go on until the last one has.
    rests: bool

    def replicas_of_topic(self, name: str) -> int:
        return min(self.replicas.get(name, 1), self.nodes.get(PARTITION_LEADER, 1))

    def __str__(self) -> str:
        return "\n".join(f"{field.name}: {getattr(self, field.name)}" for field in fields(self))


def changes(drawn: Plan, plan: Plan) -> dict[str, Any]:
    """The fields in which `plan` is not as it was drawn, as JSON takes them."""
    told: dict[str, Any] = msgspec.to_builtins(plan)
    return {
        field.name: told[field.name]
        for field in fields(plan)
        if getattr(plan, field.name) != getattr(drawn, field.name)
    }


def changed(drawn: Plan, told: Mapping[str, Any]) -> Plan:
    """With these fields otherwise. Raises msgspec.ValidationError, ValueError."""
    unknown = sorted(told.keys() - {field.name for field in fields(drawn)})
    if unknown:
        raise ValueError(f"a plan has no {unknown[0]!r}")
    return msgspec.convert({**msgspec.to_builtins(drawn), **told}, Plan)

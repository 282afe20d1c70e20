"""Moments of consumer groups, as their journals tell them: each record, seen against what the group
was when it came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import EpochStart
from oncelog_server.core.roles import OFFSET_MANAGER
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.membership import Ownership
from oncelog_server.offset_manager.records import (
    MembershipChanged,
    OffsetsCommitted,
    OffsetsPending,
    Parting,
)
from tests.faults.verdict import front_of, records_of
from tests.simulation.moments import (
    COMMITTED_BEFORE_LETTING_GO,
    GENERATION_OUTLIVED,
    MEMBER_EXPIRED,
    REVOKED_WHILE_PENDING,
    STATIC_RETURN,
)
from tests.simulation.world import World

PARTINGS: Final = {Parting.EXPIRED: MEMBER_EXPIRED, Parting.REPLACED: STATIC_RETURN}


def add_moments(world: World) -> None:
    """Of all groups of this run, as far as the journals go back."""
    for process in world.processes.values():
        for driver in process.node.led_replicas():
            if process.role == OFFSET_MANAGER:
                machine = driver._role.machine(driver.partition)
                front = front_of(driver.journal)
                if front is not None:
                    machine.restore(*front[1:])
                look = _Look(machine)
                for record, at in records_of(
                    driver._role, driver.journal, driver.journal.log_start
                ):
                    for moment in look.moments(record):
                        world.moments.add(moment)
                    machine.apply(record, at)


class _Look:
    """At one partition's groups, before each record is applied to `machine`."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        # Members that joined before the last election, with their group.
        self._older: set[tuple[str, str]] = set()

    def moments(self, record: object) -> Iterator[str]:
        groups: dict[str, Group] = self._machine._state.groups
        if isinstance(record, EpochStart):
            self._older = {
                (name, member.member_id)
                for name, group in groups.items()
                for member in group.members()
            }
        elif isinstance(record, MembershipChanged):
            yield from (PARTINGS[gone.how] for gone in record.gone if gone.how in PARTINGS)
            group = groups.get(record.group)
            if group is not None and not group.pending.keys().isdisjoint(_moved(group, record)):
                yield REVOKED_WHILE_PENDING
        elif isinstance(record, OffsetsPending | OffsetsCommitted):
            owners = _owners(groups.get(record.group))
            for step in record.offsets:
                owner = owners.get(step.partition)
                if owner is None:
                    continue
                if owner.revoked:
                    yield COMMITTED_BEFORE_LETTING_GO
                if (record.group, owner.member_id) in self._older:
                    yield GENERATION_OUTLIVED


def _moved(group: Group, record: MembershipChanged) -> Iterable[PartitionId]:
    """What leaves its owner's target."""
    owners = _owners(group)
    for share in record.targets:
        for number in share.numbers:
            partition = PartitionId(share.topic_id, number)
            owner = owners.get(partition)
            if owner is not None and owner.member_id != share.member_id:
                yield partition


def _owners(group: Group | None) -> Mapping[PartitionId, Ownership]:
    return {} if group is None or group.membership is None else group.membership.owners

"""What operators do to a group that nobody uses: DeleteGroup and ResetOffsets. PURE.

A group is used while it has members or claims, or a transaction holds any of its offsets. Order of
precedence of a reset: one that was done is told again · whether the group is used · the position of
each step · room, where it is new.
"""

from __future__ import annotations

from oncelog_server.core.machine import Decision
from oncelog_server.offset_manager.commands import Reset, ResetOffsets
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_commit import group_for_change, require_room
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.records import GroupsForgotten, OffsetsReset, Record, Why
from oncelog_server.offset_manager.state import State
from oncelogpb.errors import NotFound, PendingTransaction, UnknownMember
from oncelogpb.ids import show_id


def decide_delete(state: State, name: str) -> Decision[Record]:
    group = state.groups.get(name)
    if group is None:
        raise NotFound(f"no group {name!r} has offsets here; `oncelog group list` shows all")
    _require_unused(name, group, "delete it")
    return Decision([GroupsForgotten((name,), Why.DELETED)])


def decide_reset(
    state: State, config: OffsetManagerConfig, command: ResetOffsets
) -> Decision[Record]:
    """All steps or none, in one record: who lost the answer repeats it by its id."""
    group = group_for_change(state, config, command.group)
    if command.reset_id in group.resets:
        return Decision((), Reset(duplicate=True))
    _require_unused(command.group, group, "reset it")
    for step in command.offsets:
        group.require_plain(step, command.from_metadata.get(step.partition))
    if command.unfit is not None:
        raise command.unfit
    require_room(config, group, command.offsets)
    done = OffsetsReset(command.group, command.reset_id, command.offsets)
    return Decision(() if command.dry_run else [done], Reset(duplicate=False))


def _require_unused(name: str, group: Group, then: str) -> None:
    """Raises GroupClaimed, UnknownMember, PendingTransaction."""
    group.require_unclaimed(name)
    if group.has_members:
        raise UnknownMember(
            f"group {name!r} has living members: stop them first",
            group=name,
            members=len(group.members()),
        )
    if group.pending:
        partition = next(iter(group.pending))
        raise PendingTransaction(
            f"group {name!r} has pending offsets of transaction "
            f"{show_id(group.holder(partition))}; {then} when that has ended",
            tx_id=group.holder(partition),
        )

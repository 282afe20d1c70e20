"""CommitOffsets and CommitTransactionOffsets: who may step from where. PURE.

Order of precedence: what was taken already is told again · the fence and the owner of the
transaction · whether the caller may commit for the group at all (`_require_right`) · the position ·
limits of the outside and of the group, where the step is new.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncelog_server.core.ids import ProducerId
from oncelog_server.core.machine import Decision
from oncelog_server.offset_manager.commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    OffsetCommit,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.membership import Membership
from oncelog_server.offset_manager.records import OffsetsCommitted, OffsetsPending, Record
from oncelog_server.offset_manager.state import State
from oncelogpb.errors import InvalidTimeout, LimitExceeded, ProducerMismatch, UnknownMember
from oncelogpb.ids import show_id


def decide_commit(
    state: State, config: OffsetManagerConfig, command: CommitOffsets
) -> Decision[Record]:
    """Outside of a transaction."""
    group = group_for_change(state, config, command.group)
    member_id = "" if command.member is None else command.member.member_id
    beside = command.from_metadata.get
    steps = tuple(
        step
        for step in command.offsets
        if group.needs_plain(step, member_id, beside(step.partition))
    )
    if not steps:
        return Decision()
    _require_right(group, command, steps)
    for step in steps:
        group.require_plain(step, beside(step.partition))
    if command.unfit is not None:
        if all(group.has_taken(step, member_id) for step in steps):
            # A sign of life that finds no room: all stands as it asks.
            return Decision()
        raise command.unfit
    require_room(config, group, steps)
    return Decision([OffsetsCommitted(command.group, steps, member_id)])


def decide_pending(
    state: State, config: OffsetManagerConfig, command: CommitTransactionOffsets
) -> Decision[Record]:
    """Under a transaction, whose marker decides."""
    tx_id, producer_id = command.tx_id, command.producer_id
    if _holds_already(state, command):
        return Decision()
    fenced = state.fences.refusal(
        tx_id=tx_id, producer_id=producer_id, generation=command.generation
    )
    if fenced is not None:
        raise fenced
    _require_owner(state, config, command)
    group = group_for_change(state, config, command.group)
    new = [step for step in command.offsets if not group.holds(step, tx_id)]
    _require_right(group, command, new)
    beside = command.from_metadata.get
    steps = tuple(
        step
        for step in new
        if group.needs_pending(step, tx_id, producer_id, beside(step.partition))
    )
    if not steps:
        return Decision()
    if command.unfit is not None:
        raise command.unfit
    require_room(config, group, steps)
    record = OffsetsPending(tx_id, producer_id, command.generation, command.group, steps)
    return Decision([record])


def group_for_change(state: State, config: OffsetManagerConfig, name: str) -> Group:
    """The group, or a new one where there is room for it."""
    group = state.groups.get(name)
    if group is not None:
        return group
    limit = config.groups_max
    if len(state.groups) >= limit:
        raise LimitExceeded(
            f"this partition of __consumer_offsets holds {limit} groups; delete some (`oncelog "
            "group delete`), or raise offset_manager.groups_max",
            limit="groups_max",
        )
    return Group()


def _require_right(
    group: Group, command: CommitOffsets | CommitTransactionOffsets, steps: Sequence[OffsetCommit]
) -> None:
    """Of a member, for what it owns (KIP-447); of anybody else, while nobody is a member.

    Raises FencedInstance, UnknownMember, IllegalGeneration; InvalidTimeout where the transaction
    could hold positions for longer than the session of who took them.
    """
    membership, member = group.membership or Membership(), command.member
    if member is None:
        if membership.member_states:
            raise UnknownMember(
                f"group {command.group!r} has living members: only they commit its offsets; stop "
                "them first, or use another group",
                group=command.group,
                members=len(membership.member_states),
            )
        return
    membership.require_owned(command.group, member, [step.partition for step in steps])
    session_ms = membership.member_states[member.member_id].member.session_timeout_ms
    if isinstance(command, CommitTransactionOffsets) and command.timeout_ms > session_ms:
        raise InvalidTimeout(
            f"a transaction with a timeout of {command.timeout_ms} ms may hold positions longer "
            f"than the member's session of {session_ms} ms; shorten the one, or lengthen the other",
            limit="session_timeout_ms",
        )


def _holds_already(state: State, command: CommitTransactionOffsets) -> bool:
    """Its own, each of them: the answer was lost."""
    opened = state.open.get(command.tx_id)
    group = state.groups.get(command.group)
    if opened is None or group is None:
        return False
    if not opened.is_of(command.producer_id, command.generation):
        return False
    return all(group.holds(step, command.tx_id) for step in command.offsets)


def _require_owner(
    state: State, config: OffsetManagerConfig, command: CommitTransactionOffsets
) -> None:
    """The first call under a TxId says whose it is."""
    opened = state.open.get(command.tx_id)
    if opened is None:
        limit = config.open_transactions_max
        if len(state.open) >= limit:
            raise LimitExceeded(
                f"{limit} transactions hold pending offsets in this partition of "
                "__consumer_offsets; end some (see `oncelog tx list`), or raise "
                "offset_manager.open_transactions_max",
                limit="open_transactions_max",
            )
        _require_known(state, config, command.producer_id)
    elif not opened.is_of(command.producer_id, command.generation):
        raise ProducerMismatch(
            f"transaction {show_id(command.tx_id)} belongs to another producer or generation; "
            "use the producer that began it",
            tx_id=command.tx_id,
        )


def _require_known(state: State, config: OffsetManagerConfig, producer_id: ProducerId) -> None:
    fences, limit = state.fences, config.producers_max
    if producer_id not in fences and len(fences) >= limit:
        raise LimitExceeded(
            f"this partition of __consumer_offsets remembers {limit} producers; reuse names, "
            "or raise offset_manager.producers_max",
            limit="producers_max",
        )


def require_room(config: OffsetManagerConfig, group: Group, steps: Sequence[OffsetCommit]) -> None:
    limit = config.offsets_per_group_max
    held = len(group.committed) + len(group.pending)
    if held + len(steps) <= limit:
        return
    new = {step.partition for step in steps}.difference(group.committed, group.pending)
    if new and len({*group.committed, *group.pending}) + len(new) > limit:
        raise LimitExceeded(
            f"the group has offsets of {limit} partitions; use several groups, or raise "
            "offset_manager.offsets_per_group_max",
            limit="offsets_per_group_max",
        )

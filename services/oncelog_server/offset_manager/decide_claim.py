"""ClaimGroup: who is no member and commits for a group alone keeps members out of it. PURE.

A claim and a join are decided by one machine, one after the other: a group has members or claims,
and whoever comes second is refused. A claim that is not renewed is over, by the clock of sessions
(`liveness`), and renewing it costs no record. It is known by its id; what stands is told again
before limits, and before what the outside has against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oncelog_server.core.machine import Decision
from oncelog_server.offset_manager.commands import ClaimGroup, ReleaseGroup
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_commit import group_for_change
from oncelog_server.offset_manager.records import ClaimsEnded, GroupClaimed, Record
from oncelog_server.offset_manager.state import State
from oncelogpb.errors import LimitExceeded, UnknownMember


def decide_claim(
    state: State, config: OffsetManagerConfig, command: ClaimGroup
) -> Decision[Record]:
    group, claim = group_for_change(state, config, command.group), command.claim
    known = group.claims.get(claim.claim_id)
    if known == claim:
        return Decision((), claim)
    if group.has_members:
        raise UnknownMember(
            f"group {command.group!r} has living members: only they commit its offsets; stop them "
            "first, or use another group",
            group=command.group,
            members=len(group.members()),
        )
    limit = config.claims_per_group_max
    if known is None and len(group.claims) >= limit:
        raise LimitExceeded(
            f"{limit} others commit for group {command.group!r} already; use another group, or "
            "raise offset_manager.claims_per_group_max",
            limit="claims_per_group_max",
        )
    if command.unfit is not None:
        raise command.unfit
    return Decision([GroupClaimed(command.group, claim)], claim)


def decide_release(state: State, command: ReleaseGroup) -> Decision[Record]:
    group = state.groups.get(command.group)
    if group is None or command.claim_id not in group.claims:
        return Decision()
    return Decision([ClaimsEnded(command.group, (command.claim_id,))])


def end_claims(over: Mapping[str, Sequence[str]]) -> Iterator[ClaimsEnded]:
    """Claims that were not renewed, by group."""
    for group, claim_ids in over.items():
        yield ClaimsEnded(group, tuple(claim_ids))

"""A group belongs to one query, or to members that share its partitions, never to both.

A query commits positions of all its partitions without being a member, which the offset manager
refuses while the group has members. That is told here, in the driver and in words, before a
batch is read. Once the query has its claim (`claim`), nobody joins its group; where it lost the
claim and they have, it ends at its next batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

DESCRIBE_TIMEOUT_MS: Final = 60_000
# Members that a message names.
NAMED_MAX: Final = 3


class GroupHasMembers(RuntimeError):
    """Consumers share the partitions of the query's `group`. Stop them, or give the query another
    group, and start it again."""


def require_no_members(protocol: Protocol, group: str) -> None:
    """Raises GroupHasMembers."""
    request = offset_manager_pb2.DescribeGroupRequest(group=group)
    try:
        found = protocol.call(
            "offset_manager.describe_group", request, timeout_ms=DESCRIBE_TIMEOUT_MS
        )
    except errors.NotFound:
        return
    if found.members:
        who = ", ".join(_shown(member) for member in found.members[:NAMED_MAX])
        more = len(found.members) - NAMED_MAX
        raise refusal(group, f": {who}{f' and {more} more' if more > 0 else ''}")


def refusal(group: str, which: str = "") -> GroupHasMembers:
    """`which`: the members, or what the offset manager said of them."""
    return GroupHasMembers(
        f"group {group!r} has living members{which}. They share its partitions and commit its "
        "positions, so that a query cannot: stop these consumers (one that died is gone after its "
        f"session; `oncelog group describe {group}` shows them), or set the option `group` to a "
        "name that only this query uses"
    )


def _shown(member: offset_manager_pb2.DescribedMember) -> str:
    name = member.instance_id or member.client_id or member.member_id
    return f"{name} on {member.host}" if member.host else name

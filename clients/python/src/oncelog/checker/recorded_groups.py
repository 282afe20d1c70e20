"""What goes between members of consumer groups and services, as a history has it (I23): heartbeats
with what they were told, and offsets as a service takes them, in whose name.

Only what is on the wire says in whose name a commit was: the client sends it again after a lost
answer, and may be another member by then. One operation per message.

Left out: what a coordinator forwards; its own answer says that the offsets were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, types_pb2

# The name of a topic by its id.
Names = Callable[[bytes], str]


class Asked(NamedTuple):
    """An operation, as it is asked."""

    do: str
    arguments: Mapping[str, Any]


def asked(method: str, request: Any, names: Names) -> Asked | None:
    """None: it has nothing to do with members, or offsets."""
    kind = _REQUESTS.get(method)
    if kind is None:
        return None
    message = request if isinstance(request, kind) else kind.FromString(request.SerializeToString())
    if method == _HEARTBEAT:
        return Asked("heartbeat", _heartbeat(message))
    if method == _REMOVE:
        return Asked("remove_member", {"group": message.group})
    if not message.offsets.offsets or (method == _RESET and message.dry_run):
        return None
    return Asked("take_offsets", _offsets(method, message, names))


def answered(method: str, reply: Any, names: Names) -> Mapping[str, Any]:
    """What `ok` of it says."""
    if method == _TRANSACT:
        # Then another one was taken, earlier.
        return {"already_committed": reply.already_committed or None}
    if method != _HEARTBEAT:
        return {}
    told = {topic.topic_id: topic.name for topic in reply.topics}
    return {
        "generation": reply.member.generation,
        "assigned": [
            _place(partition, lambda topic_id: told.get(topic_id) or names(topic_id))
            for partition in reply.assignment
        ],
    }


def _heartbeat(message: offset_manager_pb2.HeartbeatRequest) -> dict[str, Any]:
    member = message.member
    return {
        "group": message.group,
        "member": member.member_id,
        "generation": member.generation,
        "instance": member.instance_id or None,
        "leaving": message.leaving or None,
    }


def _offsets(method: str, message: Any, names: Names) -> dict[str, Any]:
    """`request` is the same where the same is asked for again; a plain commit says what it does."""
    offsets: offset_manager_pb2.GroupOffsets = message.offsets
    member = offsets.member
    request = None
    if method == _PENDING:
        request = show_id(message.tx_id)
    elif method == _RESET:
        request = message.reset_id.hex()
    elif method == _TRANSACT:
        who = message.producer
        request = f"{show_id(who.producer_id)}.{who.generation}.{message.request_number}"
    return {
        "group": offsets.group,
        "member": member.member_id,
        "generation": member.generation,
        "request": request,
        "offsets": [
            {**_place(step.partition, names), "from": _since(step), "to": step.to_offset}
            for step in offsets.offsets
        ],
    }


def _since(step: offset_manager_pb2.OffsetCommit) -> int | str:
    if step.HasField("from_offset"):
        return step.from_offset
    return "none" if step.HasField("from_none") else "any"


def _place(partition: types_pb2.Partition, names: Names) -> dict[str, Any]:
    return {"topic": names(partition.topic_id), "partition": partition.number}


_HEARTBEAT: Final = "offset_manager.heartbeat"
_REMOVE: Final = "offset_manager.remove_member"
_RESET: Final = "offset_manager.reset_offsets"
_PENDING: Final = "offset_manager.commit_transaction_offsets"
_TRANSACT: Final = "coordinator.transact"
_REQUESTS: Final[Mapping[str, Any]] = {
    _HEARTBEAT: offset_manager_pb2.HeartbeatRequest,
    _REMOVE: offset_manager_pb2.RemoveMemberRequest,
    "offset_manager.commit_offsets": offset_manager_pb2.CommitOffsetsRequest,
    _RESET: offset_manager_pb2.ResetOffsetsRequest,
    _PENDING: offset_manager_pb2.CommitTransactionOffsetsRequest,
    _TRANSACT: coordinator_pb2.TransactRequest,
}

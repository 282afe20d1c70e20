"""What an answer may be, whatever was asked: a reply, or an error with a name."""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import error_details_pb2, status_pb2

from oncelogpb import errors
from oncelogpb.calls import STATUS_KEY
from tests.fuzz.messages import is_repeated

# A fault of ours, whoever caused it.
NEVER: Final = frozenset({"INTERNAL", "CORRUPT_LOG", "UNSPECIFIED"})
# An answer that comes this much before its deadline did not miss it.
DEADLINE_SHARE: Final = 0.9
# Somebody deleted the topic while a batch was on its way to the disk: nobody can say more.
DELETED: Final = "topic deleted"


class NotNamed(AssertionError):
    """An answer that no client may get."""


def judge_failure(failure: grpc.aio.AioRpcError, *, waited_share: float) -> str:
    """The reason of an error of a call. `waited_share` of its timeout has passed."""
    code = failure.code()
    trailers: Any = failure.trailing_metadata() or ()
    packed = dict(trailers).get(STATUS_KEY)
    if packed is None:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and waited_share >= DEADLINE_SHARE:
            return "(deadline)"
        raise NotNamed(f"a status without our reason: {code} {failure.details()!r}")
    status = status_pb2.Status.FromString(packed)
    if status.code != code.value[0]:
        raise NotNamed(f"the status says {status.code}, the call {code}")
    return judge_status(status, waited_share=waited_share)


def judge_status(status: status_pb2.Status, *, waited_share: float) -> str:
    """The reason of an error inside a reply."""
    info = error_details_pb2.ErrorInfo()
    if len(status.details) != 1 or not status.details[0].Unpack(info):
        raise NotNamed(f"an error without ErrorInfo: {status}")
    kind = errors.BY_REASON.get(info.reason)
    if kind is None or info.domain != errors.DOMAIN:
        raise NotNamed(f"a reason that is in no table: {info}")
    if status.code != kind.rule.code or not status.message:
        raise NotNamed(f"{info.reason} with code {status.code} and message {status.message!r}")
    if info.reason in NEVER:
        raise NotNamed(f"{info.reason}: {status.message}")
    in_time = waited_share < DEADLINE_SHARE
    if info.reason == "UNKNOWN_OUTCOME" and in_time and DELETED not in status.message:
        raise NotNamed(f"UNKNOWN_OUTCOME before the deadline: {status.message}")
    if info.reason in ("TOO_LARGE", "LIMIT_EXCEEDED", "THROTTLED") and not info.metadata["limit"]:
        raise NotNamed(f"{info.reason} names no limit: {status.message}")
    return str(info.reason)


def judge_reply(reply: Any, *, waited_share: float) -> list[str]:
    """The reasons of the errors that stand in a reply, of its items."""
    reasons: list[str] = []
    for field, value in reply.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE or field.message_type.GetOptions().map_entry:
            continue
        for one in value if is_repeated(field) else (value,):
            if isinstance(one, status_pb2.Status):
                reasons.append(judge_status(one, waited_share=waited_share))
            else:
                reasons += judge_reply(one, waited_share=waited_share)
    return reasons

"""Every reason that Oncelog gives for saying no: one table, one class per reason, one wire form.

The reasons stand in `errors.proto`. This module adds what a caller needs to act: the gRPC code,
whether repeating the same call can help (`retriable`), and whether something may have happened
(`may_have_applied`). Servers raise these classes, the client raises the same ones again.

    OncelogError
    ├── BadRequest   change the request: InvalidArgument UnknownTopic UnknownPartition TopicExists
    │                CorruptBatch TooLarge LimitExceeded Unsupported OffsetOutOfRange NotFound
    │                GroupClaimed
    ├── TryAgain     nothing happened, retry: NotLeader Loading Unavailable Throttled DiskFull
    │                NotEnoughReplicas PendingTransaction ConcurrentTransaction
    ├── NotYours     producer or transaction is not what you think: ProducerFenced UnknownProducer
    │                OutOfOrderSequence DuplicateSequence TransactionEnded ProducerMismatch
    │                UnknownTransaction DuplicateCommitSeq ManifestMismatch StaleRequestId
    │                InvalidTimeout
    ├── GroupMoved   rewind or rejoin: StalePosition IllegalGeneration UnknownMember FencedInstance
    ├── InDoubt      something may have happened, ask first: UnknownOutcome CorruptLog Damaged
    │                Internal
    └── NotAllowed   who may: Unauthenticated PermissionDenied

A status without our ErrorInfo promises nothing: `from_status` makes it UnknownOutcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from oncelogpb.ids import show_named
from oncelogpb.v1 import errors_pb2 as pb

DOMAIN: Final = "oncelog"
# What an error may carry, bytes of UTF-8: it travels in HTTP/2 trailers, of which clients take
# 8 KiB, and it may quote a name of any length that a caller sent.
MESSAGE_BYTES_MAX: Final = 1_000
VALUE_BYTES_MAX: Final = 250
METADATA_KEYS_MAX: Final = 8

# google.rpc.Code / grpc.StatusCode numbers.
CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 1, 2, 3, 4, 5
ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 6, 7, 8
FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL = 9, 10, 11, 12, 13
UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = 14, 15, 16


@dataclass(frozen=True, slots=True)
class Rule:
    """What a reason means for its caller."""

    # gRPC status code.
    code: int
    # The same call may succeed later, here or at another process.
    retriable: bool
    # False promises that nothing happened.
    may_have_applied: bool


class OncelogError(Exception):
    """Base of all errors that cross the wire. `metadata` holds the details that the reason names,
    as text: ids, generations and UUIDs, given as numbers and bytes, in the form in which they are
    shown everywhere (`oncelogpb.ids`).

    A subclass is bound to one reason; raise the subclass, catch it or a family.
    """

    reason: ClassVar[str] = "UNSPECIFIED"
    rule: ClassVar[Rule] = Rule(UNKNOWN, retriable=False, may_have_applied=True)

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = {
            name: str(show_named(name, value)) for name, value in metadata.items()
        }

    @property
    def retriable(self) -> bool:
        """Repeating the same call can help."""
        return self.rule.retriable

    @property
    def may_have_applied(self) -> bool:
        """False promises that nothing happened."""
        return self.rule.may_have_applied

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.metadata))


def _rebuild(kind: type[OncelogError], message: str, metadata: dict[str, str]) -> OncelogError:
    error = kind(message)
    error.metadata = metadata
    return error


class BadRequest(OncelogError):
    """Nothing happened; the request must change."""


class TryAgain(OncelogError):
    """Nothing happened; the same call may succeed later."""


class NotYours(OncelogError):
    """Nothing happened; the producer or transaction is not what the caller thinks."""


class GroupMoved(OncelogError):
    """Nothing happened; the consumer group moved on: rewind or rejoin."""


class InDoubt(OncelogError):
    """Something may have happened; ask before repeating."""


class NotAllowed(OncelogError):
    """Nothing happened; the caller may not do this."""


class InvalidArgument(BadRequest):
    reason = "INVALID_ARGUMENT"
    rule = Rule(INVALID_ARGUMENT, retriable=False, may_have_applied=False)


class UnknownTopic(BadRequest):
    reason = "UNKNOWN_TOPIC"
    rule = Rule(NOT_FOUND, retriable=False, may_have_applied=False)


class UnknownPartition(BadRequest):
    reason = "UNKNOWN_PARTITION"
    rule = Rule(NOT_FOUND, retriable=False, may_have_applied=False)


class TopicExists(BadRequest):
    reason = "TOPIC_EXISTS"
    rule = Rule(ALREADY_EXISTS, retriable=False, may_have_applied=False)


class CorruptBatch(BadRequest):
    reason = "CORRUPT_BATCH"
    rule = Rule(INVALID_ARGUMENT, retriable=False, may_have_applied=False)


class TooLarge(BadRequest):
    reason = "TOO_LARGE"
    rule = Rule(INVALID_ARGUMENT, retriable=False, may_have_applied=False)


class LimitExceeded(BadRequest):
    reason = "LIMIT_EXCEEDED"
    rule = Rule(RESOURCE_EXHAUSTED, retriable=False, may_have_applied=False)


class Unsupported(BadRequest):
    reason = "UNSUPPORTED"
    rule = Rule(UNIMPLEMENTED, retriable=False, may_have_applied=False)


class OffsetOutOfRange(BadRequest):
    reason = "OFFSET_OUT_OF_RANGE"
    rule = Rule(OUT_OF_RANGE, retriable=False, may_have_applied=False)


class NotFound(BadRequest):
    reason = "NOT_FOUND"
    rule = Rule(NOT_FOUND, retriable=False, may_have_applied=False)


class GroupClaimed(BadRequest):
    reason = "GROUP_CLAIMED"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class NotLeader(TryAgain):
    reason = "NOT_LEADER"
    rule = Rule(UNAVAILABLE, retriable=True, may_have_applied=False)


class Loading(TryAgain):
    reason = "LOADING"
    rule = Rule(UNAVAILABLE, retriable=True, may_have_applied=False)


class Unavailable(TryAgain):
    reason = "UNAVAILABLE"
    rule = Rule(UNAVAILABLE, retriable=True, may_have_applied=False)


class Throttled(TryAgain):
    reason = "THROTTLED"
    rule = Rule(RESOURCE_EXHAUSTED, retriable=True, may_have_applied=False)


class DiskFull(TryAgain):
    reason = "DISK_FULL"
    rule = Rule(RESOURCE_EXHAUSTED, retriable=True, may_have_applied=False)


class NotEnoughReplicas(TryAgain):
    reason = "NOT_ENOUGH_REPLICAS"
    rule = Rule(UNAVAILABLE, retriable=True, may_have_applied=False)


class PendingTransaction(TryAgain):
    reason = "PENDING_TRANSACTION"
    rule = Rule(UNAVAILABLE, retriable=True, may_have_applied=False)


class ConcurrentTransaction(TryAgain):
    reason = "CONCURRENT_TRANSACTION"
    rule = Rule(UNAVAILABLE, retriable=True, may_have_applied=False)


class ProducerFenced(NotYours):
    reason = "PRODUCER_FENCED"
    rule = Rule(PERMISSION_DENIED, retriable=False, may_have_applied=False)


class UnknownProducer(NotYours):
    reason = "UNKNOWN_PRODUCER"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class OutOfOrderSequence(NotYours):
    reason = "OUT_OF_ORDER_SEQUENCE"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class DuplicateSequence(NotYours):
    reason = "DUPLICATE_SEQUENCE"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class TransactionEnded(NotYours):
    reason = "TRANSACTION_ENDED"
    rule = Rule(ABORTED, retriable=False, may_have_applied=False)


class ProducerMismatch(NotYours):
    reason = "PRODUCER_MISMATCH"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class UnknownTransaction(NotYours):
    reason = "UNKNOWN_TRANSACTION"
    rule = Rule(NOT_FOUND, retriable=False, may_have_applied=False)


class DuplicateCommitSeq(NotYours):
    reason = "DUPLICATE_COMMIT_SEQ"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class ManifestMismatch(NotYours):
    reason = "MANIFEST_MISMATCH"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class StaleRequestId(NotYours):
    reason = "STALE_REQUEST_ID"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class InvalidTimeout(NotYours):
    reason = "INVALID_TIMEOUT"
    rule = Rule(INVALID_ARGUMENT, retriable=False, may_have_applied=False)


class StalePosition(GroupMoved):
    reason = "STALE_POSITION"
    rule = Rule(ABORTED, retriable=False, may_have_applied=False)


class IllegalGeneration(GroupMoved):
    reason = "ILLEGAL_GENERATION"
    rule = Rule(ABORTED, retriable=False, may_have_applied=False)


class UnknownMember(GroupMoved):
    reason = "UNKNOWN_MEMBER"
    rule = Rule(ABORTED, retriable=False, may_have_applied=False)


class FencedInstance(GroupMoved):
    reason = "FENCED_INSTANCE"
    rule = Rule(PERMISSION_DENIED, retriable=False, may_have_applied=False)


class UnknownOutcome(InDoubt):
    reason = "UNKNOWN_OUTCOME"
    rule = Rule(UNKNOWN, retriable=False, may_have_applied=True)


class CorruptLog(InDoubt):
    reason = "CORRUPT_LOG"
    rule = Rule(DATA_LOSS, retriable=False, may_have_applied=True)


class Damaged(InDoubt):
    reason = "DAMAGED"
    rule = Rule(DATA_LOSS, retriable=False, may_have_applied=True)


class Internal(InDoubt):
    reason = "INTERNAL"
    rule = Rule(INTERNAL, retriable=False, may_have_applied=True)


class Unauthenticated(NotAllowed):
    reason = "UNAUTHENTICATED"
    rule = Rule(UNAUTHENTICATED, retriable=False, may_have_applied=False)


class PermissionDenied(NotAllowed):
    reason = "PERMISSION_DENIED"
    rule = Rule(PERMISSION_DENIED, retriable=False, may_have_applied=False)


# The table: reason -> class, complete against errors.proto (a test holds this).
BY_REASON: Final[dict[str, type[OncelogError]]] = {
    kind.reason: kind
    for family in (BadRequest, TryAgain, NotYours, GroupMoved, InDoubt, NotAllowed)
    for kind in family.__subclasses__()
}

_STRAY_REFUSALS: Final = {
    UNAUTHENTICATED: Unauthenticated,
    PERMISSION_DENIED: PermissionDenied,
    UNIMPLEMENTED: Unsupported,
}


def reasons() -> list[str]:
    """Every reason that errors.proto names, without its prefix."""
    return [
        name.removeprefix("REASON_")
        for name in list(pb.Reason.keys())
        if name != "REASON_UNSPECIFIED"
    ]


def to_status(error: OncelogError) -> status_pb2.Status:
    """The wire form of an error; long texts are cut."""
    assert len(error.metadata) <= METADATA_KEYS_MAX, "an error says what its reason names, no more"
    metadata = {key: _cut(value, VALUE_BYTES_MAX) for key, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    detail = any_pb2.Any()
    detail.Pack(info)
    message = _cut(error.message, MESSAGE_BYTES_MAX)
    return status_pb2.Status(code=error.rule.code, message=message, details=[detail])


def _cut(text: str, bytes_max: int) -> str:
    """At most so many bytes of UTF-8, and an ellipsis where there were more. What is no text (a
    lone surrogate) is replaced."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[:bytes_max].decode("utf-8", "ignore") + "…"


def from_status(status: status_pb2.Status) -> OncelogError:
    """The error behind a status. One that is not ours promises nothing: UnknownOutcome, except the
    codes with which a transport refuses a call before it reaches a handler."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
            if info.domain == DOMAIN and info.reason in BY_REASON:
                error = BY_REASON[info.reason](status.message)
                error.metadata = dict(info.metadata)
                return error
    kind = _STRAY_REFUSALS.get(status.code, UnknownOutcome)
    return kind(
        status.message or f"gRPC status {status.code} without details", grpc_code=status.code
    )

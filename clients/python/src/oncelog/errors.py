"""Every error that Oncelog raises: one class per reason, and what to do about each.

    OncelogError                    .reason  .retriable  .may_have_applied  .metadata
    ├── BadRequest                  nothing happened: change the request
    │   ├── InvalidArgument         a field is absent, out of range or contradicts another
    │   ├── UnknownTopic            no topic of that name
    │   ├── UnknownPartition        the topic has fewer partitions
    │   ├── TopicExists
    │   ├── CorruptBatch            bytes that do not match their checksum, counts or schema
    │   ├── TooLarge                above a named limit
    │   ├── LimitExceeded           too many things held open
    │   ├── Unsupported             built in a later version
    │   ├── OffsetOutOfRange        below the start or above the end of the partition
    │   ├── GroupClaimed            a Spark query keeps members out of the group while it runs
    │   └── NotFound                no group, producer or transaction of that name
    ├── TryAgain                    nothing happened: the client has retried until its deadline
    │   ├── NotLeader, Loading, Unavailable, NotEnoughReplicas
    │   ├── Throttled, DiskFull
    │   ├── PendingTransaction      a transaction in flight holds the group's offsets
    │   └── ConcurrentTransaction   the producer has an open transaction
    ├── NotYours                    the producer or transaction is not what you think
    │   ├── ProducerFenced          a later instance of this name took over: stop
    │   ├── TransactionEnded        it was aborted (timeout, operator): rewind and begin again
    │   └── UnknownProducer, OutOfOrderSequence, DuplicateSequence, ProducerMismatch,
    │       UnknownTransaction, DuplicateCommitSeq, ManifestMismatch, StaleRequestId, InvalidTimeout
    ├── GroupMoved                  the consumer group moved on: rewind or rejoin
    │   └── StalePosition, IllegalGeneration, UnknownMember, FencedInstance
    ├── InDoubt                     something may have happened
    │   ├── UnknownOutcome          the answer was lost until the deadline: ask before you repeat
    │   ├── Damaged                 committed, but a part did not match its manifest
    │   └── CorruptLog, Internal
    ├── NotAllowed
    │   └── Unauthenticated, PermissionDenied
    ├── DeliveryFailed              some of the records that were sent are not there, or may not be
    ├── CannotConnect               no process was ever reached; the message says what is wrong
    ├── BufferFailed                a buffered consumer's disk is full, or gives back something else
    ├── Closed                      used after close()
    └── Forked                      used in a forked child: spawn it, or connect there first

The last five are of this client alone: no service answers them. A DeliveryFailed is also of the
class of its first failure, so that `except UnknownTopic` catches it.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncelog._core.deliveries import Delivery
from oncelogpb.errors import (
    BadRequest,
    ConcurrentTransaction,
    CorruptBatch,
    CorruptLog,
    Damaged,
    DiskFull,
    DuplicateCommitSeq,
    DuplicateSequence,
    FencedInstance,
    GroupClaimed,
    GroupMoved,
    IllegalGeneration,
    InDoubt,
    Internal,
    InvalidArgument,
    InvalidTimeout,
    LimitExceeded,
    Loading,
    ManifestMismatch,
    NotAllowed,
    NotEnoughReplicas,
    NotFound,
    NotLeader,
    NotYours,
    OffsetOutOfRange,
    OncelogError,
    OutOfOrderSequence,
    PendingTransaction,
    PermissionDenied,
    ProducerFenced,
    ProducerMismatch,
    Rule,
    StalePosition,
    StaleRequestId,
    Throttled,
    TooLarge,
    TopicExists,
    TransactionEnded,
    TryAgain,
    Unauthenticated,
    Unavailable,
    UnknownMember,
    UnknownOutcome,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
    UnknownTransaction,
    Unsupported,
)

FAILED_PRECONDITION, UNAVAILABLE = 9, 14
# What to do about Forked.
INSTEAD_OF_FORK = (
    "start the child with multiprocessing's 'spawn' or 'forkserver', or connect in the child only"
)


class DeliveryFailed(OncelogError):
    """Records that were sent before are not there, or may not be (`may_have_applied`); all others
    are. Raised by `flush` and `close`. `failures` holds the first of them, `count` says how many
    there are. `reason` and metadata are of the first."""

    failures: tuple[Delivery, ...] = ()
    count = 0
    _may_have_applied = True

    @property
    def may_have_applied(self) -> bool:
        """False promises that none of them is there."""
        return self._may_have_applied

    def __reduce__(self) -> tuple[object, ...]:
        return (delivery_failed, (self.failures, self.count, self._may_have_applied))


def delivery_failed(
    failures: Sequence[Delivery], count: int, may_have_applied: bool | None = None
) -> DeliveryFailed:
    """`failures`: the first of `count`. `may_have_applied` None: as they say."""
    first = failures[0]
    assert first.error is not None, "it failed"
    cause = first.error
    kind = type(cause)
    if kind not in _FAILED:
        names = {"reason": kind.reason, "rule": kind.rule, "__module__": __name__}
        _FAILED[kind] = type("DeliveryFailed", (DeliveryFailed, kind), names)
    which = f"record {first.index} of topic {first.topic!r}"
    told = _FAILED[kind](
        f"{which} was not delivered: {cause.message}"
        if count == 1
        else f"{count} records were not delivered; the first, {which}: {cause.message}"
    )
    told.metadata = dict(cause.metadata)
    told.failures, told.count = tuple(failures), count
    if may_have_applied is None:
        may_have_applied = any(one.error and one.error.may_have_applied for one in failures)
    told._may_have_applied = may_have_applied
    told.__cause__ = cause
    return told


# The class of the first failure -> DeliveryFailed of that class.
_FAILED: dict[type[OncelogError], type[DeliveryFailed]] = {}


class CannotConnect(OncelogError):
    """No process of the bootstrap list was ever reached. The message says what is wrong with each
    address; `metadata["problem"]` says it in a word, of the first: address, refused, silent,
    unreachable, tls_wanted, tls_not_spoken, certificate, client_certificate, not_oncelog. Or the
    cluster was reached, and no process of a role that the call needs: role_stopped, role_silent.
    `found` is the message without its advice, for a program that gives its own. Nothing
    happened."""

    reason = "CANNOT_CONNECT"
    rule = Rule(UNAVAILABLE, retriable=False, may_have_applied=False)

    def __init__(self, message: str, *, found: str | None = None, **metadata: object) -> None:
        super().__init__(message, **metadata)
        self.found = message if found is None else found


class BufferFailed(OncelogError):
    """A buffered consumer (`delivery="buffered"`) cannot write to its `buffer_dir`, or cannot read
    back what it wrote. Raised by each poll for as long as it is so; nothing is lost."""

    reason = "BUFFER_FAILED"
    rule = Rule(FAILED_PRECONDITION, retriable=True, may_have_applied=False)


class Closed(OncelogError):
    """Used after close(). Nothing happened."""

    reason = "CLOSED"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


class Forked(OncelogError):
    """A connection does not survive fork, nor can gRPC start again in the child of a process that
    used it: spawn the child, or connect after the fork only. Nothing happened."""

    reason = "FORKED"
    rule = Rule(FAILED_PRECONDITION, retriable=False, may_have_applied=False)


__all__ = [
    "BadRequest",
    "BufferFailed",
    "CannotConnect",
    "Closed",
    "ConcurrentTransaction",
    "CorruptBatch",
    "CorruptLog",
    "Damaged",
    "DeliveryFailed",
    "DiskFull",
    "DuplicateCommitSeq",
    "DuplicateSequence",
    "FencedInstance",
    "Forked",
    "GroupClaimed",
    "GroupMoved",
    "IllegalGeneration",
    "InDoubt",
    "Internal",
    "InvalidArgument",
    "InvalidTimeout",
    "LimitExceeded",
    "Loading",
    "ManifestMismatch",
    "NotAllowed",
    "NotEnoughReplicas",
    "NotFound",
    "NotLeader",
    "NotYours",
    "OffsetOutOfRange",
    "OncelogError",
    "OutOfOrderSequence",
    "PendingTransaction",
    "PermissionDenied",
    "ProducerFenced",
    "ProducerMismatch",
    "StalePosition",
    "StaleRequestId",
    "Throttled",
    "TooLarge",
    "TopicExists",
    "TransactionEnded",
    "TryAgain",
    "Unauthenticated",
    "Unavailable",
    "UnknownMember",
    "UnknownOutcome",
    "UnknownPartition",
    "UnknownProducer",
    "UnknownTopic",
    "UnknownTransaction",
    "Unsupported",
]

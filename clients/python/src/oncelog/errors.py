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
    ├── Closed                      used after close()
    └── Forked                      used in a forked child: spawn it, or connect there first

The last two are of this client alone: no service answers them.
"""

from __future__ import annotations

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

FAILED_PRECONDITION = 9
# What to do about Forked.
INSTEAD_OF_FORK = (
    "start the child with multiprocessing's 'spawn' or 'forkserver', or connect in the child only"
)


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
    "Closed",
    "ConcurrentTransaction",
    "CorruptBatch",
    "CorruptLog",
    "Damaged",
    "DiskFull",
    "DuplicateCommitSeq",
    "DuplicateSequence",
    "FencedInstance",
    "Forked",
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

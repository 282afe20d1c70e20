"""The error table: complete against the proto, and the same on both sides of the wire."""

from __future__ import annotations

import pickle
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from oncelogpb import calls, errors
from oncelogpb.errors import BY_REASON, OncelogError
from oncelogpb.ids import parse_generation, parse_id, show_generation, show_id
from oncelogpb.v1 import coordinator_pb2 as coordinator
from tests.unit.rpc.harness import outcome_of, run, serving

FAMILIES = (
    errors.BadRequest,
    errors.TryAgain,
    errors.NotYours,
    errors.GroupMoved,
    errors.InDoubt,
    errors.NotAllowed,
)

# What users' code relies on; a change here is a change of the contract.
# reason: family, gRPC code, retriable, may_have_applied
TABLE = {
    "INVALID_ARGUMENT": ("BadRequest", "INVALID_ARGUMENT", False, False),
    "UNKNOWN_TOPIC": ("BadRequest", "NOT_FOUND", False, False),
    "UNKNOWN_PARTITION": ("BadRequest", "NOT_FOUND", False, False),
    "TOPIC_EXISTS": ("BadRequest", "ALREADY_EXISTS", False, False),
    "CORRUPT_BATCH": ("BadRequest", "INVALID_ARGUMENT", False, False),
    "TOO_LARGE": ("BadRequest", "INVALID_ARGUMENT", False, False),
    "LIMIT_EXCEEDED": ("BadRequest", "RESOURCE_EXHAUSTED", False, False),
    "UNSUPPORTED": ("BadRequest", "UNIMPLEMENTED", False, False),
    "OFFSET_OUT_OF_RANGE": ("BadRequest", "OUT_OF_RANGE", False, False),
    "NOT_FOUND": ("BadRequest", "NOT_FOUND", False, False),
    "GROUP_CLAIMED": ("BadRequest", "FAILED_PRECONDITION", False, False),
    "NOT_LEADER": ("TryAgain", "UNAVAILABLE", True, False),
    "LOADING": ("TryAgain", "UNAVAILABLE", True, False),
    "UNAVAILABLE": ("TryAgain", "UNAVAILABLE", True, False),
    "THROTTLED": ("TryAgain", "RESOURCE_EXHAUSTED", True, False),
    "DISK_FULL": ("TryAgain", "RESOURCE_EXHAUSTED", True, False),
    "NOT_ENOUGH_REPLICAS": ("TryAgain", "UNAVAILABLE", True, False),
    "PENDING_TRANSACTION": ("TryAgain", "UNAVAILABLE", True, False),
    "CONCURRENT_TRANSACTION": ("TryAgain", "UNAVAILABLE", True, False),
    "PRODUCER_FENCED": ("NotYours", "PERMISSION_DENIED", False, False),
    "UNKNOWN_PRODUCER": ("NotYours", "FAILED_PRECONDITION", False, False),
    "OUT_OF_ORDER_SEQUENCE": ("NotYours", "FAILED_PRECONDITION", False, False),
    "DUPLICATE_SEQUENCE": ("NotYours", "FAILED_PRECONDITION", False, False),
    "TRANSACTION_ENDED": ("NotYours", "ABORTED", False, False),
    "PRODUCER_MISMATCH": ("NotYours", "FAILED_PRECONDITION", False, False),
    "UNKNOWN_TRANSACTION": ("NotYours", "NOT_FOUND", False, False),
    "DUPLICATE_COMMIT_SEQ": ("NotYours", "FAILED_PRECONDITION", False, False),
    "MANIFEST_MISMATCH": ("NotYours", "FAILED_PRECONDITION", False, False),
    "STALE_REQUEST_ID": ("NotYours", "FAILED_PRECONDITION", False, False),
    "INVALID_TIMEOUT": ("NotYours", "INVALID_ARGUMENT", False, False),
    "STALE_POSITION": ("GroupMoved", "ABORTED", False, False),
    "ILLEGAL_GENERATION": ("GroupMoved", "ABORTED", False, False),
    "UNKNOWN_MEMBER": ("GroupMoved", "ABORTED", False, False),
    "FENCED_INSTANCE": ("GroupMoved", "PERMISSION_DENIED", False, False),
    "UNKNOWN_OUTCOME": ("InDoubt", "UNKNOWN", False, True),
    "CORRUPT_LOG": ("InDoubt", "DATA_LOSS", False, True),
    "DAMAGED": ("InDoubt", "DATA_LOSS", False, True),
    "INTERNAL": ("InDoubt", "INTERNAL", False, True),
    "UNAUTHENTICATED": ("NotAllowed", "UNAUTHENTICATED", False, False),
    "PERMISSION_DENIED": ("NotAllowed", "PERMISSION_DENIED", False, False),
}
CODES = {code.value[0]: code for code in grpc.StatusCode}


def test_the_table_is_complete_against_the_proto() -> None:
    assert sorted(errors.reasons()) == sorted(BY_REASON) == sorted(TABLE)


@pytest.mark.parametrize("reason", TABLE)
def test_what_a_reason_means(reason: Any) -> None:
    family, code, retriable, may_have_applied = TABLE[reason]
    error = BY_REASON[reason]("why")
    assert error.reason == reason
    assert family in [kind.__name__ for kind in type(error).__mro__]
    assert CODES[error.rule.code].name == code
    assert (error.retriable, error.may_have_applied) == (retriable, may_have_applied)
    assert not (retriable and may_have_applied), "a retry must be safe without asking"


def test_every_class_stands_in_one_family() -> None:
    for kind in BY_REASON.values():
        assert sum(issubclass(kind, family) for family in FAMILIES) == 1
        assert kind.__name__.lower() == kind.reason.replace("_", "").lower()


@pytest.mark.parametrize("reason", TABLE)
def test_an_error_survives_its_status_and_a_pickle(reason: Any) -> None:
    error = BY_REASON[reason]("why", expected=7, limit="x")
    for copy in (errors.from_status(errors.to_status(error)), pickle.loads(pickle.dumps(error))):
        assert type(copy) is type(error)
        assert (copy.message, copy.metadata) == ("why", {"expected": "7", "limit": "x"})


def test_ids_in_metadata_have_the_form_in_which_they_are_shown_everywhere() -> None:
    """What an error says can be given to `oncelog tx`, and searched in a log."""
    error = errors.PendingTransaction(
        "held",
        tx_id=3 << 48 | 5,
        held_by=5,
        producer_id=1 << 63,
        generation=7 << 32 | 3,
        topic_id=bytes(15) + b"\xff",
        partition=12,
    )
    assert error.metadata == {
        "tx_id": "0003000000000005",
        "held_by": "0000000000000005",
        "producer_id": "8000000000000000",
        "generation": "7.3",
        "topic_id": "000000000000000000000000000000ff",
        "partition": "12",
    }
    # What a machine remembered of an error, and says again, is not shown twice.
    assert errors.PendingTransaction("held", **error.metadata).metadata == error.metadata


@pytest.mark.parametrize("identity", [1, 3 << 48 | 5, (1 << 64) - 1])
def test_a_shown_id_and_a_shown_generation_can_be_read_back(identity: int) -> None:
    assert parse_id(show_id(identity)) == identity
    assert parse_generation(show_generation(identity)) == identity


@pytest.mark.parametrize(
    "text", ["", "5", "0003000000000005 ", "000300000000000g", "-003000000000005"]
)
def test_what_is_no_shown_id_is_not_read_as_one(text: str) -> None:
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        parse_id(text)


@pytest.mark.parametrize(
    "text", ["", "7", "7.", ".3", "7.3.1", "-7.3", "4294967296.1", "7.4294967296"]
)
def test_what_is_no_shown_generation_is_not_read_as_one(text: str) -> None:
    with pytest.raises(ValueError, match="epoch and counter"):
        parse_generation(text)


def test_every_reason_crosses_the_wire_both_ways() -> None:
    """What a handler raises, the caller raises again: unary, stream, and the bare gRPC code."""

    async def refuse(request: Any, call: Any) -> None:
        raise BY_REASON[request.name]("why", expected=7)

    async def story() -> None:
        async with serving("Coordinator", init_producer=refuse) as (_, channel):
            stream = calls.CallStream(channel, "coordinator")
            bare = channel.unary_unary(
                "/oncelogpb.v1.Coordinator/InitProducer",
                request_serializer=coordinator.InitProducerRequest.SerializeToString,
            )
            for reason in TABLE:
                request = coordinator.InitProducerRequest(name=reason)
                alone = calls.unary(channel, "coordinator", "init_producer", request)
                for error in (
                    await outcome_of(alone),
                    await outcome_of(stream.call("init_producer", request)),
                ):
                    assert type(error) is BY_REASON[reason]
                    assert (error.message, error.metadata) == ("why", {"expected": "7"})
                failure = await outcome_of(bare(request))
                assert failure.code().name == TABLE[reason][1]
                assert failure.details() == "why"
            await stream.close()

    run(story())


def test_an_error_that_quotes_a_long_name_fits_into_the_trailers_that_clients_take() -> None:
    """A client of gRPC takes 8 KiB of them; more, and it sees no reason at all."""

    async def refuse(request: Any, call: Any) -> None:
        raise errors.UnknownTopic(f"no topic {request.name}", topic=request.name)

    async def story() -> None:
        async with serving("Coordinator", init_producer=refuse) as (_, channel):
            for name in ("x" * 300_000, "☃" * 100_000, "\x00" * 100_000):
                request = coordinator.InitProducerRequest(name=name)
                call = calls.unary(channel, "coordinator", "init_producer", request)
                error = await outcome_of(call)
                assert type(error) is errors.UnknownTopic
                assert error.message.startswith(f"no topic {name[:100]}")
                assert error.message.endswith("…")
                assert error.metadata["topic"].startswith(name[:10])

    run(story())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.UnknownOutcome),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.UnknownOutcome),
        (grpc.StatusCode.CANCELLED, errors.UnknownOutcome),
        (grpc.StatusCode.INTERNAL, errors.UnknownOutcome),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.UnknownOutcome),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unsupported),
    ],
)
def test_a_status_without_our_details_promises_nothing(code: Any, kind: Any) -> None:
    error = errors.from_status(status_pb2.Status(code=code.value[0], message="transport"))
    assert type(error) is kind
    assert error.metadata["grpc_code"] == str(code.value[0])


def test_a_reason_of_another_domain_or_of_the_future_promises_nothing() -> None:
    for domain, reason in (("elsewhere", "NOT_LEADER"), (errors.DOMAIN, "OF_THE_FUTURE")):
        status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0])
        status.details.add().Pack(error_details_pb2.ErrorInfo(domain=domain, reason=reason))
        error = errors.from_status(status)
        assert isinstance(error, OncelogError)
        assert isinstance(error, errors.UnknownOutcome)

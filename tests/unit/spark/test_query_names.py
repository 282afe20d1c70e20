"""Which producer a query is that was given none: by its name, and never away from its past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from oncelog_spark import batch_transaction as transaction
from oncelog_spark.manifest import TransactionKey
from oncelog_spark.query_names import QueryNameTaken, default_names, query_name
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import Leaders

QUERY = "11111111-2222-3333-4444-555555555555"
RUN = "00000000-0000-0000-0000-00000000000a"


def description(name: str, end: str = "\n") -> str:
    """As Spark writes it."""
    return f"{name + end if name else ''}id = {QUERY}{end}runId = {RUN}{end}batch = 3"


def key(
    described: str | None, *, number: int = 3, producer: str | None = None, sink: str | None = None
) -> TransactionKey:
    properties = {
        transaction.BATCH_ID_PROPERTY: str(number),
        transaction.QUERY_ID_PROPERTY: QUERY,
        transaction.RUN_ID_PROPERTY: RUN,
    }
    if described is not None:
        properties[transaction.DESCRIPTION_PROPERTY] = described
    made = transaction.key_of_batch(properties.get, producer, sink)
    assert made is not None
    return made


def coordinator(**committed: tuple[str, int] | Exception) -> Leaders:
    """Knows the last commit (scope and number) of each producer, by its name."""

    def grant(request: Any) -> coordinator_pb2.InitProducerReply:
        last = committed.get(request.name)
        if isinstance(last, Exception):
            raise last
        reply = coordinator_pb2.InitProducerReply(producer=pb.Producer(producer_id=5, generation=2))
        if last is not None:
            reply.last_commit_seq.CopyFrom(pb.CommitSeq(scope=last[0], number=last[1]))
        return reply

    leaders = Leaders()
    leaders.script["init_producer"] = [grant] * 20
    return leaders


def asked(leaders: Leaders) -> list[str]:
    return [request.name for request in leaders.of("init_producer")]


@pytest.mark.parametrize("end", ["\n", "<br/>"])
@pytest.mark.parametrize("name", ["", "enricher", "my job", "id = x"])
def test_a_querys_name_is_read_from_what_its_tasks_are_told(name: str, end: str) -> None:
    assert query_name(description(name, end), QUERY) == name


@pytest.mark.parametrize("told", [None, "", "my own words", "id = another"])
def test_words_of_the_users_own_name_no_query(told: str | None) -> None:
    assert query_name(told, QUERY) is None
    assert default_names(told, QUERY) == (QUERY, QUERY)


def test_a_query_without_a_producer_is_its_name_else_its_id() -> None:
    assert default_names(description("enricher"), QUERY) == ("enricher", QUERY)
    assert default_names(description(""), QUERY) == (QUERY, "")
    assert default_names(description("x" * 256), QUERY) == (QUERY, "")
    named = key(description("enricher"), sink="a")
    assert (named.producer_name, named.name_before) == ("enricher/a", f"{QUERY}/a")
    chosen = key(description("enricher"), producer="job", sink="a")
    assert (chosen.producer_name, chosen.name_before) == ("job/a", "")


def test_i34_a_query_that_committed_by_its_id_stays_with_it() -> None:
    """And touches nobody's producer of its name: another query may have that."""
    leaders = coordinator(**{QUERY: (QUERY, 0), "enricher": ("another query", 9)})
    for _ in range(2):
        transaction.enter(leaders.protocol, key(description("enricher"), number=0))
    assert asked(leaders) == [QUERY] * 2, "whether it committed, and for its generation"


def test_i34_a_query_that_committed_by_its_name_finds_it() -> None:
    leaders = coordinator(enricher=(QUERY, 2))
    for _ in range(2):
        transaction.enter(leaders.protocol, key(description("enricher")))
    assert asked(leaders) == [QUERY, "enricher"]


@pytest.mark.parametrize("last", [{}, {"enricher": ("a lost checkpoint", 41)}])
def test_i34_a_first_batch_takes_over_what_has_its_name(last: Mapping[str, Any]) -> None:
    transaction.enter(coordinator(**last).protocol, key(description("enricher"), number=0))


@pytest.mark.parametrize(
    ("described", "last", "says"),
    [
        ("enricher", {}, "'enricher'.*never committed.*`producer` its earlier name"),
        ("enricher", {"enricher": ("other", 4)}, "was query other.*two queries have one name"),
        ("words of mine", {}, QUERY),
    ],
    ids=["renamed", "two of one name", "a description of the users own"],
)
def test_i34_a_later_batch_whose_producer_knows_no_earlier_one_is_refused(
    described: str, last: Mapping[str, Any], says: str
) -> None:
    leaders = coordinator(**last)
    told = described if " " in described else description(described)
    with pytest.raises(QueryNameTaken, match=says):
        transaction.enter(leaders.protocol, key(told))
    assert leaders.of("begin_transaction") == []


def test_what_somebody_chose_and_a_query_without_name_are_taken_as_they_are() -> None:
    leaders = coordinator()
    transaction.enter(leaders.protocol, key(description(""), number=3))
    transaction.enter(leaders.protocol, key(description("enricher"), producer="job"))
    assert asked(leaders) == [QUERY, "job"]


def test_who_may_not_be_the_id_never_was_it() -> None:
    committed: dict[str, tuple[str, int] | Exception] = {
        QUERY: errors.PermissionDenied("no"),
        "enricher": (QUERY, 2),
    }
    leaders = coordinator(**committed)
    for _ in range(2):
        transaction.enter(leaders.protocol, key(description("enricher")))
    assert asked(leaders) == [QUERY, "enricher"]

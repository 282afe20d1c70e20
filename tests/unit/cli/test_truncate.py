"""`oncelog topic truncate`: what is shown is what goes, and nothing goes unasked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.cli.scripted import Cluster, json_of

Run = Callable[..., Result]


def standing(end: int = 100, start: int = 10) -> Cluster:
    """Each partition holds start to end; a record takes 10 bytes. The end grows by 50 with every
    question: somebody writes."""
    ends = iter(range(end, end + 10_000, 50))

    def list_offsets(request: pb.ListOffsetsRequest) -> pb.ListOffsetsReply:
        now, reply = next(ends), pb.ListOffsetsReply()
        for query in request.queries:
            offset = now if query.latest else 40
            reply.offsets.add(partition=query.partition, offset=offset)
        return reply

    def truncate(request: pb.TruncatePartitionRequest) -> pb.TruncatePartitionReply:
        assert request.WhichOneof("before") == "offset", "a repeat must not delete what came since"
        after = max(start, request.offset)
        return pb.TruncatePartitionReply(
            start_before=start,
            start_after=after,
            record_count=after - start,
            payload_bytes=10 * (after - start),
        )

    return Cluster(
        partition_leader__list_offsets=list_offsets,
        partition_leader__truncate_partition=truncate,
    )


def cuts(cluster: Cluster) -> list[tuple[int, int, bool]]:
    return [
        (request.partition.number, request.offset, request.dry_run)
        for request in cluster.requests("partition_leader.truncate_partition")
    ]


def test_what_was_shown_is_what_goes(run: Run) -> None:
    cluster = standing()
    done = run(cluster, "topic truncate payments --before end", stdin=b"y\n")
    assert done.exit_code == 0
    assert cuts(cluster) == [(0, 100, True), (1, 100, True), (0, 100, False), (1, 100, False)]
    assert len(cluster.requests("partition_leader.list_offsets")) == 1
    assert "Delete these 180 records of payments for good?" in done.stderr
    assert "deleted 180 records of payments" in done.stdout


def test_nothing_goes_that_nobody_agreed_to(run: Run) -> None:
    cluster = standing()
    refused = run(cluster, "topic truncate payments --before end", stdin=b"n\n")
    assert refused.exit_code == 1
    assert "payments/1" in refused.stdout
    assert all(dry_run for _, _, dry_run in cuts(cluster))


def test_a_dry_run_deletes_nothing_and_says_so(run: Run) -> None:
    cluster = standing()
    done = run(cluster, "topic truncate payments --before 7d --dry-run --yes")
    assert "Nothing was deleted: without --dry-run it is." in done.stdout
    assert cuts(cluster) == [(0, 40, True), (1, 40, True)]
    told = json_of(run(standing(), "topic truncate payments --before 7d --dry-run --json"))
    assert told["executed"] is False
    assert told["partitions"][1] == {
        "number": 1,
        "start_before": 10,
        "start_after": 40,
        "records": 30,
        "payload_bytes": 300,
    }


def test_an_offset_is_of_one_partition(run: Run) -> None:
    refused = run(standing(), "topic truncate payments --before 50 --yes")
    assert refused.exit_code != 0
    assert "name the partition" in refused.stderr
    cluster = standing()
    done = json_of(run(cluster, "topic truncate payments --before 50 --partition 1 --yes --json"))
    assert done["executed"] is True
    assert cuts(cluster) == [(1, 50, True), (1, 50, False)]


def test_where_nothing_lies_below_nobody_is_asked(run: Run) -> None:
    cluster = standing()
    done = run(cluster, "topic truncate payments --before 10 --partition 0")
    assert done.exit_code == 0
    assert "Nothing lies below 10" in done.stdout
    assert cuts(cluster) == [(0, 10, True)]


@pytest.mark.parametrize("before", ["soon", "latest", "-5", "99999999999d", "999999999d"])
def test_what_is_no_place_is_refused_before_anybody_is_asked(run: Run, before: str) -> None:
    cluster = standing()
    refused = run(cluster, f"topic truncate payments --before={before} --yes")
    assert refused.exit_code == 2
    assert "nor a time" in refused.stderr
    assert cuts(cluster) == []


def test_a_partition_that_is_not_there_is_named(run: Run) -> None:
    refused = run(standing(), "topic truncate payments --before end --partition 7 --yes")
    assert refused.exit_code != 0
    assert "has 2 partitions, no 7" in refused.stderr

"""produce and consume."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import Result

from oncelog_server.cli import session
from oncelogpb.errors import StalePosition
from oncelogpb.v1 import offset_manager_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.cli.scripted import TOPIC_ID, Cluster, json_of, partition

Run = Callable[..., Result]
# Committed records by partition, in batches of two.
RECORDS = {0: [b"a0", b"a1", b"a2", b"a3", b"a4"], 1: [b"b0"]}
BATCH_RECORDS = 2


def _fetch(request: Any) -> Any:
    """Whole batches from the one that holds the offset, as a leader gives them."""
    reply = pb.FetchReply()
    for wanted in request.partitions:
        values = RECORDS[wanted.partition.number]
        fetched = reply.partitions.add(partition=wanted.partition, end_offset=len(values))
        first = wanted.offset // BATCH_RECORDS * BATCH_RECORDS
        if wanted.offset < len(values):
            rows = [
                types_pb2.Row(key=b"k", value=value, timestamp_us=1)
                for value in values[first : first + BATCH_RECORDS]
            ]
            fetched.batches.add(
                kind=pb.FetchedBatch.KIND_DATA,
                first_offset=first,
                record_count=len(rows),
                payload=types_pb2.Rows(rows=rows).SerializeToString(),
            )
    return reply


def _list_offsets(request: Any) -> Any:
    return pb.ListOffsetsReply(
        offsets=[
            pb.ListedOffset(
                partition=query.partition,
                offset=0 if query.earliest else len(RECORDS[query.partition.number]),
            )
            for query in request.queries
        ]
    )


def _cluster(**answers: Any) -> Cluster:
    return Cluster(
        partition_leader__fetch=_fetch, partition_leader__list_offsets=_list_offsets, **answers
    )


def test_reads_to_the_end_and_stops(run: Run) -> None:
    result = run(_cluster(), "consume payments")
    assert result.exit_code == 0, result.output
    lines = result.stdout.split()
    assert sorted(lines) == ["a0", "a1", "a2", "a3", "a4", "b0"]
    assert [line for line in lines if line[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--partition 1", ["b0"]),
        ("--partition 0 --from 3", ["a3", "a4"]),
        ("--partition 0 --max 3", ["a0", "a1", "a2"]),
        ("--from latest", []),
        ("--partition 1 --format key-value", ["k\tb0"]),
    ],
)
def test_where_it_starts_and_stops(options: str, expected: list[str], run: Run) -> None:
    result = run(_cluster(), f"consume payments {options}")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == expected


def test_records_as_json(run: Run) -> None:
    (line,) = run(_cluster(), "consume payments --partition 1 --json").stdout.splitlines()
    assert json.loads(line) == {
        "partition": 1,
        "offset": 0,
        "timestamp_us": 1,
        "key": "k",
        "value": "b0",
        "headers": [],
    }


def test_bytes_that_are_no_text_are_base64(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORDS, 1, [b"\xff\x00"])
    (line,) = run(_cluster(), "consume payments --partition 1 --json").stdout.splitlines()
    assert json.loads(line)["value_base64"] == "/wA="
    raw = run(_cluster(), "consume payments --partition 1")
    assert raw.stdout_bytes == b"\xff\x00\n"


class Group:
    """An offset manager of one group."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = {int(name[1:]): offset for name, offset in offsets.items()}
        self.steps: list[tuple[int, int | None, int]] = []

    def fetch(self, request: Any) -> Any:
        assert request.stable
        return offset_manager_pb2.FetchOffsetsReply(
            offsets=[
                offset_manager_pb2.CommittedOffset(
                    partition=wanted, offset=self.offsets.get(wanted.number)
                )
                for wanted in request.partitions
            ]
        )

    def commit(self, request: Any) -> Any:
        for step in request.offsets.offsets:
            number = step.partition.number
            start = step.from_offset if step.WhichOneof("from") == "from_offset" else None
            if start != self.offsets.get(number):
                return StalePosition("moved", committed=self.offsets.get(number))
            self.offsets[number] = step.to_offset
            self.steps.append((number, start, step.to_offset))
        return offset_manager_pb2.CommitOffsetsReply()

    def cluster(self) -> Cluster:
        return _cluster(
            offset_manager__fetch_offsets=self.fetch, offset_manager__commit_offsets=self.commit
        )


def test_i15_a_group_goes_on_where_it_stopped(run: Run) -> None:
    group = Group()
    first = run(group.cluster(), "consume payments --partition 0 --group g --max 3")
    second = run(group.cluster(), "consume payments --partition 0 --group g")
    third = run(group.cluster(), "consume payments --partition 0 --group g")
    assert first.stdout.split() == ["a0", "a1", "a2"]
    assert second.stdout.split() == ["a3", "a4"]
    assert third.stdout.split() == []
    assert [step for step in group.steps if step[2] == 3] == [(0, 2, 3)]
    assert group.offsets == {0: 5}


def test_from_counts_only_where_the_group_has_no_offset(run: Run) -> None:
    group = Group(p0=4)
    result = run(group.cluster(), "consume payments --group g --from earliest")
    assert sorted(result.stdout.split()) == ["a4", "b0"]
    assert group.offsets == {0: 5, 1: 1}


def test_a_group_that_another_consumer_moved_is_told(run: Run) -> None:
    group = Group(p0=2)
    cluster = group.cluster()
    cluster.answers["offset_manager.commit_offsets"] = StalePosition("moved", committed=4)
    result = run(cluster, "consume payments --partition 0 --group g")
    assert result.exit_code == 1
    assert "STALE_POSITION" in result.stderr


def test_markers_of_a_raw_read(run: Run) -> None:
    def fetch(request: Any) -> Any:
        batch = pb.FetchedBatch(kind=pb.FetchedBatch.KIND_COMMITTED, first_offset=4, tx_id=5)
        partitions = [pb.FetchedPartition(partition=partition(1), end_offset=5, batches=[batch])]
        return pb.FetchReply(partitions=partitions)

    cluster = Cluster(
        partition_leader__fetch=fetch,
        partition_leader__list_offsets=pb.ListOffsetsReply(
            offsets=[pb.ListedOffset(partition=partition(1), offset=5)]
        ),
    )
    line = "consume payments --isolation raw --partition 1 --from 4 --json"
    assert json.loads(run(cluster, line).stdout) == {
        "partition": 1,
        "offset": 4,
        "tx_id": "0000000000000005",
        "marker": "committed",
    }


class Log:
    """The client, as far as `produce` uses it."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes | None, bytes]] = []
        self.ended: list[str] = []

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def producer(self, *, delivery_timeout_ms: int) -> Any:
        self.delivery_timeout_ms = delivery_timeout_ms
        yield self

    @contextmanager
    def transactional_producer(self, name: str | None, *, delivery_timeout_ms: int) -> Any:
        self.name = name
        self.delivery_timeout_ms = delivery_timeout_ms
        yield self

    @contextmanager
    def transaction(self) -> Any:
        try:
            yield self
        except BaseException:
            self.ended.append("aborted")
            raise
        self.ended.append("committed")

    def send(self, topic: str, value: bytes, key: bytes | None) -> None:
        assert topic == "payments"
        if value == b"Ctrl-C":
            raise KeyboardInterrupt
        self.sent.append((key, value))
        self.flushed = False

    def flush(self) -> None:
        self.flushed = True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(session.Session, "connect", lambda self: log)
    return log


@pytest.mark.parametrize(
    ("options", "stdin", "sent"),
    [
        ("", b"a\nb\r\n\nlast", [(None, b"a"), (None, b"b"), (None, b""), (None, b"last")]),
        ("", b"\xff\x00\n", [(None, b"\xff\x00")]),
        ("--key-separator :", b"k:v:w\n:x\n", [(b"k", b"v:w"), (b"", b"x")]),
        ("", b"", []),
    ],
)
def test_lines_become_records(
    options: str, stdin: bytes, sent: list[tuple[bytes | None, bytes]], run: Run, log: Log
) -> None:
    told = json_of(run(Cluster(), f"produce payments --json {options}", stdin=stdin))
    assert log.sent == sent
    assert told == {"topic": "payments", "records": len(sent), "transactional": False}


@pytest.mark.parametrize("options", ["", "--transactional"])
def test_no_batch_takes_longer_than_a_call_may(options: str, run: Run, log: Log) -> None:
    run(Cluster(), f"produce payments --timeout 3 {options}", stdin=b"a\n")
    assert log.delivery_timeout_ms == 3_000


def test_a_separator_is_taken_as_it_was_typed(run: Run, log: Log) -> None:
    """Where the locale's encoding is not that of the terminal, it comes as surrogates."""
    typed = b"\xe2\x86\x92".decode("ascii", "surrogateescape")
    run(Cluster(), f"produce payments --key-separator {typed}", stdin=b"k\xe2\x86\x92v\n")
    assert log.sent == [(b"k", b"v")]


def test_a_bad_line_without_a_transaction_says_what_stands(run: Run, log: Log) -> None:
    result = run(Cluster(), "produce payments --key-separator :", stdin=b"a:1\nb:2\nbroken\n")
    assert result.exit_code == 2
    assert "line 3 has no key" in result.stderr
    assert "2 lines before it are appended" in result.stderr


def test_an_interrupt_without_a_transaction_says_what_stands(run: Run, log: Log) -> None:
    result = run(Cluster(), "produce payments", stdin=b"a\nb\nCtrl-C\nc\n")
    assert result.exit_code == 1
    assert "the first 2 lines are appended" in result.stderr
    assert len(log.sent) == 2
    assert log.flushed, "they are durable before that is said"


def test_i3_an_interrupt_leaves_nothing_of_the_transaction(run: Run, log: Log) -> None:
    result = run(Cluster(), "produce payments --transactional", stdin=b"a\nCtrl-C\n")
    assert result.exit_code == 1
    assert "appended" not in result.stderr
    assert log.ended == ["aborted"]


def test_all_lines_in_one_transaction(run: Run, log: Log) -> None:
    line = "produce payments --transactional --name loader"
    assert run(Cluster(), line, stdin=b"a\nb\n").exit_code == 0
    assert (log.ended, log.name, len(log.sent)) == (["committed"], "loader", 2)


def test_i3_a_bad_line_leaves_nothing_of_the_transaction(run: Run, log: Log) -> None:
    line = "produce payments --transactional --key-separator :"
    result = run(Cluster(), line, stdin=b"a:1\nbroken\n")
    assert result.exit_code == 2
    assert "line 2" in result.stderr
    assert "appended" not in result.stderr
    assert log.ended == ["aborted"]


def test_a_start_beyond_the_end_is_refused_with_the_end(run: Run) -> None:
    result = run(_cluster(), "consume payments --from 6")
    assert result.exit_code == 1
    assert "OFFSET_OUT_OF_RANGE" in result.stderr
    assert "partition 0 ends at 5, partition 1 at 1" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("start", "told"), [(5, "partition 1 ends at 1"), (1, "")])
def test_a_start_beyond_the_end_of_some_partitions_is_told(run: Run, start: int, told: str) -> None:
    result = run(_cluster(), f"consume payments --from {start}")
    assert result.exit_code == 0
    assert told in result.stderr
    assert bool(told) == bool(result.stderr)


def test_the_topics_id_is_used_not_its_name(run: Run) -> None:
    cluster = _cluster()
    run(cluster, "consume payments --partition 0")
    (asked, *_) = cluster.requests("partition_leader.fetch")
    assert asked.partitions[0].partition.topic_id == TOPIC_ID

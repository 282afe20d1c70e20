"""produce and consume."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import Result

from oncelog_server.cli import consume, lines, session
from oncelogpb.errors import NotFound, PermissionDenied, StalePosition
from oncelogpb.v1 import offset_manager_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.cli.scripted import TOPIC_ID, Cluster, json_of, partition, payments

Run = Callable[..., Result]
# Committed records by partition, in batches of two.
RECORDS = {0: [b"a0", b"a1", b"a2", b"a3", b"a4"], 1: [b"b0"]}
BATCH_RECORDS = 2
HEADERS = [types_pb2.Header(key="h", value=b"1"), types_pb2.Header(key="n")]


def _fetch(request: Any) -> Any:
    """Whole batches from the one that holds the offset, as a leader gives them."""
    reply = pb.FetchReply()
    for wanted in request.partitions:
        values = RECORDS[wanted.partition.number]
        fetched = reply.partitions.add(partition=wanted.partition, end_offset=len(values))
        first = wanted.offset // BATCH_RECORDS * BATCH_RECORDS
        if wanted.offset < len(values):
            rows = [
                types_pb2.Row(key=b"k", value=value, timestamp_us=1, headers=HEADERS)
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
                offset=_offset(query, len(RECORDS[query.partition.number])),
            )
            for query in request.queries
        ]
    )


def _offset(query: Any, end: int) -> int:
    """By time: a record a second."""
    if query.WhichOneof("at") == "timestamp_us":
        return min(end, int(query.timestamp_us) // 1_000_000)
    return 0 if query.earliest else end


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
        (
            "--partition 1 --format {topic}/{partition}@{offset}:{key}={value:hex}",
            ["payments/1@0:k=6230"],
        ),
        ("--partition 1 --format long", ["payments/1@0 1970-01-01T00:00:00.000001Z k b0 h=1,n="]),
        ("--partition 0 --from 1970-01-01T00:00:03Z", ["a3", "a4"]),
        ("--partition 0 --until 1970-01-01T00:00:03Z", ["a0", "a1", "a2"]),
        ("--partition 0 --from 2001-01-01", []),
        ("--partition 1 --delimiter ;--", ["b0;--"]),
    ],
)
def test_where_it_starts_and_stops(options: str, expected: list[str], run: Run) -> None:
    result = run(_cluster(), f"consume payments {options}")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == expected


def test_a_time_that_no_calendar_has_is_refused(run: Run) -> None:
    for option in ("--from", "--until"):
        refused = run(_cluster(), f"consume payments {option} 999999999d")
        assert refused.exit_code == 2
        assert "999999999d" in refused.stderr


def test_records_as_json(run: Run) -> None:
    (line,) = run(_cluster(), "consume payments --partition 1 --json").stdout.splitlines()
    assert json.loads(line) == {
        "topic": "payments",
        "partition": 1,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:00.000001Z",
        "timestamp_us": 1,
        "key": "k",
        "value": "b0",
        "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}],
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
        # By partition; a commit leaves it empty.
        self.metadata: dict[int, str] = {}

    def fetch(self, request: Any) -> Any:
        assert request.stable
        return offset_manager_pb2.FetchOffsetsReply(
            offsets=[
                offset_manager_pb2.CommittedOffset(
                    partition=wanted,
                    offset=self.offsets.get(wanted.number),
                    metadata=self.metadata.get(wanted.number, ""),
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
            if start is not None and step.from_metadata != self.metadata.get(number, ""):
                return StalePosition("moved", committed=start)
            self.offsets[number] = step.to_offset
            self.metadata[number] = step.metadata
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


def test_i21_a_group_that_was_given_more_than_its_offset_says_is_refused(run: Run) -> None:
    """Records that `transactions(across=True)` had given were printed again, and the commit behind
    them took from the group that they were given."""
    group = Group(p0=2)
    group.metadata[0] = "oncelog-across/1 3:1200,7:1215 mine"
    result = run(group.cluster(), "consume payments --partition 0 --group g")
    assert (result.exit_code, result.stdout) == (1, "")
    said = " ".join(result.stderr.split())
    assert "transactions(across=True)" in said
    assert "payments/0" in said
    assert "reset-offsets" in said
    assert (group.steps, group.offsets) == ([], {0: 2})


def test_i21_what_others_leave_beside_an_offset_is_no_reason_to_refuse(run: Run) -> None:
    group = Group(p0=2)
    group.metadata[0] = "mine"
    result = run(group.cluster(), "consume payments --partition 0 --group g")
    assert result.stdout.split() == ["a2", "a3", "a4"]
    assert (group.offsets, group.metadata) == ({0: 5}, {0: ""})


def test_i21_who_read_on_across_partitions_meanwhile_is_not_overrun(run: Run) -> None:
    group = Group(p0=2)

    def meanwhile(request: Any) -> Any:
        group.metadata[0] = "oncelog-across/1 3:1200"
        return group.commit(request)

    cluster = group.cluster()
    cluster.answers["offset_manager.commit_offsets"] = meanwhile
    result = run(cluster, "consume payments --partition 0 --group g")
    assert result.exit_code == 1
    assert "STALE_POSITION" in result.stderr
    assert group.metadata == {0: "oncelog-across/1 3:1200"}


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


def test_i23_a_group_that_has_members_is_refused_before_anything_is_printed(run: Run) -> None:
    cluster = Group(p0=2).cluster()
    member = offset_manager_pb2.DescribedMember(member_id="m", client_id="shop", host="10.0.0.7")
    cluster.answers["offset_manager.describe_group"] = offset_manager_pb2.DescribeGroupReply(
        members=[member, member]
    )
    result = run(cluster, "consume payments --partition 0 --group g")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "group 'g' has living members, shop on 10.0.0.7 and 1 more" in result.stderr
    for refusal in (PermissionDenied("no"), NotFound("none")):
        cluster.answers["offset_manager.describe_group"] = refusal
        assert run(cluster, "consume payments --partition 0 --group g --max 1").exit_code == 0


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
        "topic": "payments",
        "partition": 1,
        "offset": 4,
        "tx_id": "0000000000000005",
        "marker": "committed",
    }


class Log:
    """The client, as far as `produce` uses it."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes | None, bytes]] = []
        # Headers, partition and time of each, where it has any.
        self.more: list[dict[str, Any]] = []
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

    def send(self, topic: str, value: bytes, key: bytes | None, **more: Any) -> None:
        assert topic == "payments"
        if value == b"Ctrl-C":
            raise KeyboardInterrupt
        self.sent.append((key, value))
        self.more.append({name: told for name, told in more.items() if told is not None})
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


def test_json_lines_become_records(run: Run, log: Log) -> None:
    """What `oncelog consume --json` prints can be produced again."""
    given = [
        {"topic": "x", "partition": 1, "offset": 9, "tx_id": "5", "key": "k", "value": "v"},
        {"value": None, "key_base64": "/wA=", "headers": [{"key": "h", "value_base64": "/w=="}]},
        {"value": "t", "timestamp": "1970-01-01T00:00:01Z", "headers": {"a": "b", "n": None}},
        {"value": "u", "timestamp": "1970-01-01T00:00:01Z", "timestamp_us": 7},
    ]
    stdin = b"\n\n".join(json.dumps(one).encode() for one in given)
    told = json_of(run(Cluster(), "produce payments --format json --json", stdin=stdin))
    assert told["records"] == 4
    assert log.sent == [(b"k", b"v"), (b"\xff\x00", None), (None, b"t"), (None, b"u")]
    assert log.more == [
        {},
        {"headers": [("h", b"\xff")]},
        {"headers": [("a", b"b"), ("n", None)], "timestamp_us": 1_000_000},
        {"timestamp_us": 7},
    ]
    run(Cluster(), "produce payments --format json --keep-partitions", stdin=stdin)
    assert log.more[4] == {"partition": 1}


def test_what_is_said_of_every_record_goes_to_those_that_say_nothing(run: Run, log: Log) -> None:
    options = "--key all --header a=1 --header b= --timestamp 1970-01-01T01:00:00+01:00"
    run(Cluster(), f"produce payments {options} --partition 1", stdin=b"x\n")
    common = {"headers": [("a", b"1"), ("b", b"")], "timestamp_us": 0, "partition": 1}
    assert (log.sent, log.more) == ([(b"all", b"x")], [common])
    stdin = b'{"key": "own", "value": "y", "timestamp_us": 5, "headers": {"c": "3"}}'
    run(Cluster(), f"produce payments {options} --format json", stdin=stdin)
    assert log.sent[1] == (b"own", b"y")
    assert log.more[1] == {
        "headers": [("a", b"1"), ("b", b""), ("c", b"3")],
        "timestamp_us": 5,
    }


@pytest.mark.parametrize(
    ("options", "stdin", "sent"),
    [
        ("--base64", b"/wA=\n\n", [(None, b"\xff\x00"), (None, b"")]),
        ("--format key-value", b"k\tv\tw\n", [(b"k", b"v\tw")]),
        ("--key-separator : --base64", b"aw==:dg==\n", [(b"k", b"v")]),
        ("--delimiter \\0", b"a\nb\0c\r\n\0d", [(None, b"a\nb"), (None, b"c\r\n"), (None, b"d")]),
        ("--delimiter ;;", b"a;;;;b;;", [(None, b"a"), (None, b""), (None, b"b")]),
    ],
)
def test_other_forms_of_input(
    options: str, stdin: bytes, sent: list[tuple[bytes | None, bytes]], run: Run, log: Log
) -> None:
    result = run(Cluster(), f"produce payments {options}", stdin=stdin)
    assert result.exit_code == 0, result.output
    assert log.sent == sent


def test_a_delimiter_may_lie_across_what_is_read_at_once(
    run: Run, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 3)
    run(Cluster(), "produce payments --delimiter ;;", stdin=b"ab;;cd;;e;f")
    assert [value for _, value in log.sent] == [b"ab", b"cd", b"e;f"]


@pytest.mark.parametrize(
    ("options", "stdin", "sought"),
    [
        ("", b"a\n12345678\n123456789\n", "end of a line"),
        ("--delimiter ;", b"a;12345678;123456789", "b';'"),
    ],
)
def test_a_piece_without_an_end_is_not_read_until_memory_is_gone(
    options: str, stdin: bytes, sought: str, run: Run, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PIECE_BYTES_MAX", 8)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 4)
    result = run(Cluster(), f"produce payments {options}", stdin=stdin)
    assert [value for _, value in log.sent] == [b"a", b"12345678"]
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert f"line 3 has no {sought} within piece_bytes_max (8) bytes" in said
    assert "2 lines before it are appended" in said


@pytest.mark.parametrize(
    ("options", "stdin", "said"),
    [
        ("--format json", b"{", "line 1 is no JSON"),
        ("--format json", b'{"value": "a"}\n[1]\n', "line 2 is no JSON object"),
        ("--format json", b'{"vlaue": "a"}', "is it 'value'?"),
        ("--format json", b'{"value": 5}', "value is no text"),
        ("--format json", b'{"value": "a", "value_base64": "YQ=="}', "says both value and"),
        ("--format json", b'{"value_base64": "?"}', "is no base64"),
        ("--format json", b'{"value_base64": 5}', "value_base64 is no text"),
        ("--format json", b'{"value": "a", "headers": 5}', "headers are"),
        ("--format json", b'{"value": "a", "headers": [5]}', "a header is"),
        ("--format json", b'{"value": "a", "timestamp": "noon"}', "not a time"),
        ("--format json", b'{"value": "a", "timestamp": 5}', "not a time"),
        ("--format json", b'{"value": "a", "partition": "1"}', "not a whole number"),
        ("--base64", b"a", "line 1 is no base64"),
        ("--format json --base64", b"", "key_base64"),
        ("--format json --key-separator :", b"", "--key-separator"),
        ("--keep-partitions", b"", "--format json"),
        ("--header h", b"", "NAME=VALUE"),
        ("--timestamp noon", b"", "no time"),
        ("--partition 2", b"", "2 partitions, no 2"),
        ("--delimiter \\y", b"", "There is no \\y"),
    ],
)
def test_input_that_is_no_record_is_named(
    options: str, stdin: bytes, said: str, run: Run, log: Log
) -> None:
    result = run(Cluster(), f"produce payments {options}", stdin=stdin)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


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


@pytest.mark.parametrize(("options", "read"), [("", True), ("--partition 0", False)])
def test_who_follows_a_topic_reads_partitions_that_are_added(
    options: str, read: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From their first record on, also where the reading began at the end."""
    monkeypatch.setattr(consume, "LOOK_EVERY_SECONDS", 0.0)
    topics = iter([payments(1), payments(2)])
    cluster = _cluster(
        partition_leader__describe_topics=lambda _: pb.DescribeTopicsReply(
            topics=[next(topics, payments(2))]
        )
    )
    fetches = 0

    def fetch(request: Any) -> Any:
        nonlocal fetches
        fetches += 1
        if fetches > 3:
            raise KeyboardInterrupt
        return _fetch(request)

    cluster.answers["partition_leader.fetch"] = fetch
    result = run(cluster, f"consume payments --from latest --follow {options}")
    assert result.exit_code == 0
    assert result.stdout == ("b0\n" if read else "")
    assert ("partition 1 was added to payments" in result.stderr) is read


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

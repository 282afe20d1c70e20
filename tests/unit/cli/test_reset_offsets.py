"""`oncelog group reset-offsets`: what it shows, what it commits, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from oncelogpb.errors import InvalidArgument, NotLeader, StalePosition, UnknownMember, to_status
from oncelogpb.ids import show_id
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2, types_pb2
from tests.unit.cli.scripted import Cluster, json_of, partition

Run = Callable[..., Result]
TX = 3 << 48 | 5
# payments/0 has records 10 to 99, payments/1 10 to 199; from this time on, 50 and 150.
NOON_US = 1_767_268_800_000_000


def _listed(request: Any) -> Any:
    def offset(query: Any) -> int:
        number = query.partition.number
        match query.WhichOneof("at"):
            case "earliest":
                return 10
            case "latest":
                return int(100 * (number + 1))
            case _:
                assert query.timestamp_us == NOON_US
                return int(50 + 100 * number)

    return partition_leader_pb2.ListOffsetsReply(
        offsets=[
            partition_leader_pb2.ListedOffset(partition=query.partition, offset=offset(query))
            for query in request.queries
        ]
    )


def _committed(number: int, **fields: Any) -> pb.CommittedOffset:
    return pb.CommittedOffset(
        partition=partition(number), **{"view": types_pb2.VIEW_COMMITTED} | fields
    )


def _cluster(*offsets: pb.CommittedOffset, **answers: Any) -> Cluster:
    return Cluster(
        **{
            "partition_leader__list_offsets": _listed,
            "offset_manager__fetch_offsets": pb.FetchOffsetsReply(offsets=offsets),
            "offset_manager__reset_offsets": pb.ResetOffsetsReply(),
        }
        | answers
    )


def _reset(run: Run, cluster: Cluster, line: str) -> list[tuple[Any, ...]]:
    told = json_of(run(cluster, f"group reset-offsets g {line} --json"))
    return [tuple(row.values()) for row in told["offsets"]]


def _commits(cluster: Cluster) -> list[pb.OffsetCommit]:
    (request,) = cluster.requests("offset_manager.reset_offsets")
    assert not request.dry_run
    assert len(request.reset_id) == 16
    assert not request.offsets.HasField("member"), "it is no member"
    return list(request.offsets.offsets)


# Where payments/0 and /1 stand: at 60, and nowhere.
WHERES = {
    "--to earliest": (10, 10),
    "--to latest": (100, 200),
    "--to 70": (70, 70),
    "--to 5": (10, 10),
    "--to 150": (100, 150),
    "--to 2026-01-01T12:00:00Z": (50, 150),
    "--to +7": (67, 17),
    "--to -7": (53, 10),
    "--to -1000": (10, 10),
    "--to +1000": (100, 200),
    "payments=latest": (100, 200),
    "payments --to latest": (100, 200),
    "--to earliest payments payments/1=latest": (10, 200),
    "payments/0=+1 payments/1=11": (61, 11),
}


@pytest.mark.parametrize("line", WHERES)
def test_where_it_goes(run: Run, line: str) -> None:
    cluster = _cluster(_committed(0, offset=60))
    rows = _reset(run, cluster, line)
    first, second = WHERES[line]
    assert rows == [
        ("payments/0", 60, first, 40, 100 - first),
        ("payments/1", None, second, 190, 200 - second),
    ]


def test_nothing_changes_without_execute(run: Run) -> None:
    cluster = _cluster(_committed(0, offset=60))
    result = run(cluster, "group reset-offsets g --to earliest")
    assert "--execute does it" in result.stderr
    [asked] = cluster.requests("offset_manager.reset_offsets")
    assert asked.dry_run


def test_a_group_is_moved_from_where_it_was_seen(run: Run) -> None:
    """One that came alive meanwhile is not overrun."""
    cluster = _cluster(_committed(0, offset=60))
    _reset(run, cluster, "--to 70 --execute")
    first, second = _commits(cluster)
    assert (first.partition.number, first.from_offset, first.to_offset) == (0, 60, 70)
    assert (second.partition.number, second.from_none, second.to_offset) == (1, True, 70)
    moved = _cluster(
        _committed(0, offset=60), offset_manager__reset_offsets=StalePosition("moved on")
    )
    result = run(moved, "group reset-offsets g --to 70 --execute")
    assert result.exit_code == 1
    assert "STALE_POSITION" in result.stderr


def test_a_group_with_members_is_not_moved(run: Run) -> None:
    members = UnknownMember("group g has living members: m1")
    cluster = _cluster(_committed(0, offset=60), offset_manager__reset_offsets=members)
    result = run(cluster, "group reset-offsets g --to 70 --execute")
    assert result.exit_code == 1
    assert "has living members" in result.stderr
    assert "stop its members" in result.stderr.replace("\n", " ")


def test_what_stands_in_the_way_is_told_before(run: Run) -> None:
    members = UnknownMember("group g has living members: m1")
    cluster = _cluster(_committed(0, offset=60), offset_manager__reset_offsets=members)
    result = run(cluster, "group reset-offsets g --to 70")
    assert result.exit_code == 0
    assert "would not with --execute: group g has living members: m1." in result.stderr
    told = json_of(run(cluster, "group reset-offsets g --to 70 --json"))
    assert (told["executed"], told["refused"]) == (False, "UNKNOWN_MEMBER")


def test_only_what_moves_is_committed(run: Run) -> None:
    cluster = _cluster(_committed(0, offset=60), _committed(1, offset=10))
    _reset(run, cluster, "--to 60 --execute")
    assert [commit.partition.number for commit in _commits(cluster)] == [1]
    still = _cluster(_committed(0, offset=60), _committed(1, offset=60))
    result = run(still, "group reset-offsets g --to 60 --execute")
    assert "stands there already" in result.stderr
    assert not still.requests("offset_manager.reset_offsets")


def test_a_group_of_the_journal_view_stays_one(run: Run) -> None:
    def fetch(request: Any) -> Any:
        if request.view != types_pb2.VIEW_JOURNAL:
            return InvalidArgument("other view", field="view", stored="JOURNAL")
        offset = _committed(0, offset=60, view=types_pb2.VIEW_JOURNAL)
        return pb.FetchOffsetsReply(offsets=[offset])

    cluster = _cluster(offset_manager__fetch_offsets=fetch)
    _reset(run, cluster, "--to 2026-01-01T12:00:00Z --execute")
    assert [commit.view for commit in _commits(cluster)] == [types_pb2.VIEW_JOURNAL] * 2
    asked = cluster.requests("partition_leader.list_offsets")
    assert {one.isolation for one in asked} == {partition_leader_pb2.ISOLATION_UNCOMMITTED}


def test_a_group_that_is_new_is_put_where_it_is_told(run: Run) -> None:
    cluster = _cluster()
    result = run(cluster, "group reset-offsets g --to latest --execute")
    assert "NOT_FOUND" in result.stderr
    assert _reset(run, cluster, "payments --to latest --execute") == [
        ("payments/0", None, 100, 90, 0),
        ("payments/1", None, 200, 190, 0),
    ]
    assert all(commit.from_none for commit in _commits(cluster))


def test_what_a_transaction_holds_is_told_before(run: Run) -> None:
    cluster = _cluster(_committed(0, offset=60), _committed(1, offset=60, pending_tx_id=TX))
    result = run(cluster, "group reset-offsets g --to earliest")
    assert f"transaction {show_id(TX)} holds the offset of payments/1" in result.stderr


def test_a_partition_that_nobody_leads_is_moved_by_number_alone(run: Run) -> None:
    error = to_status(NotLeader("nobody"))
    cluster = _cluster(
        _committed(0, offset=60),
        partition_leader__list_offsets=lambda request: partition_leader_pb2.ListOffsetsReply(
            offsets=[
                partition_leader_pb2.ListedOffset(partition=query.partition, error=error)
                for query in request.queries
            ]
        ),
    )
    for where in ("earliest", "-1", "15m"):
        result = run(cluster, f"group reset-offsets g payments/0={where}")
        assert "nobody leads payments/0 now" in result.stderr
    assert _reset(run, cluster, "payments/0=7") == [("payments/0", 60, 7, None, None)]


# ------------------------------------------------------------------------------------------- files


def test_what_was_saved_takes_the_group_back(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "before.csv"
    before = _cluster(_committed(0, offset=60), _committed(1, offset=20))
    _reset(run, before, f"--to latest --save {saved} --execute")
    assert saved.read_text() == "payments,0,60\npayments,1,20\n"
    after = _cluster(_committed(0, offset=100), _committed(1, offset=200))
    assert _reset(run, after, f"--from-file {saved} --execute") == [
        ("payments/0", 100, 60, 0, 40),
        ("payments/1", 200, 20, 0, 180),
    ]
    assert [(one.from_offset, one.to_offset) for one in _commits(after)] == [(100, 60), (200, 20)]


def test_what_stood_beside_an_offset_goes_with_a_reset_and_comes_back_with_the_file(
    run: Run, tmp_path: Path
) -> None:
    """It says what was given beyond the offset: kept by a reset, those records would be given to
    nobody; lost by the way back, twice."""
    saved, beyond = tmp_path / "before.csv", "oncelog-across/1 14:2"
    before = _cluster(_committed(0, offset=10, metadata=beyond))
    _reset(run, before, f"payments/0=earliest --save {saved} --execute")
    assert before.requests("offset_manager.reset_offsets")
    (commit,) = _commits(before)
    assert (commit.from_offset, commit.from_metadata, commit.to_offset) == (10, beyond, 10)
    assert not commit.metadata
    assert saved.read_text() == f"payments,0,10,{beyond}\n"
    after = _cluster(_committed(0, offset=99))
    _reset(run, after, f"--from-file {saved} --execute")
    (commit,) = _commits(after)
    assert (commit.to_offset, commit.metadata) == (10, beyond)
    there = _cluster(_committed(0, offset=10, metadata=beyond))
    _reset(run, there, f"--from-file {saved} --execute")
    assert not there.requests("offset_manager.reset_offsets")


def test_saving_alone_moves_nothing(run: Run, tmp_path: Path) -> None:
    cluster = _cluster(_committed(0, offset=60))
    result = run(cluster, f"group reset-offsets g --save {tmp_path}/now.csv --execute")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "now.csv").read_text() == "payments,0,60\n"
    assert not cluster.requests("offset_manager.reset_offsets")


def test_no_file_is_written_over_and_then_nothing_moves(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "before.csv"
    saved.write_text("payments,0,1\n")
    cluster = _cluster(_committed(0, offset=60))
    result = run(cluster, f"group reset-offsets g --to latest --save {saved} --execute")
    assert result.exit_code == 1
    assert "cannot save" in result.stderr
    assert saved.read_text() == "payments,0,1\n"
    assert not cluster.requests("offset_manager.reset_offsets")


@pytest.mark.parametrize(
    "line", ["payments,0", "payments,x,1", "payments,0,-1", ",0,1", "a,0,1,2,3"]
)
def test_a_line_that_is_none_is_named(run: Run, tmp_path: Path, line: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(f"# topic,partition,offset\n\npayments, 0, 1\n{line}\n")
    result = run(_cluster(_committed(0, offset=60)), f"group reset-offsets g --from-file {file}")
    assert result.exit_code == 2
    assert "line 4: not topic,partition,offset" in result.stderr


WRONG = {
    "": "Say where",
    "payments": "Say where",
    "payments payments/0=1": "Say where payments shall stand",
    "payments/7=1": "has 2 partitions, no 7",
    "payments/x=1": "is not a partition's number",
    "=1": "is not TOPIC[/PARTITION][=WHERE]",
    f"payments/{'1' * 5_000}=1": "is not a partition's number",
    f"payments={'1' * 5_000}": "is neither earliest, latest, an offset",
    "payments=soon": "is neither earliest, latest, an offset",
    # Before all calendars.
    "payments=999999999d": "nor a time like",
    "--to 5 --from-file /dev/null": "--from-file names all",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said(run: Run, line: str) -> None:
    cluster = _cluster(_committed(0, offset=60))
    result = run(cluster, f"group reset-offsets g {line}")
    assert result.exit_code == 2
    assert WRONG[line] in " ".join(result.stderr.split())


def test_who_knows_it_as_offsets_is_told(run: Run) -> None:
    result = run(Cluster(), "offsets set g payments=earliest")
    assert result.exit_code == 2
    assert "`oncelog group`" in result.stderr

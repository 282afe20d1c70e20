"""topic, tx, offsets and cluster: what they ask, and what they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from oncelogpb.errors import InvalidArgument, UnknownTopic, to_status
from oncelogpb.v1 import (
    cluster_pb2,
    coordinator_pb2,
    offset_manager_pb2,
    partition_leader_pb2,
    types_pb2,
)
from tests.unit.cli.scripted import TOPIC_ID, Cluster, json_of, partition, payments

Run = Callable[..., Result]
TX = 3 << 48 | 5
TX_SHOWN = "0003000000000005"


def test_create_a_topic(run: Run) -> None:
    cluster = Cluster(
        partition_leader__create_topic=partition_leader_pb2.CreateTopicReply(topic=payments())
    )
    made = json_of(run(cluster, "topic create payments --partitions 2 --config a=b --json"))
    (request,) = cluster.requests("partition_leader.create_topic")
    assert (request.name, request.partitions, dict(request.configs)) == ("payments", 2, {"a": "b"})
    assert [p["leader"] for p in made["partitions"]] == ["h:7401", None]
    assert made["created"] == "2026-01-01T00:00:00.000Z"


def test_a_topic_is_created_when_it_can_be_used(run: Run) -> None:
    """Elections follow the creation; the answer of the RPC does not wait for them."""
    cluster = Cluster(
        partition_leader__create_topic=partition_leader_pb2.CreateTopicReply(topic=payments(led=0))
    )
    late = run(cluster, "topic create payments --partitions 2")
    assert late.exit_code == 0
    assert "created topic payments" in late.stdout
    assert "2 of 2 partitions have no leader" in late.stderr
    assert "oncelog topic describe payments" in late.stderr
    cluster.led = payments(led=2)
    made = json_of(run(cluster, "topic create payments --partitions 2 --json"))
    assert [p["leader"] for p in made["partitions"]] == ["h:7401", "h:7401"]
    in_time = run(cluster, "topic create payments --partitions 2")
    assert in_time.stdout == "created topic payments with 2 partitions\n"
    assert in_time.stderr == ""
    only_asked = run(cluster, "topic create payments --validate-only")
    assert "could be created" in only_asked.stdout


def test_alter_resets_with_an_empty_value(run: Run) -> None:
    cluster = Cluster(
        partition_leader__alter_topic=partition_leader_pb2.AlterTopicReply(topic=payments())
    )
    assert run(cluster, "topic alter payments --config a=b --reset c").exit_code == 0
    (request,) = cluster.requests("partition_leader.alter_topic")
    assert dict(request.configs) == {"a": "b", "c": ""}


def test_adding_partitions_says_what_it_does_and_asks(run: Run) -> None:
    altered = partition_leader_pb2.AlterTopicReply(topic=payments(partitions=5))
    cluster = Cluster(partition_leader__alter_topic=altered)
    cluster.led = payments(partitions=5, led=5)
    refused = run(cluster, "topic alter payments --partitions 5", stdin=b"n\n")
    assert refused.exit_code == 1
    assert "from 2 to 5 partitions: keys move" in refused.stderr
    assert cluster.requests("partition_leader.alter_topic") == []
    agreed = run(cluster, "topic alter payments --partitions 5 --config a=b", stdin=b"y\n")
    assert agreed.exit_code == 0
    assert "5 partitions" in agreed.stdout
    made = json_of(run(cluster, "topic alter payments --partitions 5 --yes --json"))
    assert len(made["partitions"]) == 5
    first, second = cluster.requests("partition_leader.alter_topic")
    assert (first.partitions, dict(first.configs), second.partitions) == (5, {"a": "b"}, 5)
    # Nothing to ask where nothing moves.
    assert run(cluster, "topic alter payments --partitions 2").exit_code == 0


def test_describe_shows_journals(run: Run) -> None:
    journal = partition_leader_pb2.JournalDescription(
        partition=partition(0), committed_end_offset=4, log_end_offset=9, damaged=[TX]
    )
    cluster = Cluster(
        partition_leader__describe_journals=partition_leader_pb2.DescribeJournalsReply(
            journals=[journal]
        )
    )
    (shown,) = json_of(run(cluster, "topic describe payments --json"))
    assert shown["journals"][0]["damaged"] == [TX_SHOWN]
    assert shown["journals"][0]["first_open_position"] is None
    people = run(cluster, "topic describe payments").stdout
    assert TX_SHOWN in people
    assert "none" in people


def test_deleting_asks_first(run: Run) -> None:
    cluster = Cluster(partition_leader__delete_topic=partition_leader_pb2.DeleteTopicReply())
    assert run(cluster, "topic delete payments", stdin=b"n\n").exit_code == 1
    assert cluster.requests("partition_leader.delete_topic") == []
    assert run(cluster, "topic delete payments", stdin=b"y\n").exit_code == 0
    assert run(cluster, "topic delete payments --yes").exit_code == 0
    asked = cluster.requests("partition_leader.delete_topic")
    assert len(asked) == 2
    assert all(request.topic_id for request in asked), "and no topic that is made later"


def _transaction() -> coordinator_pb2.TransactionDescription:
    topic = types_pb2.TransactionState.Value("TRANSACTION_STATE_COMMITTED")
    return coordinator_pb2.TransactionDescription(
        tx_id=TX,
        state=topic,
        producer=types_pb2.Producer(producer_id=1 << 63, generation=7 << 32 | 3),
        name="enricher",
        begin_time_ms=1_767_225_600_000,
        commit_seq=types_pb2.CommitSeq(scope="q", number=4),
        parts=types_pb2.Manifest(
            topics=[
                types_pb2.Manifest.Topic(
                    topic_id=b"payments........",
                    partition=[0, 1],
                    writer=[0, 255],
                    record_count=[10, 20],
                )
            ]
        ),
        unacknowledged=[partition(1)],
    )


def test_a_transaction_is_described(run: Run) -> None:
    cluster = Cluster(
        coordinator__get_transaction=coordinator_pb2.GetTransactionReply(transaction=_transaction())
    )
    shown = json_of(run(cluster, f"tx describe {TX_SHOWN} --json"))
    assert cluster.requests("coordinator.get_transaction")[0].tx_id == TX
    assert (shown["tx_id"], shown["state"], shown["generation"]) == (TX_SHOWN, "committed", "7.3")
    # Ids do not fit into JSON's numbers.
    assert shown["producer_id"] == str(1 << 63)
    assert shown["parts"] == [
        {"partition": "payments/0", "writer": "0", "record_count": 10, "marker": "-"},
        {"partition": "payments/1", "writer": "ff", "record_count": 20, "marker": "on its way"},
    ]
    assert "markers on their way" in run(cluster, f"tx describe 0x{TX_SHOWN}").stdout


def test_parts_that_nobody_knows_any_more_are_not_said_to_be_none(run: Run) -> None:
    described = coordinator_pb2.TransactionDescription(
        tx_id=TX, state=types_pb2.TRANSACTION_STATE_COMMITTED, visible=True, parts_forgotten=True
    )
    reply = coordinator_pb2.GetTransactionReply(transaction=described)
    cluster = Cluster(coordinator__get_transaction=reply)
    assert json_of(run(cluster, f"tx describe {TX_SHOWN} --json"))["parts"] is None
    shown = run(cluster, f"tx describe {TX_SHOWN}").stdout
    assert "node.control_journal_bytes_max" in shown
    assert "no parts" not in shown


def test_transactions_are_listed(run: Run) -> None:
    cluster = Cluster(
        coordinator__list_transactions=coordinator_pb2.ListTransactionsReply(
            transactions=[_transaction()], more=True
        )
    )
    result = run(cluster, "tx list --state ongoing --state committed --min-age 60 --limit 5")
    request, *further = cluster.requests("coordinator.list_transactions")
    assert list(request.states) == [1, 2]
    assert (request.min_age_ms, request.limit) == (60_000, 5)
    # One in each page, until there are five.
    assert [page.after_tx_id for page in further] == [TX] * 4
    assert TX_SHOWN in result.stdout
    assert "--limit" in result.stderr
    assert json_of(run(cluster, "tx list --limit 3 --json"))["more"] is True


def test_an_operator_aborts(run: Run) -> None:
    cluster = Cluster(coordinator__abort_transaction=coordinator_pb2.AbortTransactionReply())
    assert json_of(run(cluster, f"tx abort {TX_SHOWN} --yes --json"))["state"] == "aborted"
    (request,) = cluster.requests("coordinator.abort_transaction")
    assert request.operator
    assert not request.HasField("producer")


@pytest.mark.parametrize(("flag", "action"), [("--drop", 1), ("--expose", 2)])
def test_resolving_a_part(flag: str, action: int, run: Run) -> None:
    reply = partition_leader_pb2.ResolveTransactionReply(record_count=9)
    cluster = Cluster(partition_leader__resolve_transaction=reply)
    shown = json_of(run(cluster, f"tx resolve {TX_SHOWN} payments/1 {flag} --json"))
    (request,) = cluster.requests("partition_leader.resolve_transaction")
    assert (request.partition.number, request.action) == (1, action)
    assert shown["record_count"] == 9


def _list_offsets(request: Any) -> Any:
    """Starts are 3, ends 100 + number; partition 1 is not led."""
    return partition_leader_pb2.ListOffsetsReply(
        offsets=[
            partition_leader_pb2.ListedOffset(
                partition=query.partition,
                offset=3 if query.earliest else 100 + query.partition.number,
                error=to_status(UnknownTopic("gone")) if query.partition.number == 9 else None,
            )
            for query in request.queries
        ]
    )


def _committed(number: int, **fields: Any) -> offset_manager_pb2.CommittedOffset:
    return offset_manager_pb2.CommittedOffset(
        partition=partition(number), **{"view": types_pb2.VIEW_COMMITTED} | fields
    )


def test_offsets_with_lag_and_pending(run: Run) -> None:
    cluster = Cluster(
        partition_leader__list_offsets=_list_offsets,
        offset_manager__fetch_offsets=offset_manager_pb2.FetchOffsetsReply(
            offsets=[_committed(0, offset=60), _committed(1, pending_tx_id=TX), _committed(9)],
            last_commits=[offset_manager_pb2.LastCommit(producer_id=7, tx_id=TX)],
        ),
    )
    shown = json_of(run(cluster, "group describe g --json"))
    rows = [(o["partition"], o["offset"], o["lag"], o["pending_tx_id"]) for o in shown["offsets"]]
    assert rows == [
        ("payments/0", 60, 40, None),
        # All that is kept: its first record is at 3.
        ("payments/1", None, 98, TX_SHOWN),
        ("payments/9", None, None, None),
    ]
    assert shown["last_commits"] == [{"producer_id": "7", "tx_id": TX_SHOWN}]
    assert TX_SHOWN in run(cluster, "group describe g").stdout


def test_offsets_of_the_journal_view_are_shown_too(run: Run) -> None:
    def fetch(request: Any) -> Any:
        if request.view != types_pb2.VIEW_JOURNAL:
            return InvalidArgument("other view", field="view", stored="JOURNAL")
        offset = _committed(0, offset=5, view=types_pb2.VIEW_JOURNAL)
        return offset_manager_pb2.FetchOffsetsReply(offsets=[offset])

    cluster = Cluster(
        partition_leader__list_offsets=_list_offsets, offset_manager__fetch_offsets=fetch
    )
    shown = json_of(run(cluster, "group describe g --json"))
    assert [row["view"] for row in shown["offsets"]] == ["journal", "journal"]
    (asked,) = cluster.requests("partition_leader.list_offsets")
    assert asked.isolation == partition_leader_pb2.ISOLATION_UNCOMMITTED


def test_the_lag_of_a_topic_that_is_gone_is_unknown(run: Run) -> None:
    offsets = [_committed(0, offset=5)]
    cluster = Cluster(
        offset_manager__fetch_offsets=offset_manager_pb2.FetchOffsetsReply(offsets=offsets),
        cluster__get_metadata=cluster_pb2.GetMetadataReply(),
    )
    (row,) = json_of(run(cluster, "group describe g --json"))["offsets"]
    assert (row["offset"], row["start"], row["end"], row["lag"]) == (5, None, None, None)
    assert row["partition"] == f"{TOPIC_ID.hex()}/0"


def test_a_group_without_offsets_is_not_found(run: Run) -> None:
    cluster = Cluster(offset_manager__fetch_offsets=offset_manager_pb2.FetchOffsetsReply())
    result = run(cluster, "group describe nobody")
    assert result.exit_code == 1
    assert "NOT_FOUND" in result.stderr


def test_status_names_partitions_without_a_leader(run: Run) -> None:
    node = cluster_pb2.Node(
        node_id="n1",
        boot_id=b"b" * 16,
        endpoint=types_pb2.Endpoint(host="h", port=7400),
        roles=["coordinator"],
    )
    metadata = cluster_pb2.GetMetadataReply(cluster_id=b"c" * 16, nodes=[node], etcd_revision=12)
    cluster = Cluster(cluster__get_metadata=metadata)
    shown = json_of(run(cluster, "cluster status --json"))
    assert shown["partitions_without_leader"] == ["payments/1"]
    assert shown["etcd"] == {"reachable": False, "revision": 12}
    assert "NOT reachable" in run(cluster, "cluster status").stdout


def test_the_cluster_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """--bootstrap, else the environment, else the running `oncelog up`, else the usual ports."""
    cluster = Cluster()
    run(cluster, "topic list")
    Path(".oncelog").mkdir()
    running = {"bootstrap": "127.0.0.1:1", "pid": 1}
    Path(".oncelog/running.json").write_text(json.dumps(running))
    run(cluster, "topic list")
    # Its process has ended: process ids are below 2^22.
    Path(".oncelog/running.json").write_text(json.dumps(running | {"pid": 1 << 30}))
    run(cluster, "topic list")
    monkeypatch.setenv("ONCELOG_BOOTSTRAP", "env:2")
    run(cluster, "topic list")
    run(cluster, "topic list --bootstrap given:3")
    usual = "localhost:7400,localhost:7401,localhost:7402"
    assert cluster.bootstraps == [usual, "127.0.0.1:1", usual, "env:2", "given:3"]

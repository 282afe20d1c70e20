"""The `oncelog` command over a real `oncelog up`: what README's reader types."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import ByHand, rows_batch
from tests.integration.cluster import until
from tests.integration.shell import REFUSED, UNREACHABLE, WRONG_USAGE
from tests.integration.up import COMMAND, DONE_S, Up, children_of, up_over
from tests.unit.rpc.authority import Authority

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with up_over(folder, "--set=node.rack=north") as made:
        yield made


def test_up_says_one_line_per_service(up: Up) -> None:
    *services, ready = up.said
    assert services[0]["service"] == "etcd"
    assert sorted(said["service"] for said in services[1:]) == [
        "coordinator",
        "offset_manager",
        "partition_leader",
    ]
    assert sorted(said["address"] for said in services[1:]) == sorted(ready["bootstrap"].split(","))
    assert all(Path(said["log"]).exists() for said in services)


def test_up_reaches_its_services_with_their_own_certificate(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("oncelog")
    settings = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    pairs = [f"--set=node.tls_{name}={path}" for name, path in settings.items()]
    with up_over(tmp_path / "data", *pairs) as up:
        assert up.said[-1]["ready"]
        assert up.said[-1]["tls"]


def test_a_handshake_that_fails_is_told_in_our_words_alone(up: Up, folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "topic", "list", "--tls", f"--bootstrap={up.said[-1]['bootstrap']}"],
        capture_output=True,
        text=True,
        timeout=DONE_S,
        check=False,
    )
    assert done.returncode == UNREACHABLE
    assert "does not speak TLS" in done.stderr
    assert "ssl_transport_security" not in done.stderr


def test_a_second_up_over_the_folder_is_refused(up: Up, folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "up", f"--data={folder}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DONE_S,
    )
    assert done.returncode == REFUSED
    assert "in use by another `oncelog up`" in done.stderr


def test_topics_are_created_listed_described_changed(up: Up) -> None:
    assert len(up.ask("topic", "create", "changed", "--partitions", "2")["partitions"]) == 2
    assert up.refused("topic", "create", "changed") == "TOPIC_EXISTS"
    assert "changed" in [topic["name"] for topic in up.ask("topic", "list")]
    until(lambda: len(journals(up, "changed")) == 2, "both partitions are led")
    assert [journal["open_transactions"] for journal in journals(up, "changed")] == [0, 0]
    altered = up.ask("topic", "alter", "changed", "--config", "max.batch.bytes=4096")
    assert altered["configs"]["max.batch.bytes"] == "4096"
    assert up.refused("topic", "alter", "changed", "--config", "max.bach.bytes=1") == (
        "INVALID_ARGUMENT"
    )
    assert up.refused("topic", "describe", "nothing") == "UNKNOWN_TOPIC"


def journals(up: Up, topic: str) -> list[Any]:
    (described,) = up.ask("topic", "describe", topic)
    found: list[Any] = described["journals"]
    return found


def test_records_are_produced_and_consumed_by_a_group(up: Up) -> None:
    up.ask("topic", "create", "payments", "--partitions", "1")
    sent = up.ask("produce", "payments", "--key-separator", ":", given="alice:10\nbob:20\n")
    assert sent["records"] == 2
    sent = up.ask("produce", "payments", "--transactional", given="30\n40\n")
    assert sent == {"topic": "payments", "records": 2, "transactional": True}
    seen = up.lines("consume", "payments")
    assert [(row["offset"], row["key"], row["value"]) for row in seen] == [
        (0, "alice", "10"),
        (1, "bob", "20"),
        (2, None, "30"),
        (3, None, "40"),
    ]
    first = up.lines("consume", "payments", "--group", "audit", "--max", "3")
    rest = up.lines("consume", "payments", "--group", "audit")
    assert [row["value"] for row in first + rest] == ["10", "20", "30", "40"]
    (place,) = up.ask("group", "describe", "audit")["offsets"]
    assert (place["partition"], place["offset"], place["lag"]) == ("payments/0", 4, 0)
    assert "audit" in [group["group"] for group in up.ask("group", "list")]
    up.ask("group", "reset-offsets", "audit", "payments/0=1", "--execute")
    (place,) = up.ask("group", "describe", "audit")["offsets"]
    assert (place["offset"], place["lag"]) == (1, 3)
    up.ask("group", "delete", "audit", "--yes")
    assert up.refused("group", "describe", "audit") == "NOT_FOUND"


def test_records_are_copied_whole_and_found_by_time(up: Up) -> None:
    """Keys, values that are no text, headers and times, from one topic to another through JSON."""
    for name in ("original", "copied"):
        up.ask("topic", "create", name, "--partitions", "1")
    given = "".join(
        f'{{"key": "{day}", "value_base64": "/w0K", "timestamp": "2026-01-0{day}", '
        f'"headers": {{"day": "{day}"}}}}\n'
        for day in (1, 2, 3)
    )
    sent = up.ask("produce", "original", "--format", "json", "--transactional", given=given)
    assert sent["records"] == 3
    printed = up.run("consume", "original").stdout
    assert up.ask("produce", "copied", "--format", "json", given=printed)["records"] == 3
    first, second, third = up.lines("consume", "copied")
    assert (first["key"], first["value_base64"]) == ("1", "/w0K")
    assert first["timestamp"] == "2026-01-01T00:00:00.000000Z"
    assert third["headers"] == [{"key": "day", "value": "3"}]
    days = ("--from", "2026-01-02", "--until", "2026-01-03T00:00:00Z")
    assert up.lines("consume", "copied", *days) == [second]
    up.ask("group", "reset-offsets", "copier", "copied=2026-01-03", "--execute")
    assert up.lines("consume", "copied", "--group", "copier") == [third]


def test_a_group_with_members_is_shown_and_moved_once_they_are_gone(up: Up) -> None:
    up.ask("topic", "create", "crewed", "--partitions", "2")
    up.ask("produce", "crewed", "--key-separator", ":", given="a:1\nb:2\nc:3\n")
    with oncelog.connect(up.bootstrap) as log:
        first = log.consumer(["crewed"], group="crew", instance_id="one")
        until(lambda: first.poll(0.5) is not None, "it reads")
        first.commit()
        told = up.ask("group", "describe", "crew")
        (member,) = told["members"]
        assert (told["state"], member["instance_id"]) == ("stable", "one")
        assert member["owned"] == ["crewed/0", "crewed/1"]
        assert {row["owner"] for row in told["offsets"]} == {member["member_id"]}
        assert up.refused("group", "reset-offsets", "crew", "--to=earliest", "--execute") == (
            "UNKNOWN_MEMBER"
        )
        assert up.refused("group", "delete", "crew", "--yes") == "UNKNOWN_MEMBER"
        # It is static: it leaves its place behind, as if it came back.
        first.close()
        up.ask("group", "remove-member", "crew", "one", "--instance", "--yes")
    assert up.ask("group", "describe", "crew")["members"] == []
    moved = up.ask("group", "reset-offsets", "crew", "--to", "earliest", "--execute")
    assert [row["then"] for row in moved["offsets"]] == [0, 0]
    assert sum(row["lag_then"] for row in moved["offsets"]) == 3


def test_partitions_that_a_group_never_committed_are_shown_with_what_waits_there(up: Up) -> None:
    """Left out, 500 records that nobody has read looked like a lag of 0."""
    up.ask("topic", "create", "wide", "--partitions", "3")
    with oncelog.connect(up.bootstrap) as log:
        with log.producer() as producer:
            for number in range(6):
                producer.send("wide", b"%d" % number, partition=number % 3)
            producer.flush()
        up.lines("consume", "wide", "--partition", "0", "--group", "narrow")
        shown = up.ask("group", "describe", "narrow")["offsets"]
        asked = ("partition", "offset", "start", "end", "lag")
        assert [tuple(row[name] for name in asked) for row in shown] == [
            ("wide/0", 2, 0, 2, 0),
            ("wide/1", None, 0, 2, 2),
            ("wide/2", None, 0, 2, 2),
        ]
        listed = log.admin.group_offsets("narrow")
        assert [
            (p.topic, p.partition, p.offset, p.start_offset, p.end_offset, p.lag) for p in listed
        ] == [
            ("wide", 0, 2, 0, 2, 0),
            ("wide", 1, None, 0, 2, 2),
            ("wide", 2, None, 0, 2, 2),
        ]
        log.admin.delete_topic("wide")
        # Other processes hear of it a moment later.
        until(lambda: len(log.admin.group_offsets("narrow")) == 1, "the topic is gone everywhere")
        (gone,) = log.admin.group_offsets("narrow")
        assert (gone.offset, gone.end_offset, gone.lag) == (2, None, None)


def test_partitions_are_added_while_the_topic_is_written_and_read(up: Up) -> None:
    up.ask("topic", "create", "growing", "--partitions", "1")
    with oncelog.connect(up.bootstrap, topic_refresh_ms=200) as log:
        consumer = log.consumer(["growing"], group="grower", start="latest")
        assert consumer.position("growing", 0) == 0
        with log.producer() as producer:
            producer.send("growing", b"before")
            producer.flush()
            described = up.ask("topic", "alter", "growing", "--partitions", "3", "--yes")
            assert all(partition["leader"] for partition in described["partitions"])
            assert up.refused("topic", "alter", "growing", "--partitions", "2") == (
                "INVALID_ARGUMENT"
            )
            # In one transaction, by a client that has not heard of them before.
            with (
                oncelog.connect(up.bootstrap) as other,
                other.transactional_producer("grower").transaction(wait="visible") as tx,
            ):
                for number in range(3):
                    tx.send("growing", b"at once", partition=number)
            # The old ones hear of them, and skip nothing of them.
            written: set[int] = set()
            seen: set[tuple[int, bytes | None]] = set()

            def grown() -> bool:
                producer.send("growing", b"after")
                producer.flush()
                for record in consumer.poll(1.0) or ():
                    seen.add((record.partition, record.value))
                written.update(at for at, value in seen if value == b"after")
                return written == {0, 1, 2} and {(n, b"at once") for n in range(3)} <= seen

            until(grown, "both know all three partitions")
        assert (0, b"before") in seen
        consumer.commit()
    shown = up.ask("group", "describe", "grower")["offsets"]
    assert [row["partition"] for row in shown] == ["growing/0", "growing/1", "growing/2"]


def test_transactions_are_listed_described_aborted(up: Up) -> None:
    up.ask("topic", "create", "watched", "--partitions", "1")
    with ByHand(up.bootstrap, "watched-producer") as hand:
        tx = hand.begin()
        tx.produce("watched", 0, b"never")
        (listed,) = up.ask("tx", "list", "--name", "watched-producer")["transactions"]
        assert (listed["tx_id"], listed["state"]) == (f"{tx.tx_id:016x}", "ongoing")
        assert [journal["open_transactions"] for journal in journals(up, "watched")] == [1]
        up.ask("tx", "abort", listed["tx_id"], "--yes")
        described = up.ask("tx", "describe", listed["tx_id"])
        assert (described["state"], described["cause"]) == ("aborted", "operator")
        assert described["prepare_offset"] > 0, "an abort is decided in that order, too"
        with pytest.raises(errors.TransactionEnded):
            tx.commit()
        committed = hand.begin()
        committed.produce("watched", 0, b"seen")
        committed.commit()
        assert up.refused("tx", "abort", f"{committed.tx_id:016x}", "--yes") == "TRANSACTION_ENDED"
    assert [row["value"] for row in up.lines("consume", "watched")] == ["seen"]


def test_the_cluster_shows_itself(up: Up) -> None:
    status = up.ask("cluster", "status")
    assert status["etcd"]["reachable"]
    assert len(status["nodes"]) == 3
    assert {node["rack"] for node in status["nodes"]} == {"north"}
    assert all(node["started"] for node in status["nodes"])
    assert sum(node["leads"] for node in status["nodes"]) == status["partitions"]
    (journals_of, *_) = [node for node in status["nodes"] if node["roles"] == ["coordinator"]]
    assert (journals_of["leads"], journals_of["replicas"]) == (16, 16)
    assert (status["offline"], status["nodes_away"]) == ([], [])
    assert status["partitions_without_leader"] == []
    settings = up.ask("cluster", "config", "--changed")
    assert sorted(settings) == sorted(up.bootstrap.split(","))
    for values in settings.values():
        found = {value["name"]: (value["value"], value["source"]) for value in values}
        assert found["node.segment_bytes"] == ("1048576", "command line")


def test_a_topic_that_was_made_anew_is_another_topic(up: Up) -> None:
    up.ask("topic", "create", "again", "--partitions", "1")
    up.ask("produce", "again", given="old\n")
    with ByHand(up.bootstrap, "again-producer") as hand:
        old = hand.partition("again", 0)
        tx = hand.begin()
        tx.produce("again", 0, b"of the old one")
        deleted = up.ask("topic", "delete", "again", "--yes")
        assert bytes.fromhex(deleted["topic_id"]) == old.topic_id
        assert up.refused("topic", "describe", "again") == "UNKNOWN_TOPIC"
        up.ask("topic", "create", "again", "--partitions", "1")
        request = partition_leader_pb2.ProduceRequest(
            producer=pb.Producer(producer_id=1 << 63 | 3), batches=[rows_batch(old, b"lost")]
        )
        (result,) = hand.protocol.call("partition_leader.produce", request).results
        assert errors.from_status(result.error).reason == "UNKNOWN_TOPIC"
        # What wrote to the old one is decided all the same.
        tx.commit()
    up.ask("produce", "again", given="new\n")
    assert [(row["offset"], row["value"]) for row in up.lines("consume", "again")] == [(0, "new")]


def test_scripts_tell_nobody_there_from_a_wrong_word() -> None:
    done = subprocess.run(
        [*COMMAND, "topic", "list", "--json", "--bootstrap=127.0.0.1:9", "--timeout=0.5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DONE_S,
    )
    assert done.returncode == UNREACHABLE
    assert json.loads(done.stderr.splitlines()[-1])["error"]["reason"] == "CANNOT_CONNECT"
    done = subprocess.run([*COMMAND, "topic", "lst"], capture_output=True, text=True, check=False)
    assert done.returncode == WRONG_USAGE


def test_i29_a_process_of_up_that_dies_is_started_again(tmp_path: Path) -> None:
    """The whole of it ended, and took the others along."""
    with up_over(tmp_path / "data") as up:
        up.ask("topic", "create", "kept")
        up.ask("produce", "kept", given="1\n")
        (pid,) = children_of(up.pid, "partition_leader")
        os.kill(pid, signal.SIGKILL)
        until(lambda: children_of(up.pid, "partition_leader") not in ([], [pid]), "a restart")
        until(lambda: up.run("consume", "kept").exit_code == 0, "it answers")
        up.ask("produce", "kept", given="2\n")
        (etcd,) = children_of(up.pid, "--initial-cluster-token")
        os.kill(etcd, signal.SIGKILL)
        until(lambda: children_of(up.pid, "--initial-cluster-token") not in ([], [etcd]), "etcd")
        up.ask("topic", "create", "after", "--partitions", "1")
        assert sorted(row["value"] for row in up.lines("consume", "kept")) == ["1", "2"]
        died, etcd_died, *stopped = up.interrupt()
        assert (died["died"], died["restarts"]) == ("partition_leader", 1)
        assert "SIGKILL" in died["how"]
        assert etcd_died["died"] == "etcd"
        assert all(said["clean"] for said in stopped)


def test_i5_ctrl_c_stops_cleanly_and_a_restart_keeps_everything(tmp_path: Path) -> None:
    with up_over(tmp_path / "data") as up:
        up.ask("topic", "create", "kept", "--partitions", "2")
        up.ask("produce", "kept", "--key-separator", ":", given="a:1\nb:2\nc:3\n")
        up.lines("consume", "kept", "--group", "audit")
        before = up.ask("cluster", "status")["cluster_id"]
        with oncelog.connect(up.bootstrap) as log:
            producer = log.transactional_producer("kept")
            with producer.transaction(commit_seq=("scope", 7)) as tx:
                tx.send("kept", b"4", partition=0)
        stopped = up.interrupt()
        assert [(said["stopped"], said["clean"]) for said in stopped] == [
            ("offset_manager", True),
            ("partition_leader", True),
            ("coordinator", True),
        ]
        bootstrap = up.bootstrap
    with up_over(tmp_path / "data") as up:
        assert up.bootstrap == bootstrap
        assert up.ask("cluster", "status")["cluster_id"] == before
        seen = up.lines("consume", "kept")
        assert sorted(row["value"] for row in seen) == ["1", "2", "3", "4"]
        assert [row["value"] for row in up.lines("consume", "kept", "--group", "audit")] == ["4"]
        with oncelog.connect(up.bootstrap) as log:
            with log.transactional_producer("kept").transaction(commit_seq=("scope", 7)) as tx:
                tx.send("kept", b"4", partition=0)
            assert tx.already_committed

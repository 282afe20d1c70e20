"""etcd is wiped, or restored from an older copy: the services refuse it and name the way out, and
`oncelog cluster recover` rebuilds it from their data. Nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import oncelog
from oncelog_server.cli.app import oncelog as command
from oncelog_server.cli.failures import ETCD_REFUSED
from oncelog_server.runtime.cluster_recovery.choosing import RECOVERY_EPOCHS
from tests.integration.by_hand import VISIBLE, ByHand
from tests.integration.cluster import (
    COORDINATOR,
    OFFSET_MANAGER,
    PARTITION_LEADER,
    ROLES,
    Cluster,
    running,
)
from tests.integration.reading import values

pytestmark = pytest.mark.integration

TOPIC = "payments"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "cluster") as made:
        yield made


def recover(cluster: Cluster, *flags: str, of: tuple[str, ...] = ROLES) -> Result:
    data = [f"--data={cluster.data_of(role)}" for role in of]
    arguments = ["cluster", "recover", *data, f"--etcd={cluster.etcd.endpoint}", *flags]
    return CliRunner().invoke(command, arguments)


def recovered(cluster: Cluster, *flags: str, of: tuple[str, ...] = ROLES) -> dict[str, Any]:
    result = recover(cluster, "--json", *flags, of=of)
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def wipe(cluster: Cluster) -> None:
    cluster.etcd.stop()
    shutil.rmtree(cluster.etcd.data_dir / "member")
    cluster.etcd.start()


def refused(cluster: Cluster, *roles: str) -> None:
    """These end by themselves, and say why and what to do."""
    for role in roles:
        assert cluster.wait_exit(role) == ETCD_REFUSED
        assert "oncelog cluster recover" in cluster.log_of(role).splitlines()[-1]


def fill(log: oncelog.Log) -> None:
    log.admin.create_topic(TOPIC, partitions=3)
    with log.producer() as plain:
        for number in range(3):
            plain.send(TOPIC, b"plain-%d" % number, partition=number)
    consumer = log.consumer([TOPIC], group="readers")
    assert consumer.poll(10) is not None
    consumer.commit()
    log.admin.alter_topic(TOPIC, {"max.batch.bytes": "100000"})


def test_i5_a_wiped_etcd_is_refused_and_rebuilt(cluster: Cluster) -> None:
    with cluster.connect() as log, ByHand(cluster.bootstrap, "billing") as hand:
        fill(log)
        before = hand.begin()
        before.produce(TOPIC, 1, b"transactional")
        before.commit(VISIBLE)
        going_on = hand.begin()
        going_on.produce(TOPIC, 2, b"begun before")
        offsets = log.admin.group_offsets("readers")
        settings = log.admin.describe_topic(TOPIC)
        wipe(cluster)
        # They run, and find another etcd where theirs was.
        refused(cluster, *ROLES)
        # They start, and find the same.
        cluster.start(*ROLES)
        refused(cluster, *ROLES)

        said = recovered(cluster)
        assert (said["mode"], said["topics"], said["doubts"]) == ("found", [TOPIC], [])
        assert said["vacant"] == []
        assert all(
            replica["synced_end"] and len(replica["incarnation"]) == 32
            for replica in said["replicas"]
        )
        cluster.start(*ROLES)
        cluster.wait_ready()
        assert log.admin.describe_topic(TOPIC).configs == settings.configs
        assert log.admin.group_offsets("readers") == offsets
        assert hand.journal(TOPIC, 0).epoch > RECOVERY_EPOCHS
        # What was open goes on, under its producer's generation.
        going_on.produce(TOPIC, 2, b"finished after")
        assert going_on.commit(VISIBLE).visible
        after = hand.begin()
        assert after.tx_id > going_on.tx_id
        after.abort()
        assert values(log, TOPIC) == [
            b"plain-0", b"plain-1", b"transactional", b"plain-2", b"begun before", b"finished after"
        ]  # fmt: skip
        # It is a cluster as any other: services restart, topics come, and it can happen again.
        log.admin.create_topic("later")
        cluster.restart(*ROLES)
        cluster.wait_ready()
        assert {topic.name for topic in log.admin.topics()} == {TOPIC, "later"}
        assert recovered(cluster_stopped(cluster))["mode"] == "done"
        wipe(cluster)
        again = recovered(cluster)
        assert (again["recovery"], again["topics"]) == (2, ["later", TOPIC])


def cluster_stopped(cluster: Cluster) -> Cluster:
    cluster.stop(*ROLES)
    return cluster


def test_i5_an_etcd_restored_from_an_older_copy_is_refused_and_replaced(cluster: Cluster) -> None:
    member, copy = cluster.etcd.data_dir / "member", cluster.folder / "copy"
    with cluster.connect() as log:
        fill(log)
        cluster.etcd.stop()
        shutil.copytree(member, copy)
        cluster.etcd.start()
        log.admin.create_topic("later")
        with log.producer() as plain:
            plain.send("later", b"acknowledged")
        # A service that never heard of what the copy lacks would have nothing against it.
        cluster.wait_topic("later")
        cluster.etcd.kill()
        shutil.rmtree(member)
        shutil.copytree(copy, member)
        cluster.etcd.start()
        refused(cluster, *ROLES)
        without = recover(cluster)
        assert without.exit_code == 1
        assert "restored from a backup" in without.output
        assert "--replace" in without.output
        cluster.start(COORDINATOR)
        refused(cluster, COORDINATOR)

        said = recovered(cluster, "--replace")
        assert said["topics"] == ["later", TOPIC]
        cluster.start(*ROLES)
        cluster.wait_ready()
        assert values(log, "later") == [b"acknowledged"]
        assert values(log, TOPIC) == [b"plain-0", b"plain-1", b"plain-2"]


def test_each_machine_is_recovered_by_itself(cluster: Cluster) -> None:
    """Directories of different machines, in runs of their own; who comes later finds the rest kept
    for it, and nobody starts on a directory that did not take part."""
    with cluster.connect() as log:
        fill(log)
        cluster.kill(*ROLES)
        wipe(cluster)
        first = recovered(cluster, "--replace", of=(OFFSET_MANAGER,))
        assert first["mode"] == "found"
        assert {place.split("/")[0] for place in first["vacant"]} == {"__transaction_control"}
        cluster.start(COORDINATOR, PARTITION_LEADER)
        refused(cluster, COORDINATOR, PARTITION_LEADER)
        # The same command on the next machine; it removes nothing of what the first one wrote.
        second = recovered(cluster, "--replace", of=(PARTITION_LEADER,))
        assert (second["mode"], second["recovery"], second["topics"]) == ("join", 1, [TOPIC])
        cluster.start(PARTITION_LEADER, OFFSET_MANAGER)
        third = recovered(cluster, of=(COORDINATOR,))
        assert (third["mode"], third["vacant"]) == ("join", [])
        cluster.start(COORDINATOR)
        cluster.wait_ready()
        assert values(log, TOPIC) == [b"plain-0", b"plain-1", b"plain-2"]
        with log.transactional_producer("p").transaction(wait="visible") as tx:
            tx.send(TOPIC, b"goes on", partition=0)


def test_what_cannot_be_right_is_refused_by_name(cluster: Cluster) -> None:
    with cluster.connect() as log:
        fill(log)
    busy = recover(cluster)
    assert busy.exit_code == 1
    assert "another process uses this data directory" in busy.output
    cluster.kill(*ROLES)
    empty = cluster.folder / "empty"
    empty.mkdir()
    result = CliRunner().invoke(
        command, ["cluster", "recover", f"--data={empty}", f"--etcd={cluster.etcd.endpoint}"]
    )
    assert "holds no data of a cluster" in result.output
    shutil.copytree(cluster.data_of(COORDINATOR), cluster.folder / "copy")
    result = CliRunner().invoke(
        command,
        [
            "cluster", "recover", f"--etcd={cluster.etcd.endpoint}",
            f"--data={cluster.data_of(COORDINATOR)}", f"--data={cluster.folder / 'copy'}",
        ],
    )  # fmt: skip
    assert "one of them is a copy" in result.output.replace("\n", " ")
    # Nothing of this touched anything: the services go on where they were.
    cluster.start(*ROLES)
    cluster.wait_ready()


def test_a_damaged_replica_is_named_and_hinders_no_other(cluster: Cluster) -> None:
    with cluster.connect() as log:
        fill(log)
        cluster.stop(*ROLES)
        damaged, emptied = replica_of(cluster, 0), replica_of(cluster, 1)
        journal = next(damaged.glob("*.log"))
        content = bytearray(journal.read_bytes())
        content[content.index(b"plain-0")] ^= 1
        journal.write_bytes(content)
        shutil.rmtree(emptied)
        emptied.mkdir()
        wipe(cluster)
        result = recover(cluster)
        assert result.exit_code == 1
        said = result.output.replace("\n", " ")
        assert journal.name in said
        assert "perhaps its directory was emptied" in said
        assert "--accept-loss" in said
        assert len(recovered(cluster, "--accept-loss")["doubts"]) == 2
        cluster.start(*ROLES)
        cluster.wait_ready()
        assert log.admin.describe_topic(TOPIC).partitions[0].leader is None
        with log.producer() as plain:
            plain.send(TOPIC, b"goes on", partition=1)
        assert any(
            journal.name in str(event["error"])
            for event in cluster.events(PARTITION_LEADER, "replica cannot be opened")
        )


def replica_of(cluster: Cluster, number: int) -> Path:
    (found,) = (
        path
        for path in (cluster.data_of(PARTITION_LEADER) / "partitions").iterdir()
        if path.name.endswith(f"-{number}")
    )
    return found


# ------------------------------------------------------------------------------------ `oncelog up`


@contextlib.contextmanager
def up(folder: Path, *flags: str) -> Iterator[list[dict[str, Any]]]:
    """What it said until it was ready, or ended; then Ctrl-C."""
    arguments = ["up", f"--data={folder}", "--free-ports", "--json", *flags]
    arguments += ["--set=node.segment_bytes=1048576", "--set=node.disk_free_floor_bytes=0"]
    with (folder.parent / "up.log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "oncelog_server.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    said: list[dict[str, Any]] = []
    try:
        for line in process.stdout:
            said.append(json.loads(line))
            if "ready" in said[-1]:
                break
        yield said
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.stdout.close()
        process.wait(60)


def test_up_says_what_to_do_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "play"
    with up(folder) as said, oncelog.connect(said[-1]["bootstrap"]) as log:
        log.admin.create_topic(TOPIC)
        with log.producer() as plain:
            plain.send(TOPIC, b"acknowledged", partition=0)
    shutil.rmtree(folder / "etcd" / "member")
    with up(folder) as said:
        assert not any("ready" in line for line in said)
    assert "oncelog up --recover" in (tmp_path / "up.log").read_text()
    with up(folder, "--recover") as said:
        assert {"recovery": 1, "doubts": []} in said
        with oncelog.connect(said[-1]["bootstrap"]) as log:
            assert values(log, TOPIC) == [b"acknowledged"]

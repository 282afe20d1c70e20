"""Rules on real processes with mTLS: how one begins, as docs/operating.md tells it, by the command
alone; what a process says at its start; and rules that hold while etcd is away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.cli.processes import Service
from oncelog_server.runtime.loopback_ports import free_ports
from tests.integration.cluster import make_etcd, until
from tests.unit.rpc.authority import Authority

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


class Running:
    """One process with all roles, and users with certificates."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self.authority = Authority(folder / "authority")
        self.etcd = make_etcd(folder / "etcd")
        self.etcd.start()
        (port,) = free_ports(1)
        self.address = f"localhost:{port}"
        files = self.authority.issue("oncelog")
        self.service = Service(
            "all",
            [
                "serve",
                "coordinator",
                "partition_leader",
                "offset_manager",
                f"--data={folder / 'data'}",
                f"--listen=127.0.0.1:{port}",
                f"--advertise={self.address}",
                f"--etcd={self.etcd.endpoint}",
                f"--tls-ca={files.ca}",
                f"--tls-cert={files.certificate}",
                f"--tls-key={files.key}",
                "--set=node.segment_bytes=1048576",
                "--set=node.disk_free_floor_bytes=0",
                "--set=node.log_format=json",
                *(f"--set={pair}" for pair in settings),
            ],
            address=self.address,
            log=folder / "service.log",
        )
        self.service.start()

    def oncelog(self, who: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """The command, with that identity's certificate."""
        files = self.authority.issue(who)
        return subprocess.run(
            [
                sys.executable, "-m", "oncelog_server.cli", *words,
                f"--bootstrap={self.address}",
                f"--tls-ca={files.ca}", f"--tls-cert={files.certificate}", f"--tls-key={files.key}",
            ],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip

    def said(self) -> list[dict[str, Any]]:
        lines = (self.folder / "service.log").read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self) -> set[str]:
        return {str(line["event"]) for line in self.said()}

    def stop(self) -> None:
        self.service.stop()
        if self.etcd.pid is not None and self.etcd.alive():
            os.kill(self.etcd.pid, signal.SIGCONT)
        self.etcd.stop()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Running]:
    running = Running(
        tmp_path,
        "authorization.operators=root",
        f"authorization.audit_log={tmp_path / 'audit.log'}",
        "node.metrics_listen=127.0.0.1:0",
        "node.metrics_tls=mtls",
        "node.health_listen=127.0.0.1:0",
        "node.health_tls=tls",
    )
    yield running
    running.stop()


def test_how_one_begins(started: Running) -> None:
    def may(who: str, *words: str, given: str = "") -> str:
        done = started.oncelog(who, *words, given=given)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def may_not(who: str, *words: str, given: str = "") -> str:
        done = started.oncelog(who, *words, given=given)
        assert done.returncode == 1, (words, done.stdout, done.stderr)
        assert "PERMISSION_DENIED" in done.stderr, done.stderr
        return done.stderr

    until(lambda: "node started" in started.events(), "it starts")
    (holds,) = [line for line in started.said() if line["event"] == "authorization is on"]
    assert (holds["identity"], holds["operators"]) == ("oncelog", "root")
    (metrics,) = [line for line in started.said() if line["event"] == "metrics"]
    assert metrics["address"].startswith("https://")

    may("root", "topic", "create", "payments", "--partitions", "1")
    refused = may_not("alice", "produce", "payments", given="first\n")
    assert "alice may not describe topic 'payments'" in refused
    assert "oncelog acl add alice describe topic:payments" in refused
    assert "allowed  no" in may("root", "acl", "test", "alice", "write", "payments")
    may("root", "acl", "add", "alice", "read,write", "payments")
    assert "allow alice write topic:payments" in may(
        "root", "acl", "test", "alice", "write", "payments"
    )
    may("alice", "produce", "payments", given="first\n")
    consumed = may("alice", "consume", "payments", "--from", "earliest", "--max", "1")
    assert "first" in consumed
    may_not("alice", "topic", "delete", "payments", "--yes")
    may_not("alice", "acl", "list")

    os.kill(started.etcd.pid or 0, signal.SIGSTOP)
    try:
        # Past the lease: "now" is not answered any more, but rules hold as they were.
        until(lambda: "lease not renewed in time" in started.events(), "the lease ends")
        may_not("bob", "consume", "payments", "--from", "earliest", "--max", "1")
        late = started.oncelog("alice", "consume", "payments", "--from", "0", "--max", "1")
        assert "PERMISSION_DENIED" not in late.stderr
    finally:
        os.kill(started.etcd.pid or 0, signal.SIGCONT)
    until(
        lambda: started.oncelog("alice", "produce", "payments", given="2\n").returncode == 0,
        "it heals",
    )

    may("root", "acl", "remove", "alice", "write", "payments")
    may_not("alice", "produce", "payments", given="second\n")
    may("root", "cluster", "status")
    audit = [json.loads(line) for line in (started.folder / "audit.log").read_text().splitlines()]
    changes = [(line["who"], line["what"], line["outcome"]) for line in audit if "request" in line]
    assert ("root", "Cluster.add_rules", "ok") in changes
    assert ("root", "Cluster.remove_rules", "ok") in changes
    assert not any("describe_replicas" in what for _, what, _ in changes), "it changes nothing"
    assert {"alice", "bob"} <= {
        line["who"] for line in audit if line["outcome"] == "PERMISSION_DENIED"
    }


def test_who_names_no_operator_is_told_how(tmp_path: Path) -> None:
    running = Running(tmp_path)
    try:
        until(lambda: "node started" in running.events(), "it starts")
        assert any("nobody is an operator" in event for event in running.events())
        refused = running.oncelog("root", "acl", "list")
        assert "authorization.operators" in refused.stderr
    finally:
        running.stop()

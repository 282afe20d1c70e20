"""The embedded etcd as a process: ports, logs, stopping, and dying with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, EtcdFailed, find_or_build

pytestmark = pytest.mark.integration

PARENT = """
import sys, time
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd
etcd = EmbeddedEtcd(sys.argv[1], sys.argv[2])
etcd.start()
print(etcd.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has died and that nobody has waited for yet does not run.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_it_keeps_its_port_while_free_and_takes_another_when_not(tmp_path: Path) -> None:
    binary = find_or_build(print)
    first = EmbeddedEtcd(tmp_path / "data", binary)
    first.start()
    endpoint = first.endpoint
    assert first.alive()
    first.stop()
    assert not first.alive()
    first.start()
    try:
        assert first.endpoint == endpoint
        second = EmbeddedEtcd(tmp_path / "other", binary)
        (tmp_path / "other").mkdir()
        (tmp_path / "data" / "ports.json").rename(tmp_path / "other" / "ports.json")
        second.start()
        assert second.endpoint != endpoint
        second.stop()
    finally:
        first.stop()


def test_what_etcd_said_is_shown_when_it_does_not_come_up(tmp_path: Path) -> None:
    etcd = EmbeddedEtcd(tmp_path / "data", find_or_build(print), flags=("--no-such-flag",))
    with pytest.raises(EtcdFailed, match="no-such-flag"):
        etcd.start()
    assert not etcd.alive()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's doing on Linux")
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "data"), str(find_or_build(print))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < end, "etcd outlived its parent"
        time.sleep(0.05)

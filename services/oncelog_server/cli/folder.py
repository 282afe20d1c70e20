"""The folder of an embedded cluster: whose it is, and what must stay the same over restarts.

.oncelog/
  lock              held by the running `oncelog up`
  cluster.json      ports and layout (`layout`): a restart finds the same addresses and data
  running.json      addresses and pid, there while it runs: other commands find the cluster
  etcd/             etcd's data and log
  <process>/        data of each process; its log is `<process>.log`
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final, TextIO

import msgspec

from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.layout import Layout
from oncelog_server.cli.running import RUNNING_FILE, read_running

LOCK_FILE: Final = "lock"
CLUSTER_FILE: Final = "cluster.json"
# In each process's data: its node's id (`runtime/node`, which takes long to import).
NODE_FILE: Final = "node_id"

_LAYOUT: Final = msgspec.json.Decoder(Layout)


class Folder:
    """Held by one `oncelog up` at a time. Close it to let go."""

    def __init__(self, path: Path, lock: TextIO) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def take(cls, path: Path) -> Folder:
        """Makes it where it is missing. Raises CommandFailed where another `up` holds it."""
        path = path.absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / LOCK_FILE).open("a+")
        except OSError as error:
            raise CommandFailed(f"cannot use the folder {path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise CommandFailed(
                f"the folder {path} is in use by another `oncelog up`{_holder(path)}. Stop that "
                "one, or choose another folder with --data."
            ) from None
        return cls(path, lock)

    def layout(self) -> Layout | None:
        """None for a new folder."""
        try:
            stored = (self.path / CLUSTER_FILE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _LAYOUT.decode(stored)
        except msgspec.DecodeError as error:
            raise CommandFailed(
                f"{self.path / CLUSTER_FILE} does not say the ports: {error}. Restore the file, or "
                "choose another folder with --data."
            ) from None

    def keep_layout(self, layout: Layout) -> None:
        self._replace(CLUSTER_FILE, msgspec.json.encode(layout))

    def announce(self, bootstrap: str) -> None:
        """Other commands find the cluster from now on."""
        self._replace(
            RUNNING_FILE, json.dumps({"bootstrap": bootstrap, "pid": os.getpid()}).encode()
        )

    def data_of(self, process: str) -> Path:
        return self.path / process

    def node_id_of(self, process: str) -> str | None:
        """None where it never ran."""
        try:
            return (self.data_of(process) / NODE_FILE).read_text()
        except OSError:
            return None

    def log_of(self, process: str) -> Path:
        return self.path / f"{process}.log"

    def close(self) -> None:
        (self.path / RUNNING_FILE).unlink(missing_ok=True)
        self._lock.close()

    def _replace(self, name: str, content: bytes) -> None:
        written = self.path / f"{name}.new"
        written.write_bytes(content)
        written.replace(self.path / name)


def _holder(path: Path) -> str:
    running = read_running(path)
    return f" (process {running['pid']})" if running and "pid" in running else ""

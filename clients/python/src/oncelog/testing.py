"""A cluster for tests: the three services in this process over an in-memory etcd, within seconds.

    import oncelog.testing

    with oncelog.testing.cluster() as cluster:
        with oncelog.connect(cluster.bootstrap) as log:
            log.admin.create_topic("payments", partitions=3)

It is the real thing but for etcd: real gRPC on free loopback ports, real files (synced) in a
directory that is removed at the end. Needs `pip install oncelog[testing]`. Not for production, and
not for measuring: client and services share one interpreter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from oncelog._loop import LoopThread

ROLES: Final = ("coordinator", "partition_leader", "offset_manager")


class Cluster:
    """A running cluster; made by `cluster`."""

    def __init__(self, loop: LoopThread, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def bootstrap(self) -> str:
        """For `oncelog.connect`."""
        return str(self._inner.bootstrap)

    def restart(self, role: str) -> None:
        """Stops one service and starts it again over the same data: coordinator, partition_leader
        or offset_manager. Returns when it leads again. Raises ValueError for another name."""
        if role not in ROLES:
            raise ValueError(f"no role {role!r}; there are {', '.join(ROLES)}")
        self._loop.run(self._inner.restart(role))


@contextmanager
def cluster(data_dir: str | Path | None = None, **settings: object) -> Iterator[Cluster]:
    """Starts a cluster and stops it at the end. `data_dir` None: a temporary directory, removed
    with everything in it. `settings` are those of the services, with __ for the dot:
    `coordinator__session_grace_ms=500`. Raises ImportError without oncelog[testing]."""
    start = _in_process_cluster()
    pairs = [f"{name.replace('__', '.', 1)}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory(prefix="oncelog-testing-") as made:
        loop = LoopThread("the testing cluster")
        try:
            inner = loop.run(start(Path(data_dir or made), pairs=pairs))
            try:
                yield Cluster(loop, inner)
            finally:
                loop.run(inner.stop())
        finally:
            loop.close()


def _in_process_cluster() -> Any:
    """Imported late: users who only test against their own cluster need no server."""
    try:
        from oncelog_server.cli.compose import InProcessCluster
    except ImportError as error:
        raise ImportError(
            "oncelog.testing runs the services: pip install 'oncelog[testing]'"
        ) from error
    return InProcessCluster.start

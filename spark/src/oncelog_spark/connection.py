"""One connection to a cluster per process.

Spark forks its workers and reuses them over tasks, batches and queries; gRPC must not cross a fork.
So connections are kept by process id, and a forked child makes its own.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oncelog_spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# Longer than the client's own: a task that starts while services restart waits for them, and does
# not fail its stage.
FIRST_CONTACT_MS: Final = 15_000
# A running query reads the partitions that were added to its topics so soon.
TOPIC_REFRESH_MS: Final = 5_000

_lock = threading.Lock()
_open: dict[tuple[int, ClusterAddress], Protocol] = {}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """How a connection is secured. Files in PEM form, read by each process that connects: they must
    be there, under the same path, on the driver and on every executor."""

    # Who signs the services' certificates; None: the authorities that the machine trusts.
    ca: str | None
    # What the services are shown, and its key: both or neither.
    certificate: str | None = None
    key: str | None = None
    # The name in the services' certificates, where it is not the host.
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is reached, and how."""

    bootstrap: str
    # None: plain text.
    tls: TlsFiles | None = None


def connection(cluster: ClusterAddress) -> Protocol:
    """This process's connection to a cluster; made when first asked for. Raises InvalidArgument
    where a file of TLS cannot be read."""
    key = (os.getpid(), cluster)
    with _lock:
        if key not in _open:
            _open[key] = _connect(cluster)
            freeze_imports()
        return _open[key]


def _connect(cluster: ClusterAddress) -> Protocol:
    from oncelog.options import Tls
    from oncelog.protocol import Protocol

    files = cluster.tls
    waits = {"connect_timeout_ms": FIRST_CONTACT_MS, "topic_refresh_ms": TOPIC_REFRESH_MS}
    if files is None:
        return Protocol(cluster.bootstrap, **waits)
    tls = Tls(
        ca_file=files.ca,
        certificate_file=files.certificate,
        key_file=files.key,
        server_name=files.server_name,
    )
    return Protocol(cluster.bootstrap, tls=tls, **waits)


def _unlock() -> None:
    """In a forked child: the parent's lock may be held. Its connections stay where they are, under
    its process id: to end them here would call into gRPC."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)

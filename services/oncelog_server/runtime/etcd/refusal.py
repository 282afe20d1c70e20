"""Why this process does not work with the etcd that it reaches."""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd.port import EtcdUnavailable

RECOVER_HINT: Final = (
    "Nothing in the data directory was changed. If etcd's endpoint or prefix is wrong, correct it. "
    "If etcd was wiped, replaced or restored from a backup, stop all services and rebuild it "
    "from their data: `oncelog cluster recover --data DIR --etcd HOST:PORT` (docs/operating.md; "
    "under `oncelog up`: `oncelog up --recover`)"
)


class EtcdRefused(EtcdUnavailable):
    """This etcd is not the one that this node's data belongs to. Retrying does not help: whoever
    runs the node must stop answering and say so. (An EtcdUnavailable, so that code which only
    waits for etcd waits on.)"""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}. {RECOVER_HINT}")
        self.why = why


def epoch_went_back(partition: PartitionId, epoch: int, *, known: int) -> EtcdRefused:
    """A log or an earlier look has shown a later epoch than etcd does now."""
    return EtcdRefused(
        f"etcd shows epoch {epoch} for partition {partition}, this node knows epoch {known}"
    )

"""Why this process does not work with the etcd that it reaches."""

from __future__ import annotations

from typing import Final

from services.core.ports import EtcdUnavailable

RECOVER_HINT: Final = (
    "If etcd was wiped, replaced or restored from a backup, this is a case for `oncelog cluster "
    "recover`, which comes in a later version; until then bring the old etcd back. "
    "Nothing in the data directory was changed."
)


class EtcdRefused(EtcdUnavailable):
    """This etcd is not the one that this node's data belongs to. Retrying does not help: whoever
    runs the node must stop answering and say so. (An EtcdUnavailable, so that code which only
    waits for etcd waits on.)"""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}. {RECOVER_HINT}")
        self.why = why

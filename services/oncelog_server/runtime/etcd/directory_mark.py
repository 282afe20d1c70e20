"""Whether a data directory is the one that this node's last process left, or an older state of it:
a backup, a snapshot of its volume, a machine that was rolled back (docs/adr/0101).

A replica in sync holds everything that was acknowledged. An older state of it does not, and nothing
in it says so: it has the same incarnation, so it could win an election without what it lacks. So
etcd is told, for each node, what its directory has noted:

    1  `etcd.json` notes the highest revision of etcd that was seen, durably
    2  `directories/<node id>` says that it did

In this order: whoever finds more in etcd than in the directory has an older state of it. What is
written in step 2 makes another revision, which step 1 notes next time, so each mark is higher than
the one before, also where nothing else happens in etcd. A recovery begins a history of etcd: a mark
says of which one it is, and is compared with what was noted of that one alone. A process that slept
through a recovery may leave a mark of before.

Not noticed: a state of the same process run that is younger than two of MARK_EVERY_MS, and a
directory of which single replicas alone were put back.
"""

from __future__ import annotations

from typing import Final

from oncelog_server.runtime.etcd.keys import (
    CLUSTER,
    DirectoryValue,
    directory_key,
    directory_value,
    encode,
)
from oncelog_server.runtime.etcd.port import Etcd, Exists, Put

# How often etcd is told. A process tells it before it leads, too.
MARK_EVERY_MS: Final = 30_000
# ... and again where it did not answer.
MARK_AGAIN_MS: Final = 1_000


class DirectoryMark:
    """Of one node."""

    def __init__(self, etcd: Etcd, node_id: str) -> None:
        self._etcd = etcd
        self._key = directory_key(node_id)

    async def is_above(self, noted: DirectoryValue) -> bool:
        """Its directory had noted more than this. Raises EtcdUnavailable."""
        mark, _ = await self._etcd.get(self._key)
        return mark is not None and _is_above(directory_value(mark.value), noted)

    async def tell(self, noted: DirectoryValue) -> None:
        """The directory has it, durably. Nothing goes into an etcd that was wiped: it would be in
        the way of a recovery. Raises EtcdUnavailable: it may have heard, and may hear it late."""
        await self._etcd.txn([Exists(CLUSTER)], [Put(self._key, encode(noted))])


def was_put_back(mark: DirectoryValue, noted: DirectoryValue) -> bool:
    """For a recovery, in which a directory takes part: it is older than the mark, also where it
    took part in this one before."""
    return mark.recovery > noted.recovery or _is_above(mark, noted)


def _is_above(mark: DirectoryValue, noted: DirectoryValue) -> bool:
    return mark.recovery == noted.recovery and mark.revision > noted.revision

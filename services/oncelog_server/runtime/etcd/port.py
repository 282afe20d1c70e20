"""etcd, as it is used here: `client` is the real one, `memory` another in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


class KeyValue(NamedTuple):
    key: str
    value: bytes
    # Revision of its last change.
    mod_revision: int


class Compare(NamedTuple):
    """mod_revision == 0 compares absence."""

    key: str
    mod_revision: int


class Exists(NamedTuple):
    key: str


class Put(NamedTuple):
    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    key: str


class DeletePrefix(NamedTuple):
    """Every key that begins so."""

    prefix: str


class TxnResult(NamedTuple):
    succeeded: bool
    revision: int


class WatchEvent(NamedTuple):
    key: str
    # None: deleted.
    value: bytes | None
    mod_revision: int


class Etcd(Protocol):
    """Keys are without the cluster's prefix: the adapter adds it. Raises EtcdUnavailable (nothing
    is known about a write), never a transport's own error."""

    async def get(self, key: str) -> tuple[KeyValue | None, int]:
        """Linearizable. With the revision of the store."""
        ...

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        """As it was at that revision; None where it was not there, or etcd has not come so far.
        Raises EtcdCompacted."""
        ...

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Linearizable, by key."""
        ...

    async def txn(
        self, compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
    ) -> TxnResult:
        """All of `then` or nothing; no key may be touched twice."""
        ...

    async def grant_lease(self, ttl_ms: int) -> int: ...

    async def keep_alive(self, lease: int) -> int:
        """Renews once; the remaining TTL in ms, 0 where the lease is gone."""
        ...

    async def revoke_lease(self, lease: int) -> None: ...

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """Batches of events from `from_revision` on (one batch per revision at least). Raises
        EtcdCompacted where that revision is gone: list again."""
        ...

    async def etcd_cluster_id(self) -> int: ...

    async def close(self) -> None: ...


class EtcdUnavailable(Exception):
    """etcd did not answer; a write may have been applied or not."""


class EtcdLeaseGone(EtcdUnavailable):
    """The lease that a Put names has ended. Nothing was applied."""


class EtcdCompacted(Exception):
    """The revision is gone; list again and watch from there."""

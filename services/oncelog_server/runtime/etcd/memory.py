"""etcd in memory: the Etcd port with etcd's meaning, for the simulator and `oncelog.testing`.

Revisions, compare-and-set, leases, resumable watches and compaction behave as etcd's do. Time is
the loop's, ids are counted: on a virtual-time loop the same calls give the same answers.

`MemoryEtcdServer` is the store; each node connects with a `MemoryEtcd` of its own, which carries
the faults between that node and the store. `MemoryEtcd()` alone brings its own store.

Left out: TLS, quotas, users, and etcd's rounding of leases up to whole seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from oncelog_server.runtime.etcd.keys import TXN_OPS_MAX
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    DeletePrefix,
    EtcdCompacted,
    EtcdLeaseGone,
    EtcdUnavailable,
    Exists,
    KeyValue,
    Put,
    TxnResult,
    WatchEvent,
)

FIRST_CLUSTER_ID: Final = 0x0DDBA11


@dataclass(slots=True)
class _Stored:
    value: bytes
    mod_revision: int
    lease: int


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    deadline_s: float
    timer: asyncio.TimerHandle
    keys: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Backup:
    """Of a store."""

    revision: int
    cluster_id: int
    keys: dict[str, _Stored]


class MemoryEtcdServer:
    """The store. Revision 1 is the empty store, as in etcd.

    Invariant: `_history[i]` holds the events of revision `_compacted + 1 + i`.
    """

    def __init__(self, *, cluster_id: int = FIRST_CLUSTER_ID) -> None:
        self.cluster_id = cluster_id
        self.revision = 1
        self._keys: dict[str, _Stored] = {}
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self._compacted = 1
        self._history: list[list[WatchEvent]] = []
        # What stood at the revision up to which it is compacted: that one can still be read.
        self._at_compaction: dict[str, KeyValue] = {}
        self._changed: asyncio.Event | None = None
        # Leases are timed in the store's context: a client that is stopped, or whose clock is fast
        # or slow, does not change their time.
        self._context = contextvars.copy_context()

    # ------------------------------------------------------------------------------------ faults

    def expire(self, lease: int) -> None:
        """Ends a lease now, as if its time were over."""
        self._end_lease(lease)

    def compact(self, revision: int) -> None:
        """Forgets the events up to and including `revision`."""
        assert self._compacted <= revision <= self.revision, "compaction goes forward"
        for events in self._history[: revision - self._compacted]:
            for event in events:
                if event.value is None:
                    self._at_compaction.pop(event.key, None)
                else:
                    put = KeyValue(event.key, event.value, event.mod_revision)
                    self._at_compaction[event.key] = put
        del self._history[: revision - self._compacted]
        self._compacted = revision
        self._notify()

    def wipe(self, *, cluster_id: int | None = None) -> None:
        """Loses everything, as an operator who deleted etcd's data directory."""
        for lease in sorted(self._leases):
            self._leases.pop(lease).timer.cancel()
        self._keys.clear()
        self._history.clear()
        self._at_compaction.clear()
        self.revision = self._compacted = 1
        self.cluster_id = self.cluster_id if cluster_id is None else cluster_id
        self._notify()

    def backup(self) -> Backup:
        """What an operator may restore."""
        kept = {key: stored for key, stored in self._keys.items() if not stored.lease}
        return Backup(self.revision, self.cluster_id, kept)

    def restore(self, backup: Backup) -> None:
        """As an operator who put a backup in the place of etcd's data directory: what happened
        since did not happen. Leases are over, which is a revision of its own."""
        self.wipe(cluster_id=backup.cluster_id)
        self._keys.update(backup.keys)
        self.revision = self._compacted = backup.revision + 1
        self._notify()

    # --------------------------------------------------------------------------------- the store

    def get(self, key: str) -> KeyValue | None:
        stored = self._keys.get(key)
        return None if stored is None else KeyValue(key, stored.value, stored.mod_revision)

    def get_at(self, key: str, revision: int) -> KeyValue | None:
        if revision < self._compacted:
            raise EtcdCompacted(f"revision {revision} is gone; the oldest is {self._compacted}")
        if revision > self.revision:
            return None
        for events in reversed(self._history[: revision - self._compacted]):
            for event in events:
                if event.key == key:
                    gone = event.value is None
                    return None if gone else KeyValue(key, event.value or b"", event.mod_revision)
        return self._at_compaction.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        return [
            KeyValue(key, stored.value, stored.mod_revision)
            for key, stored in sorted(self._keys.items())
            if key.startswith(prefix)
        ]

    def txn(
        self, compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
    ) -> TxnResult:
        _require_sound(compares, then)
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self.revision)
        for op in then:
            if isinstance(op, Put) and op.lease and op.lease not in self._leases:
                raise EtcdLeaseGone(f"lease {op.lease:x} has ended; nothing was written")
        events: list[WatchEvent] = []
        for op in then:
            if isinstance(op, Put):
                events.append(self._put(op))
            elif isinstance(op, DeletePrefix):
                doomed = [key for key in sorted(self._keys) if key.startswith(op.prefix)]
                events += [self._delete(key) for key in doomed]
            elif op.key in self._keys:
                events.append(self._delete(op.key))
        self._commit(events)
        return TxnResult(True, self.revision)

    def events(self, prefix: str, revision: int) -> list[WatchEvent]:
        """Of exactly this revision."""
        if revision <= self._compacted:
            raise EtcdCompacted(f"revision {revision} is gone; the oldest is {self._compacted + 1}")
        events = self._history[revision - self._compacted - 1]
        return [event for event in events if event.key.startswith(prefix)]

    async def changed(self) -> None:
        """Returns at the next change of anything, faults included."""
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    # ------------------------------------------------------------------------------------ leases

    def grant_lease(self, ttl_ms: int) -> int:
        self._last_lease += 1
        lease = self._last_lease
        timer = self._end_after(ttl_ms, lease)
        self._leases[lease] = _Lease(ttl_ms, self._now_s() + ttl_ms / 1000, timer)
        return lease

    def keep_alive(self, lease: int) -> int:
        held = self._leases.get(lease)
        if held is None or self._now_s() >= held.deadline_s:
            return 0
        held.timer.cancel()
        held.deadline_s = self._now_s() + held.ttl_ms / 1000
        held.timer = self._end_after(held.ttl_ms, lease)
        return held.ttl_ms

    def revoke_lease(self, lease: int) -> None:
        self._end_lease(lease)

    def close(self) -> None:
        """Cancels the timers, so that a loop without other work ends."""
        for lease in sorted(self._leases):
            self._leases[lease].timer.cancel()

    def _now_s(self) -> float:
        # Of a copy: a context that is entered already cannot be entered again.
        return self._context.copy().run(asyncio.get_running_loop().time)

    def _end_after(self, ttl_ms: int, lease: int) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        end = functools.partial(self._end_lease, lease)
        # The delay, too, is by the store's clock.
        set_timer = functools.partial(loop.call_later, context=self._context)
        return self._context.copy().run(set_timer, ttl_ms / 1000, end)

    def _end_lease(self, lease: int) -> None:
        held = self._leases.pop(lease, None)
        if held is None:
            return
        held.timer.cancel()
        self._commit([self._delete(key) for key in sorted(held.keys)])

    # --------------------------------------------------------------------------------- its pieces

    def _holds(self, compare: Compare | Exists) -> bool:
        stored = self._keys.get(compare.key)
        if isinstance(compare, Exists):
            return stored is not None
        return (0 if stored is None else stored.mod_revision) == compare.mod_revision

    def _put(self, op: Put) -> WatchEvent:
        before = self._keys.get(op.key)
        if before is not None and before.lease:
            self._leases[before.lease].keys.discard(op.key)
        if op.lease:
            self._leases[op.lease].keys.add(op.key)
        self._keys[op.key] = _Stored(op.value, self.revision + 1, op.lease)
        return WatchEvent(op.key, op.value, self.revision + 1)

    def _delete(self, key: str) -> WatchEvent:
        stored = self._keys.pop(key)
        if stored.lease in self._leases:
            self._leases[stored.lease].keys.discard(key)
        return WatchEvent(key, None, self.revision + 1)

    def _commit(self, events: list[WatchEvent]) -> None:
        if not events:
            return
        self.revision += 1
        self._history.append(events)
        assert len(self._history) == self.revision - self._compacted, "one entry per revision"
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


class MemoryEtcd:
    """The Etcd port: one node's connection to a store."""

    def __init__(self, server: MemoryEtcdServer | None = None, *, latency_ms: float = 0) -> None:
        self.server = server or MemoryEtcdServer()
        # Each way, on the loop's clock.
        self.latency_ms = latency_ms
        self._unavailable = False
        self._dropped_replies = 0
        self._held_txns: list[tuple[list[Compare | Exists], list[Put | Delete | DeletePrefix]]] = []
        self._hold_next_txn = False
        self._hold_next_reply = False
        self._held_replies = asyncio.Event()
        self._stale = False
        self._broken_watches = 0
        # Keep-alives do not arrive, everything else does: the lease runs out.
        self.keep_alives_lost = False

    # ------------------------------------------------------------------------------------ faults

    @property
    def unavailable(self) -> bool:
        """True: this node does not reach etcd. Its leases run out there all the same."""
        return self._unavailable

    @unavailable.setter
    def unavailable(self, value: bool) -> None:
        self._unavailable = value
        self.server._notify()

    @property
    def stale(self) -> bool:
        """True: watches tell nothing new; everything else is answered. A member of etcd that is
        behind the others does that. What they missed comes afterwards, in order."""
        return self._stale

    @stale.setter
    def stale(self, value: bool) -> None:
        self._stale = value
        self.server._notify()

    def break_watches(self) -> None:
        """Those that are open now end with EtcdUnavailable."""
        self._broken_watches += 1
        self.server._notify()

    def drop_next_txn_reply(self) -> None:
        """The next transaction is applied, its caller sees EtcdUnavailable."""
        self._dropped_replies += 1

    def hold_next_txn(self) -> None:
        """The next transaction's caller sees EtcdUnavailable at once; it is applied only at
        `release_held_txns`: a message that the network delays."""
        self._hold_next_txn = True

    def answer_txns(self) -> bool:
        """No later transaction is dropped or held. False: none came that was."""
        met = not self._dropped_replies and not self._hold_next_txn
        self._dropped_replies, self._hold_next_txn = 0, False
        return met

    def hold_next_txn_reply(self) -> None:
        """The next transaction is applied; its caller hears of it at `release_held_replies`."""
        self._hold_next_reply = True
        self._held_replies.clear()

    def release_held_replies(self) -> None:
        self._held_replies.set()

    def release_held_txns(self) -> None:
        held, self._held_txns = self._held_txns, []
        for compares, then in held:
            with contextlib.suppress(EtcdLeaseGone):
                self.server.txn(compares, then)

    # ---------------------------------------------------------------------------------- the port

    async def get(self, key: str) -> tuple[KeyValue | None, int]:
        await self._travel()
        found = self.server.get(key), self.server.revision
        await self._travel()
        return found

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        await self._travel()
        found = self.server.get_at(key, revision)
        await self._travel()
        return found

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        await self._travel()
        found = self.server.range(prefix), self.server.revision
        await self._travel()
        return found

    async def txn(
        self, compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
    ) -> TxnResult:
        await self._travel()
        if self._hold_next_txn:
            self._hold_next_txn = False
            self._held_txns.append((list(compares), list(then)))
            raise EtcdUnavailable("no answer to a transaction; it may be applied yet")
        result = self.server.txn(compares, then)
        if self._dropped_replies:
            self._dropped_replies -= 1
            raise EtcdUnavailable("the answer to a transaction was lost")
        if self._hold_next_reply:
            self._hold_next_reply = False
            await self._held_replies.wait()
        await self._travel()
        return result

    async def grant_lease(self, ttl_ms: int) -> int:
        await self._travel()
        lease = self.server.grant_lease(ttl_ms)
        await self._travel()
        return lease

    async def keep_alive(self, lease: int) -> int:
        await self._travel()
        if self.keep_alives_lost:
            raise EtcdUnavailable("no answer to a keep-alive, which never arrived")
        left = self.server.keep_alive(lease)
        await self._travel()
        return left

    async def revoke_lease(self, lease: int) -> None:
        await self._travel()
        self.server.revoke_lease(lease)
        await self._travel()

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        revision, broken = from_revision, self._broken_watches
        while True:
            while revision <= self.server.revision and not self._unavailable and not self._stale:
                events = self.server.events(prefix, revision)
                revision += 1
                if events:
                    await self._travel_back()
                    yield events
            if broken != self._broken_watches:
                raise EtcdUnavailable("the watch broke")
            await self.server.changed()

    async def etcd_cluster_id(self) -> int:
        await self._travel()
        return self.server.cluster_id

    async def close(self) -> None:
        self._held_txns.clear()

    async def _travel(self) -> None:
        await self._travel_back()
        if self._unavailable:
            raise EtcdUnavailable("etcd does not answer")

    async def _travel_back(self) -> None:
        await asyncio.sleep(self.latency_ms / 1000)


def _require_sound(
    compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
) -> None:
    if max(len(compares), len(then)) > TXN_OPS_MAX:
        raise ValueError(f"more than {TXN_OPS_MAX} operations in one transaction (--max-txn-ops)")
    keys = [op.key for op in then if not isinstance(op, DeletePrefix)]
    prefixes = [op.prefix for op in then if isinstance(op, DeletePrefix)]
    put = [op.key for op in then if isinstance(op, Put)]
    if len(keys) != len(set(keys)) or any(key.startswith(tuple(prefixes)) for key in put):
        raise ValueError("a transaction may change a key only once")

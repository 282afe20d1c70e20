"""This process's place in the cluster: `boots/<boot id>` under a lease
(docs/leadership.md, "Leases lie").

    JOINING ──key stands──► MEMBER ──etcd ended the lease──► LOST ──new lease, key stands,
                              ▲  own deadline passed: not      │     leadership confirmed
                              │  valid, until renewed          ▼
                              └────────────────────────────────┘

Invariants:
  * `valid()` is true only before a deadline that was computed from the moment at which the last
    successful keep-alive was *sent*; so it turns false before etcd can give the key away.
  * A new lease gives no leadership back: after a loss `valid()` stays false until the new key
    stands and everybody in `regained` has compared what it leads with etcd.
  * The lease is renewed from a thread of its own, so that a busy loop does not lose it; but only
    while the loop ticked within half a lease, so that a dead loop does lose it.
  * The key is written by compare-and-set: a delayed write of an old lease cannot replace a new one.

Not covered: a machine whose clock runs slower than etcd's by more than DRIFT_PERMILLE, or whose
hypervisor stops the clock; and an etcd leader that was just replaced, which may still renew for
up to its election timeout (1 s). With those, compare-and-set in etcd still gives each epoch to one
process only; what may suffer is an answer that says "now".
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd.keys import CLUSTER, BootValue, boot_key, boot_value, encode
from oncelog_server.runtime.etcd.lease_clock import lease_clock_ms
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    Etcd,
    EtcdCompacted,
    EtcdUnavailable,
    Exists,
    Put,
)
from oncelog_server.runtime.vital import Fatal

# Difference in speed between this machine's clock and etcd's that the deadline allows for.
DRIFT_PERMILLE: Final = 10
# Fractions of the lease.
RENEWALS_PER_LEASE: Final = 5
CALLS_PER_LEASE: Final = 4
# After a renewal that failed.
ATTEMPTS_PER_LEASE: Final = 25
TICKS_PER_LEASE: Final = 10
assert TICKS_PER_LEASE > 2 * 2, "a loop that is merely late still ticks within lease/2"
# Between attempts to get a new lease, or to confirm leadership.
RETRY_MS: Final = 200
# The boot key is compared and written again when somebody else wrote it meanwhile.
REGISTER_ATTEMPTS_MAX: Final = 100
STOP_TIMEOUT_MS: Final = 2_000


class BlockingRenewals(Protocol):
    """Keep-alives for the lease thread (EtcdClient.renewals)."""

    def keep_alive(self, lease: int, timeout_ms: int) -> int: ...

    def close(self) -> None: ...


class _Held:
    """One lease. The thread that renews it writes `deadline_ms`, the loop reads it."""

    __slots__ = ("confirmed", "deadline_ms", "lease", "revision")

    def __init__(self, lease: int, deadline_ms: int) -> None:
        self.lease = lease
        # On the lease clock. Only grows.
        self.deadline_ms = deadline_ms
        # Of the key's put under this lease; 0 before.
        self.revision = 0
        # The key stands, and what this process leads was compared with etcd since.
        self.confirmed = False


class Membership:
    """One per process. `lost` counts the leases that etcd ended under us."""

    def __init__(
        self,
        etcd: Etcd,
        *,
        boot_id: BootId,
        node: BootValue,
        lease_ms: int,
        reporter: Reporter,
        renewals: Callable[[], BlockingRenewals] | None = None,
        now_ms: Callable[[], int] = lease_clock_ms,
        on_fatal: Fatal = vital.complain,
    ) -> None:
        """Without `renewals` a task on the loop renews (in-memory etcd); `now_ms` must then be
        the loop's clock."""
        self.boot_id = boot_id
        self.node = node
        self.lost = 0
        self._etcd = etcd
        self._key = boot_key(boot_id)
        self._lease_ms = lease_ms
        self._reporter = reporter
        self._make_renewals = renewals
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._held: _Held | None = None
        self._ticked_ms = now_ms()
        self._on_lost: list[Callable[[], None]] = []
        self._on_lapsed: list[Callable[[], None]] = []
        self._on_regained: list[Callable[[], Awaitable[None]]] = []
        self._gone = asyncio.Event()
        self._stopping = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread: threading.Thread | None = None
        self._renewals: BlockingRenewals | None = None
        self._lapsed = False

    # ------------------------------------------------------------------------------ what it says

    def valid(self) -> bool:
        """May this process answer as a leader now? Cheap; ask at each reply."""
        held = self._held
        return held is not None and held.confirmed and self._now_ms() < held.deadline_ms

    @property
    def lease(self) -> int:
        """For keys that shall end with this process. Raises EtcdUnavailable without a lease."""
        if self._held is None:
            raise EtcdUnavailable("this process has no lease at the moment")
        return self._held.lease

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Called on the loop when etcd ended the lease, before a new one is asked for."""
        self._on_lost.append(callback)

    def on_lapsed(self, callback: Callable[[], None]) -> None:
        """Called on the loop, once, soon after `valid()` turned false, for whatever reason."""
        self._on_lapsed.append(callback)

    def on_regained(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Awaited when a new key stands; `valid()` waits for it. May raise EtcdUnavailable: it is
        called again."""
        self._on_regained.append(callback)

    # ----------------------------------------------------------------------------- start and stop

    async def start(self, *, previous_boot_id: BootId | None = None) -> None:
        """Returns when the key stands. Raises EtcdUnavailable.

        `previous_boot_id`: the process that held this data directory's lock before us. The lock is
        ours, so it is dead, and its key is removed instead of waited for (ADR 3).
        """
        if previous_boot_id is not None and previous_boot_id != self.boot_id:
            await self._bury(previous_boot_id)
        await self._register()
        lasting = [self._tick(), self._rejoin(), self._watch_own_key()]
        if self._make_renewals is None:
            lasting.append(self._renew_on_the_loop())
        self._tasks = [vital.spawn(work, self._on_fatal) for work in lasting]
        if self._make_renewals is None:
            return
        self._thread = threading.Thread(
            target=self._renew_in_a_thread,
            args=(asyncio.get_running_loop(), self._make_renewals),
            name="oncelog-lease",
            daemon=True,
        )
        self._thread.start()

    async def announce_leaving(self) -> None:
        """Says in the key that this process is about to stop; it keeps its lease. Raises
        EtcdUnavailable."""
        self.node = msgspec.structs.replace(self.node, leaving=True)
        held = self._held
        if held is None:
            # The next key says it.
            return
        put = Put(self._key, encode(self.node), held.lease)
        result = await self._etcd.txn([Compare(self._key, held.revision)], [put])
        if result.succeeded:
            held.revision = result.revision

    async def stop(self) -> None:
        """Gives the lease back, so that others need not wait for its end."""
        held, self._held = self._held, None
        self._stopping.set()
        if self._renewals is not None:
            self._renewals.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_MS / 1000)
        if held is not None:
            with contextlib.suppress(EtcdUnavailable, TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_MS / 1000):
                    await self._etcd.revoke_lease(held.lease)

    async def _bury(self, boot_id: BootId) -> None:
        """Removes a dead process's key, if it is this node's."""
        found, _ = await self._etcd.get(boot_key(boot_id))
        if found is None:
            return
        node_id = boot_value(found.value).node_id
        if node_id != self.node.node_id:
            self._reporter.event(
                "previous boot kept", boot_id=boot_id.hex(), node_id=node_id, own=self.node.node_id
            )
            return
        await self._etcd.txn([Compare(found.key, found.mod_revision)], [Delete(found.key)])

    # ------------------------------------------------------------------------ getting a lease

    async def _register(self) -> _Held:
        """A new lease, and the key under it; never in an etcd that was wiped, where it would be in
        the way of `oncelog cluster recover`. Raises EtcdUnavailable."""
        sent_ms = self._now_ms()
        lease = await self._etcd.grant_lease(self._lease_ms)
        held = _Held(lease, self._deadline(sent_ms))
        for _ in range(REGISTER_ATTEMPTS_MAX):
            found, _ = await self._etcd.get(self._key)
            compare = Compare(self._key, 0 if found is None else found.mod_revision)
            put = Put(self._key, encode(self.node), lease)
            result = await self._etcd.txn([compare, Exists(CLUSTER)], [put])
            if result.succeeded:
                held.revision = result.revision
                # Before the first start nothing is led, so there is nothing to confirm.
                held.confirmed = self.lost == 0
                self._held = held
                return held
            if (await self._etcd.get(CLUSTER))[0] is None:
                raise EtcdUnavailable("etcd holds no cluster record under this prefix")
        raise EtcdUnavailable(f"{self._key} was changed {REGISTER_ATTEMPTS_MAX} times under us")

    async def _rejoin(self) -> None:
        """After each loss: a new lease, a new key, and only then, once confirmed, valid again."""
        while True:
            await self._gone.wait()
            self._gone.clear()
            try:
                await self._confirm(await self._register())
            except EtcdUnavailable:
                self._gone.set()
                await asyncio.sleep(RETRY_MS / 1000)

    async def _confirm(self, held: _Held) -> None:
        while self._held is held:
            try:
                for callback in self._on_regained:
                    await callback()
            except EtcdUnavailable:
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            if self._held is held:
                held.confirmed = True
                self._reporter.event("lease regained", boot_id=self.boot_id.hex(), lost=self.lost)
            return

    def _lose(self, held: _Held) -> None:
        """etcd ended this lease. On the loop."""
        if self._held is not held:
            return
        self._held = None
        self.lost += 1
        self._reporter.event(
            "lease lost", level="warning", boot_id=self.boot_id.hex(), lost=self.lost
        )
        for callback in self._on_lost:
            callback()
        self._gone.set()

    async def _watch_own_key(self) -> None:
        """The key may go without the lease's end being told to us: somebody removed it."""
        while True:
            with contextlib.suppress(EtcdCompacted, EtcdUnavailable):
                found, revision = await self._etcd.get(self._key)
                if found is None:
                    self._key_gone(revision)
                async for batch in self._etcd.watch(self._key, revision + 1):
                    for event in batch:
                        if event.value is None:
                            self._key_gone(event.mod_revision)
            await asyncio.sleep(RETRY_MS / 1000)

    def _key_gone(self, revision: int) -> None:
        held = self._held
        if held is not None and revision > held.revision:
            self._lose(held)

    # ---------------------------------------------------------------------------------- renewing

    def _deadline(self, sent_ms: int) -> int:
        return sent_ms + self._lease_ms * (1000 - DRIFT_PERMILLE) // 1000

    async def _tick(self) -> None:
        """Shows the lease thread that the loop lives, and people that the deadline passed; and
        tells those who wait here that this process may not answer any more."""
        was_valid = True
        while True:
            self._ticked_ms = self._now_ms()
            held = self._held
            lapsed = held is not None and self._ticked_ms >= held.deadline_ms
            if lapsed and not self._lapsed:
                self._reporter.event(
                    "lease not renewed in time", level="warning", boot_id=self.boot_id.hex()
                )
            self._lapsed = lapsed
            is_valid = self.valid()
            if was_valid and not is_valid:
                for callback in self._on_lapsed:
                    callback()
            was_valid = is_valid
            await asyncio.sleep(self._lease_ms / TICKS_PER_LEASE / 1000)

    def _renewable(self) -> _Held | None:
        alive = self._now_ms() - self._ticked_ms < self._lease_ms // 2
        return self._held if alive else None

    async def _renew_on_the_loop(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / RENEWALS_PER_LEASE / 1000)
            held, sent_ms = self._renewable(), self._now_ms()
            if held is None:
                continue
            try:
                async with asyncio.timeout(self._lease_ms / CALLS_PER_LEASE / 1000):
                    left_ms = await self._etcd.keep_alive(held.lease)
            except (EtcdUnavailable, TimeoutError):
                continue
            if left_ms > 0:
                held.deadline_ms = max(held.deadline_ms, self._deadline(sent_ms))
            else:
                self._lose(held)

    def _renew_in_a_thread(
        self, loop: asyncio.AbstractEventLoop, make: Callable[[], BlockingRenewals]
    ) -> None:
        try:
            self._renew(loop, make())
        except Exception as error:
            # The loop may be closed already when the process ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_fatal, error)

    def _renew(self, loop: asyncio.AbstractEventLoop, renewals: BlockingRenewals) -> None:
        self._renewals = renewals
        every_s = self._lease_ms / RENEWALS_PER_LEASE / 1000
        pause_s = every_s
        while not self._stopping.wait(pause_s):
            pause_s = every_s
            held, sent_ms = self._renewable(), self._now_ms()
            if held is None:
                continue
            try:
                left_ms = renewals.keep_alive(held.lease, self._lease_ms // CALLS_PER_LEASE)
            except EtcdUnavailable:
                # The next endpoint may answer: a machine that died took one with it.
                pause_s = self._lease_ms / ATTEMPTS_PER_LEASE / 1000
                continue
            if left_ms > 0:
                held.deadline_ms = max(held.deadline_ms, self._deadline(sent_ms))
            else:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._lose, held)
        renewals.close()

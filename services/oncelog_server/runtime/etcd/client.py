"""The Etcd port on a real etcd: pyetcd's generated stubs on grpc.aio channels.

  * Each call has a deadline, and begins only on a channel that is connected: what could not be
    sent goes to the next endpoint unseen. What was sent and not answered is EtcdUnavailable; the
    next call goes to the next endpoint.
  * Reads are linearizable, long lists too: their later pages are read at the first one's revision.
  * A watch reconnects at the last revision that it gave, which must come again just as it was: else
    etcd was restored meanwhile, though it may be past that revision again: EtcdRefused. Every
    WATCH_QUIET_MS it asks for progress, so a connection that died without a word is noticed. What
    does not fit into one message is EtcdCompacted: list again (the stubs know no fragments).
  * The first answer fixes etcd's own cluster id; an answer with another one is EtcdRefused.

Left out: etcd users and passwords (use certificates), serializable reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from pyetcd.etcdrpc import rpc_pb2 as rpc

from oncelog_server.runtime.etcd.endpoints import (
    REQUIRE_LEADER,
    Connection,
    EtcdTls,
    Renewals,
    parse_endpoints,
)
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
from oncelog_server.runtime.etcd.refusal import EtcdRefused

DEFAULT_PREFIX: Final = "/oncelog/"
CALL_TIMEOUT_MS: Final = 3_000
# How long one endpoint may take to be connected before the next one is tried.
CONNECT_TIMEOUT_MS: Final = 1_000
# Keys per page of a range.
PAGE_KEYS: Final = 1_000
# A watch that heard nothing asks for progress after so long...
WATCH_QUIET_MS: Final = 1_000
# ... and is taken for dead, and made anew at the next endpoint, after so long: well within a lease,
# so that who was connected to a machine that died hears in time which leaders died with it.
WATCH_SILENCE_MS: Final = 2_500
WATCH_RETRY_MS: Final = 200
# Of one reply, after which the loop's other work has a turn: who was away hears of a thousand.
REVISIONS_AT_ONCE: Final = 50
# The stubs of grpc do not name it.
END_OF_STREAM: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]
assert WATCH_QUIET_MS * 2 < WATCH_SILENCE_MS, "a live watch always hears of progress in time"


class _FutureRevision(Exception):
    """etcd has not come so far."""


class EtcdClient:
    """One process's connections to etcd. Made and used on one event loop."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        prefix: str = DEFAULT_PREFIX,
        tls: EtcdTls | None = None,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        if not prefix.endswith("/"):
            raise ValueError(f"the etcd prefix must end in '/': {prefix!r}")
        self._endpoints = parse_endpoints(endpoints, tls)
        self._tls = tls
        self._prefix = prefix
        self._call_timeout_ms = call_timeout_ms
        self._connections = [Connection(endpoint, tls) for endpoint in self._endpoints]
        # Index of the endpoint in use.
        self._current = 0
        self._cluster_id: int | None = None
        self._closed = False
        # Connections of before `renew_tls`, being closed.
        self._leaving: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------------------------- the port

    async def get(self, key: str) -> tuple[KeyValue | None, int]:
        request = rpc.RangeRequest(key=self._full(key))
        reply = await self._read(lambda c, t: c.kv.Range(request, timeout=t))
        kvs = [self._key_value(kv) for kv in reply.kvs]
        return (kvs[0] if kvs else None), reply.header.revision

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        request = rpc.RangeRequest(key=self._full(key), revision=revision)
        try:
            reply = await self._read(lambda c, t: c.kv.Range(request, timeout=t))
        except _FutureRevision:
            return None
        return self._key_value(reply.kvs[0]) if reply.kvs else None

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        while True:
            try:
                return await self._range_at_one_revision(prefix)
            except EtcdCompacted:
                # Compacted between two pages.
                continue

    async def txn(
        self, compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
    ) -> TxnResult:
        if max(len(compares), len(then)) > TXN_OPS_MAX:
            raise ValueError(f"more than {TXN_OPS_MAX} operations in one transaction")
        request = rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[self._operation(op) for op in then],
        )
        reply = await self._once(lambda c, t: c.kv.Txn(request, timeout=t))
        return TxnResult(reply.succeeded, reply.header.revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        """etcd counts in seconds and has a floor of about two: it may last longer than asked."""
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_ms / 1000))
        reply = await self._once(lambda c, t: c.lease.LeaseGrant(request, timeout=t))
        return int(reply.ID)

    async def keep_alive(self, lease: int) -> int:
        request = rpc.LeaseKeepAliveRequest(ID=lease)

        async def renew(connection: Connection, timeout: float) -> Any:
            call = connection.lease.LeaseKeepAlive(
                iter([request]), timeout=timeout, metadata=REQUIRE_LEADER
            )
            reply = await call.read()
            if reply is END_OF_STREAM:
                raise EtcdUnavailable("etcd ended a keep-alive without an answer")
            call.cancel()
            return reply

        reply = await self._read(renew)
        return max(0, int(reply.TTL)) * 1000

    async def revoke_lease(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)
        with contextlib.suppress(EtcdLeaseGone):
            await self._once(lambda c, t: c.lease.LeaseRevoke(request, timeout=t))

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        revision = from_revision
        given: list[WatchEvent] | None = None
        while not self._closed:
            index = self._current
            # Until it came again, nothing that follows is believed.
            owed = given
            try:
                async with contextlib.aclosing(self._watch_once(prefix, revision)) as replies:
                    async for reply in replies:
                        for number, batch in enumerate(self._by_revision(reply.events), 1):
                            if number % REVISIONS_AT_ONCE == 0:
                                await asyncio.sleep(0)
                            if owed is not None:
                                _require_same(owed, batch)
                                owed = None
                                continue
                            yield batch
                            given, revision = batch, batch[0].mod_revision
                        # Progress: etcd promises that all earlier events were sent.
                        if not reply.events and not reply.created:
                            if owed is not None and reply.header.revision >= revision:
                                _require_same(owed, [])
                            if given is None:
                                revision = max(revision, reply.header.revision + 1)
            except EtcdRefused:
                raise
            except EtcdUnavailable:
                self._leave(index)
                await asyncio.sleep(WATCH_RETRY_MS / 1000)

    async def etcd_cluster_id(self) -> int:
        await self.get("")
        assert self._cluster_id is not None, "every answer carries the cluster id"
        return self._cluster_id

    async def close(self) -> None:
        self._closed = True
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for connection in self._connections:
            await connection.close()

    # -------------------------------------------------------------------------- beside the port

    async def compact(self, revision: int) -> None:
        """For tests and tools; etcd compacts by itself where it is configured to."""
        request = rpc.CompactionRequest(revision=revision, physical=True)
        await self._once(lambda c, t: c.kv.Compact(request, timeout=t))

    def renewals(self) -> Renewals:
        """Keep-alives over a blocking channel of their own, for the lease thread."""
        return Renewals(self._endpoints, lambda: self._tls)

    def renew_tls(self, tls: EtcdTls) -> None:
        """Calls from now on go over new connections. Those under way end where they began; a watch,
        which does not end, is made anew at the revision that it came to. Then the old connections
        are closed: earlier, gRPC would cancel whoever waits for an answer over them."""
        assert self._tls is not None, "with TLS or without, never both"
        old, self._connections = (
            self._connections,
            [Connection(endpoint, tls) for endpoint in self._endpoints],
        )
        self._tls = tls
        leaving = asyncio.get_running_loop().create_task(self._close_later(old))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _close_later(self, connections: Sequence[Connection]) -> None:
        try:
            await asyncio.sleep((self._call_timeout_ms + WATCH_SILENCE_MS) / 1000)
        finally:
            for connection in connections:
                await connection.close()

    # ------------------------------------------------------------------------------ how it calls

    async def _read(self, call: Callable[[Connection, float], Awaitable[Any]]) -> Any:
        """For calls that may be repeated: tries every endpoint within one deadline."""
        deadline = time.monotonic() + self._call_timeout_ms / 1000
        for attempt in range(1, len(self._connections) + 1):
            try:
                return await self._once(call, before=deadline)
            except EtcdRefused:
                raise
            except EtcdUnavailable:
                if attempt == len(self._connections) or time.monotonic() >= deadline:
                    raise
        raise AssertionError("unreachable: there is at least one endpoint")

    async def _once(
        self, call: Callable[[Connection, float], Awaitable[Any]], *, before: float = math.inf
    ) -> Any:
        """One attempt, on a connected channel."""
        before = min(before, time.monotonic() + self._call_timeout_ms / 1000)
        index = await self._connected(before)
        try:
            reply = await call(self._connections[index], max(0.001, before - time.monotonic()))
        except grpc.aio.AioRpcError as error:
            raised = self._translate(error, self._endpoints[index])
            if isinstance(raised, EtcdUnavailable) and not isinstance(raised, EtcdLeaseGone):
                self._leave(index)
            raise raised from error
        except grpc.aio.UsageError as error:
            raise EtcdUnavailable("the etcd client is closed") from error
        self._check_cluster(reply.header)
        return reply

    async def _connected(self, before: float) -> int:
        """The index of an endpoint whose channel is ready. Nothing was sent when it raises."""
        if self._closed:
            raise EtcdUnavailable("the etcd client is closed")
        last = len(self._connections) * 2
        for _ in range(last):
            index = self._current
            left_ms = (before - time.monotonic()) * 1000
            if left_ms <= 0:
                break
            if await self._connections[index].ready(min(left_ms, CONNECT_TIMEOUT_MS)):
                return index
            self._leave(index)
        raise EtcdUnavailable(f"no etcd endpoint answers: {', '.join(self._endpoints)}")

    def _leave(self, index: int) -> None:
        """Goes to the next endpoint, unless somebody has gone there already."""
        if index == self._current:
            self._current = (index + 1) % len(self._connections)

    def _check_cluster(self, header: Any) -> None:
        if self._cluster_id is None:
            self._cluster_id = header.cluster_id
        elif header.cluster_id != self._cluster_id:
            raise EtcdRefused(
                f"etcd's cluster id changed from {self._cluster_id:x} to {header.cluster_id:x}"
            )

    @staticmethod
    def _translate(error: grpc.aio.AioRpcError, endpoint: str) -> Exception:
        details = error.details() or ""
        if "lease not found" in details:
            return EtcdLeaseGone(details)
        if "required revision has been compacted" in details:
            return EtcdCompacted(details)
        if "required revision is a future revision" in details:
            return _FutureRevision(details)
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return ValueError(f"etcd refuses the request: {details}")
        return EtcdUnavailable(f"etcd at {endpoint}: {error.code().name}: {details}")

    # -------------------------------------------------------------------------- ranges, watches

    async def _range_at_one_revision(self, prefix: str) -> tuple[list[KeyValue], int]:
        found: list[KeyValue] = []
        start = self._full(prefix)
        request = rpc.RangeRequest(key=start, range_end=_prefix_end(start), limit=PAGE_KEYS)
        while True:
            try:
                reply = await self._read(lambda c, t: c.kv.Range(request, timeout=t))
            except _FutureRevision as error:
                # The page before was of that revision.
                raise EtcdRefused(
                    f"etcd has come back without revision {request.revision}, which it showed"
                ) from error
            found.extend(self._key_value(kv) for kv in reply.kvs)
            # All pages at the revision of the first, which was read linearizably.
            request.revision = request.revision or reply.header.revision
            if not reply.more:
                return found, request.revision
            request.key = reply.kvs[-1].key + b"\0"

    async def _watch_once(self, prefix: str, revision: int) -> AsyncGenerator[Any, None]:
        """One stream's replies. Raises EtcdUnavailable at its end; EtcdCompacted, also where what
        follows is too large for one message."""
        index = await self._connected(time.monotonic() + self._call_timeout_ms / 1000)
        connection = self._connections[index]
        call = connection.watches.Watch(metadata=REQUIRE_LEADER)
        key = self._full(prefix)
        create = rpc.WatchCreateRequest(
            key=key, range_end=_prefix_end(key), start_revision=revision, progress_notify=True
        )
        progress: asyncio.Task[None] | None = None
        try:
            await call.write(rpc.WatchRequest(create_request=create))
            progress = asyncio.get_running_loop().create_task(_ask_for_progress(call))
            while True:
                async with asyncio.timeout(WATCH_SILENCE_MS / 1000):
                    reply = await call.read()
                if reply is END_OF_STREAM:
                    raise EtcdUnavailable("etcd ended the watch")
                self._check_cluster(reply.header)
                if reply.compact_revision:
                    raise EtcdCompacted(f"etcd's oldest revision is {reply.compact_revision}")
                if reply.canceled:
                    raise EtcdUnavailable(f"etcd cancelled the watch: {reply.cancel_reason}")
                yield reply
                if connection is not self._connections[index]:
                    # Progress is told often enough that it never waits long for this.
                    raise EtcdUnavailable("there are newer certificates")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                # One reply is larger than a message may be, and would be for ever: a list has
                # pages.
                raise EtcdCompacted(
                    f"what follows comes in no message: {error.details()}"
                ) from error
            raise self._translate(error, self._endpoints[index]) from error
        except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise EtcdUnavailable("the watch went silent") from error
        finally:
            if progress is not None:
                progress.cancel()
            call.cancel()

    def _by_revision(self, events: Sequence[Any]) -> list[list[WatchEvent]]:
        batches: list[list[WatchEvent]] = []
        for event in events:
            key = event.kv.key.decode().removeprefix(self._prefix)
            value = event.kv.value if event.type == event.PUT else None
            if not batches or batches[-1][0].mod_revision != event.kv.mod_revision:
                batches.append([])
            batches[-1].append(WatchEvent(key, value, event.kv.mod_revision))
        return batches

    # ------------------------------------------------------------------------------- conversions

    def _full(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _key_value(self, kv: Any) -> KeyValue:
        return KeyValue(kv.key.decode().removeprefix(self._prefix), kv.value, kv.mod_revision)

    def _compare(self, compare: Compare | Exists) -> Any:
        exists = isinstance(compare, Exists)
        return rpc.Compare(
            key=self._full(compare.key),
            target=rpc.Compare.MOD,
            result=rpc.Compare.GREATER if exists else rpc.Compare.EQUAL,
            mod_revision=0 if isinstance(compare, Exists) else compare.mod_revision,
        )

    def _operation(self, op: Put | Delete | DeletePrefix) -> Any:
        if isinstance(op, Put):
            put = rpc.PutRequest(key=self._full(op.key), value=op.value, lease=op.lease)
            return rpc.RequestOp(request_put=put)
        if isinstance(op, DeletePrefix):
            start = self._full(op.prefix)
            delete = rpc.DeleteRangeRequest(key=start, range_end=_prefix_end(start))
        else:
            delete = rpc.DeleteRangeRequest(key=self._full(op.key))
        return rpc.RequestOp(request_delete_range=delete)


def _require_same(given: Sequence[WatchEvent], again: Sequence[WatchEvent]) -> None:
    """Raises EtcdRefused."""
    if given != again:
        raise EtcdRefused(
            f"etcd has another history than it had: its revision {given[0].mod_revision} changed "
            f"{given[0].key!r}, and now it does not"
        )


async def _ask_for_progress(call: Any) -> None:
    request = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
    # A stream that ended is the reader's to report.
    with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(WATCH_QUIET_MS / 1000)
            await call.write(request)


def _prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which ends in an ASCII character."""
    assert prefix[-1] < 0xFF
    return prefix[:-1] + bytes([prefix[-1] + 1])

"""etcd itself: which version, is it well, how quick, is it this cluster's?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oncelog_server.cli.doctor.findings import Finding, fail, ok, skip, warn

AREA: Final = "etcd"
CALL_SECONDS: Final = 3.0
ASKED_TIMES: Final = 5
# A lease is renewed five times in its time (5 s): a renewal that takes that long is late.
SLOW_MS: Final = 100
TOO_SLOW_MS: Final = 1_000
# Of its database, where nobody chose another (--quota-backend-bytes).
QUOTA_BYTES: Final = 2 << 30
FULL_SHARE: Final = 0.8
_ALARMS: Final = {1: "NOSPACE", 2: "CORRUPT"}


@dataclass(frozen=True, slots=True)
class Place:
    """How to reach an etcd, and which keys are ours."""

    endpoints: Sequence[str]
    prefix: str
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def look(place: Place, cluster_id: str | None) -> Iterator[Finding]:
    """`cluster_id` as the processes tell it, in hexadecimal; None: none answered."""
    from oncelog_server.runtime.etcd.endpoints import EtcdTls, parse_endpoints

    try:
        tls = None
        if place.ca:
            tls = EtcdTls.from_files(ca=place.ca, cert=place.certificate, key=place.key)
        endpoints = parse_endpoints(place.endpoints, tls)
    except (OSError, ValueError) as error:
        yield fail(AREA, str(error), "give etcd's endpoints and certificates as to `oncelog serve`")
        return
    answering = None
    for endpoint in endpoints:
        member = _Member(endpoint, tls, place.prefix)
        try:
            findings = list(member.look())
        finally:
            member.close()
        yield from findings
        if member.answers:
            answering = answering or endpoint
    if answering is None:
        return
    member = _Member(answering, tls, place.prefix)
    try:
        yield from member.whose(cluster_id)
    finally:
        member.close()


class _Member:
    """One endpoint."""

    def __init__(self, endpoint: str, tls: Any, prefix: str) -> None:
        import grpc
        from pyetcd.etcdrpc import rpc_pb2_grpc as stubs

        self.endpoint = endpoint
        self.answers = False
        self._prefix = prefix
        options = [("grpc.enable_http_proxy", 0)]
        if tls is None:
            self._channel = grpc.insecure_channel(endpoint, options=options)
        else:
            self._channel = grpc.secure_channel(endpoint, tls.credentials(), options=options)
        self._kv: Any = stubs.KVStub(self._channel)
        self._maintenance: Any = stubs.MaintenanceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def look(self) -> Iterator[Finding]:
        import grpc
        from pyetcd.etcdrpc import rpc_pb2 as rpc

        try:
            status = self._maintenance.Status(rpc.StatusRequest(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            yield fail(
                AREA,
                f"{self.endpoint} does not answer: {_told(error)}",
                "start it, or look at the network and the certificates to it",
            )
            return
        self.answers = True
        yield self._version(status)
        if not status.leader:
            yield fail(AREA, f"{self.endpoint} has no leader", "start the other members")
            return
        yield from self._room(status)
        yield from self._alarms(rpc)
        yield self._latency(rpc)

    def whose(self, cluster_id: str | None) -> Iterator[Finding]:
        """Is it this cluster's?"""
        import grpc
        from pyetcd.etcdrpc import rpc_pb2 as rpc

        from oncelog_server.runtime.etcd.keys import CLUSTER, cluster_value

        try:
            key = f"{self._prefix}{CLUSTER}".encode()
            found = self._kv.Range(rpc.RangeRequest(key=key), timeout=CALL_SECONDS).kvs
        except grpc.RpcError as error:
            yield fail(AREA, f"{self.endpoint} does not read: {_told(error)}", "look at its log")
            return
        if not found:
            yield warn(
                AREA,
                f"holds no cluster under {self._prefix}",
                "nothing was started with it yet; else the prefix is wrong, or it was wiped "
                "(`oncelog cluster recover`)",
            )
            return
        record = cluster_value(found[0].value)
        if cluster_id is None:
            yield ok(AREA, f"holds cluster {record.cluster_id}")
        elif record.cluster_id == cluster_id:
            yield ok(AREA, "holds the cluster that the processes say they are")
        else:
            yield fail(
                AREA,
                f"holds cluster {record.cluster_id}, the processes are {cluster_id}",
                "name the etcd of these processes",
            )

    def _version(self, status: Any) -> Finding:
        from oncelog_server.runtime.etcd.embedded import is_good

        parts = status.version.split("-")[0].split(".")
        version = tuple(int(part) for part in parts[:3]) if len(parts) >= 3 else (0, 0, 0)
        if is_good(version):  # type: ignore[arg-type]
            return ok(AREA, f"{self.endpoint} is etcd {status.version}")
        return fail(
            AREA,
            f"{self.endpoint} is etcd {status.version}, which can lose committed data when killed",
            "update it to 3.6.9 or later (3.5.28 or later of 3.5)",
        )

    def _room(self, status: Any) -> Iterator[Finding]:
        if status.dbSize > FULL_SHARE * QUOTA_BYTES:
            yield warn(
                AREA,
                f"{self.endpoint}: its database takes {status.dbSize >> 20} MiB; the usual quota "
                f"is {QUOTA_BYTES >> 20}",
                "compact and defragment it, or raise --quota-backend-bytes",
            )

    def _alarms(self, rpc: Any) -> Iterator[Finding]:
        import grpc

        asked = rpc.AlarmRequest(action=rpc.AlarmRequest.GET)
        try:
            alarms = self._maintenance.Alarm(asked, timeout=CALL_SECONDS).alarms
        except grpc.RpcError as error:
            yield warn(AREA, f"{self.endpoint}: no word of alarms: {_told(error)}", "ask etcdctl")
            return
        for alarm in alarms:
            yield fail(
                AREA,
                f"{self.endpoint}: alarm {_ALARMS.get(alarm.alarm, alarm.alarm)}",
                "NOSPACE: compact, defragment, disarm; CORRUPT: replace the member",
            )

    def _latency(self, rpc: Any) -> Finding:
        import grpc

        key = f"{self._prefix}cluster".encode()
        took_ms = []
        try:
            for _ in range(ASKED_TIMES):
                began = time.perf_counter()
                self._kv.Range(rpc.RangeRequest(key=key), timeout=CALL_SECONDS)
                took_ms.append((time.perf_counter() - began) * 1000)
        except grpc.RpcError as error:
            return fail(
                AREA,
                f"{self.endpoint} does not read: {_told(error)}",
                "a majority of its members must run",
            )
        median = statistics.median(took_ms)
        told = f"{self.endpoint} answers a linearizable read in {median:.1f} ms"
        do = "give it a disk of its own, and a network without detours"
        if median >= TOO_SLOW_MS:
            return fail(AREA, f"{told}: leases will not be renewed in time", do)
        return warn(AREA, told, do) if median >= SLOW_MS else ok(AREA, told)


def nowhere(why: str) -> Finding:
    """Its endpoints are not known here."""
    return skip(AREA, why, "name its endpoints with --etcd HOST:PORT")


def _told(error: Any) -> str:
    return f"{error.code().name} {error.details()}"

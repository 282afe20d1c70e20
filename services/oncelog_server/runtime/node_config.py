"""Settings of a process, whatever roles it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from oncelog_server.core.numbers import is_number
from oncelog_server.runtime.etcd.identity import LEASE_MS_MAX, LEASE_MS_MIN

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Of a segment file. The offset index holds positions of 32 bits; below the least, nearly each frame
# would be a file of its own.
SEGMENT_BYTES_LEAST: Final = KIB
SEGMENT_BYTES_MOST: Final = 2 * GIB
# Of the name of a rack.
RACK_BYTES_MAX: Final = 255
# Every address of a machine: to listen on, not to connect to.
WILDCARDS: Final = ("0.0.0.0", "::", "*")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Each field: meaning, unit, danger."""

    # Directory of this process alone: journals, snapshots, identity. Danger: another volume's
    # directory here means another, empty node.
    data_dir: str = "oncelog-data"
    # Where to listen, host:port; port 0 takes a free one. Empty: 127.0.0.1 and the port of the
    # first role. Danger: anything but loopback without TLS lets everybody in.
    listen: str = ""
    # What others are told to connect to, host:port. Empty: what is listened on.
    advertise: str = ""
    # A second address to listen on, host:port, for clients that cannot connect to `advertise`: from
    # outside of a Kubernetes cluster, say. Whoever comes in there is told the external addresses of
    # all processes, so give each its own. Empty: none.
    listen_external: str = ""
    # What clients that came in there are told to connect to, host:port. Empty: listen_external.
    advertise_external: str = ""
    # Where this process stands: a rack, a room, a zone; at most 255 bytes. For placing replicas of
    # one partition apart. Empty: it does not say.
    rack: str = ""
    # A second port for health checks alone, host:port; port 0 takes a free one, empty: none. It
    # tells nobody anything else.
    health_listen: str = ""
    # What that port asks for: off, nothing, for probes that have no certificate (Kubernetes'); tls,
    # it is encrypted; mtls, callers show a certificate. With this process's certificate.
    health_tls: Literal["off", "tls", "mtls"] = "off"
    # PEM files: who signs the other side, what this side shows, its key. All three or none; given,
    # every connection needs a certificate (mTLS), and who may do what is judged by it (see
    # authorization.mode). They are read again when they change.
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    # etcd, host:port each. Empty: the embedded one.
    etcd_endpoints: tuple[str, ...] = ()
    # Before every key of this cluster. Danger: two clusters under one prefix destroy each other.
    etcd_prefix: str = "/oncelog/"
    # PEM files for etcd. Empty: no TLS; certificate and key may be absent where etcd asks for none.
    # They are read again when they change.
    etcd_tls_ca: str = ""
    etcd_tls_certificate: str = ""
    etcd_tls_key: str = ""
    # How long etcd holds this process's leadership without a sign of life, milliseconds. Danger:
    # short, and a pause costs leadership; long, and a dead leader's partitions wait that long.
    lease_ms: int = 4_000
    # Nodes on which a record is synced before it is acknowledged; a partition with fewer replicas
    # needs all of its own. Of the cluster: the first process that ever starts decides. Danger: with
    # 1, an acknowledged record may be on one disk alone.
    min_insync_replicas: int = 2
    # Replicas of each control partition, created by the first processes of their role, which wait
    # for one another until so many live. Danger: with 1, the loss of one disk loses transactions,
    # or offsets of groups.
    control_replication_factor: int = 1
    # A replica that was not level with its leader for so long, milliseconds, is not in sync any
    # more. Danger: long, and writes wait that long for a dead one; short, and one that is slow for
    # a moment is dropped.
    replica_lag_ms: int = 10_000
    # The first node in a partition's list of replicas should lead it. Where another one does, it
    # hands over once the first has been in sync for so long, milliseconds; 0: never. Danger: short,
    # and a process that comes and goes costs its clients a retry each time.
    balance_after_ms: int = 30_000
    # How long a process that stops waits, at most, until others lead what it led and can write
    # without it, milliseconds. Danger: longer than whoever stops it waits (`oncelog up`: 20 s), and
    # it is killed; short, and it goes while another one that restarted still catches up.
    hand_over_max_ms: int = 12_000
    # Below so much free space data is refused (DISK_FULL), bytes; reads, markers and leadership
    # stay. Danger: with 0 nothing is left for control records.
    disk_free_floor_bytes: int = 256 * MIB
    # Size of a journal's segment files, bytes, from 1 KiB to 2 GiB. A log goes from its front by
    # whole ones. Danger: of each partition up to one more stays than its retention says.
    segment_bytes: int = 256 * MIB
    # Journal bytes between two snapshots of a machine. More: longer recovery, fewer writes.
    snapshot_every_bytes: int = 64 * MIB
    # Where so many bytes wait for the disk, they are written while what came before them is still
    # being synced. Less: more and smaller syncs; more: the disk rests while they are collected.
    commit_ahead_bytes: int = 512 * KIB
    # Of one journal that nothing needs any more and whose parts of ended transactions are worth
    # telling: so many bytes stay, and the oldest go first. Danger: less than a coordinator writes
    # in coordinator.outcome_retention_ms, and GetTransaction tells outcomes without their parts.
    control_journal_bytes_max: int = 4 * GIB
    # Memory for the newest frames of all journals, bytes: readers who keep up are served from it.
    # Less: readers who lag read from disk. At most 4 MiB of it are one journal's.
    tail_bytes_max: int = 256 * MIB
    # Memory for the keys of a pass of compaction, bytes, of which a process makes one at a time: 32
    # for each key, a quarter of them free. Less: a log with more keys takes more passes, of which
    # each writes it anew.
    compaction_map_bytes: int = 64 * MIB
    # How often timers are looked at, milliseconds.
    tick_ms: int = 100
    # Prometheus endpoint, host:port; port 0 takes a free one, empty: none. Danger: it names topics
    # and groups and says how much is going on to whoever asks, unless metrics_tls is mtls.
    metrics_listen: str = ""
    # What that endpoint asks for: off, nothing; tls, it is encrypted (https); mtls, scrapers show a
    # certificate, any that node.tls_ca signed. With this process's certificate.
    metrics_tls: Literal["off", "tls", "mtls"] = "off"
    # Bytes of requests whose handlers run; above, callers are THROTTLED. Markers and replication
    # are exempt.
    inflight_bytes_max: int = 256 * MIB
    # Streams open at once; above, callers are THROTTLED.
    streams_max: int = 4_096
    # Connections open at once, half of the open files that the process may have (ulimit -n) at
    # most; above, they are closed as they come. Danger: a leader without a file resigns.
    connections_max: int = 8_192
    # Least severe log line that is written.
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # json: one object per line. console: for people.
    log_format: Literal["json", "console"] = "console"

    def validate(self) -> None:
        """Raises ValueError naming the field."""
        for name in (
            "lease_ms",
            "min_insync_replicas",
            "control_replication_factor",
            "replica_lag_ms",
            "hand_over_max_ms",
            "segment_bytes",
            "snapshot_every_bytes",
            "commit_ahead_bytes",
            "control_journal_bytes_max",
            "compaction_map_bytes",
            "tick_ms",
            "tail_bytes_max",
            "inflight_bytes_max",
            "streams_max",
            "connections_max",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"node.{name} must be above 0, not {getattr(self, name)}")
        if not SEGMENT_BYTES_LEAST <= self.segment_bytes <= SEGMENT_BYTES_MOST:
            raise ValueError(
                f"node.segment_bytes must be {SEGMENT_BYTES_LEAST} to {SEGMENT_BYTES_MOST}, not "
                f"{self.segment_bytes}"
            )
        if not LEASE_MS_MIN <= self.lease_ms <= LEASE_MS_MAX:
            raise ValueError(
                f"node.lease_ms must be {LEASE_MS_MIN} to {LEASE_MS_MAX}, not {self.lease_ms}"
            )
        if self.tick_ms * 4 > self.lease_ms:
            raise ValueError("node.tick_ms must be at most a quarter of node.lease_ms")
        for name in ("disk_free_floor_bytes", "balance_after_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"node.{name} must be 0 or more")
        if not self.etcd_prefix.startswith("/") or not self.etcd_prefix.endswith("/"):
            raise ValueError("node.etcd_prefix must start and end with '/'")
        for name in (
            "listen",
            "advertise",
            "listen_external",
            "advertise_external",
            "health_listen",
            "metrics_listen",
        ):
            _require_address(name, getattr(self, name))
        if len(self.rack.encode()) > RACK_BYTES_MAX or not self.rack.isprintable():
            raise ValueError(
                f"node.rack must be at most {RACK_BYTES_MAX} bytes, all of them printable"
            )
        _require_reachable(self.listen, self.advertise)
        _require_reachable(self.listen_external, self.advertise_external, suffix="_external")
        self._require_external()
        given = [bool(value) for value in (self.tls_ca, self.tls_certificate, self.tls_key)]
        if any(given) and not all(given):
            raise ValueError("node.tls_ca, node.tls_certificate, node.tls_key: all three or none")
        for name in ("health_tls", "metrics_tls"):
            if getattr(self, name) != "off" and not all(given):
                raise ValueError(
                    f"node.{name} is {getattr(self, name)}, and there is no certificate to show: "
                    "give node.tls_ca, node.tls_certificate and node.tls_key"
                )
        if bool(self.etcd_tls_certificate) != bool(self.etcd_tls_key):
            raise ValueError("node.etcd_tls_certificate and node.etcd_tls_key: both or none")

    def _require_external(self) -> None:
        if self.advertise_external and not self.listen_external:
            raise ValueError(
                "node.advertise_external is told to those who come in at node.listen_external: "
                "give that, too"
            )
        if self.listen_external and not split_address(self.listen_external)[1]:
            raise ValueError("node.listen_external must name a port: others are told of it")

    @property
    def external(self) -> tuple[str, int] | None:
        """What callers from outside connect to; None where they cannot."""
        if not self.listen_external:
            return None
        return split_address(self.advertise_external or self.listen_external)

    @property
    def tls(self) -> bool:
        """Every connection of this process is mTLS."""
        return bool(self.tls_ca)


def split_address(address: str) -> tuple[str, int]:
    """host:port or [v6]:port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not is_number(port) or int(port) > 65_535:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _require_address(name: str, address: str) -> None:
    if not address:
        return
    try:
        split_address(address)
    except ValueError as error:
        raise ValueError(f"node.{name}: {error}") from None


def _require_reachable(listen: str, advertise: str, *, suffix: str = "") -> None:
    """What others are told to connect to must be an address of one machine."""
    if advertise and split_address(advertise)[0] in WILDCARDS:
        raise ValueError(
            f"node.advertise{suffix}: nobody can connect to {advertise}; give the name or address "
            "at which others reach this process"
        )
    if listen and not advertise and split_address(listen)[0] in WILDCARDS:
        raise ValueError(
            f"node.listen{suffix} is {listen}, every address of this machine; give "
            f"node.advertise{suffix}, too: the one that others connect to"
        )

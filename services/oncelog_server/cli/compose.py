"""The composition of roles: which real parts a process is made of.

`serve` is one process of a real cluster. `InProcessCluster` is a whole cluster on one event loop,
over an etcd in memory, for `oncelog.testing`; its journals, drivers and gRPC are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oncelog_server.cli.settings import ServeSettings
from oncelog_server.cli.trust import Trust, files_of
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.role import CoordinatorRole
from oncelog_server.core.ids import TopicId
from oncelog_server.core.ports import AccessStore, Clock, Reporter
from oncelog_server.core.role import Role
from oncelog_server.core.roles import PORTS, ROLES
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.role import OffsetManagerRole
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.role import PartitionLeaderRole
from oncelog_server.runtime import open_files
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.clock import RealClock
from oncelog_server.runtime.cluster_recovery import accounts
from oncelog_server.runtime.collector import calm_collector
from oncelog_server.runtime.config import ConfigError, Settings, Value
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.endpoints import EtcdTls
from oncelog_server.runtime.etcd.memory import MemoryEtcd, MemoryEtcdServer
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.failpoint_actions import VARIABLE, arm_from_environment
from oncelog_server.runtime.failpoint_ports import with_failpoints
from oncelog_server.runtime.node import ClusterHandler, Node
from oncelog_server.runtime.node_config import MIB, NodeConfig, split_address
from oncelog_server.runtime.observe.logs import Log
from oncelog_server.runtime.observe.metrics import Metrics
from oncelog_server.runtime.outside import NodeLimits, Outside
from oncelog_server.runtime.rpc.access_service import AccessService
from oncelog_server.runtime.rpc.cluster_service import (
    BalanceLeaders,
    ClusterService,
    ElectUncleanly,
    Reassign,
)
from oncelog_server.runtime.rpc.external import External
from oncelog_server.runtime.rpc.health import Health, HealthServer
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelog_server.runtime.rpc.peers import GrpcPeers
from oncelog_server.runtime.rpc.server import RpcServer
from oncelog_server.runtime.rpc.tls import Asked, TlsSource
from oncelog_server.runtime.storage.disk import RealDisk
from oncelogpb.errors import Unavailable

# An in-process cluster keeps its journals small: it lives for one test.
TESTING_SEGMENT_BYTES: Final = 4 * MIB
READY_TIMEOUT_SECONDS: Final = 30.0
READY_POLL_SECONDS: Final = 0.01
# How often a process that starts asks whether its logs are open.
OPENED_POLL_SECONDS: Final = 0.1
# And so many times what the last look took.
OPENED_REST: Final = 50
# Between two attempts to start with an etcd that does not answer.
ETCD_RETRY_SECONDS: Final = 0.5

ROLE_CLASSES: Final[Mapping[str, Callable[[Settings], Role[Any]]]] = {
    "coordinator": lambda settings: CoordinatorRole(settings.of(CoordinatorConfig)),
    "partition_leader": lambda settings: PartitionLeaderRole(settings.of(PartitionLeaderConfig)),
    "offset_manager": lambda settings: OffsetManagerRole(settings.of(OffsetManagerConfig)),
}


class GrpcListener:
    """The node's Listener over gRPC."""

    def __init__(
        self,
        listen: str,
        reporter: Reporter,
        *,
        advertise: str = "",
        external: External | None = None,
        tls: TlsSource | None = None,
        limits: RpcLimits | None = None,
        health: Health | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._listen = listen
        self._external = external
        self._advertise = advertise
        self._reporter = reporter
        self._tls = tls
        self._limits = limits
        self._health = health
        self._guard = guard
        self._server: RpcServer | None = None

    async def start(self, handlers: Mapping[str, object]) -> tuple[str, int]:
        self._server = RpcServer(
            handlers,
            listen=self._listen,
            reporter=self._reporter,
            tls=self._tls,
            limits=self._limits,
            health=self._health,
            guard=self._guard,
            external=self._external,
        )
        port = await self._server.start()
        if self._advertise:
            return split_address(self._advertise)
        return split_address(self._listen)[0], port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def held(self) -> dict[str, int]:
        """What is held for callers now, by the names of its metrics."""
        assert self._server is not None, "started"
        return self._server.held()


def make_roles(names: Iterable[str], settings: Settings) -> list[Role[Any]]:
    """The roles of a process, by name."""
    return [ROLE_CLASSES[name](settings) for name in names]


async def offload(work: Callable[[], None]) -> None:
    """Off the loop, in the default thread pool."""
    await asyncio.to_thread(work)


# ----------------------------------------------------------------------------------- a real process


async def serve(settings: ServeSettings) -> None:
    """Runs one process until SIGTERM or SIGINT. Raises OSError (disk, port), Unavailable
    (etcd), ConfigError."""
    calm_collector()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    config = settings.node
    log = Log(level=config.log_level, form=config.log_format)
    log.adopt_libraries()
    if arm_from_environment():
        log.line(f"failpoints are armed ({VARIABLE}): for tests only", level="warning")
    metrics = Metrics()
    trust = Trust(settings, RealClock(), metrics.reporter("node", log))
    etcd = _etcd(config, trust.etcd_tls)
    peers = GrpcPeers(trust.certificates)
    health = Health()
    probes = None
    if config.health_listen:
        probes = HealthServer(health, config.health_listen, trust.credentials(config.health_tls))

    def make_node() -> Node:
        return _real_node(settings, log, metrics, etcd, peers, health, trust)

    def tell() -> None:
        with contextlib.closing(RealDisk(config.data_dir)) as disk:
            accounts.tell(disk, trust.guard, metrics.reporter("node", log))

    try:
        trust.say(log, is_loopback=_is_loopback(_listen_address(config, ())))
        _serve_metrics(config, metrics, log)
        trust.renew(peers=peers, etcd=etcd, metrics=metrics)
        trust.start()
        if probes is not None:
            log.line("health checks", port=await probes.start(), tls=config.health_tls)
        await _run(make_node, health, stopped, log, tell)
    except EtcdRefused:
        raise
    except EtcdUnavailable as error:
        raise Unavailable(f"etcd: {error}") from error
    finally:
        await peers.close()
        await etcd.close()
        metrics.close()
        if probes is not None:
            await probes.stop()
        await trust.stop()
        log.line("stopped")


def _serve_metrics(config: NodeConfig, metrics: Metrics, log: Log) -> None:
    if not config.metrics_listen:
        return
    host, port = split_address(config.metrics_listen)
    files = None if config.metrics_tls == "off" else files_of(config)
    asked = Asked(config.metrics_tls) if files else Asked.NOTHING
    try:
        port = metrics.serve(host, port, files, asked)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"node.metrics_listen={config.metrics_listen}: {reason}") from error
    scheme = "http" if files is None else "https"
    log.line("metrics", address=f"{scheme}://{host}:{port}/metrics", tls=config.metrics_tls)


async def _run(
    make_node: Callable[[], Node],
    health: Health,
    stopped: asyncio.Event,
    log: Log,
    tell: Callable[[], None],
) -> None:
    """`tell` what was left to be told, once the directory is ours."""
    waiting = asyncio.create_task(stopped.wait())
    starting = asyncio.create_task(_start(make_node, log))
    await asyncio.wait([waiting, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    node = await starting
    failing = asyncio.create_task(node.failed())
    opening = asyncio.create_task(_say_ready(node, health))
    try:
        tell()
        await asyncio.wait([waiting, failing], return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            await failing
        log.line("stopping")
    finally:
        for task in (waiting, failing, opening):
            task.cancel()
        await health.drain()
        await node.stop()


async def _start(make_node: Callable[[], Node], log: Log) -> Node:
    """Tries again while etcd does not answer, however long that is: whoever would start this
    process again could do no better, and waits longer and longer in between."""
    said = ""
    while True:
        node = make_node()
        try:
            await node.start()
            return node
        except EtcdRefused:
            # Waiting does not help: somebody has to look (`oncelog cluster recover`).
            await node.stop()
            raise
        except EtcdUnavailable as error:
            await node.stop()
            if str(error) != said:
                said = str(error)
                log.line("waiting for etcd", level="warning", error=said)
        except BaseException:
            await node.stop()
            raise
        await asyncio.sleep(ETCD_RETRY_SECONDS)


async def _say_ready(node: Node, health: Health) -> None:
    """Once every log is open. One that is damaged keeps the process from it, and so keeps a rolling
    update from going on to the next."""
    while True:
        began = time.monotonic()
        if node.has_opened():
            break
        # It asks each of what may be thousands.
        await asyncio.sleep(max(OPENED_POLL_SECONDS, OPENED_REST * (time.monotonic() - began)))
    await health.ready()


def _real_node(
    settings: ServeSettings,
    log: Log,
    metrics: Metrics,
    etcd: EtcdClient,
    peers: GrpcPeers,
    health: Health,
    trust: Trust,
) -> Node:
    config = settings.node
    reporter = metrics.reporter("node", log)
    files = open_files.raise_limit()
    limits = rpc_limits_of(config, connections_max=_connections_max(config, files, log))
    external = External(config.listen_external) if config.listen_external else None
    listener = GrpcListener(
        _listen_address(config, settings.roles),
        reporter,
        advertise=config.advertise,
        external=external,
        tls=trust.certificates,
        limits=limits,
        health=health,
        guard=trust.guard,
    )
    outside = Outside(
        disk=RealDisk(config.data_dir, descriptors_max=open_files.for_disk(files)),
        etcd=etcd,
        clock=RealClock(),
        peers=peers,
        streams=peers,
        listener=listener,
        reporter=reporter,
        role_reporter=lambda role: metrics.reporter(role, log),
        random_bytes=os.urandom,
        offload=offload,
        renewals=etcd.renewals,
        guard=trust.guard,
    )
    serve_cluster = cluster_handler(settings.loaded.values, outside.clock, trust.guard)

    def with_names(
        view: ClusterView,
        elect_uncleanly: ElectUncleanly,
        balance_leaders: BalanceLeaders,
        reassign: Reassign,
        store: AccessStore,
    ) -> object:
        metrics.name_topics(functools.partial(_topic_name, view))
        if external is not None:
            external.learn(view.nodes)
        return serve_cluster(view, elect_uncleanly, balance_leaders, reassign, store)

    return Node(
        make_roles(settings.roles, settings.loaded),
        with_failpoints(outside),
        limits_of(config),
        with_names,
    )


def _topic_name(view: ClusterView, topic_id: bytes) -> str | None:
    topic = view.topic_by_id(TopicId(topic_id))
    return None if topic is None else topic.name


def limits_of(config: NodeConfig) -> NodeLimits:
    """What the node needs of its configuration."""
    return NodeLimits(
        lease_ms=config.lease_ms,
        min_insync_replicas=config.min_insync_replicas,
        control_replication_factor=config.control_replication_factor,
        replica_lag_ms=config.replica_lag_ms,
        balance_after_ms=config.balance_after_ms,
        hand_over_max_ms=config.hand_over_max_ms,
        disk_free_floor_bytes=config.disk_free_floor_bytes,
        segment_bytes=config.segment_bytes,
        snapshot_every_bytes=config.snapshot_every_bytes,
        tick_ms=config.tick_ms,
        tail_bytes_max=config.tail_bytes_max,
        commit_ahead_bytes=config.commit_ahead_bytes,
        control_journal_bytes_max=config.control_journal_bytes_max,
        compaction_map_bytes=config.compaction_map_bytes,
        rack=config.rack,
        external=config.external,
    )


def rpc_limits_of(config: NodeConfig, *, connections_max: int) -> RpcLimits:
    """What its listener needs of it."""
    return RpcLimits(
        inflight_bytes_max=config.inflight_bytes_max,
        streams_max=config.streams_max,
        connections_max=connections_max,
    )


def _connections_max(config: NodeConfig, files: int, log: Log) -> int:
    connections_max = open_files.for_connections(config.connections_max, files)
    if connections_max < config.connections_max:
        log.line(
            "few files may be open (ulimit -n): less connections are taken",
            level="warning",
            open_files_max=files,
            connections_max=connections_max,
        )
    return connections_max


def cluster_handler(
    values: Sequence[Value], clock: Clock, guard: Guard | None = None
) -> ClusterHandler:
    """Makes the Cluster service of a process with these settings, whose callers the guard asks."""

    def make(
        view: ClusterView,
        elect_uncleanly: ElectUncleanly,
        balance_leaders: BalanceLeaders,
        reassign: Reassign,
        store: AccessStore,
    ) -> object:
        access = AccessService(store, guard)
        return ClusterService(
            view, lambda: values, elect_uncleanly, balance_leaders, reassign, access, clock
        )

    return make


def _listen_address(config: NodeConfig, roles: Sequence[str]) -> str:
    port = PORTS[roles[0]] if roles else 0
    return config.listen or f"127.0.0.1:{port}"


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address)
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _etcd(config: NodeConfig, tls: EtcdTls | None) -> EtcdClient:
    if not config.etcd_endpoints:
        raise ConfigError(
            "no etcd: give --etcd HOST:PORT (repeatable), or start all of it with `oncelog up`"
        )
    try:
        return EtcdClient(config.etcd_endpoints, prefix=config.etcd_prefix, tls=tls)
    except ValueError as error:
        raise ConfigError(f"node.etcd_endpoints: {error}") from None


# ---------------------------------------------------------------------------- a cluster for tests


class InProcessCluster:
    """Three nodes, one per role, on the running loop. Loopback only, free ports; no TLS unless the
    settings name its files, which are the same for all three."""

    def __init__(self, data_dir: Path, settings: ServeSettings, log: Log) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._log = log
        self._server = MemoryEtcdServer()
        self._nodes: dict[str, Node] = {}
        self._peers: dict[str, GrpcPeers] = {}
        self._trusts: dict[str, Trust] = {}
        self._listeners: dict[str, GrpcListener] = {}
        self._ports = dict.fromkeys(ROLES, 0)

    @classmethod
    async def start(cls, data_dir: Path | str, *, pairs: Sequence[str] = ()) -> InProcessCluster:
        """Ready when it returns. `pairs` are settings, section.key=value."""
        defaults = (
            f"node.segment_bytes={TESTING_SEGMENT_BYTES}",
            "node.disk_free_floor_bytes=0",
            "node.log_level=error",
        )
        settings = ServeSettings.make(ROLES, pairs=[*defaults, *pairs])
        log = Log(level=settings.node.log_level, form=settings.node.log_format)
        cluster = cls(Path(data_dir), settings, log)
        try:
            await asyncio.gather(*(cluster._start(role) for role in ROLES))
            await cluster._ready()
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    @property
    def bootstrap(self) -> str:
        """host:port of every process, joined by commas."""
        return ",".join(f"127.0.0.1:{self._ports[role]}" for role in ROLES)

    async def restart(self, role: str) -> None:
        """Stops and starts the process of a role, on the same port and data."""
        await self._stop(role)
        await self._start(role)
        await self._ready()

    def is_settled(self) -> bool:
        """Every partition has a leader that answers."""
        return all(node.is_settled() for node in self._nodes.values())

    def held(self, role: str) -> dict[str, int]:
        """What the process of a role holds for its callers now, by the names of its metrics."""
        return self._listeners[role].held()

    def led_machines(self) -> list[Any]:
        """The machines that answer now: tests call their check()."""
        return [machine for node in self._nodes.values() for machine in node.led_machines()]

    async def stop(self) -> None:
        for role in reversed(ROLES):
            await self._stop(role)
        self._server.close()

    async def _start(self, role: str) -> None:
        metrics = Metrics()
        reporter = metrics.reporter("node", self._log)
        config = self._settings.node
        trust = self._trusts[role] = Trust(self._settings, RealClock(), reporter)
        peers = self._peers[role] = GrpcPeers(trust.certificates)
        trust.renew(peers=peers)
        trust.start()
        limits = rpc_limits_of(config, connections_max=config.connections_max)
        listener = GrpcListener(
            f"127.0.0.1:{self._ports[role]}",
            reporter,
            tls=trust.certificates,
            limits=limits,
            guard=trust.guard,
        )
        self._listeners[role] = listener
        outside = Outside(
            disk=RealDisk(self._data_dir / role),
            etcd=MemoryEtcd(self._server),
            clock=RealClock(),
            peers=peers,
            streams=peers,
            listener=listener,
            reporter=reporter,
            role_reporter=lambda name: metrics.reporter(name, self._log),
            random_bytes=os.urandom,
            offload=offload,
            guard=trust.guard,
        )
        node = Node(
            make_roles([role], self._settings.loaded),
            with_failpoints(outside),
            limits_of(self._settings.node),
            cluster_handler(self._settings.loaded.values, outside.clock, trust.guard),
        )
        self._nodes[role] = node
        await node.start()
        self._ports[role] = node.port

    async def _stop(self, role: str) -> None:
        node, peers = self._nodes.pop(role, None), self._peers.pop(role, None)
        if node is not None:
            await node.stop()
        if peers is not None:
            await peers.close()
        trust = self._trusts.pop(role, None)
        if trust is not None:
            await trust.stop()

    async def _ready(self) -> None:
        """Every control partition has a leader that answers."""
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            while not self.is_settled():  # noqa: ASYNC110
                await asyncio.sleep(READY_POLL_SECONDS)

"""`oncelog up`: a whole cluster on this machine, for development.

    etcd ─► coordinator, partition_leader, offset_manager ─► ready: every group has a leader
            (with --nodes N, N of each: `layout`)
    one of them dies: it is started again (`supervision`)
    Ctrl-C: the services in reverse order, role by role, then etcd

A real etcd and real services, each a process with its data below one folder. A second `up` over the
folder finds the same data at the same addresses. It listens on loopback, without TLS where the
settings name no certificate, and says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog_server.cli import interrupts, readiness
from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.folder import Folder
from oncelog_server.cli.layout import NODE_STEP, NODES_MAX, Layout, Process, choose
from oncelog_server.cli.output import error_console, print_json
from oncelog_server.cli.processes import Service
from oncelog_server.cli.profiles import FILE_VARIABLE
from oncelog_server.cli.running import DEFAULT_FOLDER
from oncelog_server.cli.session import json_option, open_protocol
from oncelog_server.cli.supervision import Child, EtcdChild, ServiceChild, Watch
from oncelog_server.core.roles import PORTS
from oncelog_server.runtime.loopback_ports import HOST

# Its help needs nothing of them.
if TYPE_CHECKING:
    from oncelog.options import Tls
    from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd
    from oncelog_server.runtime.node_config import NodeConfig

# For each node: they share the machine's cores.
READY_TIMEOUT_SECONDS: Final = 60.0
LOOK_EVERY_SECONDS: Final = 0.2
# More addresses than so many are not repeated in the line that says where clients begin.
ADDRESSES_SHOWN_MAX: Final = 3

# Of each control partition, where so many nodes are started.
CONTROL_REPLICAS: Final = 3


@click.command(
    epilog=examples(
        "oncelog up",
        "oncelog up --nodes 3",
        "oncelog up --data /tmp/play --free-ports",
        "oncelog up --one-process --set node.disk_free_floor_bytes=0",
        "oncelog up --metrics-ports-from 9100",
    )
)
@click.option(
    "--data",
    "folder_path",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder of everything that it keeps.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    help=f"Processes of each role, 1 to {NODES_MAX}. Default: as many as in the last run, else 1.",
)
@click.option(
    "--ports-from",
    type=click.IntRange(1, 65_533),
    help=f"First of three ports; those of node 2 are {NODE_STEP} higher, and so on. Default: those "
    f"of the last run, else {PORTS['coordinator']}.",
)
@click.option("--free-ports", is_flag=True, help="Take free ports in a new folder, and keep them.")
@click.option("--one-process", is_flag=True, help="All services of a node in one process.")
@click.option(
    "--set", "pairs", metavar="SECTION.KEY=VALUE", multiple=True, help="A setting of the services."
)
@click.option(
    "--metrics-ports-from",
    type=click.IntRange(1, 65_533),
    help="First of the ports where each process shows its metrics. Default: none does.",
)
@click.option("--allow-old-etcd", is_flag=True, help="Also an etcd that can lose data when killed.")
@click.option("--recover", is_flag=True, help="First rebuild a lost or restored etcd.")
@click.option("--accept-loss", is_flag=True, help="With --recover: with replicas in doubt, too.")
@json_option
def up(
    folder_path: Path,
    nodes: int | None,
    ports_from: int | None,
    free_ports: bool,
    one_process: bool,
    pairs: tuple[str, ...],
    metrics_ports_from: int | None,
    allow_old_etcd: bool,
    recover: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Run etcd and the three services on this machine, until Ctrl-C.

    Needs an etcd (3.6.9 or later) on PATH, or builds one, once. Data stays: `oncelog up` again goes
    on where it was. Other commands in the same directory find it by themselves. A process that dies
    is started again, unless it dies too often.

    With --nodes 3 there are three of each service, each with its own data. Started again with
    fewer, the data of the others stays, and their partitions are away until they run again.
    """
    if ports_from and free_ports:
        raise click.UsageError("--ports-from and --free-ports exclude each other.")
    if accept_loss and not recover:
        raise click.UsageError("--accept-loss belongs to --recover.")
    processes = (1 if one_process else len(PORTS)) * (nodes or 1)
    node = _require_shareable(pairs, processes)
    say = _Said(as_json)
    with ExitStack() as stack:
        stop = stack.enter_context(interrupts.stop_signals())
        folder = Folder.take(folder_path)
        stack.callback(folder.close)
        layout = choose(
            folder.layout(),
            str(folder.path),
            nodes=nodes,
            ports_from=ports_from,
            free=free_ports,
            one_process=one_process,
        )
        if len(layout.started()) > processes:
            # As many as in the last run.
            _require_shareable(pairs, len(layout.started()))
        folder.keep_layout(layout)
        metrics = metrics_ports(metrics_ports_from, [process.name for process in layout.started()])
        # No service listens yet: etcd would take their ports for free ones.
        promised = {process.port for process in layout.known()}.union(metrics.values())
        etcd = _start_etcd(folder, stack, say, promised=promised, allow_old=allow_old_etcd)
        if recover:
            _recover(folder, layout, etcd, say, accept_loss=accept_loss)
        services = [
            _service(
                folder,
                process,
                etcd,
                [*copies_setting(layout), *metrics_setting(metrics.get(process.name)), *pairs],
            )
            for process in layout.started()
        ]
        stack.callback(_stop_all, services, len(layout.processes), say)
        for service in services:
            service.start()
        away = [folder.node_id_of(process.name) for process in layout.away()]
        if not _wait_ready(services, etcd, say, stop, tls_of(node), list(filter(None, away))):
            return
        say.away(layout)
        bootstrap = ",".join(service.address for service in services)
        folder.announce(bootstrap)
        say.ready(bootstrap, metrics, node)
        watch = Watch(_children(services, etcd), say.died)
        while not stop():
            watch.look()
            time.sleep(LOOK_EVERY_SECONDS)


# ---------------------------------------------------------------------------------------- start


def _require_shareable(pairs: Sequence[str], processes: int) -> NodeConfig:
    """What is the same for all processes. Raises UsageError."""
    with interrupts.importing():
        from oncelog_server.cli.shared_settings import require_shareable
    # As the processes will read them. A file that is not there says nothing, as to all commands;
    # `serve` alone, which would run with other settings than was meant, insists on it.
    file = os.environ.get(FILE_VARIABLE)
    if not file or not Path(file).exists():
        os.environ.pop(FILE_VARIABLE, None)
        file = None
    return require_shareable(pairs, processes=processes, file=file, environment=os.environ)


def metrics_ports(first: int | None, processes: Sequence[str]) -> dict[str, int]:
    """One each, in their order; none where there is no first."""
    if first is None:
        return {}
    return {name: first + step for step, name in enumerate(processes)}


def metrics_setting(port: int | None) -> list[str]:
    return [] if port is None else [f"node.metrics_listen={HOST}:{port}"]


def copies_setting(layout: Layout) -> list[str]:
    """What a new cluster begins with: with three nodes, no loss of one of them loses anything."""
    if layout.nodes < CONTROL_REPLICAS:
        return []
    return [f"node.control_replication_factor={CONTROL_REPLICAS}"]


def _start_etcd(
    folder: Folder, stack: ExitStack, say: _Said, *, promised: Collection[int], allow_old: bool
) -> EmbeddedEtcd:
    with interrupts.importing():
        from oncelog_server.runtime.etcd.embedded import (
            EmbeddedEtcd,
            EtcdFailed,
            EtcdNotFound,
            find_or_build,
        )
    try:
        binary = find_or_build(say.progress, allow_old=allow_old)
        etcd = EmbeddedEtcd(folder.path / "etcd", binary, promised=promised)
        stack.callback(etcd.stop)
        etcd.start()
    except (EtcdNotFound, EtcdFailed) as error:
        raise CommandFailed(str(error)) from error
    say.started("etcd", etcd.endpoint, etcd.log_path)
    return etcd


def _recover(
    folder: Folder, layout: Layout, etcd: EmbeddedEtcd, say: _Said, *, accept_loss: bool
) -> None:
    """Raises CommandFailed."""
    # Imported here: other runs need nothing of it.
    from oncelog_server.cli import recovering
    from oncelog_server.runtime.cluster_recovery.perform import Loss, Replace
    from oncelog_server.runtime.etcd.client import EtcdClient

    recovered = recovering.run(
        [path for process in layout.known() if (path := folder.data_of(process.name)).is_dir()],
        lambda: EtcdClient([etcd.endpoint]),
        Replace.WHAT_IS_REFUSED,
        Loss.ACCEPTED if accept_loss else Loss.REFUSED,
    )
    say.recovered(recovered.surveyed.cluster.recovery, [d.why for d in recovered.plan.doubts])


def _service(folder: Folder, process: Process, etcd: EmbeddedEtcd, pairs: Sequence[str]) -> Service:
    address = f"{HOST}:{process.port}"
    arguments = [
        "serve",
        *process.roles,
        f"--data={folder.data_of(process.name)}",
        f"--listen={address}",
        f"--etcd={etcd.endpoint}",
        *(f"--set={pair}" for pair in pairs),
    ]
    return Service(process.name, arguments, address=address, log=folder.log_of(process.name))


def _wait_ready(
    services: list[Service],
    etcd: EmbeddedEtcd,
    say: _Said,
    stop: Callable[[], bool],
    tls: Tls | None,
    away: Sequence[str],
) -> bool:
    """One line per service as it becomes ready. False where it was stopped meanwhile."""
    patience_seconds = READY_TIMEOUT_SECONDS * max(1, len(services) / len(PORTS))
    give_up = time.monotonic() + patience_seconds
    waiting = list(services)
    bootstrap = ",".join(service.address for service in services)
    with open_protocol(bootstrap, timeout_ms=readiness.METADATA_TIMEOUT_MS, tls=tls) as protocol:
        while not stop():
            _require_alive(services, etcd)
            seen = readiness.look(protocol, away)
            for service in [service for service in waiting if service.address in seen.addresses]:
                say.started(service.name, service.address, service.log)
                waiting.remove(service)
            if not waiting and not seen.missing:
                return True
            if time.monotonic() > give_up:
                raise CommandFailed(_not_ready(waiting or services, seen.missing, patience_seconds))
            time.sleep(LOOK_EVERY_SECONDS)
    return False


def tls_of(node: NodeConfig) -> Tls | None:
    """How the processes are reached: with the certificate that is theirs, where they have one."""
    if not node.tls:
        return None
    # Imported here: most runs need nothing of it.
    from oncelog.options import Tls

    return Tls(ca_file=node.tls_ca, certificate_file=node.tls_certificate, key_file=node.tls_key)


# ----------------------------------------------------------------------------------------- watch


def _children(services: list[Service], etcd: EmbeddedEtcd) -> list[Child]:
    return [EtcdChild(etcd), *map(ServiceChild, services)]


def _require_alive(services: list[Service], etcd: EmbeddedEtcd) -> None:
    """While it starts: who dies then dies of a setting, mostly. Raises CommandFailed with the last
    words of who died."""
    for child in _children(services, etcd):
        how = child.end()
        if how is not None:
            raise CommandFailed(f"{child.name} ended by itself ({how}). {child.last_words()}")


def _not_ready(waiting: list[Service], missing: str, patience_seconds: float) -> str:
    names = ", ".join(service.name for service in waiting)
    return (
        f"not ready within {patience_seconds:.0f} s ({names}): {missing or 'no sign of life'}."
        f" The end of {waiting[0].log}:\n{waiting[0].tail()}"
    )


def _stop_all(services: list[Service], of_a_node: int, say: _Said) -> None:
    """Mirror of the start: the processes of one role at once, for each takes a second."""
    for role in reversed(range(of_a_node)):
        together = services[role::of_a_node]
        for service in together:
            service.ask_to_stop()
        for service in reversed(together):
            clean = service.stop()
            if service.pid is not None:
                say.stopped(service.name, clean=clean)


class _Said:
    """One line per service, for people or as JSON. Nobody has to read it: where stdout is closed,
    the services are still watched, and stopped in order."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def progress(self, text: str) -> None:
        with suppress(OSError):
            error_console().print(text, markup=False)

    def started(self, name: str, address: str, log: Path) -> None:
        self._say(
            f"{name:<19} {address:<21} log: {log}",
            {"service": name, "address": address, "log": str(log)},
        )

    def recovered(self, recovery: int, doubts: Sequence[str]) -> None:
        self._say(
            "\n".join([f"etcd is of recovery {recovery} of this cluster", *doubts]),
            {"recovery": recovery, "doubts": list(doubts)},
        )

    def ready(self, bootstrap: str, metrics: Mapping[str, int], node: NodeConfig) -> None:
        """`metrics`: the port of each process that shows any."""
        addresses = bootstrap.split(",")
        where = bootstrap
        if len(addresses) > ADDRESSES_SHOWN_MAX:
            where = f"{addresses[0]}, or any address above"
        scheme = "http" if node.metrics_tls == "off" else "https"
        shown = {name: f"{scheme}://{HOST}:{port}/metrics" for name, port in metrics.items()}
        for name, address in shown.items():
            self._say(f"{name:<19} {address}", {"service": name, "metrics": address})
        tls = "with TLS: name certificates, or a profile" if node.tls else "without TLS"
        self._say(
            f"ready: {where} (this machine only, {tls}). Ctrl-C stops it.",
            {"ready": True, "bootstrap": bootstrap, "tls": node.tls},
        )

    def away(self, layout: Layout) -> None:
        """Says nothing where all run that ever did."""
        names = [process.name for process in layout.away()]
        if names:
            every = layout.nodes + len({process.node for process in layout.away()})
            text = (
                f"not started: {', '.join(names)}. Their data stays, and partitions that have no "
                f"other replica are away until `oncelog up --nodes {every}`"
            )
            if layout.nodes == 1 and every >= CONTROL_REPLICAS:
                text += "; those with three replicas wait for two: `oncelog up --nodes 2` at least"
            self._say(text, {"away": names, "nodes": every})

    def died(self, name: str, how: str, restarts: int, pause_seconds: float) -> None:
        when = f"in {pause_seconds:.0f} s" if pause_seconds else "now"
        self._say(
            f"{name:<19} ended by itself ({how}); it is started again {when}, for the {restarts}. "
            "time in a minute",
            {"died": name, "how": how, "restarts": restarts, "pause_s": pause_seconds},
        )

    def stopped(self, name: str, *, clean: bool) -> None:
        self._say(
            f"{name:<19} {'stopped' if clean else 'killed: it did not end in time'}",
            {"stopped": name, "clean": clean},
        )

    def _say(self, text: str, value: dict[str, Any]) -> None:
        with suppress(OSError):
            if self._as_json:
                print_json(value)
            else:
                click.echo(text)

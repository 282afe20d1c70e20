"""`oncelog doctor`: asks, and puts the findings in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelog_server.cli import interrupts
from oncelog_server.cli.connection import Connection, connection_options
from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import REFUSED
from oncelog_server.cli.running import DEFAULT_FOLDER
from oncelog_server.cli.session import json_option

if TYPE_CHECKING:
    from oncelog_server.cli.doctor.findings import Finding
    from oncelog_server.cli.doctor.processes import Processes

# A transaction that is open for longer is told.
OLD_TRANSACTION_S = 900


@click.command(
    epilog=examples(
        "oncelog doctor",
        "oncelog doctor --profile live --json",
        "oncelog doctor --data /var/lib/oncelog --etcd etcd-0:2379",
    )
)
@click.option(
    "--data",
    "directories",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A data directory on this machine. Repeatable. Default: those of the processes that are "
    "found here.",
)
@click.option("--etcd", metavar="HOST:PORT", multiple=True, help="Default: as the processes say.")
@click.option("--etcd-prefix", help="Before every key. Default: as the processes say.")
@click.option("--etcd-ca", metavar="FILE", help="PEM file: who signs etcd's certificate.")
@click.option("--etcd-cert", metavar="FILE", help="PEM file: what etcd is shown.")
@click.option("--etcd-key", metavar="FILE", help="PEM file: its key.")
@click.option(
    "--old-transaction",
    "old_transaction_s",
    type=click.IntRange(1),
    metavar="SECONDS",
    default=OLD_TRANSACTION_S,
    show_default=True,
    help="Tell transactions that are open for so long.",
)
@json_option
@connection_options
def doctor(
    connection: Connection,
    directories: tuple[Path, ...],
    etcd: tuple[str, ...],
    etcd_prefix: str | None,
    etcd_ca: str | None,
    etcd_cert: str | None,
    etcd_key: str | None,
    old_transaction_s: int,
    as_json: bool,
) -> None:
    """Look for what is wrong, here and with a cluster, and say what to do.

    It looks at addresses, certificates, versions, clocks, etcd, leadership, transactions, disks and
    open files, and changes nothing. What cannot be seen from here is told as SKIP. Exits with 1
    where anything FAILs.
    """
    # Imported here: its help needs nothing of it.
    with interrupts.importing():
        from oncelog_server.cli.doctor import findings

    place = _Given(etcd, etcd_prefix, etcd_ca, etcd_cert, etcd_key)
    found = list(_examine(connection, list(directories), place, old_transaction_s))
    findings.show(found, as_json=as_json)
    if not findings.is_well(found):
        raise click.exceptions.Exit(REFUSED)


class _Given:
    """What the command line says of etcd."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        prefix: str | None,
        ca: str | None,
        certificate: str | None,
        key: str | None,
    ) -> None:
        self.endpoints = endpoints
        self.prefix = prefix
        self.ca = ca
        self.certificate = certificate
        self.key = key


def _examine(
    chosen: Connection, directories: list[Path], given: _Given, old_transaction_s: int
) -> Iterator[Finding]:
    from oncelog_server.cli.direct import Direct
    from oncelog_server.cli.doctor import certificates, machine
    from oncelog_server.cli.doctor.findings import fail
    from oncelog_server.cli.doctor.processes import Processes

    if chosen.uses_tls:
        yield from certificates.own(chosen)
    try:
        direct = Direct(chosen)
    except OSError as error:
        yield fail(certificates.AREA, f"{error.filename}: {error.strerror}", "correct the path")
        return
    with direct:
        processes = Processes(chosen, direct)
        yield from processes.find()
        if processes.answers:
            yield from processes.look(old_transaction_s=old_transaction_s)
            if chosen.uses_tls:
                yield from certificates.shown_by(processes.answers, chosen)
        configs = {address: processes.config_of(address) for address in processes.answering()}
    yield from _etcd(processes, configs, given)
    yield from _disks(processes, configs, directories)
    yield machine.open_files()
    if not processes.answers:
        yield machine.etcd_for_up()


def _etcd(
    processes: Processes, configs: Mapping[str, Mapping[str, str] | None], given: _Given
) -> Iterator[Finding]:
    from oncelog_server.cli.doctor import etcd
    from oncelog_server.runtime.etcd.client import DEFAULT_PREFIX

    told = next((config for config in configs.values() if config), {})
    endpoints = given.endpoints or tuple(
        one for one in told.get("node.etcd_endpoints", "").split(",") if one
    )
    if not endpoints:
        yield etcd.nowhere(
            "not looked at itself: the processes do not tell their settings to you"
            if configs
            else "not looked at: no process tells where it is"
        )
        return
    answers = list(processes.answers.values())
    yield from etcd.look(
        etcd.Place(
            endpoints,
            given.prefix or told.get("node.etcd_prefix") or DEFAULT_PREFIX,
            given.ca or told.get("node.etcd_tls_ca") or None,
            given.certificate or told.get("node.etcd_tls_certificate") or None,
            given.key or told.get("node.etcd_tls_key") or None,
        ),
        answers[0].metadata.cluster_id.hex() if answers else None,
    )


def _disks(
    processes: Processes,
    configs: Mapping[str, Mapping[str, str] | None],
    directories: list[Path],
) -> Iterator[Finding]:
    from oncelog_server.cli.doctor import machine
    from oncelog_server.cli.doctor.findings import skip

    found: dict[Path, tuple[int | None, str]] = dict.fromkeys(directories, (None, "data in"))
    for address, config in configs.items():
        local = _local_data(config, processes, address)
        if local is not None and config is not None:
            floor = int(config["node.disk_free_floor_bytes"])
            found[local] = (floor, f"{address}, data in")
    if not found and not configs and Path(DEFAULT_FOLDER).is_dir():
        found[Path(DEFAULT_FOLDER)] = (None, "the folder of `oncelog up`")
    for directory, (floor_bytes, whose) in found.items():
        yield from machine.disk(directory, floor_bytes=floor_bytes, whose=whose)
    if not found:
        yield skip(
            "disk",
            "no data directory is known here",
            "run it on the machines of the processes, or name one with --data",
        )


def _local_data(
    config: Mapping[str, str] | None, processes: Processes, address: str
) -> Path | None:
    """The data directory of a process of this machine: it holds that node's own name."""
    if config is None or address not in processes.nodes:
        return None
    directory = Path(config.get("node.data_dir", ""))
    try:
        node_id = (directory / "node_id").read_text()
    except OSError:
        return None
    return directory if node_id == processes.nodes[address].node_id else None

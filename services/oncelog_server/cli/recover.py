"""`oncelog cluster recover`: what is asked for; `recovering` does it."""

from __future__ import annotations

from pathlib import Path

import click

from oncelog_server.cli import interrupts
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_json
from oncelog_server.cli.session import json_option


@click.command(
    epilog=examples(
        "oncelog cluster recover --data /var/lib/oncelog --etcd etcd-0:2379 --dry-run",
        "oncelog cluster recover --data /var/lib/oncelog --etcd etcd-0:2379",
        "oncelog cluster recover --data a --data b --data c --etcd localhost:2379 --replace",
    )
)
@click.option(
    "--data",
    "paths",
    metavar="DIR",
    multiple=True,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A data directory, or a folder of `oncelog up`. Repeatable.",
)
@click.option(
    "--etcd", metavar="HOST:PORT", multiple=True, required=True, help="An endpoint. Repeatable."
)
@click.option("--etcd-prefix", help="Before every key. Default: as `oncelog serve`.")
@click.option("--etcd-ca", metavar="FILE", help="PEM file: who signs etcd's certificate.")
@click.option("--etcd-cert", metavar="FILE", help="PEM file: what etcd is shown.")
@click.option("--etcd-key", metavar="FILE", help="PEM file: its key.")
@click.option("--replace", is_flag=True, help="Remove what etcd holds under the prefix now.")
@click.option("--accept-loss", is_flag=True, help="Go on with replicas that may lack records.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing to etcd.")
@json_option
def recover(
    paths: tuple[Path, ...],
    etcd: tuple[str, ...],
    etcd_prefix: str | None,
    etcd_ca: str | None,
    etcd_cert: str | None,
    etcd_key: str | None,
    replace: bool,
    accept_loss: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Rebuild etcd's content from data directories, after etcd was wiped or restored.

    Stop all services first. Directories of several machines: run it on each of them, one after the
    other, with the same etcd; each run adds its replicas. Of several replicas of a partition, the
    one that has most leads, once enough of them were found that every acknowledged record is among
    them. Partitions begin a new epoch far above all old ones, so nothing that was acknowledged is
    lost and no transaction id repeats. Running it again after it failed is safe.
    """
    # Imported here: its help needs nothing of it.
    with interrupts.importing():
        from oncelog_server.cli import recovering
        from oncelog_server.runtime.cluster_recovery.perform import Loss, Replace
        from oncelog_server.runtime.etcd.client import DEFAULT_PREFIX, EtcdClient
        from oncelog_server.runtime.etcd.endpoints import EtcdTls, parse_endpoints

    try:
        tls = EtcdTls.from_files(ca=etcd_ca, cert=etcd_cert, key=etcd_key) if etcd_ca else None
        parse_endpoints(etcd, tls)
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    loss = Loss.SHOWN if dry_run else Loss.REFUSED
    recovered = recovering.run(
        recovering.expand(paths),
        lambda: EtcdClient(etcd, prefix=etcd_prefix or DEFAULT_PREFIX, tls=tls),
        Replace.EVERYTHING if replace else Replace.NOTHING,
        Loss.ACCEPTED if accept_loss else loss,
        dry_run=dry_run,
    )
    if as_json:
        print_json(recovering.described(recovered, dry_run=dry_run))
    else:
        recovering.show(recovered, dry_run=dry_run)

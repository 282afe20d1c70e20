"""`oncelog serve ROLE...`: one process of a cluster."""

from __future__ import annotations

import os

import click

from oncelog_server.cli import interrupts
from oncelog_server.cli.examples import examples
from oncelog_server.core.roles import ROLES


@click.command(
    epilog=examples(
        "oncelog serve coordinator --data /var/lib/oncelog --etcd etcd-0:2379",
        "oncelog serve coordinator partition_leader offset_manager --etcd localhost:2379",
        "oncelog serve partition_leader --config /etc/oncelog.toml --set node.lease_ms=10000",
    )
)
@click.argument(
    "roles",
    nargs=-1,
    required=True,
    metavar="ROLE...",
    type=click.Choice(list(ROLES)),
)
@click.option("--data", metavar="DIR", help="Directory of this process alone.")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen. Default: loopback.")
@click.option("--advertise", metavar="HOST:PORT", help="What others connect to.")
@click.option("--listen-external", metavar="HOST:PORT", help="A second one, for outside.")
@click.option("--advertise-external", metavar="HOST:PORT", help="What those outside connect to.")
@click.option("--rack", help="Where it stands, for placing replicas apart. Default: not said.")
@click.option(
    "--health-listen",
    metavar="HOST:PORT",
    help="Health checks alone; without TLS, unless node.health_tls says so.",
)
@click.option("--etcd", metavar="HOST:PORT", multiple=True, help="An etcd endpoint. Repeatable.")
@click.option("--etcd-ca", metavar="FILE", help="PEM file: who signs etcd's certificate.")
@click.option("--etcd-cert", metavar="FILE", help="PEM file: what etcd is shown.")
@click.option("--etcd-key", metavar="FILE", help="PEM file: its key.")
@click.option("--tls-ca", metavar="FILE", help="PEM file: who signs the other side (mTLS).")
@click.option("--tls-cert", metavar="FILE", help="PEM file: this process's certificate.")
@click.option("--tls-key", metavar="FILE", help="PEM file: its key.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="ONCELOG_CONFIG",
    help="Settings, as TOML sections. Also: ONCELOG_CONFIG.",
)
@click.option(
    "--set", "pairs", metavar="SECTION.KEY=VALUE", multiple=True, help="A setting. Repeatable."
)
@click.option("--metrics-listen", metavar="HOST:PORT", help="Prometheus metrics. Default: none.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Default: console.")
def serve(
    roles: tuple[str, ...],
    etcd: tuple[str, ...],
    config_file: str | None,
    pairs: tuple[str, ...],
    **flags: str | None,
) -> None:
    """Run one process of a cluster, with one or several roles.

    Settings come from --config, the environment (ONCELOG_NODE_LEASE_MS=10000) and the command line,
    in that order of growing weight. `oncelog cluster config` shows each value and its source. It
    runs until SIGTERM or Ctrl-C, and hands leadership over before it ends.
    """
    # Imported here: its help needs no server.
    with interrupts.importing():
        from oncelog_server.cli import compose
        from oncelog_server.cli.settings import ServeSettings
        from oncelog_server.runtime import event_loop
        from oncelog_server.runtime.config import ConfigError
        from oncelog_server.runtime.etcd.port import EtcdUnavailable
        from oncelogpb.errors import OncelogError

    try:
        settings = ServeSettings.make(
            roles,
            file=config_file,
            environment=os.environ,
            pairs=[*_pairs(etcd, flags), *pairs],
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        event_loop.run(compose.serve(settings))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except (EtcdUnavailable, OncelogError, OSError) as error:
        raise _failed(error) from error


def _failed(error: Exception) -> click.ClickException:
    # Imported here: what prints failures takes a tenth of a start.
    from oncelog_server.cli.failures import CommandFailed, Refused, RefusedEtcd
    from oncelog_server.runtime.etcd.refusal import EtcdRefused
    from oncelogpb.errors import OncelogError

    if isinstance(error, EtcdRefused):
        return RefusedEtcd(str(error))
    if isinstance(error, OncelogError):
        return Refused(error)
    return CommandFailed(f"cannot serve: {error}")


# Flags that are settings by another name.
_SETTING_OF = {
    "data": "data_dir",
    "listen": "listen",
    "advertise": "advertise",
    "listen_external": "listen_external",
    "advertise_external": "advertise_external",
    "rack": "rack",
    "health_listen": "health_listen",
    "etcd_ca": "etcd_tls_ca",
    "etcd_cert": "etcd_tls_certificate",
    "etcd_key": "etcd_tls_key",
    "tls_ca": "tls_ca",
    "tls_cert": "tls_certificate",
    "tls_key": "tls_key",
    "metrics_listen": "metrics_listen",
    "log_format": "log_format",
}


def _pairs(etcd: tuple[str, ...], flags: dict[str, str | None]) -> list[str]:
    pairs = [
        f"node.{_SETTING_OF[flag]}={value}" for flag, value in flags.items() if value is not None
    ]
    return [*pairs, f"node.etcd_endpoints={','.join(etcd)}"] if etcd else pairs

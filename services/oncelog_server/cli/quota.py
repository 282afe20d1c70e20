"""`oncelog quota`: how much an identity may do in a second. For operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncelog_server.cli.examples import examples
from oncelog_server.cli.late import Late
from oncelog_server.cli.output import print_json, print_table, show_time
from oncelog_server.cli.session import Session, connected
from oncelogpb.v1 import cluster_pb2 as pb

# The client takes half a second to import: who asks for help does not wait for it.
if TYPE_CHECKING:
    from oncelog import access
    from oncelog.access import Quota
else:
    access = Late("oncelog.access")


@click.group()
def quota() -> None:
    """Limit what identities may do in a second, of each process that they call.

    A `*` at the end of an identity stands for every continuation. The closest quota holds, alone:
    the identity's own, else the one with the longest prefix. Who uses it up is told to come back
    (THROTTLED), and our clients do.
    """


@quota.command(name="list", epilog=examples("oncelog quota list", "oncelog quota list --json"))
@connected
def list_(session: Session) -> None:
    """List all quotas."""
    reply: pb.ListQuotasReply = session.call("cluster.list_quotas", pb.ListQuotasRequest())
    quotas = [access.quota_of(message) for message in reply.quotas]
    if session.as_json:
        print_json([_json(one) for one in quotas])
        return
    print_table(
        ["IDENTITY", "BYTES/S", "CALLS/S", "SET", "BY"],
        [
            [
                one.identity,
                one.bytes_per_second or "no limit",
                one.calls_per_second or "no limit",
                show_time(one.added_ms),
                one.added_by or None,
            ]
            for one in quotas
        ],
        empty="no quotas: nobody is limited",
    )


@quota.command(
    name="set",
    epilog=examples(
        "oncelog quota set alice --bytes 10000000",
        "oncelog quota set 'batch-*' --bytes 50000000 --calls 200",
    ),
)
@click.argument("identity")
@click.option(
    "--bytes",
    "bytes_per_second",
    type=click.IntRange(1),
    help="Of requests and replies together, a second. Default: no limit.",
)
@click.option(
    "--calls",
    "calls_per_second",
    type=click.IntRange(1),
    help="Calls a second. Default: no limit.",
)
@connected
def set_(
    session: Session, identity: str, bytes_per_second: int | None, calls_per_second: int | None
) -> None:
    """Set an identity's quota, in place of the one that it had."""
    if bytes_per_second is None and calls_per_second is None:
        raise click.UsageError("Limit --bytes, --calls or both; `oncelog quota remove` lifts it.")
    wanted = pb.Quota(
        identity=access.pattern_message(access.pattern(identity)),
        bytes_per_second=bytes_per_second or 0,
        calls_per_second=calls_per_second or 0,
    )
    session.call("cluster.set_quotas", pb.SetQuotasRequest(quotas=[wanted]))
    if session.as_json:
        print_json(_json(access.quota_of(wanted)))
    else:
        click.echo(f"set the quota of {identity}; obeyed within seconds")


@quota.command(epilog=examples("oncelog quota remove alice"))
@click.argument("identity")
@connected
def remove(session: Session, identity: str) -> None:
    """Lift an identity's quota."""
    named = access.pattern_message(access.pattern(identity))
    reply: pb.RemoveQuotasReply = session.call(
        "cluster.remove_quotas", pb.RemoveQuotasRequest(identities=[named])
    )
    if session.as_json:
        print_json({"removed": reply.removed})
    else:
        click.echo(f"lifted the quota of {identity}" if reply.removed else "there was none")


def _json(one: Quota) -> dict[str, Any]:
    return {
        "identity": one.identity.text,
        "identity_prefixed": one.identity.prefixed,
        "bytes_per_second": one.bytes_per_second or None,
        "calls_per_second": one.calls_per_second or None,
        "added_by": one.added_by,
        "added": show_time(one.added_ms),
    }

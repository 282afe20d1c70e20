"""`oncelog cluster`: who is there, with which settings, and the last resort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from oncelog_server.cli.asking import Unanswered, address_of, ask_each, require_all
from oncelog_server.cli.examples import examples
from oncelog_server.cli.moving import drain, rebalance
from oncelog_server.cli.output import (
    print_fields,
    print_json,
    print_table,
    show_age,
    show_few,
    show_time,
)
from oncelog_server.cli.partition_list import partitions
from oncelog_server.cli.partitions import (
    ListedPartition,
    Wrong,
    in_sync,
    leaderships,
    replica_counts,
    survey,
    what_is_wrong,
)
from oncelog_server.cli.recover import recover
from oncelog_server.cli.session import Session, connected
from oncelog_server.cli.unclean import unclean_elect
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2

# Of partitions that are offline or unwritable, in `cluster status`: one node that is away may have
# thousands.
SHOWN_MAX: Final = 20


@click.group()
def cluster() -> None:
    """Look at the cluster, and repair it."""


cluster.add_command(recover)
cluster.add_command(partitions)
cluster.add_command(drain)
cluster.add_command(rebalance)
cluster.add_command(unclean_elect)


@cluster.command(epilog=examples("oncelog cluster status", "oncelog cluster status --json"))
@connected
def status(session: Session) -> None:
    """Show nodes, etcd, and the partitions with which something is wrong, and what.

    All processes are asked at once; one that does not answer is said to be unreachable.
    """
    request = pb.GetMetadataRequest()
    metadata: pb.GetMetadataReply = session.call("cluster.get_metadata", request)
    listed: partition_leader_pb2.ListTopicsReply = session.call(
        "partition_leader.list_topics", partition_leader_pb2.ListTopicsRequest(internal=True)
    )
    found, told = survey(session, listed.topics, metadata)
    wrong = what_is_wrong(found)
    nodes = _nodes(metadata, found, told.unreachable)
    topics = sum(not topic.name.startswith("__") for topic in listed.topics)
    if session.as_json:
        print_json(
            {
                "cluster_id": metadata.cluster_id.hex(),
                "etcd": {
                    "reachable": metadata.etcd_reachable,
                    "revision": metadata.etcd_revision,
                },
                "nodes": nodes,
                "nodes_away": _away(metadata, found),
                "topics": topics,
                "partitions": len(found),
                "partitions_without_leader": _names(wrong.offline),
                "partitions_unwritable": _names(wrong.unwritable),
                "partitions_under_replicated": _names(wrong.under_replicated),
                "partitions_moving": _names(_moving(found)),
                "partitions_not_known": _names(wrong.not_known),
                "offline": [one.as_json() for one in wrong.offline],
                "unwritable": [one.as_json() for one in wrong.unwritable],
            }
        )
        return
    etcd = "reachable" if metadata.etcd_reachable else "NOT reachable: nothing can be elected"
    print_fields(
        [
            ("cluster", metadata.cluster_id.hex()),
            ("etcd", f"{etcd} (revision {metadata.etcd_revision})"),
            ("topics", str(topics)),
            ("partitions", str(len(found))),
            ("offline", _counted(wrong.offline)),
            ("unwritable", _counted(wrong.unwritable) + _not_known(wrong)),
            ("under-replicated", _counted(wrong.under_replicated)),
            ("moving", _counted(_moving(found))),
        ]
    )
    _print_nodes(metadata, found, nodes)
    _print_wrong("offline", [(one, one.why_offline) for one in wrong.offline])
    _print_wrong("unwritable", [(one, one.why_unwritable or "") for one in wrong.unwritable])


def _names(found: Sequence[ListedPartition]) -> list[str]:
    return [str(one.place) for one in found]


def _moving(found: Sequence[ListedPartition]) -> list[ListedPartition]:
    return [one for one in found if one.partition.target]


def _counted(found: Sequence[ListedPartition]) -> str:
    """How many, and which where they are few."""
    return f"{len(found)}: {show_few(_names(found))}" if found else "none"


def _not_known(wrong: Wrong) -> str:
    """Whose leaders did not say."""
    if not wrong.not_known:
        return ""
    return f" ({len(wrong.not_known)} not known: {show_few(_names(wrong.not_known))})"


def _print_nodes(
    metadata: pb.GetMetadataReply, found: Sequence[ListedPartition], nodes: Sequence[dict[str, Any]]
) -> None:
    rows = [
        [node["node_id"], node["address"], " ".join(node["roles"]), node["leads"],
         node["replicas"], node["rack"] or None, _up_for(metadata, node["started_ms"]),
         node["boot_id"][:8], node["version"], node["unreachable"]]
        for node in nodes
    ]  # fmt: skip
    rows += [
        [away["node_id"], "not running", None, 0, away["replicas"], None, None, None, None, None]
        for away in _away(metadata, found)
    ]
    print_table(
        [
            "NODE", "ADDRESS", "ROLES", "LEADS", "REPLICAS", "RACK", "UP", "BOOT", "VERSION",
            "UNREACHABLE",
        ],
        rows,
        empty="no processes",
        only_where_told=("RACK", "UNREACHABLE"),
    )  # fmt: skip


def _up_for(metadata: pb.GetMetadataReply, started_ms: int) -> str | None:
    """By the answering process's clock, which may differ from that of who started."""
    return show_age(metadata.time_ms - started_ms) if started_ms and metadata.time_ms else None


def _print_wrong(what: str, wrong: Sequence[tuple[ListedPartition, str]]) -> None:
    """`what` is an option of `cluster partitions`, too."""
    if not wrong:
        return
    print_table(
        [what.upper(), "EPOCH", "IN SYNC", "REPLICAS", "WHY"],
        [
            [str(one.place), one.partition.epoch, in_sync(one.partition),
             " ".join(one.partition.replicas), why]
            for one, why in wrong[:SHOWN_MAX]
        ],
        empty="",
    )  # fmt: skip
    if len(wrong) > SHOWN_MAX:
        click.echo(f"and {len(wrong) - SHOWN_MAX} more: `oncelog cluster partitions --{what}`")


def _nodes(
    metadata: pb.GetMetadataReply,
    found: Sequence[ListedPartition],
    unreachable: Mapping[str, str],
) -> list[dict[str, Any]]:
    """By role, then by address."""
    leads, replicas = leaderships(found), replica_counts(found)
    nodes = [
        _node(node)
        | {
            "rack": node.rack,
            "started": show_time(node.started_ms),
            "started_ms": node.started_ms,
            "leads": leads[node.node_id],
            "replicas": replicas[node.node_id],
            "unreachable": unreachable.get(node.node_id),
        }
        for node in metadata.nodes
    ]
    return sorted(nodes, key=lambda node: (node["roles"], node["address"]))


def _away(metadata: pb.GetMetadataReply, found: Sequence[ListedPartition]) -> list[dict[str, Any]]:
    """Nodes that have replicas and do not run."""
    living = {node.node_id for node in metadata.nodes}
    counts = replica_counts(found)
    return [
        {"node_id": node_id, "replicas": counts[node_id]}
        for node_id in sorted(counts.keys() - living)
    ]


@cluster.command(epilog=examples("oncelog cluster balance"))
@connected
def balance(session: Session) -> None:
    """Let each partition be led by the first node of its replicas.

    Processes do this by themselves, slowly, once that node has been in sync for
    node.balance_after_ms. Clients of a partition that is handed over retry once.
    """
    answers = _ask_processes(
        session,
        _addresses(session),
        "Cluster/BalanceLeaders",
        pb.BalanceLeadersRequest(),
        pb.BalanceLeadersReply,
    )
    replies: dict[str, pb.BalanceLeadersReply] = _answered(answers)
    if session.as_json:
        print_json(
            {
                address: {"handed_over": reply.handed_over, "kept": reply.kept}
                for address, reply in replies.items()
            }
        )
        require_all(answers)
        return
    print_table(
        ["PROCESS", "HANDED OVER", "KEPT"],
        [[address, reply.handed_over, reply.kept] for address, reply in replies.items()],
        empty="no processes",
    )
    if any(reply.kept for reply in replies.values()):
        click.echo(
            "kept: led in the place of a node that is away or not in sync "
            "(`oncelog cluster partitions --under-replicated`)"
        )
    require_all(answers)


@cluster.command(
    epilog=examples(
        "oncelog cluster config",
        "oncelog cluster config --changed",
        "oncelog cluster config --address localhost:7401 --verbose",
    )
)
@click.option("--address", metavar="HOST:PORT", help="Of this process. Default: all of them.")
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@click.option("--verbose", is_flag=True, help="With each setting's meaning.")
@connected
def config(session: Session, address: str | None, changed: bool, verbose: bool) -> None:
    """Show every setting of each process, and where its value came from."""
    answers = _ask_processes(
        session,
        [address] if address else _addresses(session),
        "Cluster/GetConfig",
        pb.GetConfigRequest(),
        pb.GetConfigReply,
    )
    by_address = {
        asked: [value for value in reply.values if not changed or value.source != "default"]
        for asked, reply in _answered(answers).items()
    }
    if session.as_json:
        print_json({asked: [_value(v) for v in values] for asked, values in by_address.items()})
        require_all(answers)
        return
    columns = ["PROCESS", "SETTING", "VALUE", "SOURCE", *(["MEANING"] if verbose else [])]
    print_table(
        columns,
        [
            [asked, value.name, value.value or "(empty)", value.source]
            + ([value.help] if verbose else [])
            for asked, values in by_address.items()
            for value in values
        ],
        empty="all settings are defaults" if changed else "no settings",
    )
    require_all(answers)


def _addresses(session: Session) -> list[str]:
    metadata: pb.GetMetadataReply = session.call("cluster.get_metadata", pb.GetMetadataRequest())
    return [_node(node)["address"] for node in metadata.nodes]


def _ask_processes(
    session: Session, addresses: Sequence[str], method: str, request: Any, reply: Any
) -> dict[str, Any]:
    """All at once; by address, the reply or Unanswered."""
    with session.direct() as direct:
        return ask_each(
            direct,
            [(address, address, request) for address in addresses],
            method,
            reply,
            timeout_s=session.timeout_ms / 1000,
        )


def _answered(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in answers.items() if not isinstance(one, Unanswered)}


def _value(value: pb.ConfigValue) -> dict[str, Any]:
    return {
        "name": value.name,
        "value": value.value,
        "source": value.source,
        "help": value.help,
    }


def _node(node: pb.Node) -> dict[str, Any]:
    return {
        "address": address_of(node),
        "roles": list(node.roles),
        "node_id": node.node_id,
        "boot_id": node.boot_id.hex(),
        "version": node.version,
    }

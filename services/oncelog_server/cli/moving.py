"""Moving replicas: `oncelog topic reassign`, `cluster drain` and `cluster rebalance` say where they
shall be, and wait until they are there. The cluster goes on without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.output import print_json, print_table
from oncelog_server.cli.places import Place
from oncelog_server.cli.session import Session, connected
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb

# Partitions of one call.
ASKED_AT_ONCE: Final = 100
LOOK_EVERY_S: Final = 1.0
# How long a command waits for the end of a move, by default.
WAIT_S: Final = 600

Targets = Mapping[Place, Sequence[str]]
# Role by control topic; the others are of partition leaders.
_ROLES: Final = {"__transaction_control": "coordinator", "__consumer_offsets": "offset_manager"}

_wait_option: Final = click.option(
    "--wait-s",
    type=click.IntRange(0),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until they are there. 0: do not.",
)
_dry_option: Final = click.option("--dry-run", is_flag=True, help="Say where, and move nothing.")


@click.command(
    epilog=examples(
        "oncelog topic reassign payments --replication-factor 3",
        "oncelog topic reassign payments/0 --to 1f3a90b2,77e01c4d,a0b1c2d3",
        "oncelog topic reassign payments --cancel",
    )
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[/PARTITION]...")
@click.option("--to", "nodes", metavar="NODE,...", help="Node ids; the first one should lead.")
@click.option("--replication-factor", type=click.IntRange(1), help="Add copies, or take some away.")
@click.option("--cancel", is_flag=True, help="Back to where they were before the move under way.")
@_dry_option
@_wait_option
@connected
def reassign(
    session: Session,
    places: tuple[str, ...],
    nodes: str | None,
    replication_factor: int | None,
    cancel: bool,
    dry_run: bool,
    wait_s: int,
) -> None:
    """Move replicas of partitions, or change how many there are.

    Reading and writing go on meanwhile. Old replicas go when all new ones have everything; what
    they hold is put aside on their nodes (`orphans/`), not deleted. Also of the two control topics.
    """
    if sum((nodes is not None, replication_factor is not None, cancel)) != 1:
        raise click.UsageError("Say one of --to NODE,..., --replication-factor N or --cancel.")
    listed = _listed(session)
    chosen = {place: found for place, found in listed.items() if _is_meant(place, places)}
    _require_found(places, listed)
    if nodes is not None:
        wanted = tuple(node.strip() for node in nodes.split(","))
        targets: dict[Place, Sequence[str]] = dict.fromkeys(chosen, wanted)
    elif cancel:
        targets = {place: _before(found) for place, found in chosen.items() if found.target}
    else:
        assert replication_factor is not None
        factor = replication_factor
        targets = _planned(
            session, chosen, lambda standing, holders: _resized(standing, factor, holders)
        )
    _move(session, targets, dry_run=dry_run, wait_s=wait_s)


@click.command(
    epilog=examples("oncelog cluster drain 1f3a90b2", "oncelog cluster drain 1f3a90b2 --dry-run")
)
@click.argument("node_id", metavar="NODE")
@_dry_option
@_wait_option
@connected
def drain(session: Session, node_id: str, dry_run: bool, wait_s: int) -> None:
    """Move all replicas away from a node, and with them what it leads.

    Then its process may be stopped for good. New topics may still be put on a node that runs: look
    again before you remove it. A node that is dead is drained as well, as long as its partitions
    have leaders.
    """
    from oncelog_server.runtime.etcd.rebalancing import drained

    listed = _listed(session)
    if not any(node_id in (*found.replicas, *found.target) for found in listed.values()):
        session.say(f"node {node_id} has no replicas")
    targets = _planned(
        session, listed, lambda standing, holders: drained(standing, node_id, holders)
    )
    _move(session, targets, dry_run=dry_run, wait_s=wait_s)


@click.command(epilog=examples("oncelog cluster rebalance --dry-run", "oncelog cluster rebalance"))
@_dry_option
@_wait_option
@connected
def rebalance(session: Session, dry_run: bool, wait_s: int) -> None:
    """Spread replicas evenly over the nodes that run, with as few moves as that takes.

    For nodes that came later: they get new topics by themselves, and what stands already by this.
    """
    from oncelog_server.runtime.etcd.rebalancing import balanced

    targets = _planned(session, _listed(session), balanced)
    _move(session, targets, dry_run=dry_run, wait_s=wait_s)


# ---------------------------------------------------------------------------------------- planning


def _planned(
    session: Session,
    listed: Mapping[Place, leader_pb.PartitionDescription],
    plan: Callable[[Mapping[Place, Sequence[str]], Any], Targets],
) -> dict[Place, Sequence[str]]:
    """Role by role, over the nodes that run it. Raises CommandFailed."""
    from oncelog_server.runtime.etcd.placement import Holder, TooFewNodes

    metadata: pb.GetMetadataReply = session.call("cluster.get_metadata", pb.GetMetadataRequest())
    targets: dict[Place, Sequence[str]] = {}
    for role in ("coordinator", "offset_manager", "partition_leader"):
        holders = [Holder(node.node_id, node.rack) for node in metadata.nodes if role in node.roles]
        standing = {
            place: tuple(found.target or found.replicas)
            for place, found in listed.items()
            if _ROLES.get(place.topic, "partition_leader") == role
        }
        try:
            targets |= plan(standing, holders)
        except TooFewNodes as error:
            raise CommandFailed(f"{error}, of role {role}; nothing was moved") from None
    return targets


def _resized(
    standing: Mapping[Place, Sequence[str]], replication_factor: int, holders: Any
) -> Targets:
    from oncelog_server.runtime.etcd.rebalancing import resized

    return resized(standing, replication_factor, holders)


def _listed(session: Session) -> dict[Place, leader_pb.PartitionDescription]:
    reply: leader_pb.ListTopicsReply = session.call(
        "partition_leader.list_topics", leader_pb.ListTopicsRequest(internal=True)
    )
    return {
        Place(topic.name, partition.number): partition
        for topic in reply.topics
        for partition in topic.partitions
    }


def _is_meant(place: Place, named: Sequence[str]) -> bool:
    return place.topic in named or str(place) in named


def _require_found(named: Sequence[str], listed: Mapping[Place, Any]) -> None:
    known = {place.topic for place in listed} | {str(place) for place in listed}
    for name in named:
        if name not in known:
            raise click.UsageError(
                f"There is no topic or partition {name}; see `oncelog topic list`."
            )


def _before(found: leader_pb.PartitionDescription) -> list[str]:
    """Where they were before the move under way."""
    return [node for node in found.replicas if node not in found.adding]


# ------------------------------------------------------------------------------------------ moving


def _move(session: Session, targets: Targets, *, dry_run: bool, wait_s: int) -> None:
    before = _listed(session)
    assignments = [
        pb.PartitionAssignment(topic=place.topic, number=place.number, replicas=target)
        for place, target in sorted(targets.items())
    ]
    for first in range(0, len(assignments), ASKED_AT_ONCE):
        request = pb.ReassignPartitionsRequest(
            assignments=assignments[first : first + ASKED_AT_ONCE], validate_only=dry_run
        )
        session.call("cluster.reassign_partitions", request)
    if not session.as_json:
        print_table(
            ["PARTITION", "REPLICAS", "GO TO"],
            [
                [str(place), " ".join(before[place].replicas), " ".join(target)]
                for place, target in sorted(targets.items())
            ],
            empty="nothing has to move",
        )
    left = {} if dry_run or not wait_s else _wait(session, targets, wait_s)
    if session.as_json:
        moves = [
            {
                "partition": str(place),
                "replicas": list(before[place].replicas),
                "target": list(target),
            }
            for place, target in sorted(targets.items())
        ]
        print_json({"moves": moves, "moving": [str(place) for place in sorted(left)]})
    elif targets and not dry_run and not left and wait_s:
        click.echo("done: all replicas are where they shall be")
    if left:
        raise CommandFailed(
            f"{len(left)} partitions are still being moved after {wait_s} s. It goes on by itself: "
            "look with `oncelog cluster partitions --moving`, or call it back with `oncelog topic "
            "reassign TOPIC --cancel`"
        )


def _wait(session: Session, targets: Targets, wait_s: int) -> dict[Place, Any]:
    """Those that are not there yet when the time is over. Says how far they are whenever that has
    changed."""
    end, said = time.monotonic() + wait_s, ""
    while True:
        listed = _listed(session)
        left = {
            place: listed[place]
            for place, target in targets.items()
            # Gone: its topic was deleted.
            if place in listed and not _is_there(listed[place], target)
        }
        now = f"{len(targets) - len(left)} of {len(targets)} moved" + _slowest(left)
        if now != said and targets:
            session.say(now)
        said = now
        if not left or time.monotonic() > end:
            return left
        time.sleep(LOOK_EVERY_S)


def _is_there(found: leader_pb.PartitionDescription, target: Sequence[str]) -> bool:
    """Where copies are added, the list is the wanted one from the beginning."""
    return list(found.replicas) == list(target) and not found.target


def _slowest(left: Mapping[Place, leader_pb.PartitionDescription]) -> str:
    """One that is not there yet, and what it waits for."""
    if not left:
        return ""
    place, found = min(left.items())
    if not found.HasField("leader"):
        return f"; {place} has no leader, which would move it"
    is_in_sync = f"{len(found.isr)} of {len(found.replicas)} in sync"
    return f"; {place}: {is_in_sync}, {len(found.adding)} are added"

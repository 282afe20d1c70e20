"""`oncelog cluster unclean-elect`: the last resort. It asks every process that has a replica what
that holds, says which one has most and what may be lost, asks, and lets it lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from oncelog_server.cli import names
from oncelog_server.cli.asking import Key, Told, ask_replicas
from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.output import print_json, print_table
from oncelog_server.cli.places import PLACE, Place
from oncelog_server.cli.session import Session, connected
from oncelog_server.runtime.leadership.last_resort import (
    Proposal,
    Reported,
    Unheard,
    Vacant,
    propose,
)
from oncelog_server.runtime.rpc.cluster_access import TOLD_CHARACTERS_MAX
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import replication_pb2


class Choice(NamedTuple):
    """Of one partition: what was found, and who shall lead it."""

    place: Place
    proposal: Proposal
    # None: nobody can.
    chosen: Reported | None


class Elected(NamedTuple):
    """How one election ended."""

    choice: Choice
    reply: pb.UncleanElectReply | None
    error: str = ""


@click.command(
    name="unclean-elect",
    epilog=examples(
        "oncelog cluster unclean-elect payments/0 --dry-run",
        "oncelog cluster unclean-elect payments/0",
        "oncelog cluster unclean-elect __transaction_control __consumer_offsets payments",
    ),
)
@click.argument(
    "places",
    nargs=-1,
    required=True,
    metavar="TOPIC[/PARTITION]...",
    shell_complete=names.places,
)
@click.option("--node", "node_id", metavar="NODE", help="Who shall lead. Default: who has most.")
@click.option("--dry-run", is_flag=True, help="Say what each replica has, and elect nobody.")
@click.option("--accept-loss", is_flag=True, help="Do not ask: acknowledged records may be lost.")
@click.option(
    "--not-the-best",
    is_flag=True,
    help="Go on although another replica has more, or a process that runs did not answer.",
)
@connected
def unclean_elect(
    session: Session,
    places: tuple[str, ...],
    node_id: str | None,
    dry_run: bool,
    accept_loss: bool,
    not_the_best: bool,
) -> None:
    """Let a replica lead although it may lack acknowledged records. The last resort.

    For partitions without a leader, none of whose replicas in sync comes back. Of the replicas that
    are left, the one with the largest last epoch, then synced end, has most: it is proposed. It
    keeps what is synced there, and is alone in sync; what was acknowledged above that is lost for
    good, and other replicas are cut to it. Of a topic, all partitions without a leader are meant.
    """
    choices = _choices(session, places, node_id)
    electable = [one for one in choices if one.chosen is not None]
    refused = [one for one in choices if one.chosen is None]
    if not session.as_json:
        _show(choices)
    if not electable and refused and not dry_run:
        from oncelogpb.errors import InvalidArgument

        raise InvalidArgument(refused[0].proposal.refusal, field="places")
    elected: list[Elected] = []
    if electable and not dry_run:
        _confirm(session, electable, accept_loss=accept_loss, not_the_best=not_the_best)
        elected = [_elect(session, one) for one in electable]
    if session.as_json:
        print_json(
            {
                "proposals": [_described(one) for one in choices],
                "elected": [_described_election(one) for one in elected if one.reply is not None],
            }
        )
    else:
        _show_elected(elected, dry_run=dry_run)
    failed = [f"{one.choice.place}: {one.error}" for one in elected if one.error]
    failed += [f"{one.place}: {one.proposal.refusal}" for one in refused]
    if failed and not dry_run:
        raise CommandFailed("nobody was elected for\n" + "\n".join(failed))


# ------------------------------------------------------------------------------------------ asking


def _choices(session: Session, places: Sequence[str], node_id: str | None) -> list[Choice]:
    """What every process says of these partitions. Raises UsageError (no such partition),
    PermissionDenied."""
    listed: leader_pb.ListTopicsReply = session.call(
        "partition_leader.list_topics", leader_pb.ListTopicsRequest(internal=True)
    )
    metadata: pb.GetMetadataReply = session.call("cluster.get_metadata", pb.GetMetadataRequest())
    wanted = _wanted(listed, places)
    by_node: dict[str, list[Key]] = {}
    for topic, partition in wanted.values():
        for replica in partition.replicas:
            by_node.setdefault(replica, []).append((topic.topic_id, partition.number))
    with session.direct() as direct:
        told = ask_replicas(direct, metadata.cluster_id, metadata.nodes, by_node)
    _require_told(told)
    return [
        _choice(place, topic, partition, told, node_id)
        for place, (topic, partition) in wanted.items()
    ]


def _require_told(told: Told) -> None:
    """What may not be known is not taken for unknown. Raises PermissionDenied."""
    from oncelogpb.errors import PermissionDenied

    for one in told.unanswered.values():
        if one.is_refused:
            raise PermissionDenied(one.why)


Wanted = dict[Place, tuple[leader_pb.TopicDescription, leader_pb.PartitionDescription]]


def _wanted(listed: leader_pb.ListTopicsReply, places: Sequence[str]) -> Wanted:
    """Of a topic that is named whole, those without a leader. Raises UsageError."""
    topics = {topic.name: topic for topic in listed.topics}
    wanted: Wanted = {}
    for named in places:
        if named in topics:
            wanted |= {
                Place(named, partition.number): (topics[named], partition)
                for partition in topics[named].partitions
                if not partition.HasField("leader")
            }
            continue
        place = PLACE.convert(named, None, None) if "/" in named else Place(named, 0)
        topic = topics.get(place.topic)
        if topic is None or place.number >= len(topic.partitions):
            raise click.UsageError(
                f"There is no topic or partition {named}; see `oncelog topic list --internal`."
            )
        wanted[place] = (topic, topic.partitions[place.number])
    return wanted


def _choice(
    place: Place,
    topic: leader_pb.TopicDescription,
    partition: leader_pb.PartitionDescription,
    told: Told,
    node_id: str | None,
) -> Choice:
    """Raises UsageError where the node that shall lead has no replica, or did not answer."""
    here = (topic.topic_id, partition.number)
    reported: list[Reported] = []
    unheard: list[Unheard] = []
    for node in partition.replicas:
        if node in told.unanswered:
            unheard.append(Unheard(node, runs=True, why=told.unanswered[node].why))
        elif node not in told.replicas:
            unheard.append(Unheard(node, runs=False, why="it does not run"))
        elif here in told.replicas[node] and told.replicas[node][here].incarnation:
            reported.append(_reported(node, told.replicas[node][here]))
        else:
            why = "its replica is not open: the log of its process says why"
            unheard.append(Unheard(node, runs=True, why=why))
    vacant = Vacant(
        str(place),
        partition.epoch,
        tuple(partition.replicas),
        tuple(partition.isr),
        partition.leader.node_id,
    )
    proposal = propose(vacant, reported, unheard)
    if proposal.refusal or node_id is None:
        return Choice(place, proposal, proposal.best)
    chosen = [one for one in reported if one.node_id == node_id]
    if not chosen:
        raise click.UsageError(
            f"Node {node_id} shows no replica of {place}: choose one of "
            f"{', '.join(one.node_id for one in reported)}."
        )
    return Choice(place, proposal, chosen[0])


def _reported(node_id: str, replica: replication_pb2.ReplicaDescription) -> Reported:
    return Reported(
        node_id,
        replica.incarnation.hex(),
        replica.last_epoch,
        replica.synced_end,
        replica.high_watermark,
    )


# ---------------------------------------------------------------------------------------- electing


def _confirm(
    session: Session, choices: Sequence[Choice], *, accept_loss: bool, not_the_best: bool
) -> None:
    """Raises UsageError, Abort."""
    doubts = [
        f"{one.place}: {doubt}"
        for one in choices
        if one.chosen is not None
        for doubt in one.proposal.doubts(one.chosen)
    ]
    if doubts and not not_the_best and (accept_loss or session.as_json):
        raise click.UsageError(
            "More may be lost than has to be:\n"
            + "\n".join(doubts)
            + "\nIf that is what you want, add --not-the-best."
        )
    if accept_loss:
        return
    names_of = ", ".join(str(one.place) for one in choices)
    if session.as_json:
        raise click.UsageError(
            f"Records of {names_of} that were acknowledged may be lost for good. If no better copy "
            "comes back, repeat the command with --accept-loss."
        )
    if doubts and not not_the_best:
        click.echo("\n".join(doubts), err=True)
        click.confirm("More may be lost than has to be. Go on all the same?", abort=True, err=True)
    click.confirm(f"Give up what may be lost of {names_of}?", abort=True, err=True)


def _elect(session: Session, choice: Choice) -> Elected:
    from oncelogpb.errors import OncelogError

    chosen, proposal = choice.chosen, choice.proposal
    assert chosen is not None, "it was proposed"
    request = pb.UncleanElectRequest(
        topic=choice.place.topic,
        number=choice.place.number,
        node_id=chosen.node_id,
        accept_loss=True,
        seen=pb.SeenReplica(
            epoch=proposal.partition.epoch,
            incarnation=chosen.incarnation,
            last_epoch=chosen.last_epoch,
            synced_end=chosen.synced_end,
            isr=proposal.partition.isr,
        ),
        told="; ".join(proposal.may_be_lost(chosen))[:TOLD_CHARACTERS_MAX],
    )
    try:
        return Elected(choice, session.call("cluster.unclean_elect", request))
    except OncelogError as error:
        return Elected(choice, None, f"{error.reason} {error.message}")


# ----------------------------------------------------------------------------------------- showing


def _show(choices: Sequence[Choice]) -> None:
    rows: list[list[Any]] = []
    for place, proposal, chosen in choices:
        rows += [
            [str(place), one.node_id, one.last_epoch, one.synced_end, one.incarnation[:8],
             _standing(one, proposal, chosen)]
            for one in proposal.reported
        ]  # fmt: skip
        rows += [[str(place), one.node_id, None, None, None, one.why] for one in proposal.unheard]
    print_table(
        ["PARTITION", "NODE", "LAST EPOCH", "SYNCED END", "INCARNATION", "NOW"],
        rows,
        empty="all partitions have a leader",
    )
    for place, proposal, chosen in choices:
        if chosen is None:
            click.echo(f"{place}: {proposal.refusal}")
            continue
        click.echo(
            f"{place}: node {chosen.node_id} would lead. "
            f"What may be lost: {'; '.join(proposal.losses[chosen.node_id])}"
        )
    # Of many partitions mostly the same.
    for sentence in dict.fromkeys(proposal.not_known for _, proposal, _ in choices):
        if sentence:
            click.echo(sentence)


def _standing(one: Reported, proposal: Proposal, chosen: Reported | None) -> str:
    if one.incarnation in proposal.partition.isr:
        return "in sync"
    if chosen is None:
        return "not in sync"
    most = "has most" if one == proposal.best else "has less, or as much"
    return f"{most}, would lead" if one == chosen else most


def _show_elected(elected: Sequence[Elected], *, dry_run: bool) -> None:
    if dry_run:
        click.echo("nobody was elected (--dry-run)")
    for choice, reply, _ in elected:
        if reply is not None and choice.chosen is not None:
            click.echo(
                f"{choice.chosen.node_id} leads {choice.place} in epoch {reply.epoch}; kept: "
                f"journal offsets below {reply.kept_end}"
            )


def _described(choice: Choice) -> dict[str, Any]:
    place, proposal, chosen = choice
    return {
        "partition": str(place),
        "epoch": proposal.partition.epoch,
        "node_id": None if chosen is None else chosen.node_id,
        "best": None if proposal.best is None else proposal.best.node_id,
        "refusal": proposal.refusal or None,
        "may_be_lost": [] if chosen is None else proposal.may_be_lost(chosen),
        "doubts": [] if chosen is None else proposal.doubts(chosen),
        "replicas": [one._asdict() for one in proposal.reported],
        "unheard": [one._asdict() for one in proposal.unheard],
    }


def _described_election(elected: Elected) -> dict[str, Any]:
    assert elected.reply is not None, "it was granted"
    assert elected.choice.chosen is not None, "somebody leads"
    return {
        "partition": str(elected.choice.place),
        "node_id": elected.choice.chosen.node_id,
        "epoch": elected.reply.epoch,
        "kept_end": elected.reply.kept_end,
    }

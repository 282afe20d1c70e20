"""`oncelog offsets`: what consumer groups have committed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_json, print_table, show_time
from oncelog_server.cli.places import Place
from oncelog_server.cli.session import Session, connected
from oncelog_server.cli.times import parse_time
from oncelogpb.errors import InvalidArgument, NotFound, from_status
from oncelogpb.ids import show_id
from oncelogpb.v1 import cluster_pb2, partition_leader_pb2, types_pb2
from oncelogpb.v1 import offset_manager_pb2 as pb

if TYPE_CHECKING:
    from oncelog._core.group_offsets import Edges
    from oncelog._core.routing import PartitionKey

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class Since(NamedTuple):
    """The first record of this time or later; the end where there is none."""

    timestamp_us: int


# An offset, EARLIEST, LATEST, or by time.
Start = int | str | Since


def parse_start(what: str, text: str) -> Start:
    """Raises UsageError that names `what`."""
    if text in (EARLIEST, LATEST):
        return text
    if text.isdecimal():
        return int(text)
    try:
        return Since(parse_time(text, now_us=time.time_ns() // 1000))
    except ValueError:
        raise click.UsageError(
            f"{what} {text!r} is neither {EARLIEST}, {LATEST}, an offset, nor a time like "
            "2026-01-31T12:00:00Z or 15m."
        ) from None


class Target(NamedTuple):
    """TOPIC[/PARTITION]=OFFSET on the command line."""

    topic: str
    # None: all partitions of the topic.
    number: int | None
    to: Start


class TargetType(click.ParamType[Target]):
    name = "TOPIC[/PARTITION]=OFFSET"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Target:
        if isinstance(value, Target):
            return value
        where, equals, to = str(value).partition("=")
        topic, slash, number = where.partition("/")
        if not equals or not topic:
            self.fail(f"{value!r} is not {self.name}, e.g. payments/0=120 or payments=earliest.")
        if slash and not number.isdecimal():
            self.fail(f"{value!r}: {number!r} is not a partition's number.")
        return Target(topic, int(number) if slash else None, parse_start(str(value), to))


@click.group()
def offsets() -> None:
    """Look at and move the committed offsets of consumer groups."""


@offsets.command(name="list", epilog=examples("oncelog offsets list --prefix billing"))
@click.option("--prefix", default="", help="Only groups whose names begin so.")
@connected
def list_(session: Session, prefix: str) -> None:
    """List consumer groups that have offsets."""
    groups, _ = session.listed("offset_manager.list_groups", pb.ListGroupsRequest(prefix=prefix))
    if session.as_json:
        print_json(
            [
                {
                    "group": group.group,
                    "committed_partitions": group.committed_partitions,
                    "pending_partitions": group.pending_partitions,
                    "last_commit": show_time(group.last_commit_time_ms),
                }
                for group in groups
            ]
        )
        return
    print_table(
        ["GROUP", "PARTITIONS", "PENDING", "LAST COMMIT"],
        [
            [
                group.group,
                group.committed_partitions,
                group.pending_partitions,
                show_time(group.last_commit_time_ms),
            ]
            for group in groups
        ],
        empty="no groups have committed offsets",
    )


@offsets.command(epilog=examples("oncelog offsets show enricher", "oncelog offsets show g --json"))
@click.argument("group", shell_complete=names.groups)
@connected
def show(session: Session, group: str) -> None:
    """Show where a group stands, what waits for it, and what transactions hold.

    In every partition of the topics that it has offsets of: one that it never committed waits from
    its first record on.
    """
    from oncelog._core import group_offsets

    reply = fetch_offsets(session, group)
    if not reply.offsets:
        raise NotFound(f"group {group!r} has no offsets")
    wanted = cluster_pb2.GetMetadataRequest(topic_ids=group_offsets.topic_ids(reply.offsets))
    metadata: cluster_pb2.GetMetadataReply = session.call("cluster.get_metadata", wanted)
    names = {topic.topic_id: topic.name for topic in metadata.topics}
    known = group_offsets.of_whole_topics(reply.offsets, metadata.topics)
    standing = [offset for offset in known if offset.partition.topic_id in names]
    edges = group_offsets.edges(
        session.call("partition_leader.list_offsets", request)
        for request in group_offsets.edges_requests(standing)
    )
    rows = [_described(offset, edges, names) for offset in known]
    if session.as_json:
        last = [
            {"producer_id": str(commit.producer_id), "tx_id": show_id(commit.tx_id)}
            for commit in reply.last_commits
        ]
        print_json({"group": group, "offsets": rows, "last_commits": last})
        return
    print_table(
        ["PARTITION", "OFFSET", "START", "END", "LAG", "PENDING UNDER", "COMMITTED", "METADATA"],
        [
            [
                row["partition"],
                row["offset"],
                row["start"],
                row["end"],
                row["lag"],
                row["pending_tx_id"],
                row["committed"],
                row["metadata"] or None,
            ]
            for row in rows
        ],
        empty="",
    )


@offsets.command(
    name="set",
    epilog=examples(
        "oncelog offsets set enricher payments=earliest",
        "oncelog offsets set enricher payments/0=120 payments/1=98",
        "oncelog offsets set enricher payments=2026-01-31T12:00:00Z",
    ),
)
@click.argument("group", shell_complete=names.groups)
@click.argument(
    "targets", nargs=-1, required=True, type=TargetType(), metavar="TOPIC[/PARTITION]=OFFSET..."
)
@connected
def set_(session: Session, group: str, targets: tuple[Target, ...]) -> None:
    """Move a group. Stop its consumers first: they go on from where they are.

    OFFSET is a number, earliest, latest, or a TIME: the first record of that time or later, like
    2026-01-31T12:00:00Z (UTC where no zone is named), or 15m: so long ago.

    Refused while a transaction holds an offset of these partitions.
    """
    places = [place for target in targets for place in _places(session, target)]
    positions = resolve_positions(session, places)
    commits = [
        pb.OffsetCommit(partition=partition, from_any=True, to_offset=position)
        for (partition, _), position in zip(places, positions, strict=True)
    ]
    request = pb.CommitOffsetsRequest(offsets=pb.GroupOffsets(group=group, offsets=commits))
    session.call("offset_manager.commit_offsets", request)
    topics = session.topic_names()
    moved = [
        {"partition": _place(commit.partition, topics), "offset": commit.to_offset}
        for commit in commits
    ]
    if session.as_json:
        print_json({"group": group, "offsets": moved})
    else:
        print_table(
            ["PARTITION", "OFFSET"], [[m["partition"], m["offset"]] for m in moved], empty=""
        )


@offsets.command(epilog=examples("oncelog offsets delete enricher --yes"))
@click.argument("group", shell_complete=names.groups)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(session: Session, group: str, yes: bool) -> None:
    """Forget a group's offsets. Refused while a transaction holds any of them."""
    if not yes:
        click.confirm(f"Forget all offsets of group {group}?", abort=True, err=True)
    session.call("offset_manager.delete_group", pb.DeleteGroupRequest(group=group))
    if session.as_json:
        print_json({"group": group, "deleted": True})
    else:
        click.echo(f"forgot the offsets of group {group}")


def fetch_offsets(session: Session, group: str) -> pb.FetchOffsetsReply:
    """All of a group's last committed offsets, in whichever view they are."""
    request = pb.FetchOffsetsRequest(group=group, with_last_commits=True)
    try:
        reply: pb.FetchOffsetsReply = session.call("offset_manager.fetch_offsets", request)
    except InvalidArgument as error:
        if error.metadata.get("stored") != "JOURNAL":
            raise
        request.view = types_pb2.VIEW_JOURNAL
        reply = session.call("offset_manager.fetch_offsets", request)
    return reply


def resolve_positions(
    session: Session,
    places: Sequence[tuple[types_pb2.Partition, Start]],
    isolation: partition_leader_pb2.Isolation.ValueType = partition_leader_pb2.ISOLATION_COMMITTED,
) -> list[int]:
    """Offsets; those that are none are looked up. Raises OncelogError."""
    named = [(partition, to) for partition, to in places if not isinstance(to, int)]
    found: Iterator[partition_leader_pb2.ListedOffset] = iter(())
    if named:
        request = partition_leader_pb2.ListOffsetsRequest(
            isolation=isolation,
            queries=[_query(partition, to) for partition, to in named],
        )
        reply: partition_leader_pb2.ListOffsetsReply = session.call(
            "partition_leader.list_offsets", request
        )
        for listed in reply.offsets:
            if listed.HasField("error"):
                raise from_status(listed.error)
        found = iter(reply.offsets)
    return [to if isinstance(to, int) else next(found).offset for _, to in places]


def _query(partition: types_pb2.Partition, to: str | Since) -> partition_leader_pb2.OffsetQuery:
    query = partition_leader_pb2.OffsetQuery(partition=partition)
    if isinstance(to, Since):
        query.timestamp_us = to.timestamp_us
    elif to == EARLIEST:
        query.earliest = True
    else:
        query.latest = True
    return query


def _places(session: Session, target: Target) -> list[tuple[types_pb2.Partition, Start]]:
    topic = session.topic(target.topic)
    numbers = range(len(topic.partitions)) if target.number is None else [target.number]
    if numbers[-1] >= len(topic.partitions):
        raise click.UsageError(
            f"Topic {target.topic} has {len(topic.partitions)} partitions, no {numbers[-1]}."
        )
    return [
        (types_pb2.Partition(topic_id=topic.topic_id, number=number), target.to)
        for number in numbers
    ]


def _described(
    offset: pb.CommittedOffset, edges: Mapping[PartitionKey, Edges], topics: Mapping[bytes, str]
) -> dict[str, Any]:
    from oncelog._core.group_offsets import lag
    from oncelog._core.routing import PartitionKey

    committed = offset.offset if offset.HasField("offset") else None
    at = edges.get(PartitionKey.of(offset.partition))
    return {
        "partition": _place(offset.partition, topics),
        "offset": committed,
        "view": "journal" if offset.view == types_pb2.VIEW_JOURNAL else "committed",
        "start": None if at is None else at.start,
        "end": None if at is None else at.end,
        "lag": lag(committed, at),
        "pending_tx_id": show_id(offset.pending_tx_id) if offset.pending_tx_id else None,
        "committed": show_time(offset.commit_time_ms),
        "metadata": offset.metadata,
    }


def _place(partition: types_pb2.Partition, topics: Mapping[bytes, str]) -> str:
    name = topics.get(partition.topic_id, partition.topic_id.hex())
    return str(Place(name, partition.number))

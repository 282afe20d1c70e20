"""`oncelog topic`: create, list, describe, alter, delete; others are added at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from oncelog_server.cli import names as names_known
from oncelog_server.cli.asking import Unanswered, ask_journals
from oncelog_server.cli.disk_use import DiskUse, print_disk, survey_disk
from oncelog_server.cli.examples import examples
from oncelog_server.cli.moving import reassign
from oncelog_server.cli.output import print_fields, print_json, print_table, show_time
from oncelog_server.cli.partitions import (
    SELDOM,
    ListedPartition,
    in_sync,
    preferred_instead,
    print_replicas,
    show_known,
    survey,
)
from oncelog_server.cli.session import Session, connected
from oncelog_server.cli.truncating import truncate
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.partition_leader.topic_configs import CONFIGS
from oncelogpb.ids import show_id
from oncelogpb.v1 import cluster_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb

# What `topic describe` says of a partition, beside what is said of it where a topic is listed.
CONFIG_HELP: Final = f"One of: {', '.join(sorted(CONFIGS))}. Repeatable."
_MORE: Final = (
    "preferred_node",
    "high_watermark",
    "adding",
    "target",
    "writable",
    "under_replicated",
    "why_offline",
    "why_unwritable",
    "replica_states",
)


@click.group()
def topic() -> None:
    """Create, look at and change topics."""


@topic.command(
    epilog=examples(
        "oncelog topic create payments --partitions 3",
        "oncelog topic create audit --config retention.ms=604800000",
    )
)
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), help="Default: the cluster's.")
@click.option("--replication-factor", type=click.IntRange(1), help="Default: the cluster's.")
@click.option("--config", "configs", metavar="KEY=VALUE", multiple=True, help=CONFIG_HELP)
@click.option("--validate-only", is_flag=True, help="Check, but create nothing.")
@connected
def create(
    session: Session,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    validate_only: bool,
) -> None:
    """Create a topic, and wait until it can be used.

    Its partitions have leaders then. Those that get none within --timeout are told; the topic is
    created all the same, and clients wait for them.
    """
    request = pb.CreateTopicRequest(
        name=name,
        partitions=partitions or 0,
        replication_factor=replication_factor or 0,
        configs=parse_configs(configs),
        validate_only=validate_only,
    )
    reply: pb.CreateTopicReply = session.call("partition_leader.create_topic", request)
    topic = reply.topic if validate_only else session.protocol.led_topic(reply.topic)
    if session.as_json:
        print_json(_json(topic))
    elif validate_only:
        click.echo(f"topic {name} could be created")
    else:
        click.echo(f"created topic {name} with {len(topic.partitions)} partitions")
        _say_what_lacks(session, topic)


@topic.command(name="list", epilog=examples("oncelog topic list", "oncelog topic list --json"))
@click.option("--internal", is_flag=True, help="With the two control topics.")
@connected
def list_(session: Session, internal: bool) -> None:
    """List topics by name."""
    request = pb.ListTopicsRequest(internal=internal)
    reply: pb.ListTopicsReply = session.call("partition_leader.list_topics", request)
    if session.as_json:
        print_json([_json(topic) for topic in reply.topics])
        return
    print_table(
        ["TOPIC", "PARTITIONS", "LED", "REPLICATION", "CREATED", "CONFIG"],
        [
            [
                topic.name,
                len(topic.partitions),
                sum(partition.HasField("leader") for partition in topic.partitions),
                topic.replication_factor,
                show_time(topic.created_ms),
                _show_configs(topic),
            ]
            for topic in reply.topics
        ],
        empty="no topics; create one with `oncelog topic create NAME`",
    )


@topic.command(
    epilog=examples(
        "oncelog topic describe payments",
        "oncelog topic describe payments --replicas",
        "oncelog topic describe payments --disk",
    )
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=names_known.topics
)
@click.option("--replicas", is_flag=True, help="A line for each replica: what it does, its lag.")
@click.option(
    "--disk", is_flag=True, help="A line for each replica: what it takes, and what holds it."
)
@connected
def describe(session: Session, names: tuple[str, ...], replicas: bool, disk: bool) -> None:
    """Show a topic's partitions, their leaders, replicas and journals.

    All processes are asked at once; one that does not answer is said to be unreachable, and the
    rest is shown.
    """
    request = pb.DescribeTopicsRequest(names=names)
    reply: pb.DescribeTopicsReply = session.call("partition_leader.describe_topics", request)
    metadata: cluster_pb2.GetMetadataReply = session.call(
        "cluster.get_metadata", cluster_pb2.GetMetadataRequest()
    )
    surveyed, told = survey(session, reply.topics, metadata, only=True, with_disk=disk)
    found = {topic: [one for one in surveyed if one.place.topic == topic] for topic in names}
    journals = _journals(session, reply.topics, metadata)
    used = survey_disk(session, surveyed, reply.topics, metadata, told) if disk else []
    if session.as_json:
        print_json(
            [
                _json(topic, found[topic.name])
                | {"journals": [_journal(j) for j in journals[topic.topic_id]]}
                | _disk(topic.name, used)
                for topic in reply.topics
            ]
        )
        return
    for described in reply.topics:
        print_fields(
            [
                ("topic", described.name),
                ("id", described.topic_id.hex()),
                ("created", show_time(described.created_ms)),
                ("replication factor", described.replication_factor),
                ("config", _show_configs(described)),
            ]
        )
        print_table(
            [
                "PARTITION", "LEADER", "NODE", "PREFERRED", "EPOCH", "WRITABLE", "IN SYNC",
                "REPLICAS", "GO TO", "UNCLEAN", "WHY",
            ],
            [_partition_row(one) for one in found[described.name]],
            empty="no partitions",
            only_where_told=SELDOM,
        )  # fmt: skip
        if replicas:
            print_replicas(found[described.name])
        if disk:
            print_disk(_used_by(described.name, used))
        print_table(
            ["PARTITION", "COMMITTED", "JOURNAL", "HIGH WATERMARK", "OPEN TX", "DAMAGED"],
            [_journal_row(journal) for journal in journals[described.topic_id]],
            empty="no journal is led now",
        )


@topic.command(
    epilog=examples(
        "oncelog topic alter payments --config retention.ms=604800000",
        "oncelog topic alter payments --reset retention.ms",
        "oncelog topic alter payments --partitions 12",
    )
)
@click.argument("name", shell_complete=names_known.topics)
@click.option("--config", "configs", metavar="KEY=VALUE", multiple=True, help=CONFIG_HELP)
@click.option("--reset", "resets", metavar="KEY", multiple=True, help="Back to the default.")
@click.option("--partitions", type=click.IntRange(1), help="How many there shall be: only more.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def alter(
    session: Session,
    name: str,
    configs: tuple[str, ...],
    resets: tuple[str, ...],
    partitions: int | None,
    yes: bool,
) -> None:
    """Change a topic's settings, or add partitions.

    With more partitions, keys move: the next records of a key may go to another partition than
    those before, which stay where they are, so readers may see them in another order. Whoever reads
    the whole topic finds the new ones within a minute, and misses nothing of them.
    """
    changes = parse_configs(configs) | dict.fromkeys(resets, "")
    if not changes and partitions is None:
        raise click.UsageError(
            "Say what to change: --config KEY=VALUE, --reset KEY or --partitions N."
        )
    if partitions is not None:
        _require_consent(session, name, partitions, yes=yes)
    request = pb.AlterTopicRequest(name=name, configs=changes, partitions=partitions or 0)
    reply: pb.AlterTopicReply = session.call("partition_leader.alter_topic", request)
    topic = reply.topic if partitions is None else session.protocol.led_topic(reply.topic)
    if session.as_json:
        print_json(_json(topic))
        return
    click.echo(
        f"changed topic {name}: {len(topic.partitions)} partitions, "
        f"{_show_configs(reply.topic) or 'all defaults'}"
    )
    _say_what_lacks(session, topic)


def _require_consent(session: Session, name: str, partitions: int, *, yes: bool) -> None:
    """Asks, where keys will move."""
    before = len(session.topic(name).partitions)
    if partitions <= before:
        # Nothing happens, or it is refused.
        return
    moving = f"from {before} to {partitions} partitions: keys move, for good"
    if yes:
        session.say(f"{name} goes {moving}")
    else:
        click.confirm(f"{name} goes {moving}. Add them?", abort=True, err=True)


@topic.command(epilog=examples("oncelog topic delete payments --yes"))
@click.argument("name", shell_complete=names_known.topics)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a topic and its records: nobody reads them again.

    To delete only its oldest records: `oncelog topic truncate`.

    This frees no disk: each process keeps the files in orphans/ of its data directory until
    somebody removes them. See docs/operating.md, `Deleted topics`.
    """
    if not yes:
        click.confirm(f"Delete topic {name} and all of its records?", abort=True, err=True)
    # Only what was meant: a request whose answer was lost may arrive late.
    request = pb.DeleteTopicRequest(name=name, topic_id=session.topic(name).topic_id)
    reply: pb.DeleteTopicReply = session.call("partition_leader.delete_topic", request)
    if session.as_json:
        print_json({"name": name, "topic_id": reply.topic_id.hex()})
    else:
        click.echo(f"deleted topic {name}")


topic.add_command(reassign)
topic.add_command(truncate)


def _say_what_lacks(session: Session, topic: pb.TopicDescription) -> None:
    lacking = sum(not partition.HasField("leader") for partition in topic.partitions)
    if lacking:
        session.say(
            f"{lacking} of {len(topic.partitions)} partitions have no leader yet: writes to them "
            f"wait. Look with `oncelog topic describe {topic.name}`"
        )


def parse_configs(pairs: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE each. Raises UsageError."""
    configs = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{pair!r} is not KEY=VALUE.")
        configs[key] = value
    return configs


def _journals(
    session: Session,
    topics: Iterable[pb.TopicDescription],
    metadata: cluster_pb2.GetMetadataReply,
) -> dict[bytes, list[pb.JournalDescription]]:
    """By topic id, of the partitions that have a leader: each process tells what it leads. Only
    operators are told. `survey` said who does not answer."""
    journals: dict[bytes, list[pb.JournalDescription]] = {topic.topic_id: [] for topic in topics}
    leaders = [node for node in metadata.nodes if PARTITION_LEADER in node.roles]
    with session.direct() as direct:
        answers = ask_journals(direct, leaders)
    for answer in answers.values():
        if not isinstance(answer, Unanswered):
            for journal in answer.journals:
                journals.get(journal.partition.topic_id, []).append(journal)
    for found in journals.values():
        found.sort(key=lambda journal: journal.partition.number)
    return journals


def _used_by(topic: str, used: Iterable[DiskUse]) -> list[DiskUse]:
    return [row for row in used if row.partition.rpartition("/")[0] == topic]


def _disk(topic: str, used: Sequence[DiskUse]) -> dict[str, Any]:
    return {"disk": [row.as_json() for row in _used_by(topic, used)]} if used else {}


def _journal(journal: pb.JournalDescription) -> dict[str, Any]:
    first_open = journal.HasField("first_open_position")
    return {
        "number": journal.partition.number,
        "epoch": journal.epoch,
        "committed_start": journal.committed_start_offset,
        "committed_end": journal.committed_end_offset,
        "log_start": journal.log_start_offset,
        "log_end": journal.log_end_offset,
        "high_watermark": journal.high_watermark,
        "open_transactions": journal.open_transactions,
        "first_open_position": journal.first_open_position if first_open else None,
        "damaged": [show_id(tx_id) for tx_id in journal.damaged],
    }


def _journal_row(journal: pb.JournalDescription) -> list[Any]:
    return [
        journal.partition.number,
        f"{journal.committed_start_offset} to {journal.committed_end_offset}",
        f"{journal.log_start_offset} to {journal.log_end_offset}",
        journal.high_watermark,
        journal.open_transactions,
        " ".join(show_id(tx_id) for tx_id in journal.damaged) or None,
    ]


def _json(topic: pb.TopicDescription, found: Iterable[ListedPartition] = ()) -> dict[str, Any]:
    """`found`: what is known of its partitions beside what etcd shows."""
    more = {one.place.number: one.as_json() for one in found}
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "replication_factor": topic.replication_factor,
        "created": show_time(topic.created_ms),
        "configs": dict(topic.configs),
        "partitions": [
            {
                "number": partition.number,
                "leader": _address(partition),
                "leader_node": partition.leader.node_id or None,
                "epoch": partition.epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "unclean_epoch": partition.unclean_epoch or None,
            }
            | {name: more[partition.number][name] for name in _MORE if partition.number in more}
            for partition in topic.partitions
        ],
    }


def _partition_row(one: ListedPartition) -> list[Any]:
    partition = one.partition
    return [
        partition.number,
        _address(partition) or "none",
        partition.leader.node_id or None,
        preferred_instead(one),
        partition.epoch,
        show_known(one.is_writable),
        in_sync(partition),
        " ".join(partition.replicas),
        " ".join(partition.target) or None,
        partition.unclean_epoch or None,
        one.why_offline or one.why_unwritable or None,
    ]


def _address(partition: pb.PartitionDescription) -> str | None:
    if not partition.HasField("leader"):
        return None
    endpoint = partition.leader.endpoint
    return f"{endpoint.host}:{endpoint.port}"


def _show_configs(topic: pb.TopicDescription) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(topic.configs.items()))

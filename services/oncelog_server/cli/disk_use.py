"""What replicas take on the disk, and what keeps their journals from beginning later: `--disk` of
`oncelog topic describe` and `oncelog cluster partitions`.

Sizes are what each process finds in its own directories. What holds a journal is said by the
partition's leader:

    a follower         it is still sent what could go
    open transaction   its records may become readable yet: which, whose, for how long
    damaged part       waits for an operator
    records            can be read; the topic's retention says for how long, or nothing does; where
                       it is settled: those that are not yet
    outcomes           of control partitions: of ended transactions, told for a time
    nothing            it goes, segment by segment
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import click

from oncelog_server.cli.asking import Key, Told, Unanswered, ask_journals
from oncelog_server.cli.output import print_table, show_age, show_bytes
from oncelog_server.cli.partitions import ListedPartition
from oncelog_server.cli.replicas import show_damage
from oncelog_server.cli.session import Session
from oncelog_server.core.roles import PARTITION_LEADER
from oncelogpb.errors import OncelogError
from oncelogpb.ids import show_id
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, replication_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb

# Transactions whose producers are asked for by name: each is a question to a coordinator.
NAMED_MAX: Final = 20
UNLIMITED: Final = -1
# By TxId: how its producer is called.
Names = Callable[[int], str | None]


class DiskUse(NamedTuple):
    """Of one replica. None, of a figure: its process does not tell."""

    partition: str
    node_id: str
    segment_bytes: int | None
    table_bytes: int | None
    snapshot_bytes: int | None
    slot_bytes: int | None
    # Of what was settled.
    data_bytes: int | None
    # Journal offsets: where it begins, and from where on it is needed.
    log_start: int | None
    needed_from: int | None
    # Offsets: behind the last record that is settled, and that is readable; None: its topic is not
    # settled.
    settled_end: int | None
    readable_end: int | None
    # What a replica does whose topic leaves it open (`materialization=auto`), and why; None: the
    # topic says it.
    auto: str | None
    # Of the leader's replica, what holds it; "" of the others.
    held: str
    # What of its settled records cannot be read, and what is done about that; "": nothing is.
    damaged: str = ""

    @property
    def total_bytes(self) -> int | None:
        parts = (
            self.segment_bytes,
            self.table_bytes,
            self.snapshot_bytes,
            self.slot_bytes,
            self.data_bytes,
        )
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    def as_json(self) -> dict[str, Any]:
        words = {"held": self.held or None, "damaged": self.damaged or None}
        return {**self._asdict(), **words, "total_bytes": self.total_bytes}


def disk_use(
    found: Iterable[ListedPartition],
    topic_ids: Mapping[str, bytes],
    told: Told,
    journals: Mapping[Key, pb.JournalDescription],
    *,
    now_ms: int,
    names: Names,
) -> list[DiskUse]:
    """A row for each replica, by partition; those of nodes that do not answer without figures."""
    rows = []
    for one in found:
        key = (topic_ids[one.place.topic], one.place.number)
        for node in one.partition.replicas:
            replica = told.replicas.get(node, {}).get(key)
            leads = node == one.partition.leader.node_id
            held = ""
            if replica is not None and leads:
                held = what_holds(str(one.place), replica, journals.get(key), now_ms, names)
            rows.append(_row(str(one.place), node, replica, held))
    return rows


def _row(
    place: str, node: str, replica: replication_pb2.ReplicaDescription | None, held: str
) -> DiskUse:
    if replica is None or not replica.incarnation:
        silent = (None, None, None, None, None, None, None, None, None, None)
        return DiskUse(place, node, *silent, held)
    known, disk = replica.HasField("disk"), replica.disk
    settled = replica.settled
    is_settled = settled.wanted or settled.end > 0
    return DiskUse(
        place,
        node,
        disk.segment_bytes if known else None,
        disk.table_bytes if known else None,
        disk.snapshot_bytes if known else None,
        disk.slot_bytes if known else None,
        disk.data_bytes if known else None,
        replica.log_start,
        replica.needed_from,
        settled.end if is_settled else None,
        settled.readable_end if is_settled else None,
        f"{'copy' if settled.wanted else 'reference'}: {settled.why}" if settled.auto else None,
        held,
        show_damage(settled),
    )


def what_holds(
    place: str,
    replica: replication_pb2.ReplicaDescription,
    journal: pb.JournalDescription | None,
    now_ms: int,
    names: Names,
) -> str:
    """In words. `journal`: as the leader of a topic's partition says; None: of a control partition,
    or it does not say."""
    if replica.held_by:
        return f"node {replica.held_by} is still sent it"
    if journal is None:
        if replica.wanted_from < replica.needed_from:
            return "outcomes of ended transactions (coordinator.outcome_retention_ms)"
        return "nothing: it goes by segments"
    needed = journal.needed_by
    match needed.kind:
        case pb.NeededBy.KIND_OPEN_TRANSACTION:
            name = names(needed.tx_id)
            whose = repr(name) if name else show_id(needed.producer.producer_id)
            age = show_age(max(0, now_ms - needed.began_ms))
            return f"transaction {show_id(needed.tx_id)} of producer {whose}, open for {age}"
        case pb.NeededBy.KIND_DAMAGED:
            shown = show_id(needed.tx_id)
            return f"a damaged part: `oncelog tx resolve {shown} {place} --drop|--expose`"
        case pb.NeededBy.KIND_RECORDS if replica.settled.wanted:
            return _unsettled(replica.settled)
        case pb.NeededBy.KIND_RECORDS:
            return f"records: {_retention(journal)}"
        case pb.NeededBy.KIND_NOTHING:
            return "nothing: it goes by segments"
    return ""


def _unsettled(settled: replication_pb2.SettledDescription) -> str:
    count = settled.readable_end - max(settled.end, settled.begin)
    if settled.waits:
        return f"{count} records that cannot be settled: {settled.waits}"
    if count > 0:
        return f"{count} records that are not settled yet"
    return "nothing: it goes by segments"


def _retention(journal: pb.JournalDescription) -> str:
    limits = [
        f"{name}={value}"
        for name, value in (
            ("retention.ms", journal.retention_ms),
            ("retention.bytes", journal.retention_bytes),
        )
        if value != UNLIMITED
    ]
    return " ".join(limits) or "kept for ever, no retention is set"


def survey_disk(
    session: Session,
    found: Iterable[ListedPartition],
    topics: Iterable[pb.TopicDescription],
    metadata: cluster_pb2.GetMetadataReply,
    told: Told,
) -> list[DiskUse]:
    """Asks leaders what holds their journals, and coordinators whose transactions those are. `told`
    was asked for with what the disk holds."""
    leaders = [node for node in metadata.nodes if PARTITION_LEADER in node.roles]
    with session.direct() as direct:
        answers = ask_journals(direct, leaders)
    journals = {
        (journal.partition.topic_id, journal.partition.number): journal
        for answer in answers.values()
        if not isinstance(answer, Unanswered)
        for journal in answer.journals
    }
    return disk_use(
        found,
        {topic.name: topic.topic_id for topic in topics},
        told,
        journals,
        now_ms=metadata.time_ms,
        names=_producer_names(session),
    )


def _producer_names(session: Session) -> Names:
    asked: dict[int, str | None] = {}

    def name(tx_id: int) -> str | None:
        if tx_id not in asked and len(asked) < NAMED_MAX:
            request = coordinator_pb2.GetTransactionRequest(tx_id=tx_id)
            try:
                reply = session.call("coordinator.get_transaction", request)
                asked[tx_id] = reply.transaction.name or None
            except OncelogError:
                # Its id has to do.
                asked[tx_id] = None
        return asked.get(tx_id)

    return name


def print_disk(rows: Iterable[DiskUse]) -> None:
    """A line for each replica, and one for all of them."""
    listed = list(rows)
    print_table(
        [
            "PARTITION", "NODE", "TOTAL", "SEGMENTS", "DATA", "TABLES", "SNAPSHOTS", "SLOTS",
            "LOG START", "NEEDED FROM", "SETTLED", "AUTO", "DAMAGED", "HELD BY",
        ],
        [
            [
                row.partition,
                row.node_id,
                _size(row.total_bytes),
                _size(row.segment_bytes),
                _size(row.data_bytes if row.settled_end is not None else None),
                _size(row.table_bytes),
                _size(row.snapshot_bytes),
                _size(row.slot_bytes),
                row.log_start,
                row.needed_from,
                _settled(row),
                row.auto,
                row.damaged or None,
                row.held or None,
            ]
            for row in listed
        ],
        empty="no replicas",
        only_where_told=("SLOTS", "TABLES", "DATA", "SETTLED", "AUTO", "DAMAGED"),
    )  # fmt: skip
    total = sum(row.total_bytes or 0 for row in listed)
    silent = sum(row.total_bytes is None for row in listed)
    unknown = f"; {silent} replicas do not tell" if silent else ""
    click.echo(f"{show_bytes(total)} in {len(listed)} replicas{unknown}")


def _settled(row: DiskUse) -> str | None:
    if row.settled_end is None:
        return None
    return f"{row.settled_end} of {row.readable_end}"


def _size(count: int | None) -> str | None:
    return None if count is None else show_bytes(count)

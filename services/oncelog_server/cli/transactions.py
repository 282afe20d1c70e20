"""`oncelog tx`: look at transactions, abort one, resolve a damaged part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import (
    TX_ID,
    print_fields,
    print_json,
    print_table,
    show_age,
    show_time,
)
from oncelog_server.cli.places import PLACE, Place, find
from oncelog_server.cli.session import Session, connected
from oncelogpb.ids import show_generation, show_id
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2, types_pb2

STATES: Final = {
    "ongoing": types_pb2.TRANSACTION_STATE_ONGOING,
    "committed": types_pb2.TRANSACTION_STATE_COMMITTED,
    "aborted": types_pb2.TRANSACTION_STATE_ABORTED,
}
ACTIONS: Final = {
    "drop": partition_leader_pb2.ResolveTransactionRequest.ACTION_DROP,
    "expose": partition_leader_pb2.ResolveTransactionRequest.ACTION_EXPOSE,
}
# Instead of the parts of one that ended.
NO_LONGER_KNOWN: Final = (
    "its parts are not known any more: its journal has outgrown node.control_journal_bytes_max"
)


@click.group()
def tx() -> None:
    """Look at transactions, and end what hangs."""


@tx.command(
    name="list",
    epilog=examples(
        "oncelog tx list",
        "oncelog tx list --state ongoing --min-age 60",
        "oncelog tx list --name enricher --json",
    ),
)
@click.option("--state", "states", type=click.Choice(list(STATES)), multiple=True)
@click.option("--min-age", type=click.IntRange(0), default=0, help="Began so many seconds ago.")
@click.option("--name", default="", help="Of this producer.")
@click.option("--group", default="", help="Of this transaction group.")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True)
@connected
def list_(
    session: Session, states: tuple[str, ...], min_age: int, name: str, group: str, limit: int
) -> None:
    """List transactions that are open, or decided with markers on their way.

    Those that ended everywhere are not listed; `oncelog tx describe TXID` knows them for 7 days.
    """
    request = pb.ListTransactionsRequest(
        states=[STATES[state] for state in states],
        min_age_ms=min_age * 1000,
        name=name,
        group=group,
        limit=limit,
    )
    found, more = session.listed("coordinator.list_transactions", request, limit=limit)
    if session.as_json:
        topics = session.topic_names()
        shown = [_json(described, topics) for described in found]
        print_json({"transactions": shown, "more": more})
        return
    print_table(
        ["TXID", "STATE", "PRODUCER", "GENERATION", "AGE", "WAITS FOR"],
        [_row(described) for described in found],
        empty="no open transactions",
    )
    if more:
        session.say(f"there are more; raise --limit above {limit}")


@tx.command(epilog=examples("oncelog tx describe 0003000000000005"))
@click.argument("tx_id", type=TX_ID)
@connected
def describe(session: Session, tx_id: int) -> None:
    """Show one transaction: state, times, parts, and who has not exposed it yet."""
    reply: pb.GetTransactionReply = session.call(
        "coordinator.get_transaction", pb.GetTransactionRequest(tx_id=tx_id)
    )
    described, topics = reply.transaction, session.topic_names()
    if session.as_json:
        print_json(_json(described, topics))
        return
    print_fields(
        [
            ("transaction", show_id(described.tx_id)),
            ("state", _state(described)),
            ("cause", _cause(described)),
            ("producer", _producer(described)),
            ("group", described.group),
            ("generation", show_generation(described.producer.generation)),
            ("began", show_time(described.begin_time_ms)),
            ("decided", show_time(described.end_time_ms)),
            ("order in its group", described.prepare_offset or None),
            ("timeout", f"{described.timeout_ms} ms" if described.timeout_ms else None),
            ("commit_seq", _commit_seq(described)),
        ]
    )
    print_table(
        ["PARTITION", "WRITER", "RECORDS", "MARKER"],
        [
            [part["partition"], part["writer"], part["record_count"], part["marker"]]
            for part in _parts(described, topics)
        ],
        empty=NO_LONGER_KNOWN if described.parts_forgotten else "no parts",
    )


@tx.command(epilog=examples("oncelog tx abort 0003000000000005 --yes"))
@click.argument("tx_id", type=TX_ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def abort(session: Session, tx_id: int, yes: bool) -> None:
    """Abort somebody's open transaction. Its producer is told, and may begin again."""
    shown = show_id(tx_id)
    if not yes:
        click.confirm(f"Abort transaction {shown}?", abort=True, err=True)
    request = pb.AbortTransactionRequest(tx_id=tx_id, operator=True)
    session.call("coordinator.abort_transaction", request)
    if session.as_json:
        print_json({"tx_id": shown, "state": "aborted"})
    else:
        click.echo(f"aborted transaction {shown}")


@tx.command(
    epilog=examples(
        "oncelog tx resolve 0003000000000005 payments/0 --drop",
        "oncelog tx resolve 0003000000000005 payments/0 --expose",
    )
)
@click.argument("tx_id", type=TX_ID)
@click.argument("place", type=PLACE, metavar="TOPIC/PARTITION", shell_complete=names.places)
@click.option("--drop", is_flag=True, help="Drop what the part holds here.")
@click.option("--expose", is_flag=True, help="Expose it, although it differs.")
@connected
def resolve(session: Session, tx_id: int, place: Place, drop: bool, expose: bool) -> None:
    """Settle a DAMAGED part: a committed part that did not match its manifest.

    Nothing of it was exposed. Dropping loses those records; exposing shows what is there, although
    the counts differ from what the producer said it wrote.
    """
    if drop == expose:
        raise click.UsageError("Say what to do with the part: --drop or --expose.")
    action = "drop" if drop else "expose"
    request = partition_leader_pb2.ResolveTransactionRequest(
        tx_id=tx_id, partition=find(session, place), action=ACTIONS[action]
    )
    reply: partition_leader_pb2.ResolveTransactionReply = session.call(
        "partition_leader.resolve_transaction", request
    )
    if session.as_json:
        resolved = {"tx_id": show_id(tx_id), "partition": str(place), "action": action}
        print_json(resolved | {"record_count": reply.record_count})
    else:
        done = {"drop": "dropped", "expose": "exposed"}[action]
        click.echo(f"{done} {reply.record_count} records of {show_id(tx_id)} in {place}")


def _row(described: pb.TransactionDescription) -> list[Any]:
    age_ms = int(time.time() * 1000) - described.begin_time_ms
    return [
        show_id(described.tx_id),
        _state(described),
        _producer(described),
        show_generation(described.producer.generation),
        show_age(age_ms) if described.begin_time_ms else None,
        f"{len(described.unacknowledged)} markers" if described.unacknowledged else None,
    ]


def _json(described: pb.TransactionDescription, topics: Mapping[bytes, str]) -> dict[str, Any]:
    commit_seq = described.commit_seq
    return {
        "tx_id": show_id(described.tx_id),
        "state": _word(types_pb2.TransactionState, described.state),
        "visible": described.visible,
        "staged": described.staged,
        "cause": _cause(described),
        "producer_id": str(described.producer.producer_id),
        "generation": show_generation(described.producer.generation),
        "name": described.name or None,
        "group": described.group or None,
        "began": show_time(described.begin_time_ms),
        "decided": show_time(described.end_time_ms),
        "prepare_offset": described.prepare_offset or None,
        "timeout_ms": described.timeout_ms,
        "commit_seq": {"scope": commit_seq.scope, "number": commit_seq.number}
        if described.HasField("commit_seq")
        else None,
        "parts": None if described.parts_forgotten else list(_parts(described, topics)),
    }


def _parts(
    described: pb.TransactionDescription, topics: Mapping[bytes, str]
) -> Iterator[dict[str, Any]]:
    waiting = {(p.topic_id, p.number) for p in described.unacknowledged}
    damaged = {
        (part.partition.topic_id, part.partition.number, part.writer) for part in described.damaged
    }
    for topic in described.parts.topics:
        name = topics.get(topic.topic_id, topic.topic_id.hex())
        columns = zip(topic.partition, topic.writer, topic.record_count, strict=True)
        for number, writer, count in columns:
            marker = "applied" if described.visible else "-"
            if (topic.topic_id, number) in waiting:
                marker = "on its way"
            if (topic.topic_id, number, writer) in damaged:
                marker = "DAMAGED"
            yield {
                "partition": str(Place(name, number)),
                "writer": f"{writer:x}",
                "record_count": count,
                "marker": marker,
            }


def _state(described: pb.TransactionDescription) -> str:
    state = _word(types_pb2.TransactionState, described.state)
    if described.staged:
        return f"{state} (waits for the offset manager)"
    decided = described.state in (
        types_pb2.TRANSACTION_STATE_COMMITTED,
        types_pb2.TRANSACTION_STATE_ABORTED,
    )
    return state if described.visible or not decided else f"{state} (markers on their way)"


def _cause(described: pb.TransactionDescription) -> str | None:
    return _word(types_pb2.AbortCause, described.cause) if described.cause else None


def _word(enum: Any, value: int) -> str:
    """committed for TRANSACTION_STATE_COMMITTED, timeout for ABORT_CAUSE_TIMEOUT."""
    name: str = enum.Name(value)
    return name.removeprefix("TRANSACTION_STATE_").removeprefix("ABORT_CAUSE_").lower()


def _producer(described: pb.TransactionDescription) -> str:
    return described.name or f"unnamed {show_id(described.producer.producer_id)}"


def _commit_seq(described: pb.TransactionDescription) -> str | None:
    if not described.HasField("commit_seq"):
        return None
    return f"{described.commit_seq.scope}.{described.commit_seq.number}"

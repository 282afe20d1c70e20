"""Positions on the command line: an offset, `earliest`, `latest` or a time; and which offset of a
partition that is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import click

from oncelog_server.cli.output import EPOCH
from oncelog_server.cli.session import Session
from oncelog_server.cli.times import parse_time
from oncelog_server.core.numbers import is_number
from oncelogpb.errors import from_status
from oncelogpb.v1 import partition_leader_pb2, types_pb2

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class Since(NamedTuple):
    """The first record of this time or later; the end where there is none."""

    timestamp_us: int

    @property
    def moment(self) -> datetime:
        """Raises OverflowError where no calendar has it."""
        return EPOCH + timedelta(microseconds=self.timestamp_us)


# An offset, EARLIEST, LATEST, or by time.
Start = int | str | Since


def parse_start(what: str, text: str, words: Sequence[str] = (EARLIEST, LATEST)) -> Start:
    """One of the words, an offset, or a time that a calendar has. Raises UsageError that names
    `what`."""
    if text in words:
        return text
    if is_number(text):
        return int(text)
    try:
        since = Since(parse_time(text, now_us=time.time_ns() // 1000))
        _ = since.moment
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{what} {text!r} is neither {', '.join(words)}, an offset, nor a time like "
            "2026-01-31T12:00:00Z or 15m."
        ) from None
    return since


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

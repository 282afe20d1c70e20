"""What must hold when all is healed and the job has caught up. PURE, but for `logs_of` and
`require_nothing_left`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import oncelog
from oncelog.protocol import Protocol
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from tests.spark.chaos.job import AUDIT, JOB, SOURCE, TARGET, results_of

TOPICS: Final = (SOURCE, TARGET, AUDIT)
# Markers of the last transactions are on their way.
SETTLES_S: Final = 180.0
SHOWN: Final = 5


class Row(NamedTuple):
    """A record of a log."""

    partition: int
    key: bytes
    value: bytes


Logs = Mapping[str, Sequence[Row]]


class Counted(NamedTuple):
    """Of a run that is clean."""

    read: int
    written: int

    def __str__(self) -> str:
        return f"{self.read} records in, {self.written} out: none lost, none twice, in order"


def logs_of(log: oncelog.Log) -> Logs:
    """All that is committed, in the order of each partition."""
    found: dict[str, list[Row]] = {}
    for topic in TOPICS:
        ends = dict(enumerate(log.admin.offsets(topic)))
        rows = found[topic] = []
        with log.consumer([topic], start="earliest") as consumer:
            while any(consumer.position(topic, number) < end for number, end in ends.items()):
                batch = consumer.poll(30.0)
                assert batch is not None, f"{topic} cannot be read to its ends {ends}"
                rows += [Row(one.partition, one.key or b"", one.value or b"") for one in batch]
    return found


def judged(logs: Logs) -> Counted:
    """Raises AssertionError where the output is not f(input), once each, in order of each key."""
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in logs[SOURCE]:
        for topic, value in results_of(row.value).items():
            wanted[topic].append(row._replace(value=value))
    for topic in (TARGET, AUDIT):
        require_same(topic, wanted=wanted[topic], found=logs[topic])
    return Counted(len(logs[SOURCE]), len(logs[TARGET]) + len(logs[AUDIT]))


def require_same(topic: str, *, wanted: Iterable[Row], found: Iterable[Row]) -> None:
    by_key, wanted_by_key = _by_key(found), _by_key(wanted)
    counts = Counter((key, value) for key, values in by_key.items() for value in values)
    due = Counter((key, value) for key, values in wanted_by_key.items() for value in values)
    lost, surplus = due - counts, counts - due
    assert not lost, f"{topic}: {lost.total()} of {due.total()} are lost: {list(lost)[:SHOWN]}"
    assert not surplus, f"{topic}: {surplus.total()} came out twice: {list(surplus)[:SHOWN]}"
    for key, values in wanted_by_key.items():
        assert by_key[key] == values, f"{topic}: the order of {key!r} is not that of the input"


def require_nothing_left(
    log: oncelog.Log, protocol: Protocol, until: Callable[[Callable[[], bool], str, float], None]
) -> None:
    """No transaction is open or on its way, nothing is staged anywhere, no offset is pending, and
    the group stands at the heads of its input."""
    until(lambda: not log.admin.transactions(), "no transaction is open", SETTLES_S)
    until(lambda: not staged(protocol), "nothing is staged", SETTLES_S)
    offsets = [row for row in log.admin.group_offsets(JOB) if row.topic == SOURCE]
    pending = [row for row in offsets if row.pending_tx_id]
    assert not pending, f"offsets are pending: {pending}"
    heads = dict(enumerate(log.admin.offsets(SOURCE)))
    stands = {row.partition: row.offset for row in offsets}
    assert stands == heads, f"the group stands at {stands}, the input ends at {heads}"


def staged(protocol: Protocol) -> list[tuple[str, int, int]]:
    """Topic, partition, and how many transactions have batches there and no marker."""
    # Each process tells of what it leads.
    reply = protocol.call("partition_leader.describe_journals", leader_pb.DescribeJournalsRequest())
    told = {(one.partition.topic_id, one.partition.number): one for one in reply.journals}
    found = []
    for name in TOPICS:
        topic = protocol.topic(name)
        for part in topic.partitions:
            journal = told.get((topic.topic_id, part.number))
            if journal is None:
                # Nobody leads it just now: whoever waits asks again.
                found.append((name, part.number, 0))
            elif journal.open_transactions or journal.HasField("first_open_position"):
                found.append((name, part.number, journal.open_transactions))
    return found


def _by_key(rows: Iterable[Row]) -> dict[bytes, list[bytes]]:
    """A key lies in one partition, so its records have one order."""
    places: dict[bytes, set[int]] = defaultdict(set)
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for row in rows:
        places[row.key].add(row.partition)
        found[row.key].append(row.value)
    assert all(len(partitions) == 1 for partitions in places.values()), "a key is in two partitions"
    return found

"""The committed log of every replica at the end of a day, record by record, in dense order: the
blocks of its own data log, as far as it has settled, and the frames of its own journal, where the
rows of a machine say that they lie that has seen this journal and nothing else.

    await DenseOrders(world).compare(seen)    all replicas of a topic's partition hold the same, and
                                              what readers were given is what they hold

Journals that are equal byte by byte do not say so: rows may lead elsewhere, and what is settled is
settled by each replica for itself, cut into blocks as it happens. What a replica has settled and in
its journal, too, is compared there: the records, and of each unit whose it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from oncelog.batch import Record
from oncelog_server.core.block import Block
from oncelog_server.core.frame import OCCUPY_RECORDS, StoredFrame
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.roles import PARTITION_LEADER
from oncelogpb.errors import CorruptLog
from tests.faults.verdict import replay
from tests.simulation.copies import Replica
from tests.simulation.moments import DATA_REFUSED
from tests.simulation.rows import Row, rows_of

if TYPE_CHECKING:
    from oncelog_server.partition_leader.machine import PartitionMachine
    from oncelog_server.runtime.storage.data_log import DataLog
    from tests.simulation.world import World

READ_BYTES: Final = 1 << 20


class Order(NamedTuple):
    """Of one replica: its records by offset, from `begin` to `end`: all, but for what rotted."""

    begin: int
    end: int
    rows: Mapping[int, Row]


class DenseOrders:
    """Of all topics' partitions of one world, when nobody asks for anything any more."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Replicas, and blocks, that were looked at.
        self.compared = self.settled = 0

    async def compare(self, seen: Sequence[Record]) -> None:
        """`seen`: all that a reader of all topics was given. Raises AssertionError."""
        given: dict[tuple[str, int], dict[int, Row]] = defaultdict(dict)
        for record in seen:
            row = Row(record.key, record.value, record.timestamp_us, record.headers)
            given[record.topic, record.partition][record.offset] = row
        for name, partition in self._partitions():
            if self._world.commits.follows(partition.topic_id):
                # It may be compacted (`compacted_orders`).
                continue
            first: Order | None = None
            for replica in self._world.copies.replicas(partition):
                order = await self._order_of(replica)
                first = first or order
                same_rows(f"{replica} and others", order, first.rows, below=first.end)
                same_rows(f"{replica} and readers", order, given[name, partition.number])
                self.compared += 1

    def _partitions(self) -> Iterator[tuple[str, PartitionId]]:
        """With the names of their topics."""
        for process in self._world.processes.values():
            if process.role == PARTITION_LEADER:
                view = process.node._view
                assert view is not None, "started"
                names = {topic.topic_id: topic.name for topic in view.topics()}
                for driver in process.node.led_replicas():
                    if (name := names.get(driver.partition.topic_id)) is not None:
                        yield name, driver.partition

    async def _order_of(self, replica: Replica) -> Order:
        driver, journal = replica.driver, replica.journal
        machine = replay(driver._role, driver.partition, journal, from_snapshot=True)
        begin, end = machine.committed.start_offset, machine.committed.end_offset
        start = journal.log_start
        frames: dict[int, StoredFrame] = {it.at.offset: it for it in journal.replay(start)}
        rows = dict(_of_journal(machine, frames))
        data = journal.data
        settled = Order(0, 0, {}) if data is None else await self._settled(replica, data, frames)
        same_rows(f"{replica} and its journal", settled, rows)
        rows |= settled.rows
        if self._world.copies.may_lack_blocks(replica):
            return Order(begin, end, rows)
        missing = [offset for offset in range(begin, end) if offset not in rows]
        assert not missing, f"I14: {replica} holds no record at {missing[:3]} of [{begin}, {end})"
        return Order(begin, end, rows)

    async def _blocks(self, replica: Replica, data: DataLog, position: int) -> list[Block] | int:
        """From there on; of who may lack some, where to go on behind what is refused."""
        try:
            return await data.read(position, READ_BYTES)
        except CorruptLog as error:
            refused = error
        may_lack = self._world.copies.may_lack_blocks(replica)
        assert may_lack, f"I26: {replica} lost what it had settled: {refused}"
        lacks = data.damaged_at(position)
        assert lacks is not None, f"I26: {replica} refuses what it has: {refused}"
        self._world.moments.add(DATA_REFUSED)
        return lacks[1]

    async def _settled(
        self, replica: Replica, data: DataLog, frames: Mapping[int, StoredFrame]
    ) -> Order:
        """What it has settled, and not deleted."""
        rows: dict[int, Row] = {}
        position = data.begin
        while position < data.settled_end:
            blocks = await self._blocks(replica, data, position)
            if isinstance(blocks, int):
                position = blocks
                continue
            assert blocks, f"I14: {replica} has settled {position}, and no block holds it"
            for block in blocks:
                assert block.first_offset <= position < block.end_offset, "blocks follow each other"
                found = rows_of(block.encoding, block.payload)
                rows.update(zip(block.offsets, found, strict=True))
                _require_units(replica, block, frames)
                position = block.end_offset
                self.settled += 1
        kept = {offset: row for offset, row in rows.items() if offset >= data.begin}
        return Order(data.begin, data.settled_end, kept)


def same_rows(
    what: str, order: Order, others: Mapping[int, Row], *, below: int | None = None
) -> None:
    """As far as others know them; up to `below`, where they know all. Raises AssertionError."""
    assert below is None or order.end == below, f"I14: {what}: {order.end} and {below} are ends"
    for offset in range(order.begin, order.end):
        row, other = order.rows.get(offset), others.get(offset)
        if row is not None and other is not None:
            assert row == other, f"I8: {what} have different records at {offset}: {row} and {other}"


def _require_units(replica: Replica, block: Block, frames: Mapping[int, StoredFrame]) -> None:
    """Whose they are, as far as their frames are there. Raises AssertionError."""
    for record_count, tx_id, producer_id, generation, *_, position, _ in zip(
        *block.units, strict=True
    ):
        if (stored := frames.get(position)) is not None:
            frame = stored.frame
            unit = (record_count, tx_id, producer_id, generation)
            whose = (frame.record_count, frame.tx_id, frame.producer_id, frame.generation)
            assert unit == whose, f"I9: {replica} settled {unit} at {position}, and {whose} wrote"
            assert stored.end <= block.exposed_below, f"I27: {position} was settled too early"


def _of_journal(
    machine: PartitionMachine, frames: Mapping[int, StoredFrame]
) -> Iterator[tuple[int, Row]]:
    """Committed records by their offsets, as far as their frames are there."""
    log = machine.committed
    for entry in range(len(log)):
        offset, position = log.first_offset(entry), log.journal[entry]
        while offset < log.entry_end(entry):
            stored = frames.get(position)
            if stored is None:
                # Of a run only the end may be left.
                offset, position = offset + 1, position + 1
                continue
            assert stored.frame.kind in OCCUPY_RECORDS, f"{position} is committed, and no batch"
            for row in rows_of(stored.frame.encoding, stored.frame.payload):
                yield offset, row
                offset += 1
            position += stored.frame.record_count

"""What must hold after any fault: of what readers see, and of what the machines hold."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from oncelog.aio.log import Log
from oncelog.batch import Record
from oncelog.checker import HistoryWriter, check
from oncelog.checker.recorder import RecordedLog
from oncelog_server.core.frame import At, FrameKind
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import EpochStart, Snapshot, Table
from oncelog_server.core.role import Role
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb.v1 import offset_manager_pb2
from tests.faults.attempts import Attempt, Outcome
from tests.faults.job import BATCHES
from tests.faults.story import (
    IN_PARTITIONS,
    INPUTS,
    LATEST_KEYS,
    LATEST_RECORDS,
    OUT_PARTITIONS,
    ROUNDS,
    Names,
)
from tests.simulation.world import World

# Partition of "out" -> values by offset.
Seen = Mapping[int, Sequence[bytes]]

# The longest timeout of a transaction of the story, its slack, and room for elections.
QUIET_SECONDS_MAX: Final = 60.0


async def read_to_the_end(log: RecordedLog, names: Names) -> Seen:
    """What readers see once nothing is under way, twice (I8), and where the groups stand. I14:
    dense from 0. It is in the history, too."""
    await log.settle()
    found = [_by_partition(await log.read_everything([names.output])) for _ in range(2)]
    assert found[0] == found[1], "I8: two readers saw different sequences"
    await log.read_everything([names.input, names.fading])
    await _judge_latest(log.log, names)
    for group in (names.enricher, names.courier, names.job):
        await log.stable_offsets(group, [names.input])
    await _judge_positions(log.log, names)
    return found[0]


async def _judge_latest(client: Log, names: Names) -> None:
    """I33: the last value of each key is there, whatever was taken out."""
    table = await client.table(names.latest)
    await table.caught_up()
    found = sorted(table.snapshot().values())
    await table.close()
    last = range(LATEST_RECORDS - LATEST_KEYS, LATEST_RECORDS)
    assert found == sorted(b"%d" % number for number in last), f"I33: {found} are the last values"


def _by_partition(rows: Iterable[Record]) -> Seen:
    seen: dict[int, list[bytes]] = {number: [] for number in range(OUT_PARTITIONS)}
    for row in rows:
        assert row.offset == len(seen[row.partition]), "I14: a gap or a repeat"
        assert row.value is not None
        seen[row.partition].append(row.value)
    return seen


def judge_history(history: HistoryWriter) -> None:
    """I1 to I24 and I32, by the checker that users have."""
    report = check(history.events)
    assert report.clean, str(report)
    assert report.size.committed > ROUNDS, "a history without work shows nothing"


def judge(attempts: Sequence[Attempt], seen: Seen) -> None:
    """I1, I3, I5, I6, I9, I10, I21 over the committed log."""
    for partition, values in seen.items():
        twice = [value for value, count in Counter(values).items() if count > 1]
        assert not twice, f"I6: seen twice in out-{partition}: {twice[:3]}"
    visible = [attempt for attempt in attempts if _is_visible(attempt, seen)]
    known = {value for attempt in visible for _, value in attempt.wrote}
    phantoms = [value for values in seen.values() for value in values if value not in known]
    assert not phantoms, f"I1, I6: nobody committed {phantoms[:3]}"
    _judge_inputs(visible)
    for line in sorted({attempt.line for attempt in visible}):
        _judge_order([attempt for attempt in visible if attempt.line == line], seen)


def _is_visible(attempt: Attempt, seen: Seen) -> bool:
    """I3: whole or not at all, and as its writer was told (I4, I5)."""
    present = [value in seen[partition] for partition, value in attempt.wrote]
    if attempt.outcome is Outcome.COMMITTED:
        assert all(present), f"I5: acknowledged and not there: {attempt}"
    elif attempt.outcome is Outcome.ABORTED:
        assert not any(present), f"I1: aborted and there: {attempt}"
    else:
        assert all(present) or not any(present), f"I3: a part of it is there: {attempt}"
    return bool(present) and all(present)


def _judge_inputs(visible: Iterable[Attempt]) -> None:
    """I21: each input's work is done exactly once."""
    done = Counter(number for attempt in visible for number in attempt.inputs)
    twice = sorted(number for number, count in done.items() if count > 1)
    assert not twice, f"I21: done twice: {twice}"
    missing = sorted(set(range(INPUTS)) - set(done))
    assert not missing, f"I21: not done: {missing}"


def _judge_order(attempts: Sequence[Attempt], seen: Seen) -> None:
    """I9: contiguous and in send order. I10, I11: a line's attempts in order, everywhere."""
    for partition, values in seen.items():
        place = {value: index for index, value in enumerate(values)}
        end = -1
        for attempt in attempts:
            places = [place[value] for at, value in attempt.wrote if at == partition]
            if not places:
                continue
            wanted = list(range(places[0], places[0] + len(places)))
            assert places == wanted, f"I9: torn or shuffled in out-{partition}: {attempt}"
            assert places[0] > end, f"I10: out of order in out-{partition}: {attempt}"
            end = places[-1]


async def _judge_positions(client: Log, names: Names) -> None:
    """I21, I24: both groups stand where all is done, and nothing of theirs is pending."""
    topic = await client.protocol.topic(names.input)
    expected = {
        names.enricher: [INPUTS // IN_PARTITIONS] * IN_PARTITIONS,
        names.courier: [INPUTS // IN_PARTITIONS] * IN_PARTITIONS,
        names.job: [BATCHES],
    }
    for group, offsets in expected.items():
        request = offset_manager_pb2.FetchOffsetsRequest(group=group, stable=True)
        for number in range(len(offsets)):
            request.partitions.add(topic_id=topic.topic_id, number=number)
        reply = await client.protocol.call("offset_manager.fetch_offsets", request)
        found = [entry.offset for entry in reply.offsets]
        assert found == offsets, f"I21: group {group} stands at {found}"


# --------------------------------------------------------------------------------- of the machines


async def quiet(world: World) -> None:
    """I30: nothing stays pending: no transaction is open, nothing is owed, all is durable."""
    try:
        async with asyncio.timeout(QUIET_SECONDS_MAX):
            while pending(world):
                await asyncio.sleep(0.25)
    except TimeoutError:
        raise AssertionError(f"still pending: {pending(world)[:5]}") from None


def pending(world: World) -> list[str]:
    """What is not finished, in words."""
    found: list[str] = []
    for name, process in world.processes.items():
        if not process.node.is_settled():
            found.append(f"{name} does not lead all that is its own")
        for driver in process.node.led_replicas():
            machine = driver.machine
            owed = machine.owed(driver.high_watermark)
            if owed or _open_transactions(process.role, machine):
                found.append(f"{name} {driver.partition}: {owed or 'open transactions'}")
            if driver.high_watermark != driver.log_end:
                found.append(f"{name} {driver.partition}: not all is durable")
    return found


def _open_transactions(role: str, machine: Any) -> int:
    match role:
        case "coordinator":
            return len(machine.state.transactions)
        case "partition_leader":
            return len(machine.pending.open)
        case _:
            count: int = machine.open_transactions
            return count


def replayed(world: World, seen: Callable[[object], None] = lambda record: None) -> int:
    """I35: a fresh machine that replays the journal has the live machine's state, whether it begins
    at the front or at a snapshot. The number of journals compared. `seen` is shown all records."""
    compared = 0
    for name, process in world.processes.items():
        for driver in process.node.led_replicas():
            again = functools.partial(replay, driver._role, driver.partition, driver.journal, seen)
            fresh = again(from_snapshot=False).snapshot()
            restored = again(from_snapshot=True).snapshot()
            live = driver.machine.snapshot()
            driver.machine.check()
            same(live, fresh, f"{name} {driver.partition}: replay from the front")
            same(live, restored, f"{name} {driver.partition}: replay from the snapshot")
            compared += 1
    return compared


def copies_replayed(world: World) -> int:
    """I35, of those who follow: what a replica would be, were it elected now, its leader is. The
    number of copies compared."""
    compared = 0
    for process in world.processes.values():
        for leader in process.node.led_replicas():
            live = leader.machine.snapshot()
            for copy in world.copies.replicas(leader.partition):
                if copy.driver.follows:
                    fresh = replay(leader._role, leader.partition, copy.journal, from_snapshot=True)
                    same(live, fresh.snapshot(), f"{copy}: replay of a copy")
                    compared += 1
    return compared


def replay(
    role: Role[Any],
    partition: PartitionId,
    journal: Journal,
    seen: Callable[[object], None] = lambda record: None,
    *,
    from_snapshot: bool,
) -> Any:
    """A fresh machine that has seen the journal, all of it or what stands behind the snapshot."""
    machine = role.machine(partition)
    saved = journal.load_snapshot() if from_snapshot else front_of(journal)
    position = 0
    if saved is not None:
        position, state, tables = saved
        machine.restore(state, tables)
    for record, at in records_of(role, journal, position):
        seen(record)
        machine.apply(record, at)
    machine.check()
    return machine


def front_of(journal: Journal) -> tuple[int, bytes, dict[str, bytes]] | None:
    """What a log that begins later than it did begins with: its snapshot there."""
    if not journal.log_start:
        return None
    file = journal._snapshots.read(journal.log_start)
    rows = None if file is None else journal._snapshots._whole_rows(file)
    assert file is not None, f"{journal.directory} begins at {journal.log_start} with nothing"
    assert rows is not None, f"{journal.directory} begins at {journal.log_start} without its rows"
    return file.offset, file.state, rows


def records_of(role: Role[Any], journal: Journal, position: int) -> Iterator[tuple[Any, At]]:
    """Of a journal, from a position on."""
    for stored in journal.replay(position):
        is_epoch = stored.frame.kind is FrameKind.EPOCH_START
        yield EpochStart() if is_epoch else role.codec.decode(stored.frame), stored.at


def same(live: Snapshot, other: Snapshot, what: str) -> None:
    """I35, of two machines' snapshots."""
    assert live.state == other.state, f"I35: {what} gives another state"
    assert live.tables.keys() == other.tables.keys(), f"I35: {what} gives other tables"
    for name, table in live.tables.items():
        one, another = _needed(table), _needed(other.tables[name])
        assert one == another, f"I35: {what} gives another table {name}"


def _needed(table: Table) -> tuple[int, int, bytes]:
    """Without the rows in front that are nothing to the state, which some hold for longer."""
    below = max(0, table.begin_row - table.first_row)
    return table.row_bytes, table.begin_row, bytes(table.rows[below * table.row_bytes :])

"""A log that no longer begins at 0, and replicas that end before it begins."""

from __future__ import annotations

from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId
from oncelog_server.core.roles import COORDINATOR
from oncelog_server.runtime.replica.replaying import record_of
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.epochs import EpochTable
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from tests.simulation.directed.stage import TOPIC, Stage, play

# Of one producer, before the log begins anew.
TRANSACTIONS = 5


def begin_at_its_end(stage: Stage, name: str, partition: PartitionId) -> int:
    """Its process is down. Its log, as it would be if all frames had been let go of that a snapshot
    stands for; it is in sync under the name that it had."""
    disk = stage.reopened(name)
    role = next(
        role for role in stage.world.processes[name].node._roles if role.name == COORDINATOR
    )
    journal = Journal.open(disk, directory_of(partition))
    machine = role.machine(partition)
    projection = role.projection(partition, journal.slots.open)
    assert projection is not None
    for stored in journal.replay(0):
        machine.apply(record := record_of(role, stored), stored.at)
        if record.__class__.__name__ != "EpochStart":
            projection.project(record, stored.at)
    end, time_ms, named = journal.log_end, journal.last_time_ms, journal.incarnation
    epochs = EpochTable.decode(disk.bytes_of(f"{directory_of(partition)}/epochs"))
    assert epochs is not None
    journal._take_incarnation = lambda: None  # type: ignore[method-assign]
    allowed = Allowance(end, journal.last_epoch)
    journal.begin_at(end, machine.snapshot(), epochs.entries, time_ms=time_ms, allowed=allowed)
    journal.close()
    assert journal.incarnation == named
    return end


def test_i4_i5_an_empty_replica_begins_with_a_snapshot_and_leads() -> None:
    """The only coordinator that is left has a log without a beginning. The others come back with
    empty disks; then the first one loses its disk, too: what was committed stays committed, and
    says so."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        producer = await stage.client.transactional_producer("billing")
        known = []
        for number in range(TRANSACTIONS):
            async with producer.transaction() as transaction:
                await transaction.send(TOPIC, b"%d" % number)
            known.append(transaction.tx_id)
        partition = PartitionId(TRANSACTION_CONTROL_ID, known[0] >> 48)
        first = stage.leader(partition)
        second, third = stage.others(partition)
        stage.bar(second, third)
        await stage.lose_power(first)
        begins_at = begin_at_its_end(stage, first, partition)
        await stage.start(first)
        await stage.ready(first, partition)
        for name in (second, third):
            await stage.empty_disk(name)
            await stage.start(name)
            await stage.follows(name, partition, leader=first)
            assert stage.replica(name, partition).journal.log_start == begins_at
            await stage.until(lambda: len(stage.in_sync(partition)) >= 2, "it has joined")
        await stage.all_in_sync()
        async with producer.transaction() as transaction:
            await transaction.send(TOPIC, b"after")
        stage.unbar(second, third)
        await stage.empty_disk(first)
        assert await stage.next_leader(partition) in (second, third)
        for tx_id in known:
            described = await stage.client.admin.describe_transaction(tx_id)
            assert described.state == "committed", "its outcome came with the snapshot"
        async with producer.transaction() as transaction:
            await transaction.send(TOPIC, b"last")
        await producer.close()
        assert await stage.end() == [*(b"%d" % n for n in range(TRANSACTIONS)), b"after", b"last"]

    play(story)

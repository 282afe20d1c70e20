"""How far the replicas of a process are, for operators: what each has, and what a leader knows of
those that follow it."""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Settled
from oncelog_server.core.wire import partition_message
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.in_sync import InSync
from oncelog_server.runtime.replica.state import Stage
from oncelogpb.v1 import replication_pb2 as pb

# Damaged ranges of one replica that are told.
DAMAGED_TOLD_MAX: Final = 16

_STAGES: Final = {
    Stage.CLOSED: pb.REPLICA_STAGE_CLOSED,
    Stage.STANDBY: pb.REPLICA_STAGE_STANDBY,
    Stage.LOADING: pb.REPLICA_STAGE_LOADING,
    Stage.READY: pb.REPLICA_STAGE_READY,
    Stage.FOLLOWING: pb.REPLICA_STAGE_FOLLOWING,
    Stage.CLOSING: pb.REPLICA_STAGE_CLOSING,
    # Put aside: it is no replica any more.
    Stage.GONE: pb.REPLICA_STAGE_UNSPECIFIED,
}


def describe(partition: PartitionId, driver: Driver | None, now_ms: int) -> pb.ReplicaDescription:
    """`driver`: None where there is no replica here."""
    described = pb.ReplicaDescription(partition=partition_message(partition))
    if driver is None:
        return described
    described.stage = _STAGES[driver.stage]
    described.unfit = driver.unfit
    if not driver.is_open:
        return described
    journal = driver.journal
    described.incarnation = journal.incarnation
    described.last_epoch = journal.last_epoch
    described.log_start, described.log_end = journal.log_start, journal.log_end
    described.synced_end = journal.synced_end
    described.epoch = driver.current_epoch
    described.high_watermark = driver.known_high_watermark
    if (trimming := driver.trimming) is not None:
        described.needed_from = trimming.needs.needed_from
        described.wanted_from = trimming.needs.wanted_from
        described.held_by = trimming.held_by
    _describe_settling(described, driver)
    if (book := driver.book) is not None:
        described.followers.extend(_followers(book, now_ms))
        described.min_insync_replicas = book.min_insync_replicas
        described.takes_writes = driver.is_ready and book.has_enough(now_ms)
    return described


def _describe_settling(described: pb.ReplicaDescription, driver: Driver) -> None:
    """Nothing is said of a log of which nothing is settled, nor may be."""
    settling, data = driver.settling, driver.journal.data
    if settling is None:
        return
    says = driver.readable or settling.counted or Settled()
    wanted = settling.decided(says).wanted
    if data.settled_end or wanted or says.auto:
        described.settled.begin, described.settled.end = data.begin, data.settled_end
        described.settled.readable_end = max(data.settled_end, says.end)
        described.settled.wanted = wanted
        described.settled.waits = settling.why_waits
        described.settled.auto = says.auto
        described.settled.why = settling.why(says)
        described.settled.mean_batch_bytes = settling.mean_bytes
        _describe_damage(described.settled, driver)


def _describe_damage(described: pb.SettledDescription, driver: Driver) -> None:
    healing = driver.healing
    if healing is None:
        return
    described.scrubbed_to = healing.scrubbing.scrubbed_to
    described.healing = healing.says
    described.damaged.extend(
        pb.DamagedRecords(
            first_offset=damage.first_offset,
            end_offset=damage.end_offset,
            file=damage.file,
            position=damage.position,
        )
        for damage in driver.journal.data.damaged[:DAMAGED_TOLD_MAX]
    )


async def add_disk_use(described: pb.ReplicaDescription, driver: Driver | None) -> None:
    """Off the loop. Where its directory cannot be looked at, nothing is said of it."""
    if driver is None or not driver.is_open:
        return
    try:
        use = await driver.disk_use()
    except OSError:
        return
    described.disk.CopyFrom(
        pb.ReplicaDisk(
            segment_bytes=use.segments,
            table_bytes=use.tables,
            snapshot_bytes=use.snapshots,
            slot_bytes=use.slots,
            data_bytes=use.data,
        )
    )


def _followers(book: InSync, now_ms: int) -> list[pb.FollowerDescription]:
    return [
        pb.FollowerDescription(
            node_id=progress.node,
            incarnation=incarnation,
            in_sync=incarnation in book.isr,
            synced_end=progress.synced_end,
            heard_ms_ago=now_ms - progress.heard_ms,
            caught_up_ms_ago=now_ms - progress.caught_up_ms,
            has_dialog=book.has_dialog(incarnation),
            keeps_up=book.keeps_up(incarnation, now_ms),
        )
        for incarnation, progress in sorted(
            book.followers().items(), key=lambda item: (item[1].node, item[0])
        )
    ]

"""When groups are forgotten, where leaders come and go."""

from __future__ import annotations

import msgspec

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.commands import FROM_NONE, CommitOffsets, OffsetCommit
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import CODEC, GroupsForgotten
from tests.golden.host import MachineHost

RETENTION_MS = 20_000
ORDERS = PartitionId(TopicId(b"o" * 16), 0)


def forgotten(host: MachineHost) -> list[str]:
    """By this tick."""
    return [
        name
        for _, record in host.tick()
        if isinstance(record, GroupsForgotten)
        for name in record.groups
    ]


def test_i21_a_new_leader_hears_the_living_before_it_forgets_anybody() -> None:
    """While nobody leads, nobody hears signs of life: the first tick of the next leader forgot all
    groups, and their consumers read their topics from the beginning again."""
    config = OffsetManagerConfig(group_retention_ms=RETENTION_MS)
    host = MachineHost(lambda: OffsetManagerMachine(config), CODEC)
    for group in ("living", "silent"):
        host.submit(CommitOffsets(group, (OffsetCommit(ORDERS, FROM_NONE, 10),)))
    host.sync()
    host.tick()

    # The process dies, and comes back much later.
    host.pass_time(RETENTION_MS + 2_500)
    host.failover(lose_tail=False)
    host.sync()
    assert forgotten(host) == []
    host.pass_time(RETENTION_MS // 4)
    host.submit(CommitOffsets("living", (OffsetCommit(ORDERS, 10, 10),)))
    host.sync()
    assert forgotten(host) == []

    host.pass_time(RETENTION_MS // 4)
    assert forgotten(host) == ["silent"]
    host.pass_time(RETENTION_MS)
    assert forgotten(host) == ["living"]


def test_i24_a_snapshot_of_before_there_were_members_is_loaded() -> None:
    """And what was committed then is known again, standalone."""
    host = MachineHost(lambda: OffsetManagerMachine(OffsetManagerConfig()), CODEC)
    step = OffsetCommit(ORDERS, FROM_NONE, 10)
    host.submit(CommitOffsets("g", (step,)))
    state = msgspec.msgpack.decode(host.machine.snapshot().state, strict=False)
    del state["groups"]["g"]["membership"]
    committed = state["groups"]["g"]["committed"]
    state["groups"]["g"]["committed"] = {key: one[:3] for key, one in committed.items()}

    machine = OffsetManagerMachine(OffsetManagerConfig())
    machine.restore(msgspec.msgpack.encode(state), {})
    machine.check()
    assert machine.snapshot() == host.machine.snapshot()
    assert not machine.decide(CommitOffsets("g", (step,)), host.now).records

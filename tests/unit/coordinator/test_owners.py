"""Whose a producer is: the identity that registered its instance, live and after replay."""

from __future__ import annotations

from typing import Any

import msgspec

from oncelog_server.coordinator import records
from oncelog_server.coordinator.commands import InitProducer
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.producers import Producer
from oncelog_server.coordinator.role import CoordinatorRole
from oncelog_server.core.ids import (
    TRANSACTION_CONTROL_ID,
    Generation,
    ProducerId,
    control_partition,
)
from tests.golden.host import MachineHost

FIRST, SECOND = b"1" * 16, b"2" * 16


def host() -> Any:
    role = CoordinatorRole(CoordinatorConfig())
    partition = control_partition(TRANSACTION_CONTROL_ID, "g")
    return MachineHost(lambda: role.machine(partition), role.codec, None)


def owner(machine: Any, instance_id: bytes = b"", name: str = "p") -> str:
    found = machine.state.producers.find("g", name, instance_id)
    assert found is not None
    return str(found.owner)


def test_a_producer_is_of_who_registered_its_newest_instance() -> None:
    running = host()
    running.submit(InitProducer("g", "p", FIRST, "alice"))
    assert owner(running.machine) == "alice"
    running.submit(InitProducer("g", "p", FIRST, "bob"))
    assert owner(running.machine) == "alice", "the same instance again changes nothing"
    running.submit(InitProducer("g", "p", SECOND, "bob"))
    assert owner(running.machine) == "bob"
    running.submit(InitProducer("g", "", FIRST, "carol"))
    assert owner(running.machine, FIRST, name="") == "carol"


def test_i35_the_owner_survives_replay_and_snapshot() -> None:
    running = host()
    running.submit(InitProducer("g", "p", FIRST, "alice"))
    running.submit(InitProducer("g", "p", SECOND, "bob"))
    running.sync()
    running.check_replay()
    running.failover(lose_tail=False)
    assert owner(running.machine) == "bob"


def test_a_journal_of_before_there_were_owners_is_read() -> None:
    """And a snapshot: nobody is known to own what stands there."""
    old = msgspec.msgpack.encode(["init", 5, 7, "g", "p", FIRST])
    record = msgspec.msgpack.Decoder(records.Record).decode(old)
    assert record == records.ProducerInitialized(
        ProducerId(5), Generation(7), "g", "p", FIRST, owner=""
    )
    fields = msgspec.structs.astuple(Producer(ProducerId(5), Generation(7), "g", "p", FIRST))
    stored = msgspec.msgpack.encode(fields[: Producer.__struct_fields__.index("owner")])
    assert msgspec.msgpack.Decoder(Producer).decode(stored).owner == ""

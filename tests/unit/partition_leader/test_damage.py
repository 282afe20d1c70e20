"""What clients can make of DAMAGED parts: each wrong manifest leaves one, and only an operator ends
those that hold batches. So they are limited, by name."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import (
    JournalOffset,
    LeaderEpoch,
    ProducerId,
    TxId,
    Writer,
    compose_generation,
)
from oncelog_server.participant.commands import (
    Marker,
    MarkerStatus,
    MarkersWritten,
    Outcome,
    WriteMarkers,
    WriterPart,
)
from oncelog_server.partition_leader import damage
from oncelog_server.partition_leader.commands import Placed, Produce, Resolution, Resolve
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import PartitionCodec
from oncelogpb.errors import LimitExceeded
from tests.golden.host import MachineHost

GENERATION = compose_generation(1, 1)


class Scene:
    """One partition that takes two damaged parts with batches."""

    def __init__(self) -> None:
        config = PartitionLeaderConfig(damaged_max=2)
        self.host = MachineHost(lambda: PartitionMachine(config), PartitionCodec())
        self.host.sync()

    @property
    def machine(self) -> PartitionMachine:
        machine = self.host.machine
        assert isinstance(machine, PartitionMachine)
        return machine

    def submit(self, command: Any) -> Any:
        self.host.submit(command)
        (parked,) = self.host.sync()
        self.machine.check()
        return parked.reply

    def write(self, tx: int) -> Any:
        frame = Frame(
            FrameKind.DATA,
            b"payload",
            producer_id=ProducerId(tx),
            generation=GENERATION,
            writer=Writer(0),
            tx_id=TxId(tx),
            record_count=1,
        )
        (result,) = self.submit(Produce((frame,)))
        return result

    def commit(self, tx: int, *parts: WriterPart) -> MarkerStatus:
        marker = Marker(
            TxId(tx),
            JournalOffset(1_000 + tx),
            Outcome.COMMITTED,
            ProducerId(tx),
            GENERATION,
            parts,
        )
        reply = self.submit(WriteMarkers(0, LeaderEpoch(1), (marker,)))
        assert isinstance(reply, MarkersWritten)
        (result,) = reply.results
        return result.status


def test_batches_of_damaged_parts_are_limited_and_an_operator_makes_room() -> None:
    scene = Scene()
    for tx in (1, 2):
        scene.write(tx)
        assert scene.commit(tx, WriterPart(Writer(0), 9)) is MarkerStatus.DAMAGED
    refused = scene.write(3)
    assert isinstance(refused, LimitExceeded)
    assert refused.metadata["limit"] == "damaged_max"
    assert "oncelog tx resolve" in refused.message
    # Markers are facts, and transactions that are open here already go on.
    assert scene.commit(4, WriterPart(Writer(0), 1)) is MarkerStatus.DAMAGED
    scene.submit(Resolve(TxId(1), Resolution.DROP))
    assert isinstance(scene.write(5), Placed)


def test_parts_that_hold_nothing_are_forgotten_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost with them, and nobody could be made to stop naming them."""
    monkeypatch.setattr(damage, "EMPTY_KEPT", 3)
    scene = Scene()
    scene.write(1)
    for tx in range(1, 8):
        assert scene.commit(tx, WriterPart(Writer(0), 9)) is MarkerStatus.DAMAGED
    assert list(scene.machine.damage.parts) == [1, 5, 6, 7]


def test_a_damaged_part_keeps_no_more_of_its_manifest_than_it_could_expose() -> None:
    """A manifest may name 100,000 writers that never wrote here."""
    scene = Scene()
    scene.write(1)
    scene.commit(1, *(WriterPart(Writer(number), 2) for number in range(10_000)))
    _, wanted = scene.machine.damage.parts[1]
    assert wanted == (WriterPart(Writer(0), 2),)
    assert len(scene.machine.snapshot().state) < 1_000
    assert scene.submit(Resolve(TxId(1), Resolution.EXPOSE)) == 1

"""What is read becomes whole transactions: given when they are whole, in the order of their
partition, and dropped with a position that is not any more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog._core.pending import HeldBatch, Holder
from oncelog._core.routing import PartitionKey
from oncelog._core.units import Piece, Unit, Units, Written, pieces_of
from oncelog._held import HeldBatches
from oncelogpb import records

A, B = PartitionKey(b"t" * 16, 0), PartitionKey(b"t" * 16, 1)


class Scene:
    def __init__(self, directory: Path | None = None) -> None:
        self.held = HeldBatches(1 << 30 if directory is None else 2_000, directory)
        self.units = Units(Holder(self.held.hold, self.held.release))
        self.next_offset = {A: 0, B: 0}

    def add(
        self,
        tx: int,
        count: int = 1,
        *,
        partition: PartitionKey = A,
        is_last: bool = False,
        skip: int = 0,
        edition: int = 1,
    ) -> None:
        first = self.next_offset[partition]
        payload = b"%d" % first * 50
        batch = HeldBatch(count + skip, records.ROWS, records.checksum(payload), payload)
        self.next_offset[partition] += count
        self.held.make_room(len(payload))
        written = Written(tx, 100 + tx, 7, 1_000 * tx)
        self.units.add(Piece(partition, written, first, batch, skip, is_last), edition)

    def whole(self) -> list[Unit]:
        found: list[Unit] = []
        while (unit := self.units.take()) is not None:
            found.append(unit)
        return found

    def told(self) -> list[tuple[int, int, int]]:
        """(TxId, first offset, records) of what is whole."""
        return [(one.written.tx_id, one.first_offset, one.record_count) for one in self.whole()]


def test_i3_a_transaction_is_given_when_something_else_follows() -> None:
    scene = Scene()
    scene.add(5, 2)
    scene.add(5, 3)
    assert scene.told() == []
    scene.add(6, 1)
    assert scene.told() == [(5, 0, 5)]


def test_i3_a_transaction_is_given_when_nothing_more_can_be_read() -> None:
    scene = Scene()
    scene.add(5, 2)
    scene.add(5, 3, is_last=True)
    assert scene.told() == [(5, 0, 5)]


def test_plain_records_are_units_of_their_own() -> None:
    scene = Scene()
    scene.add(5, 2)
    scene.add(0, 3)
    scene.add(0, 1)
    assert scene.told() == [(5, 0, 2), (0, 2, 3), (0, 5, 1)]


def test_partitions_are_gathered_each_by_itself() -> None:
    scene = Scene()
    scene.add(5, 1)
    scene.add(5, 1, partition=B)
    scene.add(5, 1, is_last=True)
    assert [(one.partition, one.record_count) for one in scene.whole()] == [(A, 2)]
    scene.add(5, 4, partition=B, is_last=True)
    assert [(one.partition, one.record_count) for one in scene.whole()] == [(B, 5)]


def test_i14_what_was_gathered_goes_with_its_position() -> None:
    scene = Scene()
    scene.add(5, 1, is_last=True)
    scene.add(6, 1)
    scene.add(7, 1, partition=B, edition=3)
    # A was sought, B stands.
    scene.units.drop_changed({A: 2, B: 3})
    assert scene.told() == []
    scene.add(6, 1, is_last=True, edition=2)
    scene.add(7, 1, partition=B, is_last=True, edition=3)
    assert scene.told() == [(6, 2, 1), (7, 0, 2)]


def test_a_unit_that_begins_in_the_middle_of_a_batch_skips_what_was_given() -> None:
    scene = Scene()
    scene.add(5, 2, skip=3)
    scene.add(5, 4, is_last=True)
    (unit,) = scene.whole()
    taken = scene.held.take(unit.part, unit.record_count + unit.skip)
    told = [(offset, skip, batch.record_count) for offset, skip, batch in pieces_of(unit, taken)]
    assert told == [(0, 3, 5), (2, 0, 4)]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_i9_units_are_the_log_cut_at_its_transactions(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    scene = Scene(tmp_path_factory.mktemp("held"))
    expected: dict[PartitionKey, list[tuple[int, int]]] = {A: [], B: []}
    found: dict[PartitionKey, list[tuple[int, int]]] = {A: [], B: []}
    for tx in range(1, 15):
        partition = chance.choice([A, B])
        counts = [chance.randint(1, 5) for _ in range(chance.randint(1, 6))]
        expected[partition].append((tx, sum(counts)))
        for number, count in enumerate(counts, 1):
            is_last = number == len(counts) and chance.random() < 0.5
            scene.add(tx, count, partition=partition, is_last=is_last)
    for partition in (A, B):
        scene.add(99, 1, partition=partition)
    for unit in scene.whole():
        found[unit.partition].append((unit.written.tx_id, unit.record_count))
        assert len(list(scene.held.take(unit.part, unit.record_count))) >= 1
        scene.held.release(unit.part)
    assert found == expected
    scene.units.clear()
    assert (scene.held.memory_bytes, scene.held.disk_bytes) == (0, 0)

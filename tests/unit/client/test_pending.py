"""Commit order made by the reader is the leader's, record by record, wherever it was stopped."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog._core import resume_points
from oncelog._core.resume_points import ResumePoint, ResumePoints, decode
from oncelogpb import errors
from tests.unit.client.journals import Leader, Log, Reader, values_of


async def _random_journal(chance: random.Random, steps: int) -> tuple[list[Any], Log]:
    """Transactions that interleave, with several writers, of which some are left out of the
    manifest or are in it with fewer batches; aborts; damage, resolved or not; one-shots; plain
    records."""
    leader = Leader()
    open_: dict[int, dict[int, list[int]]] = {}
    damaged: list[int] = []
    next_tx = 1
    value = 0

    def values(count: int) -> list[bytes]:
        nonlocal value
        value += count
        return [b"%d" % number for number in range(value - count, value)]

    for _ in range(steps):
        choice = chance.randrange(10)
        if choice < 5:
            tx = chance.choice([*open_, next_tx])
            next_tx += tx == next_tx
            open_.setdefault(tx, {})
            writer = chance.choice([0, 0, 7, 8])
            counts = open_[tx].setdefault(writer, [])
            count = chance.randint(1, 4)
            await leader.send(tx, values(count), writer=writer, base=sum(counts))
            counts.append(count)
        elif choice < 6:
            await leader.plain(values(chance.randint(1, 3)))
        elif choice < 7:
            await leader.one_shot(next_tx, values(chance.randint(1, 3)))
            next_tx += 1
        elif choice < 8 and damaged:
            tx = damaged.pop(chance.randrange(len(damaged)))
            await leader.resolve(tx, chance.choice(["DROP", "EXPOSE"]))
        elif open_:
            tx = chance.choice(list(open_))
            written = open_.pop(tx)
            if chance.random() < 0.3:
                await leader.abort(tx)
                continue
            writers = chance.sample(list(written), chance.randint(1, len(written)))
            kept = [sum(written[w][: chance.randint(1, len(written[w]))]) for w in writers]
            if chance.random() < 0.2:
                # More than there is: damaged.
                kept[0] = sum(written[writers[0]]) + 1
                damaged.append(tx)
            await leader.commit(tx, *zip(writers, kept, strict=True))
    return await leader.raw(), await leader.committed()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(5, 60))
def test_i8_a_buffering_reader_sees_the_committed_log(seed: int, steps: int) -> None:
    journal, committed = asyncio.run(_random_journal(random.Random(seed), steps))
    assert Reader().read(journal) == committed


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), memory_bytes=st.sampled_from([1_000, 5_000, 30_000]))
def test_i15_stopped_and_resumed_anywhere_it_goes_on_with_the_next_record(
    seed: int, memory_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At random records, with a reader that goes through memory and disk, and is killed there: only
    the offset and its tuple are left of it."""
    chance = random.Random(seed)
    journal, committed = asyncio.run(_random_journal(chance, 60))
    resume: ResumePoint | None = None
    log: Log = []
    while len(log) < len(committed):
        reader = Reader(
            offset=len(log),
            resume=resume,
            memory_bytes=memory_bytes,
            directory=tmp_path_factory.mktemp("held"),
        )
        read = reader.read(journal[: chance.randint(0, len(journal))])
        log += read[: chance.randint(0, len(read))]
        assert log == committed[: len(log)]
        resume = decode(reader.stopped_at(len(log)).encode())
        assert resume is not None
        reader.held.close()


def test_i15_stopped_and_resumed_at_every_record_of_a_large_transaction() -> None:
    """10,000 records in 100 batches, among plain records, an aborted transaction and one that ends
    later."""

    async def story() -> tuple[list[Any], Log]:
        leader = Leader()
        await leader.plain([b"first"])
        await leader.send(3, [b"later"])
        for number in range(100):
            values = [b"%d" % value for value in range(number * 100, number * 100 + 100)]
            await leader.send(5, values, base=number * 100)
            if number == 50:
                await leader.send(6, [b"aborted"])
                await leader.plain([b"in between"])
        await leader.abort(6)
        await leader.commit(5, (0, 10_000))
        await leader.plain([b"behind"])
        await leader.commit(3, (0, 1))
        return await leader.raw(), await leader.committed()

    journal, committed = asyncio.run(story())
    assert len(committed) == 10_004
    whole = Reader()
    whole.exposures(journal)
    for offset in range(len(committed) + 1):
        resumed = Reader(offset=offset, resume=whole.stopped_at(offset))
        exposures = resumed.exposures(journal)
        given = [one.first_offset + one.skip for one in exposures]
        ends = [one.first_offset + one.record_count for one in exposures]
        # What is given begins where it was stopped, and has no gap.
        assert given == [offset, *ends[:-1]][: len(exposures)]
        assert (ends or [offset])[-1] == len(committed)
        if offset % 1_000 == 3:
            again = Reader(offset=offset, resume=whole.stopped_at(offset))
            assert again.read(journal) == committed[offset:]


def test_i15_each_record_of_a_large_transaction_by_another_reader() -> None:
    """10,000 records; each reader gives the next one and stops: what it leaves is the offset and
    its tuple, as it is written beside it. Around them two transactions that lie across the large
    one, an aborted one, and plain records."""

    async def story() -> tuple[list[Any], Log]:
        leader = Leader()
        await leader.plain([b"first"])
        await leader.send(3, [b"begins before"])
        for number in range(50):
            first = number * 200
            values = [b"%d" % value for value in range(first, first + 200)]
            await leader.send(5, values, base=first)
            if number % 10 == 5:
                await leader.plain([b"between %d" % number])
                await leader.send(4, [b"ends before"], base=number // 10)
        await leader.send(6, [b"aborted"])
        await leader.commit(4, (0, 5))
        await leader.plain([b"between their ends"])
        await leader.commit(5, (0, 10_000))
        await leader.abort(6)
        await leader.send(3, [b"ends behind"], base=1)
        await leader.commit(3, (0, 2))
        await leader.plain([b"last"])
        return await leader.raw(), await leader.committed()

    journal, committed = asyncio.run(story())
    assert len(committed) == 10_000 + 2 + 5 + 5 + 3
    known: dict[bytes, list[bytes]] = {}

    def decoded(encoding: int, payload: bytes) -> list[bytes]:
        if payload not in known:
            known[payload] = values_of(encoding, payload)
        return known[payload]

    left = ResumePoint(0, 0, 0).encode()
    for offset, value in committed:
        resume = decode(left)
        assert resume is not None
        reader = Reader(offset=offset, resume=resume)
        exposure = next(one for one in map(reader.see, journal) if one is not None)
        assert exposure.first_offset + exposure.skip == offset
        left_over = exposure.skip
        for held in reader._batches(exposure):
            if left_over < held.record_count:
                assert decoded(held.encoding, held.payload)[left_over] == value
                break
            left_over -= held.record_count
        left = reader.stopped_at(offset + 1).encode()


def test_the_tuple_says_where_the_earliest_pending_transaction_begins() -> None:
    async def story() -> list[Any]:
        leader = Leader()
        await leader.send(5, [b"a", b"b"])
        await leader.send(6, [b"c"])
        await leader.commit(6, (0, 1))
        await leader.commit(5, (0, 2))
        return await leader.raw()

    # 0 epoch, 1-2 t5, 3 t6, 4 marker of t6, 5 marker of t5
    journal = asyncio.run(story())
    reader = Reader()
    reader.exposures(journal[:4])
    assert reader.stopped_at(1) == ResumePoint(earliest=1, iterator=5, given=0)
    assert Reader(offset=1, resume=reader.stopped_at(1)).pending.next == 1
    reader.exposures(journal)
    # In the middle of t5, and behind all.
    assert reader.stopped_at(2) == ResumePoint(earliest=1, iterator=5, given=1)
    assert reader.stopped_at(3) == ResumePoint(earliest=6, iterator=6, given=0)


def test_nothing_is_held_once_all_has_ended(tmp_path: Path) -> None:
    async def story() -> list[Any]:
        leader = Leader()
        for tx in range(1, 30):
            await leader.send(tx, [b"x" * 400])
            await leader.send(tx, [b"y"], writer=9)
        for tx in range(1, 30):
            await (leader.abort(tx) if tx % 2 else leader.commit(tx, (0, 1)))
        return await leader.raw()

    reader = Reader(memory_bytes=4_000, directory=tmp_path)
    log = reader.read(asyncio.run(story()))
    assert len(log) == 14
    assert reader.held.written_bytes > 0
    assert (reader.held.memory_bytes, reader.held.disk_bytes) == (0, 0)
    assert not list(tmp_path.glob("*/part-*"))


def test_a_record_of_a_kind_that_is_not_known_is_no_guess() -> None:
    async def story() -> list[Any]:
        leader = Leader()
        await leader.plain([b"a"])
        return await leader.raw()

    journal = asyncio.run(story())
    journal[0].kind = 77
    with pytest.raises(errors.Unsupported, match="older than the cluster"):
        Reader().read(journal)


def test_i3_a_part_that_did_not_come_whole_is_never_shown() -> None:
    async def story() -> list[Any]:
        leader = Leader()
        await leader.send(5, [b"a"])
        await leader.send(5, [b"b"], base=1)
        await leader.commit(5, (0, 2))
        return await leader.raw()

    journal = asyncio.run(story())
    reader = Reader()
    reader.exposures([journal[0], journal[1]])
    for _ in range(2):
        with pytest.raises(errors.Internal, match="counts 2 records of a writer, and 1 came"):
            reader.see(journal[3])


def test_points_are_bounded_and_still_lead_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_points, "POINTS_MAX", 8)
    points = ResumePoints()
    for number in range(1, 100):
        points.add(10 * number, ResumePoint(number, number, 0))
    for offset in range(1_000):
        point = points.at(offset)
        assert 10 * point.iterator + point.given == offset
    points.forget_below(900)
    assert points.at(5) == ResumePoint(0, 0, 5)


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "mine",
        "oncelog-buffered/1 1 2",
        "oncelog-buffered/2 1 2 3",
        "oncelog-buffered/1 3 2 0",
        "oncelog-buffered/1 1 -2 3",
    ],
)
def test_metadata_of_somebody_else_is_no_tuple(metadata: str) -> None:
    assert decode(metadata) is None

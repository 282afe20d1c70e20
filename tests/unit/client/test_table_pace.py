"""Tables of compacted topics: one that comes too late for tombstones begins anew, and no other."""

from __future__ import annotations

import asyncio

import pytest

from oncelog._core.pace import Moment, Pace, tombstones_kept_ms
from oncelog.aio.table_view import TableView
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import wanted
from tests.unit.client.test_table_view import A1, B1, following, written

KEPT_S = 60.0
COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "60000"}
C1 = (b"c", b"1")


@pytest.mark.parametrize(
    ("configs", "kept_ms"),
    [
        ({}, None),
        ({"cleanup.policy": "delete", "delete.retention.ms": "60000"}, None),
        ({"cleanup.policy": "compact"}, 86_400_000),
        ({"cleanup.policy": "compact,delete", "delete.retention.ms": "60000"}, 60_000),
        ({"cleanup.policy": "compact", "delete.retention.ms": "0"}, 1_000),
    ],
)
def test_how_long_tombstones_are_kept(configs: dict[str, str], kept_ms: int | None) -> None:
    assert tombstones_kept_ms(configs) == kept_ms


def test_a_machine_that_sleeps_is_late_though_one_of_its_clocks_stood_still() -> None:
    pace = Pace(Moment(0, 0))
    assert not pace.is_late(Moment(44_999, 44_999), 60_000)
    assert pace.is_late(Moment(45_000, 0), 60_000)
    assert pace.is_late(Moment(0, 45_000), 60_000)
    assert not pace.is_late(Moment(1e9, 1e9), None)
    pace.read_all(Moment(30_000, 30_000))
    assert not pace.is_late(Moment(74_999, 74_999), 60_000)
    assert pace.is_late(Moment(75_000, 75_000), 60_000)


def test_i33_a_table_that_comes_too_late_for_a_tombstone_begins_anew() -> None:
    """It has read the value; until it reads on, the tombstone behind it is gone."""

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await asyncio.sleep(1.0)
        assert table.snapshot() == {b"a": b"1", b"b": b"1"}
        await asyncio.sleep(KEPT_S)
        assert table.snapshot() == {b"b": b"1", b"c": b"1"}
        assert wanted(transport) == [0, 0]

    slow = [written([A1, B1], 0, end=3), KEPT_S * 0.8, written([C1], 3)]
    again = [written([B1], 1, end=4), written([C1], 3)]
    following(work, slow, again, ends={0: 3}, configs=COMPACTED)


def test_a_table_that_has_caught_up_may_hear_nothing_for_long() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await asyncio.sleep(5 * KEPT_S + 1.0)
        assert table.snapshot() == {b"a": b"1", b"b": b"1", b"c": b"1"}
        assert wanted(transport) == [0]

    quiet = [written([A1, B1], 0), 5 * KEPT_S, written([C1], 2)]
    following(work, quiet, ends={0: 2}, configs=COMPACTED)


def test_where_no_tombstone_goes_a_table_may_be_as_slow_as_it_likes() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await asyncio.sleep(5 * KEPT_S + 1.0)
        assert table.snapshot() == {b"a": b"1", b"b": b"1", b"c": b"1"}
        assert wanted(transport) == [0]

    slow = [written([A1, B1], 0, end=3), 5 * KEPT_S, written([C1], 2)]
    following(work, slow, ends={0: 3})

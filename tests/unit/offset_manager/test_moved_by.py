"""A committed offset names the transaction that moved it: who goes on from there begins when that
one is visible (ADR 72)."""

from __future__ import annotations

import msgspec

from oncelog_server.core.ids import PartitionId, ProducerId, TopicId, TxId
from oncelog_server.offset_manager.commands import FetchOffsets, OffsetCommit, Read, View
from oncelog_server.offset_manager.group import Committed, Group
from oncelog_server.offset_manager.reading import fetch
from oncelog_server.offset_manager.state import State

PLACE = PartitionId(TopicId(b"t" * 16), 0)
TX = TxId(7)
DECODER = msgspec.msgpack.Decoder(Committed)
ENCODER = msgspec.msgpack.Encoder()


def step(to: int) -> OffsetCommit:
    return OffsetCommit(PLACE, to - 1, to, View.COMMITTED, "", TxId(0))


def told(group: Group) -> TxId:
    state = State(groups={"g": group})
    [offset] = fetch(state, FetchOffsets("g", (PLACE,), Read.STABLE, View.COMMITTED)).offsets
    return offset.moved_by


def test_i21_an_offset_names_who_moved_it_also_behind_plain_commits() -> None:
    group = Group()
    group.commit(step(1), tx_id=TxId(0), time_ms=0)
    assert told(group) == 0
    group.commit(step(2), tx_id=TX, time_ms=0)
    assert told(group) == TX
    group.commit(step(3), tx_id=TxId(0), time_ms=0)
    group.commit(step(4), tx_id=TxId(0), time_ms=0)
    assert told(group) == TX
    group.commit(step(5), tx_id=TxId(9), time_ms=0)
    assert told(group) == 9


def test_an_operator_who_resets_waits_for_nobody() -> None:
    group = Group()
    group.commit(step(1), tx_id=TX, time_ms=0)
    group.reset(step(1), time_ms=0)
    assert told(group) == 0


def test_snapshots_of_before_it_was_kept() -> None:
    for tx_id in (TxId(0), TX):
        now = ENCODER.encode(Committed(step(1), tx_id, 5, "m", TxId(3)))
        old = ENCODER.encode(msgspec.msgpack.decode(now)[:4])
        assert DECODER.decode(old).mover == tx_id


def test_no_pending_offset_names_it() -> None:
    group = Group()
    group.hold(step(1), TX, ProducerId(1))
    group.commit(group.release(PLACE, TX).step, tx_id=TX, time_ms=0)
    assert told(group) == TX

"""What members of a group say and are told is in the history as it was on the wire: against a model
of the group."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

from oncelog import checker
from oncelog.checker.events import Event, HistoryWriter
from oncelog.checker.recorder import RecordedConsumer, RecordedLog
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from tests.unit.client.member_world import SESSION_MS, Client, World, in_a_world

# Where the offsets go that come too late.
LATE_TO = 900


def history_of_a_late_commit(*, lax: bool = False) -> list[Event]:
    """One reads, and is not heard for a session; another one reads the same and commits it; then
    the first one's commit arrives. `lax`: the group takes it."""
    events: list[Event] = []

    async def main(world: World) -> None:
        history = HistoryWriter(now_us=lambda: round(world.now_ms() * 1000))
        client = world.client(timeout_ms=1_000)
        first = await _member(client, history)
        late = _commit_of(first, world)
        client.is_cut_off = True
        second = await _member(world.client(timeout_ms=1_000), history, patience=20)
        await second.commit()
        client.is_cut_off = False
        if lax:
            world.take = lambda message: None  # type: ignore[method-assign]
        with contextlib.suppress(errors.UnknownMember):
            await client.protocol.call("offset_manager.commit_offsets", late, 1_000)
        await asyncio.sleep(1)
        events.extend(history.events)
        await second.close()
        await first.close()

    in_a_world(main)
    return events


async def _member(client: Client, history: HistoryWriter, patience: int = 3) -> RecordedConsumer:
    """Which has read something."""
    log = RecordedLog(client.log, history)
    consumer = await log.consumer(["a"], "g", session_timeout_ms=SESSION_MS)
    for _ in range(patience):
        if await consumer.poll(1.0) is not None:
            return consumer
    raise AssertionError("nothing came")


def _commit_of(consumer: RecordedConsumer, world: World) -> offsets.CommitOffsetsRequest:
    message = offsets.GroupOffsets(group="g", member=consumer.inner.feeding.member_now())
    for item in consumer.inner.feeding.progress():
        message.offsets.add(partition=item.partition.wire(), from_none=True, to_offset=LATE_TO)
    return offsets.CommitOffsetsRequest(offsets=message)


def told(events: list[Event], do: str) -> list[dict[str, Any]]:
    """Arguments and results of the operations of that kind, in one."""
    ends = {event["op"]: event for event in events if event["event"] in ("ok", "fail")}
    return [{**event, **ends.get(event["op"], {})} for event in events if event.get("do") == do]


def test_i23_heartbeats_offsets_and_reads_are_recorded_in_whose_name_they_are() -> None:
    events = history_of_a_late_commit()
    beats, [committed, refused] = told(events, "heartbeat"), told(events, "take_offsets")
    first, second = refused["member"], committed["member"]
    assert [beat["member"] for beat in beats if beat["generation"]][:1] == [first]
    assert [(place["topic"], place["partition"]) for place in beats[0]["assigned"]] == [
        ("a", number) for number in range(4)
    ]
    assert (committed["event"], refused["event"]) == ("ok", "fail")
    assert 0 < refused["generation"] < committed["generation"]
    assert {read["member"] for read in told(events, "read") if read["parts"]} == {first, second}
    assert 23 not in checker.check(events).invariants()


def test_i23_a_group_that_takes_offsets_of_who_lost_them_is_found_out() -> None:
    found = checker.check(history_of_a_late_commit(lax=True)).violations
    assert any(violation.invariant == 23 for violation in found), found


def test_i14_a_member_that_went_back_did_so_after_the_poll_before_it() -> None:
    """As behind an abort: what it had been given, it is given again."""
    events: list[Event] = []

    async def main(world: World) -> None:
        ticks = itertools.count()
        history = HistoryWriter(now_us=lambda: round(world.now_ms() * 1000) + next(ticks))
        consumer = await _member(world.client(), history)
        first = consumer.inner.feeding.standing()
        for place in first:
            await consumer.inner.seek(*place, 0)
        assert any(first.values())
        for _ in range(len(first)):
            assert await consumer.poll(1.0) is not None
        events.extend(history.events)
        await consumer.close()

    in_a_world(main)
    assert 14 not in checker.check(events).invariants()

"""Timers against the obvious oracle: a dict that is scanned."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.timers import Timers

keys = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, st.integers(0, 30)),
        st.tuples(st.just("cancel"), keys, st.just(0)),
        st.tuples(st.just("turn"), st.just(0), st.integers(0, 10)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_i30_what_is_due_is_found(story: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    oracle: dict[int, int] = {}
    now = 0
    for verb, key, amount in story:
        if verb == "set":
            timers.set(key, now + amount)
            oracle[key] = now + amount
        elif verb == "cancel":
            timers.cancel(key)
            oracle.pop(key, None)
        else:
            now += amount
            timers.turn(now)
            timers.turn(now)
            assert set(timers.due(100)) == {k for k, deadline in oracle.items() if deadline <= now}
        timers.check()


def test_due_stays_due_until_it_is_dealt_with() -> None:
    timers: Timers[int] = Timers()
    timers.set(1, 5)
    timers.set(2, 6)
    timers.turn(10)
    assert list(timers.due(1)) == [1]
    timers.cancel(1)
    assert list(timers.due(10)) == [2]
    timers.set(2, 20)
    assert not list(timers.due(10))
    timers.turn(20)
    assert list(timers.due(10)) == [2]

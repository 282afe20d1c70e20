"""Quotas: which one holds, and what a bucket lets in over time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.access import Pattern, pattern_of
from oncelog_server.core.machine import Instant
from oncelog_server.core.quotas import Quota, closest, require_quota
from oncelog_server.runtime.access.quotas import Quotas
from oncelogpb.errors import InvalidArgument, Throttled
from tests.unit.rpc.harness import Recorder


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 0

    def now(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)


def quotas(*given: Quota) -> tuple[Quotas, ManualClock]:
    clock = ManualClock()
    made = Quotas(clock, Recorder())
    made.learn(given)
    return made, clock


def nobody_exempt(identity: str) -> bool:
    return False


def meter_of(held: Quotas, identity: str = "alice") -> Any:
    return held.meter(identity, nobody_exempt)


@pytest.mark.parametrize(
    ("patterns", "holds"),
    [
        (["*"], "*"),
        (["*", "al*"], "al*"),
        (["*", "al*", "alice"], "alice"),
        (["*", "alice*", "alic*"], "alice*"),
        (["alice*", "alice"], "alice"),
        (["bob"], None),
        ([], None),
    ],
)
def test_the_closest_quota_holds_alone(patterns: list[str], holds: str | None) -> None:
    given = [Quota(pattern_of(text), calls_per_second=1) for text in patterns]
    found = closest(given, "alice")
    assert (None if found is None else str(found.identity)) == holds


def test_calls_are_let_in_as_often_as_the_quota_says_and_told_when_to_come_back() -> None:
    held, clock = quotas(Quota(Pattern("alice"), calls_per_second=10))
    meter = meter_of(held)
    assert [meter.refusal(0) for _ in range(10)] == [None] * 10
    refused = meter.refusal(0)
    assert isinstance(refused, Throttled)
    assert refused.metadata == {
        "limit": "quota_calls_per_second",
        "maximum": "10",
        "retry_after_ms": "100",
    }
    clock.now_ms += 99
    assert meter.refusal(0) is not None
    clock.now_ms += 1
    assert meter.refusal(0) is None, "who comes back when he is told to is let in"
    assert meter.refusal(0) is not None


def test_a_large_message_passes_and_is_waited_for_afterwards() -> None:
    held, clock = quotas(Quota(Pattern("alice"), bytes_per_second=1_000))
    meter = meter_of(held)
    assert meter.refusal(5_000) is None
    refused = meter.refusal(1)
    assert refused.metadata["limit"] == "quota_bytes_per_second"
    assert 4_000 <= int(refused.metadata["retry_after_ms"]) <= 4_001
    clock.now_ms += int(refused.metadata["retry_after_ms"])
    assert meter.refusal(1) is None


def test_signs_of_life_are_let_in_and_charged() -> None:
    held, clock = quotas(Quota(Pattern("alice"), bytes_per_second=1_000, calls_per_second=1))
    meter = meter_of(held)
    assert meter.refusal(16_000) is None
    for _ in range(4):
        clock.now_ms += 3_000
        assert meter.refusal(250, is_let_in=True) is None
    assert meter.refusal(0).metadata["limit"] == "quota_bytes_per_second"
    clock.now_ms += 5_000
    assert meter.refusal(0) is None


def test_replies_count_and_hold_up_the_next_call() -> None:
    held, _ = quotas(Quota(Pattern("alice"), bytes_per_second=1_000))
    meter = meter_of(held)
    assert meter.refusal(0) is None
    meter.charge(3_000)
    assert 2_000 <= meter.wait_ms() <= 2_001
    assert meter.refusal(0) is not None


def test_what_is_not_used_is_not_saved_up() -> None:
    held, clock = quotas(Quota(Pattern("alice"), calls_per_second=2))
    meter = meter_of(held)
    clock.now_ms += 3_600_000
    let_in = [meter.refusal(0) is None for _ in range(5)]
    assert let_in == [True, True, False, False, False]


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 20)), min_size=1, max_size=40),
)
def test_over_any_time_nobody_has_more_than_his_share(
    per_second: int, waits: list[tuple[int, int]]
) -> None:
    """One second's worth beside what was earned."""
    held, clock = quotas(Quota(Pattern("alice"), calls_per_second=per_second))
    meter = meter_of(held)
    let_in = 0
    for wait_ms, tries in waits:
        clock.now_ms += wait_ms
        let_in += sum(meter.refusal(0) is None for _ in range(tries))
    assert let_in <= per_second + clock.now_ms * per_second / 1000 + 1e-6


def test_identities_have_buckets_of_their_own_also_under_one_quota() -> None:
    held, _ = quotas(Quota(pattern_of("*"), calls_per_second=1))
    assert meter_of(held, "alice").refusal(0) is None
    assert meter_of(held, "bob").refusal(0) is None
    assert meter_of(held, "alice").refusal(0) is not None


def test_nobody_is_limited_without_an_identity_or_as_a_service() -> None:
    held, _ = quotas(Quota(pattern_of("*"), calls_per_second=1))
    assert held.meter("", nobody_exempt) is None
    assert held.meter("oncelog", lambda identity: identity == "oncelog") is None


def test_a_quota_that_changes_holds_at_once() -> None:
    held, _ = quotas(Quota(Pattern("alice"), calls_per_second=1))
    assert meter_of(held).refusal(0) is None
    assert meter_of(held).refusal(0) is not None
    held.learn([Quota(Pattern("alice"), calls_per_second=1)])
    assert meter_of(held).refusal(0) is not None, "nothing changed"
    held.learn([Quota(Pattern("alice"), calls_per_second=5)])
    assert meter_of(held).refusal(0) is None
    held.learn([])
    assert meter_of(held) is None


@pytest.mark.parametrize(
    "quota",
    [
        Quota(Pattern("alice")),
        Quota(Pattern("")),
        Quota(Pattern(""), calls_per_second=1),
        Quota(Pattern("alice"), calls_per_second=1 << 60),
    ],
)
def test_a_quota_that_says_nothing_is_refused(quota: Quota) -> None:
    with pytest.raises(InvalidArgument):
        require_quota(quota)

"""One partition's batches reach the log in order and once, whatever answers come or do not come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core.batching import Sealed
from oncelog._core.retries import Action
from oncelog._core.sequencing import IN_FLIGHT_MAX, Lane, Numbered
from oncelogpb import errors

LATER = 1_000.0


def sealed(count: int = 1) -> Sealed:
    return Sealed(0, 1, count, 0, 0, b"x")


def lane_of(batches: int, *, renewable: bool = True, deadline_ms: float = LATER) -> Lane:
    lane = Lane(renewable=renewable)
    for _ in range(batches):
        lane.add(sealed(), deadline_ms)
    return lane


def fly(lane: Lane) -> list[Numbered]:
    flown = []
    while lane.sendable():
        flown.append(lane.take())
    return flown


def test_sequences_count_records_from_zero() -> None:
    lane = Lane(renewable=True)
    numbers = [lane.add(sealed(count), LATER).base_sequence for count in (3, 1, 5)]
    assert numbers == [0, 3, 4]
    assert lane.next_sequence == 9


def test_at_most_sixteen_batches_are_in_flight() -> None:
    lane = lane_of(20)
    assert len(fly(lane)) == IN_FLIGHT_MAX == 16
    assert not lane.sendable()


def test_after_a_failure_nothing_new_goes_before_what_failed_goes_again() -> None:
    lane = lane_of(4)
    first, second = lane.take(), lane.take()
    assert lane.fail(first, errors.Throttled("x")) is Action.RETRY
    assert not lane.sendable()
    assert lane.fail(second, errors.OutOfOrderSequence("x")) is Action.RETRY
    assert [batch.base_sequence for batch in fly(lane)] == [0, 1, 2, 3]
    lane.check()


def test_a_gap_reported_before_the_answer_of_an_earlier_batch_is_an_echo() -> None:
    lane = lane_of(2)
    first, second = fly(lane)
    assert lane.fail(second, errors.OutOfOrderSequence("x")) is Action.RETRY
    lane.fail(first, errors.UnknownOutcome("x"))
    assert fly(lane) == [first, second]


def test_a_gap_that_no_earlier_batch_explains_is_fatal() -> None:
    lane = lane_of(2)
    first, second = fly(lane)
    lane.succeed(first)
    assert lane.fail(second, errors.OutOfOrderSequence("x")) is Action.FATAL
    assert lane.broken


def test_a_lost_answer_goes_again_under_the_same_number_and_is_in_doubt() -> None:
    lane = lane_of(1)
    (batch,) = fly(lane)
    assert lane.fail(batch, errors.UnknownOutcome("x")) is Action.REDIRECT
    assert fly(lane) == [batch]
    assert batch.in_doubt
    assert (batch.base_sequence, batch.attempts) == (0, 2)


def test_i6_what_may_stand_under_the_old_id_is_never_sent_under_a_new_one() -> None:
    lane = lane_of(3)
    first, second, third = fly(lane)
    lane.fail(first, errors.TooLarge("x"))
    lane.fail(second, errors.UnknownOutcome("x"))
    lane.fail(third, errors.OutOfOrderSequence("x"))
    assert lane.broken
    assert lane.restart() == [second]
    assert fly(lane) == [third]
    assert third.base_sequence == 0


def test_an_idle_producer_whose_state_expired_starts_again_without_loss() -> None:
    lane = lane_of(1)
    lane.succeed(lane.take())
    lane.add(sealed(), LATER)
    batch = lane.take()
    assert batch.base_sequence == 1
    assert lane.fail(batch, errors.UnknownProducer("x")) is Action.RETRY
    assert lane.restart() == []
    assert lane.take().base_sequence == 0


def test_unknown_producer_after_a_lost_answer_is_not_sent_again() -> None:
    lane = lane_of(1)
    batch = lane.take()
    lane.fail(batch, errors.UnknownOutcome("x"))
    assert lane.take() is batch
    assert lane.fail(batch, errors.UnknownProducer("x")) is Action.FATAL


def test_in_a_transaction_a_refusal_breaks_the_lane_for_good() -> None:
    lane = lane_of(2, renewable=False)
    first = lane.take()
    assert lane.fail(first, errors.TransactionEnded("x")) is Action.REWIND
    assert not lane.sendable()


def test_what_waited_too_long_is_taken_out() -> None:
    lane = Lane(renewable=True)
    lane.add(sealed(), 10.0)
    lane.add(sealed(), LATER)
    assert [batch.base_sequence for batch in lane.expire(10.0)] == [0]
    assert lane.broken
    assert lane.restart() == []
    assert lane.take().base_sequence == 0


class Leader:
    """The leaders' rule: a repeat is acknowledged, a gap refused."""

    def __init__(self) -> None:
        self.log: list[Numbered] = []
        self.next_sequence = 0

    def receive(self, batch: Numbered) -> errors.OncelogError | None:
        if batch.base_sequence < self.next_sequence:
            return None
        if batch.base_sequence > self.next_sequence:
            return errors.OutOfOrderSequence("gap", expected=self.next_sequence)
        self.log.append(batch)
        self.next_sequence += batch.sealed.record_count
        return None


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=25),
    st.lists(st.sampled_from(["ok", "refused", "lost request", "lost answer"]), max_size=60),
    st.randoms(use_true_random=False),
)
def test_i6_every_batch_stands_in_the_log_once_and_in_order(
    counts: list[int], weather: list[str], chance: object
) -> None:
    """Each flight is received in order; each message may be refused or lost on either way, and the
    answers come in any order. The weather ends, so that everything is delivered at last."""
    lane, leader, storms = Lane(renewable=True), Leader(), iter(weather)
    added = [lane.add(sealed(count), LATER) for count in counts]
    while not lane.idle:
        answers: list[tuple[Numbered, errors.OncelogError | None]] = []
        for batch in fly(lane):
            storm = next(storms, "ok")
            if storm == "refused":
                answers.append((batch, errors.Throttled("x")))
            elif storm == "lost request":
                answers.append((batch, errors.UnknownOutcome("x")))
            else:
                refusal = leader.receive(batch)
                lost = storm == "lost answer"
                answers.append((batch, errors.UnknownOutcome("x") if lost else refusal))
        chance.shuffle(answers)  # type: ignore[attr-defined]
        for batch, error in answers:
            if error is None:
                lane.succeed(batch)
            else:
                assert lane.fail(batch, error) in (Action.RETRY, Action.REDIRECT)
            lane.check()
    assert leader.log == added
    assert lane.acknowledged == sum(counts)


def test_a_batch_is_answered_once() -> None:
    lane = lane_of(1)
    batch = lane.take()
    lane.succeed(batch)
    with pytest.raises(AssertionError, match="answered twice"):
        lane.succeed(batch)

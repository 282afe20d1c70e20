"""The states of a transaction, the manifest, and the numbers of a producer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core.batching import Sealed
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import (
    ENDED,
    ONE_SHOT_BYTES_MAX,
    ONE_SHOT_LOADED_BYTES_MAX,
    ONE_SHOT_PARTITIONS_MAX,
    TRANSITIONS,
    Event,
    ProducerCore,
    State,
    TransactionCore,
    WriterPart,
    fits_one_shot,
    manifest_of,
)
from oncelogpb import errors

TOPIC = b"t" * 16
OTHER = b"a" * 16


def batch(partition: int, size: int = 1, loaded: int = 0) -> tuple[PartitionKey, Sealed]:
    return PartitionKey(TOPIC, partition), Sealed(partition, 1, 1, 0, 0, b"x" * size, loaded)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_only_the_steps_of_the_table_are_possible(state: State, event: Event) -> None:
    transaction = TransactionCore(state=state)
    if event in TRANSITIONS[state]:
        assert transaction.on(event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match="cannot"):
            transaction.on(event)


def test_an_end_is_final_and_every_other_state_can_end() -> None:
    """But doubt ends where the answer comes after all."""
    for state in State:
        if state in ENDED:
            doubt_ends = {Event.DECIDE: State.COMMITTED} if state is State.IN_DOUBT else {}
            assert TRANSITIONS[state] == doubt_ends
            continue
        reached, frontier = {state}, [state]
        while frontier:
            for following in TRANSITIONS[frontier.pop()].values():
                if following not in reached:
                    reached.add(following)
                    frontier.append(following)
        assert reached & ENDED, state


def test_the_first_error_is_the_one_that_is_kept_and_raised() -> None:
    transaction = TransactionCore()
    transaction.spoil(errors.TooLarge("first"))
    transaction.spoil(errors.UnknownTopic("second"))
    with pytest.raises(errors.TooLarge, match="first"):
        transaction.require_open()


@pytest.mark.parametrize(
    ("batches", "fits"),
    [
        ([], True),
        ([batch(0), batch(1)], True),
        ([batch(0), batch(0)], False),
        ([batch(0, ONE_SHOT_BYTES_MAX)], True),
        ([batch(0, ONE_SHOT_BYTES_MAX), batch(1)], False),
        ([batch(n) for n in range(ONE_SHOT_PARTITIONS_MAX)], True),
        ([batch(n) for n in range(ONE_SHOT_PARTITIONS_MAX + 1)], False),
        # It is small on the wire, and large once a coordinator has loaded it.
        ([batch(0, 1_000, loaded=ONE_SHOT_LOADED_BYTES_MAX)], True),
        ([batch(0, 1_000, loaded=ONE_SHOT_LOADED_BYTES_MAX), batch(1, loaded=1)], False),
    ],
)
def test_what_fits_into_one_message(batches: list[tuple[PartitionKey, Sealed]], fits: bool) -> None:
    assert fits_one_shot(batches, ONE_SHOT_BYTES_MAX) is fits


@given(
    st.sets(
        st.tuples(st.sampled_from([TOPIC, OTHER]), st.integers(0, 5), st.integers(0, 3)),
        max_size=20,
    )
)
def test_a_manifest_names_each_part_once_packed_by_topic(
    parts: set[tuple[bytes, int, int]],
) -> None:
    rows = [WriterPart(PartitionKey(t, p), w, 10 * p + w) for t, p, w in parts]
    manifest = manifest_of(rows)
    named = [
        WriterPart(PartitionKey(topic.topic_id, p), w, count)
        for topic in manifest.topics
        for p, w, count in zip(topic.partition, topic.writer, topic.record_count, strict=True)
    ]
    assert named == sorted(rows)
    assert len({topic.topic_id for topic in manifest.topics}) == len(manifest.topics)


def test_a_manifest_names_offset_partitions_without_writer_and_count() -> None:
    offsets = PartitionKey(b"o" * 16, 7)
    manifest = manifest_of([WriterPart(PartitionKey(TOPIC, 0), 0, 5)], [offsets])
    assert [(t.topic_id, list(t.writer), list(t.record_count)) for t in manifest.topics] == [
        (b"o" * 16, [0], [0]),
        (TOPIC, [0], [5]),
    ]


def test_a_part_that_is_named_twice_is_refused() -> None:
    part = WriterPart(PartitionKey(TOPIC, 0), 0, 5)
    with pytest.raises(errors.ManifestMismatch):
        manifest_of([part, part])


def test_request_numbers_are_consecutive_and_fall_back_to_what_is_expected() -> None:
    producer = ProducerCore(1, 1)
    assert [producer.take_request_number() for _ in range(3)] == [1, 2, 3]
    assert producer.expect_request_number(errors.OutOfOrderSequence("x", expected=2))
    assert producer.take_request_number() == 2


@pytest.mark.parametrize("expected", ["3", "9", "", "many"])
def test_a_number_that_was_used_or_makes_no_sense_is_not_taken(expected: str) -> None:
    producer = ProducerCore(1, 1, next_request_number=4)
    assert not producer.expect_request_number(errors.OutOfOrderSequence("x", expected=expected))
    assert producer.take_request_number() == 4


def test_a_transaction_that_begin_next_opened_is_used_while_it_is_fresh() -> None:
    producer = ProducerCore(1, 1)
    producer.keep_adopted(77, 5, now_ms=1_000, timeout_ms=60_000)
    adopted = producer.take_adopted()
    assert adopted is not None
    assert (adopted.tx_id, adopted.request_id) == (77, 5)
    assert adopted.serves(now_ms=30_999, wanted_ms=60_000)
    assert not adopted.serves(now_ms=31_000, wanted_ms=60_000), "too old"
    assert not adopted.serves(now_ms=1_000, wanted_ms=60_001), "begun with another timeout"
    assert producer.take_adopted() is None
    producer.keep_adopted(78, 6, now_ms=1_000, timeout_ms=0)
    assert producer.take_adopted() == (78, 6, 1_000, 0, 60_000)

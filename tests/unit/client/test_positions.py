"""Where a consumer stands: what a commit covers, what an abort gives back (I14, I15, I21)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core.positions import After, Origin, Positions, Progress, start_of
from oncelog._core.routing import PartitionKey
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, types_pb2

P0 = PartitionKey(b"t" * 16, 0)
P1 = PartitionKey(b"t" * 16, 1)


def standing(position: int, since: int | Origin, *, read: int = 0) -> Positions:
    positions = Positions([P0, P1])
    positions.start(P0, position, since)
    positions.fetched(P0, position + read)
    positions.given(P0, position + read)
    positions.check()
    return positions


def only_offset(positions: Positions, producer_id: int = 0) -> offset_manager_pb2.OffsetCommit:
    (offset,) = positions.offsets(
        positions.progress(), producer_id=producer_id, view=types_pb2.VIEW_COMMITTED
    )
    return offset


@pytest.mark.parametrize(
    ("since", "field"),
    [(10, "from_offset"), (Origin.NONE, "from_none"), (Origin.ANY, "from_any")],
)
def test_from_is_what_the_group_must_have(since: int | Origin, field: str) -> None:
    offset = only_offset(standing(10, since, read=5))
    assert offset.WhichOneof("from") == field
    assert offset.to_offset == 15


def test_a_partition_that_did_not_move_is_not_committed() -> None:
    assert standing(10, 10).progress() == []


def test_i21_an_abort_gives_back_all_since_the_last_commit() -> None:
    positions = standing(10, 10, read=5)
    positions.committed(positions.progress(), None)
    positions.fetched(P0, 30)
    positions.given(P0, 20)
    edition = positions.edition
    positions.rewind()
    assert positions.position(P0) == positions.fetch_position(P0) == 15
    assert positions.edition > edition
    positions.check()


def test_a_decided_commit_is_chained_on_by_the_same_producer_only() -> None:
    positions = standing(10, 10, read=5)
    positions.committed(positions.progress(), After(producer_id=7, tx_id=99))
    positions.fetched(P0, 20)
    positions.given(P0, 20)
    mine = only_offset(positions, producer_id=7)
    assert (mine.from_offset, mine.after_tx_id) == (15, 99)
    assert only_offset(positions, producer_id=8).after_tx_id == 0


def test_a_visible_commit_needs_no_chain() -> None:
    positions = standing(10, Origin.NONE, read=5)
    positions.committed(positions.progress(), None)
    positions.fetched(P0, 20)
    positions.given(P0, 20)
    offset = only_offset(positions, producer_id=7)
    assert (offset.from_offset, offset.after_tx_id) == (15, 0)


def test_a_seek_is_not_checked_against_the_group() -> None:
    positions = standing(10, 10, read=5)
    positions.seek(P0, 3)
    positions.fetched(P0, 4)
    positions.given(P0, 4)
    assert positions.progress() == [Progress(P0, 3, 4)]
    assert only_offset(positions).from_any


def test_what_is_forgotten_is_unknown_and_gives_nothing() -> None:
    positions = standing(10, 10, read=5)
    positions.forget()
    assert positions.unknown() == [P0, P1]
    assert positions.fetchable() == []
    assert positions.progress() == []


def test_a_paused_partition_is_not_fetched_and_keeps_its_position() -> None:
    positions = standing(10, 10, read=5)
    positions.pause(P0)
    assert positions.fetchable() == []
    positions.resume(P0)
    assert positions.fetchable() == [(P0, 15)]


def test_what_is_revoked_is_not_given_nor_committed_and_disturbs_no_other() -> None:
    positions = standing(10, 10, read=5)
    positions.start(P1, 3, 3)
    before = positions.editions()
    positions.revoke([P0])
    positions.check()
    assert positions.assigned == (P1,)
    assert positions.progress() == []
    assert positions.editions() == {P1: before[P1]}
    with pytest.raises(errors.InvalidArgument, match="not assigned"):
        positions.position(P0)


def test_what_comes_back_begins_anew() -> None:
    positions = standing(10, 10, read=5)
    before = positions.editions()
    positions.pause(P0)
    positions.revoke([P0])
    positions.assign([P0])
    assert positions.unknown() == [P1, P0]
    positions.start(P0, 12, 12)
    assert positions.fetchable() == [(P0, 12)]
    assert positions.editions()[P0] > before[P0]


def test_an_unassigned_partition_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="not assigned"):
        Positions([P0]).seek(P1, 0)


def test_where_the_group_has_nothing_the_start_decides() -> None:
    absent = offset_manager_pb2.CommittedOffset(partition=P0.wire())
    assert start_of(absent, {P0: 4}) == (4, Origin.NONE)
    present = offset_manager_pb2.CommittedOffset(partition=P0.wire(), offset=0)
    assert start_of(present, {}) == (0, 0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["commit", "abort", "prefetch", "unfetch"]), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_i15_commits_cover_the_log_without_gap_or_overlap(plan: list[tuple[str, int]]) -> None:
    positions = Positions([P0])
    positions.start(P0, 0, Origin.NONE)
    covered = 0
    for step, count in plan:
        position = positions.position(P0)
        fetch = positions.fetch_position(P0)
        assert position is not None
        assert fetch is not None
        if step == "read":
            positions.fetched(P0, max(fetch, position + count))
            positions.given(P0, position + count)
        elif step == "prefetch":
            positions.fetched(P0, fetch + 3)
        elif step == "unfetch":
            positions.unfetch([P0])
        elif step == "abort":
            positions.rewind()
            assert positions.position(P0) == covered
        else:
            for _, base, to, _ in positions.progress():
                assert base == covered
                covered = to
            positions.committed(positions.progress(), None)
        positions.check()


def test_a_commit_that_became_visible_ends_the_chain_on_the_one_before() -> None:
    positions = standing(10, 10, read=5)
    positions.committed(positions.progress(), After(producer_id=7, tx_id=99))
    positions.fetched(P0, 20)
    positions.given(P0, 20)
    positions.committed(positions.progress(), None)
    positions.fetched(P0, 25)
    positions.given(P0, 25)
    offset = only_offset(positions, producer_id=7)
    assert (offset.from_offset, offset.after_tx_id) == (20, 0)


def test_i15_what_is_read_while_a_commit_is_decided_belongs_to_the_next_one() -> None:
    positions = standing(10, 10, read=5)
    covered = positions.progress()
    positions.fetched(P0, 20)
    positions.given(P0, 20)
    positions.committed(covered, None)
    assert positions.progress() == [Progress(P0, 15, 20)]


def test_i21_what_was_given_beyond_a_position_goes_with_its_commit_and_its_rewind() -> None:
    positions = Positions([P0, P1])
    positions.start(P0, 10, 10, ((3, 14),))
    positions.start(P1, 0, Origin.NONE)
    positions.fetched(P0, 30)
    positions.given_across(P0, 10, ((3, 14), (5, 20)))
    assert positions.progress() == [Progress(P0, 10, 10, ((3, 14), (5, 20)))]
    positions.rewind()
    assert (positions.beyond(P0), positions.progress()) == (((3, 14),), [])
    positions.fetched(P0, 30)
    positions.given_across(P0, 15, ((5, 20),))
    progress = positions.progress()
    positions.committed(progress, None)
    assert positions.progress() == []
    positions.rewind()
    assert (positions.position(P0), positions.beyond(P0)) == (15, ((5, 20),))


def test_i21_who_gives_record_by_record_does_not_go_on_where_some_were_given_beyond() -> None:
    positions = Positions([P0])
    positions.start(P0, 10, 10, ((3, 14),))
    positions.fetched(P0, 20)
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument, match="go on that way"):
            positions.given(P0, 12)
    positions.seek(P0, 10)
    positions.fetched(P0, 20)
    positions.given(P0, 12)


def test_i21_an_offset_that_is_named_does_not_hide_what_was_given_beyond() -> None:
    positions = Positions([P0])
    positions.start(P0, 10, 10)
    positions.fetched(P0, 20)
    positions.given_across(P0, 10, ((3, 14),))
    with pytest.raises(errors.InvalidArgument, match="commit without offsets"):
        positions.progress_to({P0: 10})
    positions.committed(positions.progress(), None)
    positions.given_across(P0, 20, ())
    with pytest.raises(errors.InvalidArgument, match="commit without offsets"):
        positions.progress_to({P0: 12})
    positions.committed(positions.progress(), None)
    assert positions.progress_to({P0: 20}) == [Progress(P0, 20, 20)]

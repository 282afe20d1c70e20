"""The two sides of a dialog, by hand: where logs part, and what flows once they agree."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.replica.follower import (
    REPLICA_WINDOW_BYTES,
    Follower,
    Read,
    Room,
    SendSnapshot,
)
from oncelog_server.runtime.replica.following import (
    Acknowledge,
    Answer,
    Ask,
    Cut,
    Following,
    GiveUp,
    WentBack,
)
from oncelog_server.runtime.storage.keeping import Allowance

SEVEN: Final = LeaderEpoch(7)
NOTHING: Final = Allowance()


@dataclass
class Epochs:
    """A log by the epochs of its frames, one journal offset each."""

    frames: list[int]
    unsynced: int = 0
    # Of what a snapshot stands for, and what that rests on.
    before: Sequence[int] = ()
    allowed: Allowance = NOTHING

    @property
    def log_start(self) -> int:
        return len(self.before)

    @property
    def log_end(self) -> int:
        return self.log_start + len(self.frames)

    @property
    def synced_end(self) -> int:
        return self.log_end - self.unsynced

    @property
    def last_epoch(self) -> int:
        return [0, *self.before, *self.frames][-1]

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        below = [frame for frame in (*self.before, *self.frames) if frame <= epoch]
        return (below[-1], len(below)) if below else (0, 0)


def new_follower(
    epoch: LeaderEpoch,
    log: Epochs,
    *,
    stream: Room | None = None,
    catch_up: Room | None = None,
    window_bytes: int = REPLICA_WINDOW_BYTES,
) -> Follower:
    return Follower(
        epoch,
        log,
        stream=stream or Room(1 << 30),
        catch_up=catch_up or Room(1 << 30),
        window_bytes=window_bytes,
    )


def acknowledge(synced_end: int, log_end: int, epoch: int = 7) -> Acknowledge:
    return Acknowledge(LeaderEpoch(epoch), JournalOffset(synced_end), JournalOffset(log_end))


def agree(own: Epochs, leaders: Epochs) -> list[int]:
    """Where the follower cut, until it could go on."""
    following, follower = Following(SEVEN, own), new_follower(SEVEN, leaders)
    cuts: list[int] = []
    said: Ask | Acknowledge | Cut | GiveUp | None = following.ask()
    while isinstance(said, Ask):
        answer = follower.asked(said)
        assert answer is not None
        said = following.answered(answer)
        if isinstance(said, Cut):
            assert not following.takes(SEVEN), "a cut is durable before anything else"
            cuts.append(said.end)
            del own.frames[said.end - own.log_start :]
            said = following.was_cut()
    assert said == acknowledge(own.synced_end, own.log_end)
    assert following.takes(SEVEN)
    return cuts


@pytest.mark.parametrize(
    ("own", "leaders", "left", "cuts"),
    [
        ([], [1, 7], [], []),
        ([1, 1], [1, 1, 7], [1, 1], []),
        ([1, 1, 1], [1, 1, 7], [1, 1], [2]),
        ([1, 3], [1, 2, 2, 7], [1], [1]),
        ([1, 3, 5], [1, 2, 4, 7], [1], [2, 1]),
        ([1, 1, 4, 6, 6], [1, 2, 5, 7], [1], [3, 2, 1]),
        ([3, 3], [1, 2, 7], [], [0]),
        ([1, 7, 7], [1, 7, 7, 7], [1, 7, 7], []),
    ],
)
def test_i7_a_follower_keeps_what_both_logs_have_and_nothing_else(
    own: list[int], leaders: list[int], left: list[int], cuts: list[int]
) -> None:
    log = Epochs(own)
    assert (agree(log, Epochs(leaders)), log.frames) == (cuts, left)


def test_i18_who_has_a_later_epoch_does_not_follow_an_earlier_one() -> None:
    with pytest.raises(WentBack, match="knows of epoch 8"):
        Following(SEVEN, Epochs([1, 8]))


def test_what_is_acknowledged_is_synced_and_frames_begin_behind_what_is_here() -> None:
    own, leaders = Epochs([1, 1, 1], unsynced=2), Epochs([1, 1, 1, 7])
    assert agree(own, leaders) == []
    following, follower = Following(SEVEN, own), new_follower(SEVEN, leaders)
    following.answered(Answer(SEVEN, LeaderEpoch(1), JournalOffset(3)))
    assert follower.acknowledged(following.acknowledge())
    assert following.acknowledge().synced_end == 1
    step = follower.next_step(tail_start=0)
    assert isinstance(step, Read)
    assert step.from_offset == 3


def test_frames_of_another_epoch_are_not_taken() -> None:
    following = Following(SEVEN, Epochs([]))
    assert not following.takes(SEVEN), "the logs may differ"
    assert following.synced() is None
    following.answered(Answer(SEVEN, LeaderEpoch(0), JournalOffset(0)))
    assert following.takes(SEVEN)
    assert not following.takes(LeaderEpoch(6))
    assert following.answered(Answer(SEVEN, LeaderEpoch(0), JournalOffset(0))) is None


def test_i27_a_follower_knows_of_the_high_watermark_what_it_has() -> None:
    own = Epochs([1, 1])
    following = Following(SEVEN, own, high_watermark=1)
    assert not following.heard(9), "the logs may differ"
    following.answered(Answer(SEVEN, LeaderEpoch(1), JournalOffset(2)))
    assert following.heard(9)
    assert following.high_watermark == 2
    own.frames.append(7)
    following.synced()
    assert following.high_watermark == 3
    assert not following.heard(1), "it never moves back"


def test_who_ends_before_the_leaders_log_begins_is_told_once_in_a_dialog() -> None:
    own, leaders = Epochs([1, 1]), Epochs([5, 7], before=[1] * 3 + [2] * 47)
    assert agree(own, leaders) == []
    follower = new_follower(SEVEN, leaders)
    for _ in range(2):
        assert follower.asked(Ask(SEVEN, LeaderEpoch(1), JournalOffset(2))) is not None
        follower.acknowledged(acknowledge(2, 2))
        assert follower.next_step(tail_start=50) == SendSnapshot(JournalOffset(2))
        follower.acknowledged(acknowledge(2, 2))
        assert follower.next_step(tail_start=50) is None, "it is at it"


@pytest.mark.parametrize(
    ("before", "own", "leaders", "left", "cuts"),
    [
        ([1, 1, 3], [], [1, 1, 3, 3, 7], [], []),
        ([1, 1, 3], [3, 3], [1, 1, 3, 3, 7], [3], [4]),
        ([1, 1, 3], [3, 4, 5], [1, 1, 3, 3, 7], [3], [4]),
        ([1, 1], [4, 5], [1, 1, 3, 7], [], [2]),
    ],
)
def test_i7_a_log_that_begins_with_a_snapshot_is_compared_with_all_before_it(
    before: list[int], own: list[int], leaders: list[int], left: list[int], cuts: list[int]
) -> None:
    log = Epochs(own, before=before)
    assert (agree(log, Epochs(leaders)), log.frames) == (cuts, left)


@pytest.mark.parametrize(
    ("own", "leaders", "parted_at"),
    [
        ([], [1, 1, 7], 2),
        ([3, 3], [1, 1, 7], 2),
        ([3, 5], [1, 1, 2, 7], 2),
        ([], [7], 0),
    ],
)
def test_i7_a_log_that_begins_with_another_state_is_given_up(
    own: list[int], leaders: list[int], parted_at: int
) -> None:
    """The leader was elected without it: all logs and snapshots of before are worth nothing."""
    log = Epochs(own, before=[1, 1, 3, 3])
    following, follower = Following(SEVEN, log), new_follower(SEVEN, Epochs(leaders))
    answer = follower.asked(following.ask())
    assert answer is not None
    step = following.answered(answer)
    assert isinstance(step, GiveUp), "another state stands below the same frames"
    assert step.parted_at == parted_at
    assert not following.takes(SEVEN)


def said_at_last(own: Epochs, leaders: Epochs) -> Ask | Acknowledge | Cut | GiveUp | None:
    """By the follower, cuts done, once it asks nothing more."""
    following, follower = Following(SEVEN, own), new_follower(SEVEN, leaders)
    said: Ask | Acknowledge | Cut | GiveUp | None = following.ask()
    while isinstance(said, Ask | Cut):
        if isinstance(said, Cut):
            del own.frames[said.end - own.log_start :]
            said = following.was_cut()
        else:
            answer = follower.asked(said)
            assert answer is not None
            said = following.answered(answer)
    return said


@pytest.mark.parametrize(
    ("own", "leaders", "parted_at"),
    [
        # The record that allowed it is not in the leader's log.
        ([1, 1, 3, 3], [1, 1, 1, 1, 7], 4),
        ([1, 1, 3, 3], [1, 1, 1, 1, 2, 2, 2, 7], 4),
        # It is a copy that was not that far.
        ([1], [1, 1, 1, 1, 7], 3),
        ([], [1, 1, 7], 2),
        ([1, 1], [1, 1, 1, 1, 2, 2, 2, 7], 4),
    ],
)
def test_i25_a_log_is_given_up_where_the_state_that_allowed_its_start_is_gone(
    own: list[int], leaders: list[int], parted_at: int
) -> None:
    log = Epochs(own, before=[1, 1], allowed=Allowance(5, 3))
    step = said_at_last(log, Epochs(leaders))
    assert isinstance(step, GiveUp), "what was gone may be needed in the leader's log"
    assert step.parted_at == parted_at
    assert log.frames == own, "it is put aside as it is"


@pytest.mark.parametrize(
    ("own", "left"),
    [
        ([1, 1, 3, 3, 3], [1, 1, 3, 3]),
        ([1, 1, 3], [1, 1, 3]),
        # Copies on their way there, and one that was elected on its way and wrote something else.
        ([1], [1]),
        ([], []),
        ([1, 4, 4, 4], [1]),
    ],
)
def test_i25_a_leader_that_has_what_allowed_a_start_is_followed(
    own: list[int], left: list[int]
) -> None:
    log = Epochs(own, before=[1, 1], allowed=Allowance(5, 3))
    step = said_at_last(log, Epochs([1, 1, 1, 1, 3, 3, 7]))
    assert step == acknowledge(2 + len(left), 2 + len(left))
    assert log.frames == left


def test_i25_who_begins_anew_asks_anew_what_allowed_its_start() -> None:
    """The answer to the first question of a dialog is not taken for one to the second."""
    log = Epochs([], before=[1, 1], allowed=Allowance(5, 3))
    following, follower = Following(SEVEN, log), new_follower(SEVEN, Epochs([1, 1, 3, 7]))
    first = follower.asked(following.ask())
    assert first is not None
    assert following.answered(first) == Ask(SEVEN, LeaderEpoch(3), JournalOffset(5))
    following.ask()
    assert following.answered(first) == Ask(SEVEN, LeaderEpoch(3), JournalOffset(5))
    second = follower.asked(Ask(SEVEN, LeaderEpoch(3), JournalOffset(5)))
    assert second is not None
    assert isinstance(following.answered(second), GiveUp)


def test_i18_who_knows_of_a_later_epoch_by_its_start_alone_does_not_follow_an_earlier_one() -> None:
    with pytest.raises(WentBack, match="knows of epoch 8"):
        Following(SEVEN, Epochs([], before=[1, 1], allowed=Allowance(5, 8)))


# ------------------------------------------------------------------------- what may be on its way


def test_nothing_is_sent_before_the_logs_agree() -> None:
    follower = new_follower(SEVEN, Epochs([1, 7]))
    assert follower.asked(Ask(LeaderEpoch(6), LeaderEpoch(1), JournalOffset(1))) is None
    assert follower.asked(Ask(SEVEN, LeaderEpoch(1), JournalOffset(1))) is not None
    assert follower.next_step(tail_start=0) is None
    assert not follower.acknowledged(acknowledge(1, 1, epoch=6))
    assert not follower.acknowledged(acknowledge(3, 3)), "more than there is"
    assert follower.next_step(tail_start=0) is None
    assert follower.acknowledged(acknowledge(1, 1))
    assert follower.next_step(tail_start=0) is not None


def test_what_is_sent_and_not_acknowledged_is_bounded() -> None:
    log = Epochs([1] * 100)
    follower = new_follower(LeaderEpoch(1), log, window_bytes=1000)
    follower.acknowledged(acknowledge(0, 0, epoch=1))
    for end in (1, 2, 3):
        read = follower.next_step(tail_start=0)
        assert read == Read(JournalOffset(end - 1), 1000 - 400 * (end - 1))
        follower.sent(end, 400, tail_start=0)
    assert follower.next_step(tail_start=0) is None
    follower.acknowledged(acknowledge(1, 3, epoch=1))
    assert follower.next_step(tail_start=0) == Read(JournalOffset(3), 200)


def test_who_is_far_behind_waits_and_who_keeps_up_does_not() -> None:
    log, catch_up = Epochs([1] * 100), Room(500)
    behind, also_behind, near = (
        new_follower(LeaderEpoch(1), log, catch_up=catch_up) for _ in range(3)
    )
    for follower, at in ((behind, 0), (also_behind, 0), (near, 90)):
        follower.acknowledged(acknowledge(at, at, epoch=1))
    behind.sent(10, 500, tail_start=80)
    assert behind.next_step(tail_start=80) is None
    assert also_behind.next_step(tail_start=80) is None
    assert near.next_step(tail_start=80) is not None
    behind.close()
    assert catch_up.used_bytes == 0
    assert also_behind.next_step(tail_start=80) is not None


def test_all_dialogs_of_a_stream_share_what_is_on_its_way() -> None:
    log, stream = Epochs([1] * 100), Room(1000)
    one, other = (new_follower(LeaderEpoch(1), log, stream=stream) for _ in range(2))
    for follower in (one, other):
        follower.acknowledged(acknowledge(0, 0, epoch=1))
    one.sent(10, 900, tail_start=0)
    assert other.next_step(tail_start=0) == Read(JournalOffset(0), 100)
    other.sent(1, 100, tail_start=0)
    assert one.next_step(tail_start=0) is None
    assert one.waits_for is stream
    one.acknowledged(acknowledge(10, 10, epoch=1))
    assert other.next_step(tail_start=0) is not None


def test_who_finds_no_room_is_woken_in_turn() -> None:
    room, woken = Room(100), list[str]()
    one, two, three = (functools.partial(woken.append, name) for name in ("one", "two", "three"))
    room.take(100)
    for wake in (one, two, three, one):
        room.wait(wake)
    room.pass_on()
    assert woken == [], "there is none"
    room.give_back(40)
    assert woken == ["one"], "the others are woken where that one leaves something"
    room.leave(two)
    room.pass_on()
    room.pass_on()
    assert woken == ["one", "three"]

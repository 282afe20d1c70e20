"""A member of a group, without io: what it says, what an answer means, when it is lost (I23)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core.membership import (
    AGAIN_MS,
    LEAVES_MAX,
    SESSION_SHARE,
    MemberSettings,
    Membership,
    State,
)
from oncelog._core.routing import PartitionKey
from oncelog.errors import CannotConnect
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as pb
from tests.unit.client.model_group import ModelGroup

TOPIC: Final = b"t" * 16
SESSION_MS: Final = 9_000
POLL_MS: Final = 60_000


def key(number: int) -> PartitionKey:
    return PartitionKey(TOPIC, number)


def member(**settings: str) -> Membership:
    numbers = itertools.count(1)
    made = Membership(
        MemberSettings(
            group="g", session_timeout_ms=SESSION_MS, max_poll_interval_ms=POLL_MS, **settings
        ),
        draw_id=lambda: f"m{next(numbers)}",
        now_ms=0,
    )
    made.subscribe(["a"], 0)
    made.poll_began(0)
    return made


def answer(request: pb.HeartbeatRequest, generation: int, *numbers: int) -> pb.HeartbeatReply:
    reply = pb.HeartbeatReply(
        member=request.member,
        assignment=[key(number).wire() for number in numbers],
        heartbeat_interval_ms=SESSION_MS // 3,
        session_timeout_ms=SESSION_MS,
    )
    reply.member.generation = generation
    reply.topics.add(topic_id=TOPIC, name="a")
    return reply


def hear(made: Membership, now_ms: float, generation: int, *numbers: int) -> pb.HeartbeatRequest:
    """A heartbeat and its answer, which takes no time."""
    request = made.request(now_ms)
    assert request is not None
    made.heard(request, answer(request, generation, *numbers), sent_ms=now_ms)
    made.check()
    return request


def named(request: pb.HeartbeatRequest | None) -> list[int]:
    assert request is not None
    return [partition.number for partition in request.owned]


def numbers_of(partitions: Iterable[PartitionKey]) -> list[int]:
    return [partition.number for partition in partitions]


def test_it_joins_and_is_given_partitions() -> None:
    made = member()
    joining = hear(made, 0, 1, 0, 1)
    assert (joining.member.generation, list(joining.subscribed_topics)) == (0, ["a"])
    assert made.state is State.MEMBER
    assert numbers_of(made.may_read) == [0, 1]
    assert made.name_of(TOPIC) == "a"
    assert made.request(1) is None
    assert made.wait_ms(1) == SESSION_MS / 3 - 1
    again = hear(made, SESSION_MS / 3, 1, 0, 1)
    assert (again.member.generation, named(again)) == (1, [0, 1])


def test_i23_what_another_one_shall_have_is_named_until_it_let_go() -> None:
    made = member()
    hear(made, 0, 1, 0, 1)
    hear(made, 3_000, 2, 0)
    assert (numbers_of(made.may_read), numbers_of(made.must_let_go)) == ([0], [1])
    assert named(hear(made, 6_000, 2, 0)) == [0, 1], "it is not done with it"
    made.let_go([key(1)], 6_100)
    assert named(made.request(6_100)) == [0], "said at once"


def test_a_partition_that_comes_back_before_it_was_let_go_was_never_away() -> None:
    made = member()
    hear(made, 0, 1, 0, 1)
    hear(made, 3_000, 2, 0)
    hear(made, 6_000, 3, 0, 1)
    assert (numbers_of(made.may_read), made.must_let_go) == ([0, 1], [])


def test_what_was_let_go_during_a_heartbeat_is_said_by_the_next_one_at_once() -> None:
    made = member()
    hear(made, 0, 1, 0, 1)
    hear(made, 3_000, 2, 0)
    request = made.request(6_000)
    assert request is not None
    made.let_go([key(1)], 6_010)
    made.heard(request, answer(request, 2, 0), sent_ms=6_000)
    assert named(made.request(6_020)) == [0]


def test_i23_all_is_lost_once_nothing_was_heard_for_a_session_since_it_was_sent() -> None:
    made = member()
    hear(made, 0, 1, 0)
    request = made.request(4_000)
    assert request is not None
    # The answer took 3 s: the group may count from when it was sent.
    made.heard(request, answer(request, 1, 0), sent_ms=4_000)
    over_ms = 4_000 + SESSION_MS * SESSION_SHARE
    made.look(over_ms - 1)
    made.require()
    made.look(over_ms)
    assert (made.held, made.state, made.member_id) == ([], State.JOINING, "m2")
    with pytest.raises(errors.UnknownMember, match="not heard for a session of 9000 ms"):
        made.require()
    assert made.take_loss() is not None
    made.require()


def test_after_silence_the_old_id_leaves_and_a_new_one_joins() -> None:
    made = member()
    hear(made, 0, 1, 0)
    leaving = made.request(SESSION_MS)
    assert leaving is not None
    assert (leaving.leaving, leaving.member.member_id) == (True, "m1")
    made.refused(leaving, errors.Unavailable("x"), SESSION_MS)
    joining = hear(made, SESSION_MS + 1, 3, 0)
    assert (joining.member.member_id, joining.member.generation, named(joining)) == ("m2", 0, [])
    with pytest.raises(errors.UnknownMember):
        made.require()


@pytest.mark.parametrize("error", [errors.UnknownMember("x"), errors.IllegalGeneration("x")])
def test_i23_whom_the_group_does_not_know_lost_all_and_joins_again(
    error: errors.OncelogError,
) -> None:
    made = member()
    hear(made, 0, 1, 0)
    request = made.request(3_000)
    assert request is not None
    made.refused(request, error, 3_001)
    assert (made.held, made.member_id) == ([], "m2")
    with pytest.raises(type(error)):
        made.require()
    request = made.request(3_001)
    if request is not None and request.leaving:
        assert isinstance(error, errors.IllegalGeneration), "the group may know the old id still"
        made.heard(request, pb.HeartbeatReply(), sent_ms=3_001)
    assert named(made.request(3_001)) == []


def test_i23_a_fenced_instance_never_comes_back() -> None:
    made = member(instance_id="i")
    hear(made, 0, 1, 0)
    request = made.request(3_000)
    assert request is not None
    made.refused(request, errors.FencedInstance("taken"), 3_001)
    assert (made.held, made.state) == ([], State.FENCED)
    for now_ms in (3_001, 100_000):
        assert made.request(now_ms) is None
        assert isinstance(made.take_trouble(), errors.FencedInstance)
    assert made.wait_ms(3_001) is None
    with pytest.raises(errors.FencedInstance):
        made.require()


def test_i23_an_answer_of_an_earlier_life_changes_nothing() -> None:
    made = member()
    hear(made, 0, 1, 0)
    late = made.request(8_000)
    assert late is not None
    made.look(SESSION_MS)
    made.heard(late, answer(late, 2, 0), sent_ms=8_000)
    assert (made.held, made.state) == ([], State.JOINING)
    made.refused(late, errors.FencedInstance("x"), SESSION_MS)
    assert made.state is State.JOINING


def test_who_is_not_polled_leaves_says_so_once_and_joins_again_when_polled() -> None:
    made = member()
    hear(made, 0, 1, 0)
    made.poll_ended(100)
    for now_ms in range(3_000, POLL_MS, 3_000):
        hear(made, now_ms, 1, 0)
    made.look(100 + POLL_MS - 1)
    assert made.state is State.MEMBER
    leaving = made.request(100 + POLL_MS)
    assert leaving is not None
    assert (leaving.leaving, leaving.member.member_id, made.held) == (True, "m1", [])
    made.heard(leaving, pb.HeartbeatReply(), sent_ms=100 + POLL_MS)
    assert made.request(2 * POLL_MS) is None
    with pytest.raises(errors.UnknownMember, match="max_poll_interval_ms"):
        made.require()
    made.poll_began(2 * POLL_MS)
    assert made.take_loss() is not None
    assert made.take_trouble() is None, "the commit has said so"
    assert hear(made, 2 * POLL_MS, 5, 0).member.member_id == "m2"


def test_a_poll_is_told_too_where_nothing_was_committed() -> None:
    made = member()
    hear(made, 0, 1, 0)
    made.poll_ended(100)
    made.poll_began(100 + POLL_MS)
    assert isinstance(made.take_trouble(), errors.UnknownMember)
    assert made.take_trouble() is None


def test_who_waits_in_a_poll_is_alive() -> None:
    made = member()
    hear(made, 0, 1, 0)
    for now_ms in range(3_000, 3 * POLL_MS, 3_000):
        hear(made, now_ms, 1, 0)


def test_i29_the_old_id_leaves_again_until_the_group_has_heard_it() -> None:
    """Else a new leader, who has heard nobody, keeps what it held for another session."""
    made = member()
    hear(made, 0, 1, 0)
    now_ms = float(SESSION_MS)
    for _ in range(3):
        leaving = made.request(now_ms)
        assert leaving is not None
        assert (leaving.leaving, leaving.member.member_id) == (True, "m1")
        made.refused(leaving, errors.Unavailable("x"), now_ms)
        joining = made.request(now_ms)
        assert joining is not None
        assert not joining.leaving, "who is not heard holds up nothing"
        assert made.wait_ms(now_ms) == 0
        made.refused(joining, errors.Unavailable("x"), now_ms)
        assert made.request(now_ms) is None
        now_ms += AGAIN_MS
    hear_leave = made.request(now_ms)
    assert hear_leave is not None
    made.heard(hear_leave, pb.HeartbeatReply(), sent_ms=now_ms)
    assert not hear(made, now_ms, 5, 0).leaving
    assert made.request(now_ms + 1) is None


def test_a_leave_that_is_refused_for_good_is_over() -> None:
    made = member()
    hear(made, 0, 1, 0)
    leaving = made.request(SESSION_MS)
    assert leaving is not None
    made.refused(leaving, errors.PermissionDenied("x"), SESSION_MS)
    hear(made, SESSION_MS, 3, 0)
    assert made.request(SESSION_MS + 2 * AGAIN_MS) is None


def test_a_leave_that_nobody_hears_is_given_up() -> None:
    made = member()
    hear(made, 0, 1, 0)
    now_ms = float(POLL_MS)
    made.poll_began(now_ms)
    for _ in range(LEAVES_MAX):
        leaving = made.request(now_ms)
        assert leaving is not None
        made.refused(leaving, errors.Unavailable("x"), now_ms)
        now_ms += AGAIN_MS
    assert not hear(made, now_ms, 3, 0).leaving


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (errors.Unavailable("x"), False),
        (errors.UnknownOutcome("x"), False),
        (CannotConnect("x"), False),
        (errors.PermissionDenied("x"), True),
        (errors.LimitExceeded("x"), True),
        (errors.Unsupported("x"), True),
    ],
    ids=lambda value: getattr(value, "reason", str(value)),
)
def test_a_heartbeat_that_fails_is_sent_again(error: errors.OncelogError, is_told: bool) -> None:
    made = member()
    hear(made, 0, 1, 0)
    request = made.request(3_000)
    assert request is not None
    made.refused(request, error, 3_001)
    assert numbers_of(made.held) == [0]
    assert (made.take_trouble() is not None) == is_told
    assert made.take_trouble() is None
    assert named(made.request(4_001)) == [0]


def test_i23_a_slow_answer_is_waited_for_however_soon_the_next_heartbeat_is_due() -> None:
    """Else an offset manager that takes a second for each answer loses all its members."""
    made = member()
    request = made.request(0)
    assert request is not None
    reply = answer(request, 1, 0)
    reply.heartbeat_interval_ms = 100
    made.heard(request, reply, sent_ms=0)
    assert made.request(99) is None
    assert made.request(100) is not None
    assert made.answer_ms == SESSION_MS / 3


def test_another_subscription_is_said_at_once() -> None:
    made = member()
    hear(made, 0, 1, 0)
    made.subscribe(["a"], 10)
    assert made.request(10) is None
    made.subscribe(["b", "a"], 10)
    assert list(hear(made, 10, 1, 0).subscribed_topics) == ["a", "b"]


def test_a_dynamic_member_says_farewell_and_a_static_one_stays_known() -> None:
    dynamic, static = member(), member(instance_id="i")
    for made in (dynamic, static):
        hear(made, 0, 1, 0)
    farewell = dynamic.farewell()
    assert farewell is not None
    assert farewell.leaving
    assert static.farewell() is None
    for made in (dynamic, static):
        assert (made.held, made.request(100_000)) == ([], None)


# ------------------------------------------------------------------------------------- any order

moves = st.lists(
    st.tuples(
        st.sampled_from(["send"] * 6 + ["lose", "late", "let go", "stop", "time", "time"]),
        st.integers(0, 2),
        st.integers(1, 4_000),
    ),
    min_size=30,
    max_size=80,
)


@given(moves)
def test_i23_no_two_members_hold_one_partition(plan: list[tuple[str, int, int]]) -> None:
    """Over heartbeats, lost answers, late copies, silence and members that stop."""
    group = ModelGroup({("a", TOPIC): 4})
    now_ms = 0.0
    ids = itertools.count(1)
    members = [
        Membership(
            MemberSettings(group="g", session_timeout_ms=SESSION_MS),
            draw_id=lambda: f"m{next(ids)}",
            now_ms=0,
        )
        for _ in range(3)
    ]
    for made in members:
        made.subscribe(["a"], 0)
        made.poll_began(0)
    copies: list[pb.HeartbeatRequest] = []
    stopped: set[int] = set()
    # When the group has heard of each at least, and what each holds until its session is over.
    heard_ms = [0.0, 0.0, 0.0]
    for move, at, amount in plan:
        made = members[at]
        if move == "time":
            now_ms += amount
        elif move == "stop":
            stopped ^= {at}
        elif at in stopped:
            continue
        elif move == "let go":
            made.let_go(made.must_let_go, now_ms)
        elif move == "late" and copies:
            _quietly(group, copies[amount % len(copies)], now_ms)
        elif move in ("send", "lose"):
            made._due_ms = now_ms
            request = made.request(now_ms)
            assert request is not None
            copies.append(request)
            try:
                reply = group.heartbeat(request, now_ms)
            except errors.OncelogError as error:
                made.refused(request, error, now_ms)
            else:
                if move == "send":
                    made.heard(request, reply, sent_ms=now_ms)
                    heard_ms[at] = now_ms
                else:
                    made.refused(request, errors.UnknownOutcome("lost"), now_ms)
        for number, one in enumerate(members):
            if number not in stopped:
                one.look(now_ms)
            one.check()
        held = [
            partition
            for number, one in enumerate(members)
            if number not in stopped or now_ms < heard_ms[number] + SESSION_MS
            for partition in one.held
        ]
        assert len(held) == len(set(held)), "two members hold one partition"


def _quietly(group: ModelGroup, copy: pb.HeartbeatRequest, now_ms: float) -> None:
    try:
        group.heartbeat(copy, now_ms)
    except errors.GroupMoved:
        return


def test_i23_who_is_kept_out_is_told_at_once_and_asks_again() -> None:
    made = member()
    request = made.request(0)
    assert request is not None
    made.refused(request, errors.GroupClaimed("a Spark query commits for it alone"), 0)
    assert made.has_trouble
    assert isinstance(made.take_trouble(), errors.GroupClaimed)
    assert made.state is State.JOINING
    hear(made, 1_000, 5, 0)
    assert len(made.held) == 1

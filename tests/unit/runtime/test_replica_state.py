"""Where a replica stands: everything that can happen to one, in every order, to a small depth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.replica.state import TRANSITIONS, Event, ReplicaState, Stage, Work
from oncelog_server.runtime.target import Close, Follow, Lead, Leave, StandBy, Target

# What elections say, one after the other, and what else happens in between.
DEPTH = 12
EPOCHS = (1, 2)
# One process leads twice, and another between.
LEADERS = tuple(
    Follow(Address(node, BootId(node.encode() * 16), "h", 1, epoch))
    for node, epoch in (("a", 1), ("b", 2))
)


class Replica:
    """Does the work that its state asks for, as `driver` does, a piece at a time."""

    def __init__(self) -> None:
        self.state = ReplicaState()
        self.granted = 0
        self.led: list[int] = []
        # A piece of work is begun, and ends later: elections speak in between.
        self.under_way: Work | None = None

    def key(self) -> tuple[object, ...]:
        state = self.state
        return (
            (state.stage, state.target, state.epoch, state.followed),
            (state.in_doubt, state.is_damaged),
            (self.granted, tuple(self.led), self.under_way),
        )

    def steps(self) -> Iterator[Callable[[Replica], None]]:
        """What may happen next."""
        if self.state.stage is not Stage.GONE:
            yield lambda of: of.told(StandBy())
            yield lambda of: of.told(LEADERS[0])
            yield lambda of: of.told(LEADERS[1])
            yield lambda of: of.told(Close())
            yield lambda of: of.told(Leave())
            # An election that was under way when it was told to leave is heard, too.
            if self.granted < max(EPOCHS) and (self.state.may_stand or self.state.is_leaving):
                yield lambda of: of.told(Lead(of.granted + 1))
        if self.under_way is None and self.state.work() is not None:
            yield Replica.begin
        if self.under_way is not None:
            yield Replica.end
        if self.state.stage is Stage.LOADING and self.under_way is None:
            yield lambda of: of.state.happened(Event.PASSED_EPOCH_START)
        if self.state.stage not in (Stage.CLOSED, Stage.GONE):
            yield Replica.fail
            yield Replica.rot

    def told(self, target: Target) -> None:
        if isinstance(target, Lead):
            self.granted = target.epoch
        followed = self.state.target if self.state.follows else None
        last_word = self.state.target if self.state.is_leaving else None
        if self.state.aim(target):
            self.state.happened(Event.ENDED)
        elif followed is not None:
            assert self.state.target == followed, "it hears whom it should follow no more"
        if last_word is not None:
            assert self.state.target in (last_word, Close()), "it leaves, whatever is heard then"

    def begin(self) -> None:
        self.under_way = self.state.work()
        if self.under_way is Work.LOAD:
            assert isinstance(self.state.target, Lead)
            self.state.loading(self.state.target.epoch)
            self.led.append(self.state.epoch)
        if self.under_way is Work.FOLLOW:
            assert isinstance(self.state.target, Follow)
            self.state.following(self.state.target)

    def end(self) -> None:
        work, self.under_way = self.under_way, None
        match work:
            case Work.OPEN:
                self.state.happened(Event.OPENED)
            case Work.ABANDON:
                self.state.abandoned()
            case Work.CLOSE_EPOCH:
                self.state.happened(Event.CLOSED_EPOCH)
            case Work.CLOSE_LOG:
                self.state.happened(Event.CLOSED_LOG)
            case Work.PUT_ASIDE:
                self.state.happened(Event.PUT_ASIDE)
            case Work.BEGIN_ANEW:
                self.state.began_anew()
            case Work.LOAD | Work.FOLLOW | None:
                pass

    def fail(self) -> None:
        """A write, of whichever epoch."""
        if self.state.write_failed() and (self.state.leads or self.state.follows):
            self.state.happened(Event.ENDED)

    def rot(self) -> None:
        """It is found in what was synced."""
        if self.state.found_damage() and (self.state.leads or self.state.follows):
            self.state.happened(Event.ENDED)

    def check(self) -> None:
        state = self.state
        assert self.led == sorted(set(self.led)), "an epoch is led once at most"
        assert not (state.may_stand and state.in_doubt), "what its log holds is not known"
        assert not (state.may_stand and state.is_damaged), "it would win without what it lost"
        assert not (state.may_stand and state.is_leaving), "nobody would lead what it wins"
        if state.stage is Stage.READY:
            assert state.target == Lead(state.epoch), "it answers for what etcd granted last"
            assert not state.in_doubt, "bytes in doubt end the epoch"
            assert not state.is_damaged, "it counts for what it lacks"
        if state.follows:
            assert state.target == state.followed, "it copies the log of whom etcd named last"
            assert not state.in_doubt, "nothing is written behind bytes in doubt"
            assert not state.is_damaged, "it counts for what it lacks"

    def settle(self) -> None:
        """Nobody says anything any more: it ends up where it should be."""
        while self.under_way is not None or self.state.work() is not None:
            if self.under_way is None:
                self.begin()
            self.end()
            self.check()
        if self.state.stage is Stage.LOADING:
            self.state.happened(Event.PASSED_EPOCH_START)
        match self.state.target:
            case Leave():
                assert self.state.stage is Stage.GONE
            case Close():
                # Or the process stopped while it was put aside.
                assert self.state.stage in (Stage.CLOSED, Stage.GONE)
            case StandBy():
                assert self.state.stage is Stage.STANDBY
                assert self.state.may_stand, "what was in doubt is abandoned"
            case Follow():
                assert self.state.stage is Stage.FOLLOWING
            case Lead():
                # READY, or it left that epoch and waits for another.
                assert self.state.stage in (Stage.READY, Stage.STANDBY)


def test_i18_what_can_happen_to_a_replica() -> None:
    reached: set[tuple[object, ...]] = set()
    used: set[Stage] = set()
    todo = [(Replica(), 0)]
    while todo:
        replica, depth = todo.pop()
        used.add(replica.state.stage)
        replica.check()
        copy.deepcopy(replica).settle()
        if depth == DEPTH:
            continue
        for step in list(replica.steps()):
            following = copy.deepcopy(replica)
            step(following)
            if (following.key(), depth) not in reached:
                reached.add((following.key(), depth))
                todo.append((following, depth + 1))
    assert used == set(Stage), "deep enough"


def test_every_stage_but_the_last_can_be_left() -> None:
    assert {stage for stage, _ in TRANSITIONS} == set(Stage) - {Stage.GONE}

"""PURE. Where one replica stands, and what is to be done next for it to reach what elections want
of it (`runtime/target`). When does a partition answer? In the stage READY.

    stage     what happened          next stage   besides
    CLOSED    OPENED                 STANDBY      it may stand in elections
    STANDBY   LOADING                LOADING      its epoch has begun
    LOADING   PASSED_EPOCH_START     READY        it answers
    LOADING   ENDED, READY ENDED     CLOSING      in this very turn nothing is answered any more
    STANDBY   FOLLOWING              FOLLOWING    it copies a leader's log, and answers nothing
    FOLLOWING ENDED                  CLOSING      in this very turn nothing is heard any more
    CLOSING   CLOSED_EPOCH           STANDBY      nothing that it began in that epoch runs any more
    STANDBY   CLOSED_LOG             CLOSED
    CLOSED    PUT_ASIDE              GONE

    stage     target                       work
    CLOSED    stand by, lead, follow       OPEN
    CLOSED    leave                        PUT_ASIDE
    CLOSED    these, and known damage      BEGIN_ANEW   another log, empty, under another name
    STANDBY   these, and bytes in doubt    ABANDON      what is not synced, of which a write failed
    STANDBY   lead an epoch not left yet   LOAD
    STANDBY   follow                       FOLLOW
    STANDBY   close, leave; known damage   CLOSE_LOG
    CLOSING   any                          CLOSE_EPOCH
    any other                              none: it is where it should be, or waits for the disk

A target is heard at once: one that does not name the epoch that is led, or the leader that is
followed, ends that in the same turn.
"Close" and "leave" are last words: what is heard behind them, of an election that was under way, or
of a write that failed meanwhile, opens no log again, and leads nothing.
The work is done by one task, a piece at a time, which asks for the next when one is done. So
nothing that elections say can overtake anything else that they say.

Invariants (I18): an epoch is loaded once at most; nothing is loaded over bytes in doubt, or while
something of an earlier epoch still runs; nobody leads and follows at once; with known damage nobody
does either.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from oncelog_server.runtime.target import Close, Follow, Lead, Leave, StandBy, Target


class Stage(Enum):
    """See the module's first table."""

    CLOSED = "closed"
    STANDBY = "standby"
    LOADING = "loading"
    READY = "ready"
    FOLLOWING = "following"
    CLOSING = "closing"
    GONE = "gone"


class Event(Enum):
    """What happened to a replica."""

    OPENED = "opened"
    LOADING = "loading"
    PASSED_EPOCH_START = "passed EPOCH_START"
    FOLLOWING = "following"
    ENDED = "ended"
    CLOSED_EPOCH = "closed epoch"
    CLOSED_LOG = "closed log"
    PUT_ASIDE = "put aside"


class Work(Enum):
    """See the module's second table."""

    OPEN = "open"
    ABANDON = "abandon"
    LOAD = "load"
    FOLLOW = "follow"
    CLOSE_EPOCH = "close epoch"
    CLOSE_LOG = "close log"
    PUT_ASIDE = "put aside"
    BEGIN_ANEW = "begin anew"


TRANSITIONS: Final = {
    (Stage.CLOSED, Event.OPENED): Stage.STANDBY,
    (Stage.STANDBY, Event.LOADING): Stage.LOADING,
    (Stage.LOADING, Event.PASSED_EPOCH_START): Stage.READY,
    (Stage.LOADING, Event.ENDED): Stage.CLOSING,
    (Stage.READY, Event.ENDED): Stage.CLOSING,
    (Stage.STANDBY, Event.FOLLOWING): Stage.FOLLOWING,
    (Stage.FOLLOWING, Event.ENDED): Stage.CLOSING,
    (Stage.CLOSING, Event.CLOSED_EPOCH): Stage.STANDBY,
    (Stage.STANDBY, Event.CLOSED_LOG): Stage.CLOSED,
    (Stage.CLOSED, Event.PUT_ASIDE): Stage.GONE,
}
LED: Final = (Stage.LOADING, Stage.READY)


class ReplicaState:
    """See the module."""

    def __init__(self) -> None:
        self.stage = Stage.CLOSED
        self.target: Target = StandBy()
        # The epoch that is led, or was led last; 0 for none.
        self.epoch = 0
        # Whom it follows, or followed last.
        self.followed: Follow | None = None
        # A write failed: what is not synced may or may not be on the disk.
        self.in_doubt = False
        # What was synced cannot be read any more, and others have it.
        self.is_damaged = False

    @property
    def leads(self) -> bool:
        return self.stage in LED

    @property
    def follows(self) -> bool:
        return self.stage is Stage.FOLLOWING

    @property
    def is_leaving(self) -> bool:
        """Its last word was said."""
        return isinstance(self.target, Close | Leave)

    @property
    def may_stand(self) -> bool:
        """In an election: what its log holds is known."""
        stands = self.stage in (Stage.STANDBY, Stage.CLOSING, Stage.FOLLOWING, *LED)
        return stands and not (self.in_doubt or self.is_damaged or self.is_leaving)

    # ------------------------------------------------------------------------------ what happened

    def aim(self, target: Target) -> bool:
        """True where the epoch that is led or followed must end in this very turn."""
        assert self.stage is not Stage.GONE or isinstance(target, Leave), "it is gone"
        if self._may_still_want(target):
            self.target = target
        if self.follows:
            return self.target != self.followed
        return self.leads and not self._wants(self.epoch)

    def happened(self, event: Event) -> None:
        self.stage = TRANSITIONS[self.stage, event]

    def loading(self, epoch: int) -> None:
        assert epoch > self.epoch, "an epoch is led once at most"
        assert not self.in_doubt, "nothing is read over bytes in doubt"
        assert not self.is_damaged, "it would count for what it lacks"
        self.epoch = epoch
        self.happened(Event.LOADING)

    def following(self, followed: Follow) -> None:
        assert not self.in_doubt, "nothing is written behind bytes in doubt"
        assert not self.is_damaged, "it would count for what it lacks"
        self.followed = followed
        self.happened(Event.FOLLOWING)

    def write_failed(self) -> bool:
        """False where that is known."""
        known, self.in_doubt = self.in_doubt, True
        return not known

    def abandoned(self) -> None:
        """The log goes on from its last good sync, in a new file."""
        self.in_doubt = False

    def found_damage(self) -> bool:
        """This log is given up. False where that is known."""
        known, self.is_damaged = self.is_damaged, True
        return not known

    def began_anew(self) -> None:
        """The damaged log was moved away: the next one that is opened is empty."""
        assert self.stage is Stage.CLOSED, "its files are in use"
        self.in_doubt = self.is_damaged = False

    # ------------------------------------------------------------------------------- what is next

    def work(self) -> Work | None:
        """See the module's second table."""
        match self.stage:
            case Stage.CLOSED:
                return self._work_on_closed_log()
            case Stage.STANDBY:
                return self._work_on_standby()
            case Stage.CLOSING:
                return Work.CLOSE_EPOCH
            case Stage.LOADING | Stage.READY | Stage.FOLLOWING | Stage.GONE:
                return None

    def _work_on_closed_log(self) -> Work | None:
        if isinstance(self.target, Leave):
            return Work.PUT_ASIDE
        if isinstance(self.target, Close):
            return None
        return Work.BEGIN_ANEW if self.is_damaged else Work.OPEN

    def _work_on_standby(self) -> Work | None:
        if self.is_leaving or self.is_damaged:
            return Work.CLOSE_LOG
        if self.in_doubt:
            return Work.ABANDON
        if isinstance(self.target, Follow):
            return Work.FOLLOW
        wants_more = isinstance(self.target, Lead) and self.target.epoch > self.epoch
        return Work.LOAD if wants_more else None

    def _may_still_want(self, target: Target) -> bool:
        """A process that stops closes what it was putting aside, too: the next start goes on."""
        return not self.is_leaving or isinstance(target, Close)

    def _wants(self, epoch: int) -> bool:
        return isinstance(self.target, Lead) and self.target.epoch == epoch

"""PURE. A follower's dialog with the leader of one epoch, over one partition.

    Ask(last epoch, log end) ──► Answer(largest epoch at or below it there, its end)
        the answer ends within this log:   Cut ─► synced ─► Ask again, or
        it ends before this log begins, or before what that beginning rests on:    GiveUp
        this log lacks what its beginning rests on:     Ask of that first; GiveUp where the leader
                                                        lacks it, too
        the answered epoch is this log's last one, or there is none:   Acknowledge
    frames ──► appended ──► synced ──► Acknowledge(synced end)

Two logs share what the same leader wrote, so they agree up to the smaller end of the largest epoch
that both have (KIP-101). Where the answered epoch is not this log's last one after the cut, the
question is asked again: [1 2 4] against [1 3 5] have epoch 1 in common, not 2 or 3 (KIP-279).

Invariants (docs/leadership.md, "Leader and follower"):
  * who has a frame of a later epoch does not follow an earlier one;
  * nothing is acknowledged, and no frame taken, before the logs agree in this epoch. What is
    acknowledged is synced, and said in this epoch;
  * a cut is synced before anything else happens;
  * nothing is ever cut because of the HW: a follower may know a lower one than was shown already;
  * a log that begins above 0 begins with a snapshot, of which nothing can be cut: where the logs
    part before it, nothing of this one is kept. Nor is it where the leader lacks the state that
    allowed this log to begin there: what was gone then may be needed in the leader's log;
  * the HW that a follower knows never covers what the leader of that HW has not given it.

Left out: streams and their ends (one `Following` each), the journal (`storage`), applying.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.storage.keeping import Allowance


class LogEnds(Protocol):
    """What a dialog asks of this replica's log; a `storage.Journal` is one."""

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int:
        """Exclusive."""
        ...

    @property
    def synced_end(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Of the last frame, also where a snapshot stands for it; 0 if there was none."""
        ...

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch`, and the offset after its last frame; (0, 0) if
        there is none."""
        ...

    @property
    def allowed(self) -> Allowance:
        """What its log start rests on."""
        ...


class Ask(NamedTuple):
    """To the leader: where do our logs part?"""

    epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: JournalOffset


class Answer(NamedTuple):
    """The leader's: the largest epoch that it has at or below the asked one, and that one's end."""

    epoch: LeaderEpoch
    answered_epoch: LeaderEpoch
    answered_end: JournalOffset
    # It does not take a follower for late that acknowledged everything and then says nothing.
    may_rest: bool = True


class Cut(NamedTuple):
    """To the journal: drop everything from here on, durably. Then `Following.was_cut`."""

    end: JournalOffset


class GiveUp(NamedTuple):
    """To the replica: another log, empty, takes the place of this one."""

    # Where the logs part, at most; this one begins above.
    parted_at: JournalOffset


class Acknowledge(NamedTuple):
    """To the leader: everything below is synced here. The first one of a dialog opens the flow of
    frames, which begin at `log_end`."""

    epoch: LeaderEpoch
    synced_end: JournalOffset
    log_end: JournalOffset


class Phase(Enum):
    """Where a dialog stands."""

    ASKING = "asking"
    CUTTING = "cutting"
    # The logs agree up to this one's end.
    COPYING = "copying"


class WentBack(Exception):
    """This log has a frame of a later epoch than the one that it shall follow: what etcd showed is
    old, or was restored."""


class Following:
    """See the module."""

    def __init__(self, epoch: LeaderEpoch, log: LogEnds, *, high_watermark: int = 0) -> None:
        """`high_watermark`: what this replica knows of it already. Raises WentBack."""
        if (known := max(log.last_epoch, log.allowed.epoch)) > epoch:
            raise WentBack(f"the log knows of epoch {known}, and follows no epoch {epoch}")
        self.epoch = epoch
        self.phase = Phase.ASKING
        # Exclusive; known to be durable, and in this log.
        self.high_watermark = high_watermark
        self._log = log
        # As the leader of this dialog said.
        self.may_rest = False
        self._answered_epoch = 0
        # The first answer, while the leader is asked whether it has what the log start rests on.
        self._postponed: Answer | None = None
        # It has.
        self._may_begin_here = False
        # The highest that the leader said, perhaps of frames that are not here yet.
        self._heard = 0

    def ask(self) -> Ask:
        """Where this log ends now. Said first, and again after a cut."""
        log, self._postponed = self._log, None
        return Ask(self.epoch, LeaderEpoch(log.last_epoch), JournalOffset(log.log_end))

    def answered(self, answer: Answer) -> Cut | GiveUp | Ask | Acknowledge | None:
        """What to do next; None for an answer that was not asked for."""
        if self.phase is not Phase.ASKING or answer.epoch != self.epoch:
            return None
        self.may_rest = answer.may_rest
        postponed, self._postponed = self._postponed, None
        if postponed is None:
            return self._parted(answer)
        self._may_begin_here = self._log.allowed.is_of(answer.answered_epoch, answer.answered_end)
        if not self._may_begin_here:
            return GiveUp(min(answer.answered_end, JournalOffset(self._log.log_end)))
        return self._parted(postponed)

    def _parted(self, answer: Answer) -> Cut | GiveUp | Ask | Acknowledge:
        """It says where the logs part, at most."""
        _, own_end = self._log.end_of_epoch(answer.answered_epoch)
        end = min(answer.answered_end, own_end)
        if end < self._log.log_start:
            return GiveUp(JournalOffset(end))
        if self._log.allowed.at and not self._may_begin_here:
            allowed = self._log.allowed
            if not self._has_what_it_rests_on():
                self._postponed = answer
                return Ask(self.epoch, LeaderEpoch(allowed.epoch), JournalOffset(allowed.at))
            if end < allowed.at:
                return GiveUp(JournalOffset(end))
        self._answered_epoch = answer.answered_epoch
        if end < self._log.log_end:
            self.phase = Phase.CUTTING
            # Only after an unclean election: what was known to be durable is given up.
            self.high_watermark = min(self.high_watermark, end)
            return Cut(JournalOffset(end))
        return self._go_on()

    def _has_what_it_rests_on(self) -> bool:
        allowed = self._log.allowed
        return allowed.is_of(*self._log.end_of_epoch(allowed.epoch))

    def was_cut(self) -> Ask | Acknowledge:
        """The cut is durable."""
        assert self.phase is Phase.CUTTING, "nothing was to be cut"
        return self._go_on()

    def _go_on(self) -> Ask | Acknowledge:
        log = self._log
        if log.last_epoch and self._answered_epoch != log.last_epoch:
            self.phase = Phase.ASKING
            return self.ask()
        self.phase = Phase.COPYING
        return self.acknowledge()

    def acknowledge(self) -> Acknowledge:
        """What is synced now. Repeated as a sign of life while nothing is written."""
        assert self.phase is Phase.COPYING, "the logs may differ"
        log = self._log
        return Acknowledge(self.epoch, JournalOffset(log.synced_end), JournalOffset(log.log_end))

    def takes(self, epoch: LeaderEpoch) -> bool:
        """Whether frames that were sent in `epoch` are to be appended."""
        return self.phase is Phase.COPYING and epoch == self.epoch

    def heard(self, high_watermark: int) -> bool:
        """The leader's HW. True where the one that this replica knows moved."""
        self._heard = max(self._heard, high_watermark)
        return self._advance()

    def synced(self) -> Acknowledge | None:
        """A commit ended. None while there is nobody to be told."""
        self._advance()
        return self.acknowledge() if self.phase is Phase.COPYING else None

    @property
    def missing(self) -> int:
        """Journal offsets below the leader's HW that are not here yet."""
        return max(0, self._heard - self._log.log_end)

    def _advance(self) -> bool:
        known = min(self._heard, self._log.log_end)
        if self.phase is not Phase.COPYING or known <= self.high_watermark:
            return False
        self.high_watermark = known
        return True

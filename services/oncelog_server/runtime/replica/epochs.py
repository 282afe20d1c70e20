"""The epochs of one replica, one after the other: each is led (`leading`) or followed
(`followership`), begun when `state` says so, ended in one turn, and closed before the next one.

Invariant: what an epoch has shown to be durable is known to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.followership import Followership
from oncelog_server.runtime.replica.following import WentBack
from oncelog_server.runtime.replica.leading import Leadership
from oncelog_server.runtime.replica.log import ReplicaLog
from oncelog_server.runtime.replica.opening import Opening
from oncelog_server.runtime.replica.state import Event, ReplicaState
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.target import Follow, Lead

# A TxId contains a journal offset. After an unclean election, offsets that were lost would be given
# out again, so a control journal leaves out so many of them.
UNCLEAN_SKIP: Final = 1 << 32


class Epochs:
    """Of one replica; its owner says what is due."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        around: ReplicaEnv,
        *,
        state: ReplicaState,
        log: ReplicaLog,
        opening: Opening,
        began_to_lead: Callable[[], None],
        make_outbox: Callable[[], Outbox],
        write_failed: Callable[[OSError], None],
        found_damage: Callable[[Exception], None],
        broken: Callable[[Exception], None],
        stirred: Callable[[], None],
    ) -> None:
        """For the last four see Leadership."""
        self._partition = partition
        self._role = role
        self._around = around
        self._state = state
        self._log = log
        self._opening = opening
        self._began_to_lead = began_to_lead
        self._make_outbox = make_outbox
        self._write_failed = write_failed
        self._found_damage = found_damage
        self._broken = broken
        self._stirred = stirred
        # The epoch that it leads, or led last.
        self.leadership: Leadership | None = None
        # The epoch that it follows, or followed last.
        self.followership: Followership | None = None
        # Of the epochs that ended: everything below is durable, and here.
        self._known_high_watermark = 0

    # ------------------------------------------------------------------------------ what it shows

    @property
    def led(self) -> Leadership | None:
        """The epoch that it leads now."""
        return self.leadership if self._state.leads else None

    @property
    def followed(self) -> Followership | None:
        """The epoch that it follows now."""
        return self.followership if self._state.follows else None

    @property
    def current(self) -> int:
        """That it leads or follows; 0: neither."""
        if self._state.follows and self._state.followed is not None:
            return self._state.followed.epoch
        return self._state.epoch if self._state.leads else 0

    @property
    def high_watermark(self) -> int:
        """What it knows to be durable, by itself or by whom it follows."""
        if self.led is not None:
            return self.led.high_watermark
        if self.followed is not None:
            return self.followed.high_watermark
        return self._known_high_watermark

    # ------------------------------------------------------------------------------ what is begun

    async def load(self, target: Lead) -> None:
        """The epoch that was granted."""
        journal = self._log.journal
        assert target.epoch > journal.last_epoch, "an epoch is never continued"
        behind = journal.last_epoch < target.unclean_epoch
        is_control = self._role.control_topic is not None
        self._state.loading(target.epoch)
        leadership = self.leadership = self._make(target)
        try:
            await leadership.load()
            if not self._state.leads:
                return
            leadership.begin(skip=UNCLEAN_SKIP if is_control and behind else 0)
        except (JournalDamaged, OSError) as error:
            # Rot that opening did not see, for it looks at the tail only.
            self._opening.unusable(error)
            others = set(target.isr.members) - {journal.incarnation}
            if isinstance(error, JournalDamaged) and others:
                self._found_damage(error)
                return
            if self._state.leads:
                self.end("its journal cannot be replayed")
            self._around.failed(self._partition, error)
        else:
            self._opening.unfit = ""
            self._began_to_lead()

    def _make(self, target: Lead) -> Leadership:
        return Leadership(
            self._partition,
            self._role,
            self._log.journal,
            self._around,
            granted=target,
            known_high_watermark=self._known_high_watermark,
            readers=self._log.readers,
            make_outbox=self._make_outbox,
            passed_epoch_start=lambda: self._state.happened(Event.PASSED_EPOCH_START),
            write_failed=self._write_failed,
            found_damage=self._found_damage,
            broken=self._broken,
            stirred=self._stirred,
        )

    async def follow(self, target: Follow) -> None:
        """Whoever leads. Returns when that has begun, or after a pause where it cannot."""
        journal = self._log.journal
        try:
            followership = Followership(
                self._partition,
                self._role,
                journal,
                self._around,
                target=target,
                high_watermark=min(self._known_high_watermark, journal.log_end),
                installs=self._opening.installs,
                write_failed=self._write_failed,
                found_damage=self._found_damage,
                stirred=self._stirred,
            )
        except WentBack as error:
            # etcd will show the epoch that this log knows of, or elections refuse that etcd.
            self._opening.unusable(error)
            await self._opening.pause()
            return
        self._opening.unfit = ""
        self.followership = followership
        self._state.following(target)
        followership.begin()

    # -------------------------------------------------------------------------------- what is ended

    def end(self, why: str) -> None:
        """The epoch that it leads or follows, from this very turn."""
        leads = self._state.leads
        self._state.happened(Event.ENDED)
        if leads:
            assert self.leadership is not None
            self._known_high_watermark = self.leadership.high_watermark
            self.leadership.end(why)
        elif self.followership is not None:
            self._known_high_watermark = self.followership.high_watermark
            self.followership.end()

    async def closed(self) -> None:
        """Returns when nothing that it began in the epoch that ended runs any more."""
        if self.leadership is not None:
            await self.leadership.closed()
        if self.followership is not None:
            await self.followership.closed()
            self.followership = None

    def synced(self, end: int) -> None:
        """By a commit that noted it."""
        if self.led is not None:
            self.led.followers.synced(end)
        elif self.followership is not None:
            self.followership.synced(end)

"""One epoch that another process leads, as this one follows it: made when elections say whom to
follow, dropped when they say otherwise. It carries the dialog of `following` to the journal.

    a stream begins ─► Ask ─► Answer ─► cut, durably ─► Ask again ─► ... ─► Acknowledge
    frames ─► appended ─► the group commit ─► Acknowledge; and again every third of `replica_lag_ms`

Invariants (docs/leadership.md, "Leader and follower"):
  * while a cut is under way nothing is said, and nothing that is heard is taken;
  * after `end` nothing is heard, and what is synced then is acknowledged to nobody;
  * of a take that is damaged nothing is kept, and asking again costs less and less;
  * its own snapshots (`follower_snapshots`) hold what is durable, and none is written beside a cut;
  * who ends before the leader's log begins gets what was before (`receiving`), gives up its log,
    under another name where it had frames, and begins the dialog anew from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from oncelog_server.core.ids import Incarnation, LeaderEpoch, PartitionId
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.compacting import Compacting
from oncelog_server.runtime.replica.dialog import Dialog, Said, Told
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.follower import SendSnapshot
from oncelog_server.runtime.replica.follower_snapshots import FollowerSnapshots
from oncelog_server.runtime.replica.following import Answer, Cut, Following, GiveUp, Phase
from oncelog_server.runtime.replica.healing import Healing
from oncelog_server.runtime.replica.receiving import Installs, Received, Receiving
from oncelog_server.runtime.replica.settling import Settling
from oncelog_server.runtime.replica.trimming import Trimming
from oncelog_server.runtime.storage.copying import CopyRefused
from oncelog_server.runtime.storage.damage import JournalDamaged, UnknownFrame
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.target import Follow
from oncelogpb.errors import CorruptLog, OncelogError

# A dialog that ended is begun anew after so long.
BEGIN_AGAIN_MS: Final = 500
# After so many refused takes in a row a replica says that it cannot follow; what was refused is
# asked for again after twice as long each time, up to REFUSED_PAUSE_MS_MAX.
REFUSALS_MAX: Final = 4
REFUSED_PAUSE_MS_MAX: Final = 30_000
# Acknowledgements in the time in which a replica that says nothing falls out of sync.
SIGNS_OF_LIFE: Final = 3


class Followership:
    """Of one replica. Whoever made it calls `begin`, and at last `end` and `closed`."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        journal: Journal,
        around: ReplicaEnv,
        *,
        target: Follow,
        high_watermark: int,
        installs: Installs,
        write_failed: Callable[[OSError], None],
        found_damage: Callable[[Exception], None],
        stirred: Callable[[], None],
    ) -> None:
        """`high_watermark`: what this replica knows of it. `found_damage`: what is synced here
        cannot be read. `stirred`: it rests no more. Raises WentBack."""
        self._partition = partition
        self._journal = journal
        self._around = around
        self._target = target
        self._write_failed = write_failed
        self._found_damage = found_damage
        self._stirred = stirred
        self._following = self._anew(high_watermark)
        self._snapshots = FollowerSnapshots(
            partition,
            role,
            journal,
            around,
            covered=self._covered,
            agrees_in=lambda: self.agrees_in,
            found_damage=found_damage,
        )
        self._receiving = Receiving(
            partition,
            role,
            journal,
            around,
            fetch=lambda wanted: self._open.fetch(wanted),
            install=self._begin_in_the_middle,
            installs=installs,
            hold_still=self._hold_still,
            cannot=self._cannot,
        )
        self._installs = installs
        self._dialog: Dialog | None = None
        self._is_over = False
        self._cutting: asyncio.Task[None] | None = None
        # A stream began, or the leader ended the dialog, while the log was cut.
        self._begins_after_cut = False
        self._sign_of_life: asyncio.TimerHandle | None = None
        self._beginning: asyncio.TimerHandle | None = None
        # Takes in a row that were refused, here or by the leader.
        self._refusals = 0
        # Why it was begun anew, as it was told last.
        self._told_why = ""
        # Why what the leader sends is refused again and again, or cannot be kept; "": it is not.
        self.cannot_follow = ""

    @property
    def high_watermark(self) -> int:
        return self._following.high_watermark

    @property
    def is_cutting(self) -> bool:
        """A thread has the journal, or will have: nothing else may be written to it."""
        return self._cutting is not None

    @property
    def trimming(self) -> Trimming:
        return self._snapshots.trimming

    @property
    def settling(self) -> Settling:
        return self._snapshots.settling

    @property
    def compacting(self) -> Compacting:
        return self._snapshots.compacting

    @property
    def healing(self) -> Healing:
        return self._snapshots.healing

    @property
    def agrees_in(self) -> int:
        """The epoch, while this log is a beginning of the leader's; else 0."""
        agrees = self._following.phase is Phase.COPYING and not self.is_cutting
        return self._target.epoch if agrees and not self._is_over else 0

    def _anew(self, high_watermark: int) -> Following:
        epoch = LeaderEpoch(self._target.epoch)
        return Following(epoch, self._journal, high_watermark=high_watermark)

    # ------------------------------------------------------------------------- beginning and end

    def begin(self) -> None:
        self._give_sign_of_life()
        self._open_dialog()

    def _open_dialog(self) -> None:
        self._dialog = self._around.replication.follow(
            self._partition, self._target, Incarnation(self._journal.incarnation), self
        )

    @property
    def _open(self) -> Dialog:
        assert self._dialog is not None, "it has begun"
        return self._dialog

    def end(self) -> None:
        """In one turn: nothing is heard or said any more."""
        self._is_over = True
        for timer in (self._sign_of_life, self._beginning):
            if timer is not None:
                timer.cancel()
        if self._dialog is not None:
            self._dialog.close()
        self._snapshots.end()
        self._receiving.halt()
        self._went_well()
        self._show(following=0, missing=0)

    async def closed(self) -> None:
        """After `end`: returns when it touches the log no more."""
        while self._cutting is not None:
            await asyncio.wait([self._cutting])
        await self._snapshots.halted()
        await self._receiving.halted()

    # ------------------------------------------------------------------------------- what is heard

    def begun(self) -> None:
        """See Hears."""
        if self._is_over:
            return
        self._stir()
        if self._cutting is not None:
            self._begins_after_cut = True
            return
        self._following = self._anew(self._following.high_watermark)
        self._say(self._following.ask())

    def told(self, told: Told) -> None:
        """See Hears."""
        if self._is_over or told.epoch != self._target.epoch:
            return
        self._stir()
        if self._cutting is not None:
            # A leader that resigns meanwhile says nothing more: it is asked again, and says that.
            self._begins_after_cut |= isinstance(told.what, OncelogError)
            return
        match told.what:
            case Answer() as answer:
                self._go_on(self._following.answered(answer))
            case bytes() as frames:
                if self._following.takes(told.epoch):
                    self._append(frames)
            case SendSnapshot():
                self._receiving.begin()
            case CorruptLog() as error:
                self._refused(error)
            case OncelogError() as error:
                self._begin_again(str(error))
            case None:
                pass
        self._following.heard(told.high_watermark)

    def _go_on(self, step: Cut | GiveUp | Said | None) -> None:
        if isinstance(step, GiveUp):
            self._found_damage(
                CorruptLog(
                    f"it begins at {self._journal.log_start}, with a snapshot of what the leader "
                    f"of epoch {self._target.epoch} does not have: the logs part at "
                    f"{step.parted_at}"
                )
            )
        elif isinstance(step, Cut):
            self._snapshots.halt()
            self._cutting = vital.spawn(self._cut(step.end), self._around.fatal)
        elif step is not None:
            self._say(step)

    def _say(self, said: Said) -> None:
        self._open.say(said)

    # ------------------------------------------------------------------------- what becomes of it

    async def _cut(self, end: int) -> None:
        journal = self._journal
        self._around.reporter.event(
            "log cut",
            partition=str(self._partition),
            epoch=self._target.epoch,
            log_end=journal.log_end,
            cut_to=end,
        )
        try:
            await self._snapshots.halted()
            await self._around.commit.leave(journal)
            with journal.without_budget():
                await self._around.offload(lambda: journal.cut(end))
        except OSError as error:
            self._cutting = None
            self._write_failed(error)
            return
        except CorruptLog as error:
            self._cutting = None
            self._found_damage(error)
            return
        self._cutting = None
        if self._is_over:
            return
        self._snapshots.go_on()
        said = self._following.was_cut()
        if self._begins_after_cut:
            self._begins_after_cut = False
            self.begun()
        else:
            self._say(said)

    async def _hold_still(self) -> None:
        """Until the install: what a snapshot of its own says is not settled beside what comes."""
        self._snapshots.halt()
        await self._snapshots.halted()

    async def _begin_in_the_middle(self, received: Received) -> None:
        while self._cutting is not None:
            await asyncio.wait([self._cutting])
        if not self._is_over:
            self._cutting = asyncio.current_task()
            await self._install(received)

    async def _install(self, received: Received) -> None:
        journal, (offset, snapshot, epochs, time_ms, allowed) = self._journal, received
        if journal.log_end >= offset:
            # A word of the leader's that came late, or twice, is no reason to give up anything.
            self._cutting = None
            self._snapshots.go_on()
            return
        self._snapshots.halt()
        self._around.reporter.event(
            "log begins with the leader's snapshot",
            partition=str(self._partition),
            epoch=self._target.epoch,
            log_end=journal.log_end,
            begins_at=offset,
        )
        try:
            await self._snapshots.halted()
            await self._around.commit.leave(journal)
            with journal.without_budget():
                await self._around.offload(
                    lambda: journal.begin_at(
                        offset, snapshot, epochs, time_ms=time_ms, allowed=allowed
                    )
                )
        except OSError as error:
            self._cutting = None
            self._installs.failed(error)
            self._write_failed(error)
            return
        self._cutting = None
        self._installs.succeeded()
        if self._is_over:
            return
        self._went_well()
        self._begins_after_cut = False
        self._following = self._anew(max(self._following.high_watermark, offset))
        self._snapshots.go_on()
        self._open.close()
        self._open_dialog()

    def _append(self, frames: bytes) -> None:
        try:
            size = self._journal.append_copied(frames, epoch=self._target.epoch)
        except (CopyRefused, JournalDamaged) as error:
            self._refused(error)
        except OSError as error:
            self._write_failed(error)
        else:
            self._went_well()
            self._around.commit.wrote(
                self._journal, self.synced, self._write_failed, appended_bytes=size
            )

    def _show(self, *, following: int, missing: int) -> None:
        reporter, name = self._around.reporter, str(self._partition)
        reporter.gauge("following", following, partition=name)
        reporter.gauge("follower_lag", missing, partition=name)

    def _refused(self, error: Exception) -> None:
        """What the leader sends is not to be had: damaged there or on the way, or of a later
        version. Asked again, more and more seldom."""
        self._refusals += 1
        hopeless = isinstance(error, UnknownFrame)
        if self._refusals >= (1 if hopeless else REFUSALS_MAX):
            self._cannot(f"it cannot take what its leader sends: {error}")
        pause_ms = min(BEGIN_AGAIN_MS << min(self._refusals, 16), REFUSED_PAUSE_MS_MAX)
        self._begin_again(str(error), pause_ms=pause_ms)

    def _cannot(self, why: str) -> None:
        """Until it goes well."""
        if self._is_over:
            return
        was_able, self.cannot_follow = not self.cannot_follow, why
        if was_able:
            self._around.reporter.gauge("replica_unusable", 1, partition=str(self._partition))
            self._around.reporter.event(
                "replica cannot follow",
                level="error",
                partition=str(self._partition),
                epoch=self._target.epoch,
                leader=self._target.leader.node_id,
                log_end=self._journal.log_end,
                error=why,
            )

    def _went_well(self) -> None:
        if self.cannot_follow:
            self._around.reporter.gauge("replica_unusable", 0, partition=str(self._partition))
        self._told_why = self.cannot_follow = ""
        self._refusals = 0

    def _covered(self) -> int:
        """What may be in a snapshot: durable, synced here, and as the leader has it."""
        if self._following.phase is not Phase.COPYING:
            return 0
        return min(self._following.high_watermark, self._journal.synced_end)

    def report(self) -> None:
        """About every second, while no thread has the log."""
        if self._following.phase is Phase.COPYING:
            self._snapshots.look()

    def synced(self, end: int) -> None:
        """By the disk here."""
        if not self._is_over and (said := self._following.synced()) is not None:
            self._say(said)

    # --------------------------------------------------------------------------------- its rest

    @property
    def rests_ms(self) -> int:
        """For how long nothing is to be done, said or shown, unless the leader says something; 0:
        something is."""
        journal, following = self._journal, self._following
        is_quiet = (
            following.phase is Phase.COPYING
            and following.may_rest
            and not self.is_cutting
            and self._beginning is None
            and not self.cannot_follow
            and not self._receiving.is_under_way
            and journal.synced_end == journal.log_end
            and journal.is_noted
        )
        return self._snapshots.rests_ms if is_quiet else 0

    def _stir(self) -> None:
        self._stirred()
        if self._sign_of_life is None:
            self._give_signs_of_life()

    def _give_sign_of_life(self) -> None:
        if self._following.phase is Phase.COPYING and not self.is_cutting:
            # A log that begins anew has another name, which the leader does not hear of yet.
            self._say(self._following.acknowledge())
        self._show(following=1, missing=self._following.missing)
        if self.rests_ms:
            # The leader knows that it has everything (docs/adr/0082).
            self._sign_of_life = None
        else:
            self._give_signs_of_life()

    def _give_signs_of_life(self) -> None:
        pause_s = self._around.replication.replica_lag_ms / SIGNS_OF_LIFE / 1000
        loop = asyncio.get_running_loop()
        self._sign_of_life = loop.call_later(pause_s, self._give_sign_of_life)

    def _begin_again(self, why: str, *, pause_ms: int = BEGIN_AGAIN_MS) -> None:
        """The dialog is over; what is here is kept, and another one begins after a pause."""
        if self._is_over or (self._beginning is not None and not self._beginning.cancelled()):
            return
        if why != self._told_why:
            self._told_why = why
            self._around.reporter.event(
                "not followed, trying again",
                partition=str(self._partition),
                epoch=self._target.epoch,
                leader=self._target.leader.node_id,
                why=why,
            )
        self._following = self._anew(self._following.high_watermark)
        loop = asyncio.get_running_loop()
        self._beginning = loop.call_later(pause_ms / 1000, self._begin_now)

    def _begin_now(self) -> None:
        self._beginning = None
        self.begun()

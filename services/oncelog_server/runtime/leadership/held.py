"""The partitions that this process has a replica of: what it saw and did of each, and whom each
replica was told to follow.

Invariants: a history is kept as long as etcd knows the partition, also while its replicas are on
other nodes: who left an epoch never leads it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.etcd.cluster_view import ClusterView, Entry
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState, address_of
from oncelog_server.runtime.etcd.refusal import epoch_went_back
from oncelog_server.runtime.leadership.host import ReplicaHost
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.rules import History, Ruling, judge
from oncelog_server.runtime.target import Follow, StandBy

# Who resigned, or may not win, lets others go first for so long.
STAND_PAUSE_MS: Final = 1_000


class Held:
    """Of one process."""

    def __init__(
        self,
        view: ClusterView,
        membership: Membership,
        *,
        host: ReplicaHost,
        reporter: Reporter,
    ) -> None:
        node, boot_id = membership.node, membership.boot_id.hex()
        self._view = view
        self._host = host
        self._reporter = reporter
        self.node_id = node.node_id
        self.boot_id = boot_id
        # This process, as etcd names a leader.
        self.as_leader = LeaderValue(node.node_id, boot_id, node.host, node.port)
        self.histories: dict[PartitionId, History] = {}

    def led_epoch(self, partition: PartitionId) -> int:
        """The epoch that this process leads; 0 where it does not."""
        history = self.histories.get(partition)
        return 0 if history is None else history.led_epoch

    def led(self) -> Sequence[PartitionId]:
        return sorted(p for p, history in self.histories.items() if history.led_epoch)

    def history(self, partition: PartitionId) -> History:
        """Of a partition with a replica here: its log is opened at the first look."""
        history = self.histories.get(partition)
        if history is None:
            history = self.histories[partition] = History()
            self._host.aim(partition, StandBy())
        elif history.is_put_aside:
            # Wanted again. The log is another one: what it follows is read anew.
            history.is_put_aside = history.was_read = False
            self._host.aim(partition, StandBy())
        return history

    # ----------------------------------------------------------------------------- what etcd says

    def judge(self, history: History, entry: Entry) -> Ruling:
        return judge(
            entry.state,
            entry.mod_revision,
            history,
            own_boot=self.boot_id,
            leader_lives=self._view.leader_lives(entry.state),
        )

    def names_us(self, state: PartitionState) -> bool:
        return state.leader is not None and state.leader.boot_id == self.boot_id

    def refuse(self, partition: PartitionId, epoch: int, known: int) -> None:
        """An etcd that went back: this process ends."""
        error = epoch_went_back(partition, epoch, known=known)
        self._reporter.event(
            "etcd refused", level="error", partition=str(partition), error=str(error)
        )
        self._view.refuse(error)

    # ------------------------------------------------------------------------------ what is left

    def step_down(self, partition: PartitionId, history: History) -> None:
        """From an epoch that is not this process's any more."""
        epoch = history.leave()
        self._reporter.event("deposed", partition=str(partition), epoch=epoch)
        self._host.aim(partition, StandBy())

    def pause(self, history: History) -> None:
        """Others go first."""
        history.stand_after_s = self.now_s() + STAND_PAUSE_MS / 1000

    # ----------------------------------------------------------------------------- whom we follow

    def leader(self, history: History, entry: Entry) -> Follow | None:
        """Whom the replica here should follow, as the view tells."""
        address = address_of(entry.state)
        if address is None or self.judge(history, entry) is not Ruling.FOLLOW:
            return None
        return Follow(address)

    def follow(self, partition: PartitionId, history: History, entry: Entry) -> None:
        leader = self.leader(history, entry)
        if leader is not None and leader != history.follows:
            history.follows = leader
            self._host.aim(partition, leader)

    def stop_following(self, partition: PartitionId, history: History) -> None:
        history.follows = None
        self._host.aim(partition, StandBy())

    def now_s(self) -> float:
        """By the loop's clock."""
        return asyncio.get_running_loop().time()

"""One process: its roles, their replicas, and its place in the cluster. The composition root below
the CLI; stop is the mirror of start.

    disk locked ─► identity checked ─► view of etcd ─► listening ─► lease ─► elections ─► ticking

Its replicas are in `hosting`, what repeats in `housekeeping`.
Everything that is outside comes in through `Outside`, so that the simulator runs this very file.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from oncelog_server import __version__
from oncelog_server.core.ids import BootId, PartitionId
from oncelog_server.core.ports import AccessStore, Reporter
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.access.instructing import instruct
from oncelog_server.runtime.etcd.access_store import EtcdAccess
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.control_partitions import ControlPartitions
from oncelog_server.runtime.etcd.identity import ClusterIdentity, ClusterRecord, ClusterSettings
from oncelog_server.runtime.etcd.keys import BootValue
from oncelog_server.runtime.etcd.lease_clock import lease_clock_ms
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from oncelog_server.runtime.etcd.topics import EtcdTopics
from oncelog_server.runtime.free_space import FreeSpace
from oncelog_server.runtime.handing_over import HandingOver
from oncelog_server.runtime.hints import Hints
from oncelog_server.runtime.hosting import Hosting
from oncelog_server.runtime.housekeeping import Housekeeping
from oncelog_server.runtime.leadership.election import Elections
from oncelog_server.runtime.leadership.isr_changes import IsrChanges
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.reassigning import Reassigning
from oncelog_server.runtime.leadership.unclean import UncleanElection
from oncelog_server.runtime.outside import NodeLimits, Outside
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.env import ReplicaEnv, Replication
from oncelog_server.runtime.replica.follower import CATCH_UP_BYTES_MAX, Room
from oncelog_server.runtime.replica.in_sync import IsrChange
from oncelog_server.runtime.replication.links import Links, copies_of, others_of
from oncelog_server.runtime.replication.serving import ReplicationService
from oncelog_server.runtime.rpc import cluster_access
from oncelog_server.runtime.rpc.cluster_service import (
    BalanceLeaders,
    ElectUncleanly,
    Reassign,
)
from oncelog_server.runtime.storage.commit import CommitStats, GroupCommit
from oncelog_server.runtime.storage.node_id import load_node_id
from oncelog_server.runtime.storage.tail import TailBudget
from oncelog_server.runtime.target import Isr
from oncelogpb.errors import InvalidArgument, Unavailable

VERSION: Final = __version__
# How long this process's own key may take to show in its view of etcd.
JOIN_TIMEOUT_MS: Final = 10_000
# Logs that are opened, or closed, at once.
LOGS_AT_ONCE: Final = 8


# Makes the Cluster service's handler.
ClusterHandler = Callable[
    [ClusterView, ElectUncleanly, BalanceLeaders, Reassign, AccessStore], object
]


class Node:
    """Start it, and it leads what etcd lets it lead; stop it, and others may."""

    def __init__(
        self,
        roles: Sequence[Role[Any]],
        outside: Outside,
        limits: NodeLimits,
        cluster_handler: ClusterHandler,
    ) -> None:
        self._roles = roles
        self._outside = outside
        self._limits = limits
        self._cluster_handler = cluster_handler
        self._free_space = FreeSpace(
            outside.disk, outside.reporter, floor_bytes=limits.disk_free_floor_bytes
        )
        self._tails = TailBudget(limits.tail_bytes_max)
        self._hosting = Hosting(roles, outside, self._tails)
        self._listening = False
        self._identity: ClusterIdentity | None = None
        self._view: ClusterView | None = None
        self._topics: EtcdTopics | None = None
        self._control: ControlPartitions | None = None
        self._commit: GroupCommit | None = None
        self._links: Links | None = None
        self._isr_changes: IsrChanges | None = None
        self._followers: ReplicationService | None = None
        self._catch_up = Room(CATCH_UP_BYTES_MAX)
        self._membership: Membership | None = None
        self._elections: Elections | None = None
        self._handing_over: HandingOver | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Ends the process's main task with an error: see `failed`.
        self._failure: asyncio.Future[None] | None = None
        self.node_id = ""
        self.boot_id = BootId(outside.random_bytes(16))
        self.host, self.port = "", 0

    # ----------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Raises OSError (disk), EtcdUnavailable, EtcdRefused. After an error, call stop()."""
        outside = self._outside
        self._failure = asyncio.get_running_loop().create_future()
        outside.disk.lock()
        self.node_id = load_node_id(outside.disk, outside.random_bytes)
        identity = self._identity = ClusterIdentity(
            outside.disk,
            outside.etcd,
            node_id=self.node_id,
            on_older=self._hosting.count_as_new,
            random_bytes=outside.random_bytes,
            offload=outside.offload,
            now_ms=self._lease_clock(),
        )
        record = await identity.join(
            ClusterSettings(
                min_insync_replicas=self._limits.min_insync_replicas,
                lease_ms=self._limits.lease_ms,
            )
        )
        self._view = ClusterView(
            outside.etcd, cluster_id=record.cluster_id, guard=identity, on_fatal=self._fail
        )
        identity.on_refused(self._view.refuse)
        await self._view.start()
        self._commit = GroupCommit(
            outside.disk,
            ahead_bytes=self._limits.commit_ahead_bytes,
            on_commit=self._committed,
            on_fatal=self._fail,
        )
        self._free_space.watch(self._commit)
        self._assemble(self._view, self._commit, record.min_insync_replicas)
        self._instruct_guard(self._view)
        self.host, self.port = await outside.listener.start(self._handlers(self._view))
        self._listening = True
        await self._join(self._view, identity, record)
        outside.reporter.event(
            "node started",
            node_id=self.node_id,
            boot_id=self.boot_id.hex(),
            address=f"{self.host}:{self.port}",
            roles=",".join(role.name for role in self._roles),
        )

    async def _join(
        self, view: ClusterView, identity: ClusterIdentity, settings: ClusterRecord
    ) -> None:
        """Takes a lease, makes sure that the control partitions exist, stands in elections."""
        outside = self._outside
        names = tuple(role.name for role in self._roles)
        external = self._limits.external or ("", 0)
        self._membership = Membership(
            outside.etcd,
            boot_id=self.boot_id,
            node=BootValue(
                self.node_id,
                self.host,
                self.port,
                names,
                VERSION,
                rack=self._limits.rack,
                started_ms=outside.clock.now().wall_ms,
                external_host=external[0],
                external_port=external[1],
            ),
            lease_ms=settings.lease_ms,
            reporter=outside.reporter,
            renewals=outside.renewals,
            now_ms=self._lease_clock(),
            on_fatal=self._fail,
        )
        self._membership.on_regained(identity.recheck)
        self._membership.on_lapsed(self._hosting.lease_lapsed)
        await self._membership.start(previous_boot_id=identity.previous_boot_id)
        await identity.remember_boot(self.boot_id)
        await view.wait_for(
            lambda view: any(node.boot_id == self.boot_id for node in view.nodes()),
            timeout_ms=JOIN_TIMEOUT_MS,
        )
        await identity.mark()
        self._control = ControlPartitions(
            outside.etcd,
            view,
            names,
            replication_factor=self._limits.control_replication_factor,
            reporter=outside.reporter,
        )
        if not await self._control.create():
            self._spawn(self._control.create_when_others_live())
        self._hosting.put_orphans_aside(view, node_id=self.node_id)
        self._elections = Elections(
            outside.etcd,
            view,
            self._membership,
            host=self._hosting,
            reporter=outside.reporter,
            on_fatal=self._fail,
        )
        await self._elections.start()
        self._handing_over = HandingOver(
            view,
            self._elections,
            self._membership,
            node_id=self.node_id,
            replicas_of=self._hosting.of,
            min_insync_replicas=settings.min_insync_replicas,
            balance_after_ms=self._limits.balance_after_ms,
            hand_over_max_ms=self._limits.hand_over_max_ms,
            now_ms=self._lease_clock(),
            reporter=outside.reporter,
        )
        view.on_change(lambda changed: self._hosting.view_changed(view, changed))
        self._keep_house(view, self._handing_over, identity)

    def _keep_house(
        self, view: ClusterView, handing_over: HandingOver, identity: ClusterIdentity
    ) -> None:
        assert self._topics is not None, "assembled"
        assert self._links is not None, "assembled"
        assert self._followers is not None, "listening"
        housekeeping = Housekeeping(
            view,
            self._hosting,
            handing_over,
            self._topics,
            links=self._links,
            followers=self._followers,
            free_space=self._free_space,
            tails=self._tails,
            catch_up=self._catch_up,
            hints=Hints(self._outside.etcd, self._hosting.led),
            mark=identity.mark,
            reporter=self._outside.reporter,
            tick_ms=self._limits.tick_ms,
        )
        for task in housekeeping.tasks():
            self._spawn(task)

    async def stop(self) -> None:
        """Hands over what others can lead, stands no more, drains its callers, saves and closes its
        replicas, and gives the lease back last, so that the callers' answers still count. Safe
        after a failed start."""
        if self._handing_over is not None and not self._has_failed:
            await self._handing_over.leave()
        if self._elections is not None:
            await self._elections.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening:
            await self._outside.listener.stop()
        # Before the flush: while leaders send frames, there is always something for the disk.
        if self._links is not None:
            await self._links.stop()
        if self._commit is not None:
            await self._commit.flush()
        await self._hosting.close()
        if self._isr_changes is not None:
            await self._isr_changes.stop()
        if self._links is not None:
            # One that failed meanwhile may have begun to follow again.
            await self._links.stop()
        if self._commit is not None:
            await self._commit.stop()
        if self._membership is not None:
            await self._membership.stop()
        if self._view is not None:
            await self._view.stop()
        if self._identity is not None:
            await self._identity.stop()
        self._outside.disk.close()

    async def failed(self) -> None:
        """Waits until something happens that this process must not survive, and raises it."""
        assert self._failure is not None, "started"
        await asyncio.shield(self._failure)

    def is_settled(self) -> bool:
        """The control partitions stand, and every replica here leads and answers, or follows."""
        assert self._view is not None, "started"
        assert self._control is not None, "joined"
        return self._control.stand and all(
            self._hosting.of(partition).is_settled(partition)
            for partition in self._view.replicas_on(self.node_id)
        )

    def led_replicas(self) -> list[Driver]:
        """The replicas that answer now, by role and partition: tests look at what they hold."""
        return [driver for _, driver in self._hosting.led()]

    def has_opened(self) -> bool:
        """Every replica that etcd gives this process is open: it leads, or could."""
        assert self._view is not None, "started"
        return all(
            self._hosting.of(partition).is_open(partition)
            for partition in self._view.replicas_on(self.node_id)
            if self._hosting.runs(partition)
        )

    def led_machines(self) -> list[Any]:
        """Their machines: tests call their check()."""
        return [driver.machine for driver in self.led_replicas()]

    @property
    def _has_failed(self) -> bool:
        return self._failure is not None and self._failure.done()

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            # Whoever runs the node asks `failed()`; a node that is being stopped is asked no more.
            self._failure.exception()

    # ----------------------------------------------------------------------------------- assembly

    def _assemble(self, view: ClusterView, commit: GroupCommit, min_insync_replicas: int) -> None:
        outside = self._outside
        topics = self._topics = EtcdTopics(
            outside.etcd,
            view,
            lease=self._lease,
            clock=outside.clock,
            random_bytes=outside.random_bytes,
        )
        places = asyncio.Semaphore(LOGS_AT_ONCE)
        self._isr_changes = IsrChanges(
            outside.etcd, view, own_boot=self.boot_id.hex(), on_fatal=self._fail
        )
        self._links = Links(
            outside.streams,
            cluster_id=view.cluster_id,
            node_id=self.node_id,
            boot_id=self.boot_id,
            reporter=outside.reporter,
            fatal=self._fail,
        )
        replication = Replication(
            node_id=self.node_id,
            min_insync_replicas=min_insync_replicas,
            replica_lag_ms=self._limits.replica_lag_ms,
            change_isr=self._change_isr,
            follow=self._links.follow,
            catch_up=self._catch_up,
            leaving=lambda: view.leaving,
            living=lambda: view.living,
            end_move=self._end_move,
            replaying=asyncio.Semaphore(1),
            others=functools.partial(others_of, view, self.node_id),
            copies=functools.partial(copies_of, view),
            fetch=self._links.fetch_from,
        )

        def configs_of(partition: PartitionId) -> Mapping[str, str]:
            topic = view.topic_by_id(partition.topic_id)
            return {} if topic is None else topic.configs

        def around(reporter: Reporter) -> ReplicaEnv:
            return ReplicaEnv(
                clock=outside.clock,
                commit=commit,
                reporter=reporter,
                lease_valid=self._lease_valid,
                has_room=self._free_space.has_room,
                may_settle=self._free_space.may_settle,
                offload=outside.offload,
                places=places,
                snapshot_every_bytes=self._limits.snapshot_every_bytes,
                replication=replication,
                opened=self._replica_opened,
                failed=self._replica_failed,
                fatal=self._fail,
                control_journal_bytes_max=self._limits.control_journal_bytes_max,
                compaction_map_bytes=self._limits.compaction_map_bytes,
                configs_of=configs_of,
            )

        self._hosting.take_in(view, topics, around, segment_bytes=self._limits.segment_bytes)

    def _handlers(self, view: ClusterView) -> dict[str, object]:
        access = EtcdAccess(self._outside.etcd, view, self._outside.clock)
        self._followers = ReplicationService(
            self._hosting.find,
            view.lives,
            lambda: view.replicas_on(self.node_id),
            self._outside.clock,
            cluster_id=view.cluster_id,
            boot_id=self.boot_id,
        )
        return {
            "Cluster": self._cluster_handler(
                view,
                self.unclean_elect,
                self.balance_leaders,
                Reassigning(self._outside.etcd, view),
                access,
            ),
            "Replication": self._followers,
            **self._hosting.services(),
        }

    def _instruct_guard(self, view: ClusterView) -> None:
        if self._outside.guard is None:
            return
        tables = {
            "Cluster": cluster_access.entries(view),
            "Replication": cluster_access.REPLICATION,
            **self._hosting.access(),
        }
        instruct(self._outside.guard, tables, view, self._outside.reporter)

    # ---------------------------------------------------------------- what is asked of elections

    async def _change_isr(
        self, partition: PartitionId, epoch: int, change: IsrChange, compared_revision: int
    ) -> Isr | None:
        assert self._isr_changes is not None, "it leads"
        return await self._isr_changes.change(
            partition,
            epoch=epoch,
            members=change.isr,
            compared_revision=compared_revision,
            assignment=change.assignment,
        )

    def _end_move(
        self, partition: PartitionId, epoch: int, change: IsrChange, compared_revision: int
    ) -> None:
        assert self._elections is not None, "it leads"
        assert change.assignment is not None, "its replicas were moved"
        self._spawn(
            self._elections.end_move(
                partition,
                epoch,
                members=change.isr,
                assignment=change.assignment,
                compared_revision=compared_revision,
            )
        )

    def _replica_opened(self, partition: PartitionId) -> None:
        if self._elections is not None:
            self._elections.look_again(partition)

    def _replica_failed(self, partition: PartitionId, error: Exception) -> None:
        assert self._elections is not None
        self._spawn(self._elections.resign(partition))

    async def unclean_elect(self, asked: UncleanElection) -> tuple[int, int]:
        """The epoch granted and the synced end kept. Raises OncelogError."""
        if self._elections is None:
            raise Unavailable("this process is starting; try again")
        if not self._hosting.runs(asked.partition):
            raise InvalidArgument("this process does not run the role that leads this topic")
        return await self._elections.unclean_elect(asked)

    def balance_leaders(self) -> tuple[int, int]:
        """See BalanceLeaders. Raises Unavailable."""
        if self._handing_over is None:
            raise Unavailable("this process is starting; try again")
        handed_over, kept = self._handing_over.balance_now()
        return len(handed_over), len(kept)

    # ------------------------------------------------------------------------------ for its parts

    def _committed(self, stats: CommitStats) -> None:
        self._outside.reporter.observe("sync", stats.took_ms)
        self._outside.reporter.count("journal_bytes", stats.written_bytes)
        self._free_space.wrote(stats.written_bytes)

    def _lease(self) -> int:
        if self._membership is None:
            raise EtcdUnavailable("this process is starting")
        return self._membership.lease

    def _lease_valid(self) -> bool:
        return self._membership is not None and self._membership.valid()

    def _lease_clock(self) -> Callable[[], int]:
        """What leases are measured by: a clock that counts suspension of the machine too. With an
        etcd in memory, the loop's own."""
        if self._outside.renewals is not None:
            return lease_clock_ms
        return lambda: self._outside.clock.now().monotonic_ms

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that fails for a local reason ends the process; it is never a reply."""
        task = vital.spawn(work, self._fail)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

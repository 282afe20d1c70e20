"""How many records wait for each group: the gauge `group_lag`, for who watches consumers.

Where groups stand is known here, where partitions end their leaders know: they are asked now and
then, in one call each. One watch per led partition of `__consumer_offsets`.

Left out: exactness. Both numbers are of moments that lie apart, and a leader that does not answer
leaves a gap until the next look. `oncelog group describe` asks in the moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Address, led_machine
from oncelog_server.core.wire import partition_id, partition_message
from oncelog_server.offset_manager.commands import View
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.ports import OffsetManagerEnv, OffsetManagerReplica
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import partition_leader_pb2 as pb

LIST_TIMEOUT_MS: Final = 5_000
# After it began to lead: what it leads is known by then.
FIRST_LOOK_MS: Final = 1_000
_ISOLATIONS: Final = {
    View.COMMITTED: pb.ISOLATION_COMMITTED,
    View.JOURNAL: pb.ISOLATION_UNCOMMITTED,
}


class GroupPosition(NamedTuple):
    """Where a group stands in one partition."""

    group: str
    partition: PartitionId
    view: View
    # Next offset to read; None: it has committed nothing there.
    committed: int | None


class Edges(NamedTuple):
    """First offset that is kept, and one past the last record."""

    start: int
    end: int


class LagWatch:
    """See the module. Belongs to the loop."""

    def __init__(
        self,
        replica: OffsetManagerReplica,
        env: OffsetManagerEnv,
        *,
        every_ms: int,
        series_max: int,
    ) -> None:
        """It looks from now on, every so often; `every_ms` 0: at nothing."""
        self._replica = replica
        self._env = env
        self._series_max = series_max
        self._whose = str(replica.partition)
        # A timer of its own: a group whose consumer stands still is not woken by anything.
        self._looking = (
            asyncio.get_running_loop().create_task(self._look_on(every_ms)) if every_ms else None
        )

    async def stop(self) -> None:
        """Shows nothing any more: whoever leads the groups next does."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._env.reporter.replace("group_lag", self._whose, ())

    async def _look_on(self, every_ms: int) -> None:
        wait_ms = min(every_ms, FIRST_LOOK_MS)
        while True:
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = every_ms
            try:
                await self._look()
            except Exception as error:
                # It costs a look at lags, never the role.
                self._env.reporter.event("lag not measured", level="warning", error=repr(error))

    async def _look(self) -> None:
        shown, left_out = self._chosen()
        edges = await self._edges(shown)
        rows = [
            ({"group": one.group, "partition": str(one.partition)}, float(_lag(one.committed, at)))
            for one in shown
            if (at := edges.get((one.partition, one.view))) is not None
        ]
        self._env.reporter.replace("group_lag", self._whose, rows)
        self._env.reporter.gauge("group_lag_left_out", left_out, partition=self._whose)

    def _chosen(self) -> tuple[list[GroupPosition], int]:
        """Up to `series_max`, of the groups that changed last, and how many groups are left out."""
        machine = led_machine(self._replica)
        chosen: list[GroupPosition] = []
        looked_at = 0
        for name, group in machine.recent_groups():
            room = self._series_max - len(chosen)
            chosen += islice(_positions(name, group, self._env), room + 1)
            if len(chosen) > self._series_max:
                chosen.pop()
                break
            looked_at += 1
        return chosen, machine.groups - looked_at

    async def _edges(
        self, positions: Iterable[GroupPosition]
    ) -> Mapping[tuple[PartitionId, View], Edges]:
        """Of those that a leader answers for."""
        wanted: dict[tuple[Address, View], dict[PartitionId, None]] = {}
        for one in positions:
            leader = self._env.metadata.leader_of(one.partition)
            if leader is not None:
                wanted.setdefault((leader, one.view), {})[one.partition] = None
        found: dict[tuple[PartitionId, View], Edges] = {}
        for (leader, view), partitions in wanted.items():
            for partition, at in await self._ask(leader, view, list(partitions)):
                found[partition, view] = at
        return found

    async def _ask(
        self, leader: Address, view: View, partitions: Sequence[PartitionId]
    ) -> list[tuple[PartitionId, Edges]]:
        request = pb.ListOffsetsRequest(isolation=_ISOLATIONS[view])
        for partition in partitions:
            request.queries.add(partition=partition_message(partition), earliest=True)
            request.queries.add(partition=partition_message(partition), latest=True)
        try:
            reply: pb.ListOffsetsReply = await self._env.peers.call(
                leader, "partition_leader.list_offsets", request, timeout_ms=LIST_TIMEOUT_MS
            )
        except OncelogError:
            # Asked again at the next look.
            return []
        pairs = zip(reply.offsets[::2], reply.offsets[1::2], strict=True)
        return [
            (partition_id(first.partition), Edges(first.offset, last.offset))
            for first, last in pairs
            if not first.HasField("error") and not last.HasField("error")
        ]


def _positions(name: str, group: Group, env: OffsetManagerEnv) -> Iterator[GroupPosition]:
    """In all partitions of the topics that a group has offsets of: what it never committed waits
    as well."""
    views = {partition.topic_id: step.step.view for partition, step in group.committed.items()}
    for topic_id, view in views.items():
        topic = env.metadata.topic_by_id(topic_id)
        for number in range(0 if topic is None else topic.partitions):
            partition = PartitionId(topic_id, number)
            committed = group.committed.get(partition)
            to = None if committed is None else committed.step.to
            yield GroupPosition(name, partition, view, to)


def _lag(committed: int | None, at: Edges) -> int:
    return max(0, at.end - max(at.start, committed or 0))

"""The handler of Produce: judge each batch, submit per partition, answer per batch. What is found
against a batch goes along with it, for it counts only where the batch is new.

A batch that is refused, or a partition that is led elsewhere, fails alone. Batches of one stream
are submitted in the order in which they came (see `lanes`), those of one request in one loop turn,
so one sync makes them durable together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple

from oncelog_server.core.frame import Frame
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Call
from oncelog_server.core.topic_limits import MAX_BATCH_BYTES, is_compacted, max_batch_bytes
from oncelog_server.partition_leader import wire
from oncelog_server.partition_leader.claims import Claim, Claims, Source
from oncelog_server.partition_leader.commands import Placed, Produce
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.lanes import Lanes
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelogpb import in_place, records
from oncelogpb.bulk import Chunk
from oncelogpb.errors import DiskFull, OncelogError
from oncelogpb.in_place import LiftedProduce
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

# What topics ask of batches, as far as it is kept at hand.
LIMITS_KEPT: Final = 1_000


class _Judged(NamedTuple):
    """A batch, its place in the request, and what speaks against it."""

    place: int
    frame: Frame
    unfit: OncelogError | None


class _Submitted(NamedTuple):
    # The leader epoch in which it was decided. In a later one, this process knows nothing of it.
    epoch: int
    # The machine of that epoch: this process may have stepped down meanwhile.
    machine: Any
    claim: Claim | None
    judged: Sequence[_Judged]
    # The reply is a tuple of Placed | OncelogError, one per batch.
    reply: Awaitable[Any]


class Producing:
    """See the module."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config
        self._lanes = Lanes()
        self._claims = Claims()
        self._limits: dict[tuple[int, str], records.BatchLimits] = {}

    async def produce(
        self, produce: pb.ProduceRequest | LiftedProduce, call: Call
    ) -> pb.ProduceReply:
        request = produce.request if isinstance(produce, LiftedProduce) else produce
        wire.require_producer(request)
        most = self._config.items_per_call_max
        wire.require_few("batches", len(request.batches), "items_per_call_max", most)
        verdicts: list[Placed | OncelogError | None] = [None] * len(request.batches)
        source = Source(request.tx_id, request.producer.producer_id, request.writer)
        async with self._lanes.turn(call.stream_id) as turn:
            by_partition = await self._judge_all(request, produce, verdicts, call)
            await turn.wait()
            submitted = [
                entry
                for partition, judged in by_partition.items()
                if (entry := self._submit(partition, judged, verdicts, source, call)) is not None
            ]
        epochs = [0] * len(request.batches)
        for entry in submitted:
            await self._settle(entry, verdicts)
            for item in entry.judged:
                epochs[item.place] = entry.epoch
        results = []
        for batch, verdict, epoch in zip(request.batches, verdicts, epochs, strict=True):
            assert verdict is not None, "each batch was judged or submitted"
            if isinstance(verdict, OncelogError):
                self._env.reporter.count("refused_writes", reason=verdict.reason)
            results.append(wire.batch_result(batch.partition, verdict, epoch))
        return pb.ProduceReply(results=results)

    # -------------------------------------------------------------------------------------- judge

    async def _judge_all(
        self,
        request: pb.ProduceRequest,
        produce: pb.ProduceRequest | LiftedProduce,
        verdicts: list[Placed | OncelogError | None],
        call: Call,
    ) -> dict[PartitionId, list[_Judged]]:
        by_partition: dict[PartitionId, list[_Judged]] = {}
        for place, batch in enumerate(request.batches):
            if place in call.refused:
                verdicts[place] = call.refused[place]
                continue
            try:
                partition = wire.topic_partition(batch.partition)
                # Before the work of judging: a wrong leader is the most frequent refusal.
                replica = self._env.replicas.lead(partition)
                payload = in_place.payload_of(produce, place)
            except OncelogError as refusal:
                verdicts[place] = refusal
                continue
            unfit = _no_room(replica) or await self._judge(partition, batch, payload)
            frame = wire.data_frame(request, batch, payload)
            by_partition.setdefault(partition, []).append(_Judged(place, frame, unfit))
        return by_partition

    async def _judge(
        self, partition: PartitionId, batch: types_pb2.Batch, payload: Chunk
    ) -> OncelogError | None:
        """InvalidArgument, TooLarge, CorruptBatch."""
        limits = self._limits_of(partition)

        def validate() -> None:
            records.validate(
                batch.encoding,
                payload,
                batch.record_count,
                batch.crc32c,
                limits,
                max_timestamp_us=batch.max_timestamp_us,
            )

        try:
            if records.needs_offload(batch.encoding, payload):
                await self._env.offload(validate)
            else:
                validate()
        except OncelogError as unfit:
            return unfit
        return None

    def _limits_of(self, partition: PartitionId) -> records.BatchLimits:
        topic = self._env.metadata.topic_by_id(partition.topic_id)
        most, name = self._config.max_batch_bytes, "max_batch_bytes"
        if topic is not None and max_batch_bytes(topic.configs) < most:
            most, name = max_batch_bytes(topic.configs), MAX_BATCH_BYTES
        compacted = topic.name if topic is not None and is_compacted(topic.configs) else ""
        limits = self._limits.get((most, compacted))
        if limits is None:
            limits = records.BatchLimits(
                most, self._config.decompressed_bytes_max, name, compacted_topic=compacted
            )
            if len(self._limits) == LIMITS_KEPT:
                self._limits.clear()
            self._limits[most, compacted] = limits
        return limits

    # ------------------------------------------------------------------------------------- submit

    def _submit(
        self,
        partition: PartitionId,
        judged: Sequence[_Judged],
        verdicts: list[Placed | OncelogError | None],
        source: Source,
        call: Call,
    ) -> _Submitted | None:
        try:
            replica = self._env.replicas.lead(partition)
            # Judging may have taken its time.
            no_room = _no_room(replica)
            unfit = {
                place: against
                for place, item in enumerate(judged)
                if (against := item.unfit or no_room) is not None
            }
            # In the turn in which the batches are decided: nobody comes between.
            claim = self._claims.hold(replica.machine, source, call)
            machine = replica.machine
            try:
                reply = replica.submit(Produce(tuple(item.frame for item in judged), unfit))
            except OncelogError:
                self._claims.settle(machine, claim, placed=0)
                raise
        except OncelogError as refusal:
            for item in judged:
                verdicts[item.place] = refusal
            return None
        return _Submitted(replica.epoch, machine, claim, judged, reply)

    async def _settle(
        self, entry: _Submitted, verdicts: list[Placed | OncelogError | None]
    ) -> None:
        try:
            replies: Sequence[Placed | OncelogError] = await entry.reply
        except OncelogError as lost:
            replies = (lost,) * len(entry.judged)
        appended: list[Frame] = []
        for item, verdict in zip(entry.judged, replies, strict=True):
            verdicts[item.place] = verdict
            if isinstance(verdict, Placed):
                if verdict.duplicate:
                    self._env.reporter.count("duplicate_batches")
                else:
                    appended.append(item.frame)
        placed = sum(isinstance(verdicts[item.place], Placed) for item in entry.judged)
        self._claims.settle(entry.machine, entry.claim, placed=placed)
        if appended:
            self._count_in(appended)

    def _count_in(self, appended: Sequence[Frame]) -> None:
        reporter = self._env.reporter
        reporter.count("batches_in", len(appended))
        reporter.count("records_in", sum(frame.record_count for frame in appended))
        reporter.count("bytes_in", sum(len(frame.payload) for frame in appended))


def _no_room(replica: PartitionReplica) -> DiskFull | None:
    try:
        replica.require_room()
    except DiskFull as full:
        return full
    return None

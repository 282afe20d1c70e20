"""Journals for a client that makes commit order itself: written, and read as RAW and as the
committed log, by a leader's own handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from oncelog._core.pending import Exposure, HeldBatch, Holder, PendingTransactions
from oncelog._core.resume_points import ResumePoint, ResumePoints
from oncelog._held import HeldBatches
from oncelog.aio.buffering import arrived_of
from oncelog_server.core.ids import compose_generation
from oncelog_server.participant.handler import ParticipantHandler
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import bulk, records
from oncelogpb.v1 import participant_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import FIRST, FakeCall, World
from tests.unit.partition_leader.messages import batch, fetch, group, partition_of, plain

# (offset, value) of each record.
Log = list[tuple[int, bytes]]


class Leader:
    """One partition, written to by its handlers. Each transaction has a producer of its own."""

    def __init__(self) -> None:
        self.world = World()
        self._service = PartitionLeaderService(self.world.env, self.world.config)
        self._participant = ParticipantHandler(self.world.env)
        self._call = FakeCall()
        self._prepare = 1_000_000
        self._plain = 0

    async def plain(self, values: Sequence[bytes]) -> None:
        sent = plain(batch(list(values), sequence=self._plain))
        self._plain += len(values)
        await self._produce(sent)

    async def send(
        self, tx_id: int, values: Sequence[bytes], *, writer: int = 0, base: int = 0
    ) -> None:
        sent = batch(list(values), sequence=base)
        await self._produce(
            pb.ProduceRequest(tx_id=tx_id, producer=of(tx_id), writer=writer, batches=[sent])
        )

    async def commit(self, tx_id: int, *parts: tuple[int, int]) -> None:
        """Exposes these (writer, records)."""
        await self._mark(tx_id, participant_pb2.MARKER_KIND_COMMITTED, parts)

    async def abort(self, tx_id: int) -> None:
        await self._mark(tx_id, participant_pb2.MARKER_KIND_ABORTED, ())

    async def one_shot(self, tx_id: int, values: Sequence[bytes]) -> None:
        sealed = batch(list(values))
        await self._mark(tx_id, participant_pb2.MARKER_KIND_COMMITTED, (), sealed)

    async def resolve(self, tx_id: int, action: str) -> None:
        request = pb.ResolveTransactionRequest(
            tx_id=tx_id,
            partition=partition_of(FIRST),
            action=pb.ResolveTransactionRequest.Action.Value(f"ACTION_{action}"),
        )
        await self._service.resolve_transaction(request, self._call)

    async def raw(self) -> list[Any]:
        return await self._read(pb.ISOLATION_RAW)

    async def committed(self) -> Log:
        return [
            (one.first_offset + number, value)
            for one in await self._read(pb.ISOLATION_COMMITTED)
            for number, value in enumerate(values_of(one.encoding, one.payload))
        ]

    async def _produce(self, request: pb.ProduceRequest) -> None:
        reply = await self._service.produce(request, self._call)
        assert not any(result.HasField("error") for result in reply.results), reply

    async def _mark(
        self,
        tx_id: int,
        kind: participant_pb2.MarkerKind.ValueType,
        parts: Iterable[tuple[int, int]],
        one_shot: types_pb2.Batch | None = None,
    ) -> None:
        self._prepare += 1
        marker = participant_pb2.Marker(
            tx_id=tx_id,
            prepare_offset=self._prepare,
            kind=kind,
            producer=of(tx_id),
            parts=[participant_pb2.WriterPart(writer=w, record_count=c) for w, c in parts],
            batch=one_shot,
        )
        request = participant_pb2.WriteMarkersRequest(groups=[group(marker)])
        reply = await self._participant.write_markers(request, self._call)
        assert not reply.groups[0].HasField("error"), reply

    async def _read(self, isolation: pb.Isolation.ValueType) -> list[Any]:
        """All that there is."""
        found: list[Any] = []
        offset = 0
        while True:
            request = fetch(offset, isolation=isolation, max_bytes=20 * 1024 * 1024)
            encoded = await self._service.fetch(request, self._call)
            reply = pb.FetchReply.FromString(bulk.join(encoded.chunks))
            if not reply.partitions[0].batches:
                return found
            found += reply.partitions[0].batches
            offset = found[-1].first_offset + found[-1].record_count


def of(tx_id: int) -> types_pb2.Producer:
    return types_pb2.Producer(producer_id=tx_id, generation=compose_generation(1, 1))


def values_of(encoding: int, payload: bytes) -> list[bytes]:
    values: list[bytes] = records.decode(encoding, payload).column(1).to_pylist()
    return values


class Reader:
    """Puts a journal in commit order, as a buffered consumer does; may stop and be resumed."""

    def __init__(
        self,
        *,
        offset: int = 0,
        resume: ResumePoint | None = None,
        memory_bytes: int = 1 << 30,
        directory: Path | None = None,
    ) -> None:
        self.held = HeldBatches(memory_bytes, directory)
        self.points = ResumePoints()
        if resume is not None:
            self.points.learn(offset, resume)
        self.pending = PendingTransactions(
            Holder(self.held.hold, self.held.release),
            self.points,
            resume=self.points.at(offset),
            offset=offset,
        )

    def see(self, one: Any) -> Exposure | None:
        arrived = arrived_of(one, one.payload)
        if arrived.journal_offset < self.pending.next:
            return None
        if arrived.batch is not None:
            self.held.make_room(len(arrived.batch.payload))
        return self.pending.see(arrived)

    def exposures(self, journal: Iterable[Any]) -> list[Exposure]:
        return [one for one in map(self.see, journal) if one is not None]

    def read(
        self, journal: Iterable[Any], decode: Callable[[int, bytes], list[bytes]] = values_of
    ) -> Log:
        """What becomes readable, record by record."""
        log: Log = []
        for one in journal:
            exposure = self.see(one)
            if exposure is not None:
                log += self.records(exposure, decode)
        return log

    def records(
        self, exposure: Exposure, decode: Callable[[int, bytes], list[bytes]] = values_of
    ) -> Log:
        values: list[bytes] = []
        for held in self._batches(exposure):
            values += decode(held.encoding, held.payload)
        for part, _ in exposure.parts:
            self.held.release(part)
        assert len(values) == exposure.record_count
        return list(enumerate(values, exposure.first_offset))[exposure.skip :]

    def _batches(self, exposure: Exposure) -> Iterable[HeldBatch]:
        if exposure.batch is not None:
            yield exposure.batch
        for part, count in exposure.parts:
            yield from self.held.take(part, count)

    def stopped_at(self, offset: int) -> ResumePoint:
        """What a commit of this offset carries."""
        point = self.pending.point()
        if point is not None:
            self.points.add(self.pending.end, point)
        return self.points.at(offset)

"""What a transaction was asked to be (its commit_seq, its wait, its timeout), and the requests to
its coordinator, which say so."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog._core.transaction import ProducerCore
from oncelog.aio.outcomes import CommitSeq
from oncelog.aio.place import Place
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, types_pb2


class Terms:
    """Of one transaction."""

    def __init__(
        self,
        place: Place,
        *,
        commit_seq: CommitSeq | None,
        wait: types_pb2.Wait.ValueType,
        timeout_ms: int,
        session_ms: int,
    ) -> None:
        """`timeout_ms` 0: the user chose none. `session_ms`: of the member that feeds it; 0: none
        does."""
        self.commit_seq = commit_seq
        self._wait = wait
        self._place = place
        # One that the user chose is judged by the group alone.
        self._timeout_is_chosen = bool(timeout_ms)
        # 0: the coordinator's default.
        self.timeout_ms = timeout_ms or place.timeout_ms_for(session_ms)

    def keep_within(self, session_ms: int, identity: ProducerCore, *, has_begun: bool) -> None:
        """A member with that session (0: who sends stands alone) sends offsets. Raises
        InvalidTimeout where the transaction has begun with more."""
        if session_ms and not self._timeout_is_chosen:
            self.timeout_ms = self._place.timeout_within(
                session_ms, self.timeout_ms or identity.default_timeout_ms, has_begun=has_begun
            )

    def begin(self, identity: ProducerCore) -> coordinator_pb2.BeginTransactionRequest:
        """Under the next request id."""
        return coordinator_pb2.BeginTransactionRequest(
            producer=identity.wire(),
            request_id=identity.take_request_id(),
            timeout_ms=self.timeout_ms,
            commit_seq=self._wire_seq(),
        )

    def transact(
        self,
        identity: ProducerCore,
        batches: Iterable[types_pb2.Batch],
        offsets: offset_manager_pb2.GroupOffsets | None,
    ) -> coordinator_pb2.TransactRequest:
        """All of it in one message, under the next request number."""
        return coordinator_pb2.TransactRequest(
            producer=identity.wire(),
            request_number=identity.take_request_number(),
            batches=batches,
            offsets=offsets,
            commit_seq=self._wire_seq(),
            wait=self._wait,
        )

    def commit(
        self,
        identity: ProducerCore,
        tx_id: int,
        manifest: types_pb2.Manifest,
        *,
        begins_next: bool,
    ) -> coordinator_pb2.CommitTransactionRequest:
        """`begins_next`: the producer's next transaction comes along, under the next request id;
        not with a commit_seq, which the next one needs at its own Begin."""
        request = coordinator_pb2.CommitTransactionRequest(
            tx_id=tx_id,
            producer=identity.wire(),
            manifest=manifest,
            commit_seq=self._wire_seq(),
            wait=self._wait,
        )
        if begins_next and self.commit_seq is None:
            request.begin_next.request_id = identity.take_request_id()
            request.begin_next.timeout_ms = self.timeout_ms
        return request

    def _wire_seq(self) -> types_pb2.CommitSeq | None:
        return None if self.commit_seq is None else self.commit_seq.wire()

"""Random stories against one machine: whatever clients, participants, offset managers, clocks and
crashes do, the invariants of the design hold. `check()` runs after every step, and each story ends
with replay and restore (I35)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog_server.coordinator.commands import (
    AbortTransaction,
    AnswerOffsets,
    BeginAnswer,
    BeginTransaction,
    CommitTransaction,
    FinishTransactions,
    InitProducer,
    MarkerAnswer,
    MarkersAnswered,
    MarkersSent,
    MarkerStatus,
    OffsetsSent,
    OweDecision,
    OweFinish,
    OweMarkers,
    OweOffsets,
    PartitionAsked,
    ProducerGranted,
    ProducerIdentity,
    SessionEnded,
    SessionOpened,
    Transact,
    TransactAnswer,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.questions import AnswerCode, verdict
from oncelog_server.coordinator.records import (
    CODEC,
    OneShotPrepared,
    PreparedAbort,
    PreparedCommit,
    ProducerInitialized,
)
from oncelog_server.coordinator.values import CommitSeq, OneShotOffsets, Refusal
from oncelog_server.core.ids import PartitionId, TxId
from tests.golden.host import MachineHost
from tests.unit.coordinator.world import A0, A1, BATCHES, OFFSETS, PARTITION, PARTS

NO = Refusal("STALE_POSITION", "no", {})
STEPS = 120
# How often each is chosen, out of their sum.
VERBS = {
    "init": 1,
    "begin": 2,
    "commit": 2,
    "abort": 1,
    "transact": 2,
    "deliver": 2,
    "fail": 1,
    "offsets": 2,
    "finish": 1,
    "time": 1,
    "ask": 1,
    "session": 1,
    "sync": 3,
    "crash": 1,
}


class Story:
    """One machine and what the outside has been told, driven by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = CoordinatorConfig(transaction_timeout_ms=5_000, replaced_instances_max=3)
        self.host = MachineHost(lambda: CoordinatorMachine(PARTITION, config), CODEC)
        self.holders: dict[str, ProducerIdentity] = {}
        self.tx_ids: list[TxId] = [TxId(1)]
        self.instances = 0
        # What somebody outside knows for sure: it must never change.
        self.outcomes: dict[TxId, bool] = {}
        self.granted: list[int] = []
        # Per participant: PREPARE offset of the last COMMITTED marker that was applied.
        self.applied: dict[PartitionId, int] = {}
        self.seen_markers: dict[PartitionId, set[int]] = {}

    @property
    def machine(self) -> Any:
        return self.host.machine

    def step(self) -> None:
        name = self.random.choice(["p", "q"])
        (verb,) = self.random.choices(list(VERBS), weights=list(VERBS.values()))
        if not self.host.ready:
            verb = "sync"
        getattr(self, verb)(name)
        self._look_at_owed()
        self._look_at_chains()

    # ------------------------------------------------------------------------------------- clients

    def init(self, name: str) -> None:
        if self.random.random() < 0.7:
            self.instances += 1
        instance = b"%16d" % max(1, self.instances - self.random.choice([0, 0, 1]))
        self._submit(InitProducer("g", name, instance), name)

    def begin(self, name: str) -> None:
        request_id = self.random.randrange(20)
        seq = self.random.choice([None, CommitSeq("s", request_id)])
        parts = self.random.choice([(), (A0,), (OFFSETS,)])
        self._submit(BeginTransaction(self._who(name), request_id, 0, seq, parts), name)

    def commit(self, name: str) -> None:
        following = None
        if self.random.random() < 0.3:
            following = BeginTransaction(self._who(name), self.random.randrange(30))
        self._submit(CommitTransaction(self._tx(), self._who(name), PARTS, None, following), name)

    def abort(self, name: str) -> None:
        who = self.random.choice([None, self._who(name)])
        parts = self.random.choice([(), (A1,)])
        self._submit(AbortTransaction(self._tx(), who, parts), name)

    def transact(self, name: str) -> None:
        producer = self.machine.state.producers.get(self._who(name).producer_id)
        number = 1 if producer is None else producer.next_request_number
        number += self.random.choice([-1, 0, 0, 0, 0, 1])
        offsets = self.random.choice([None, None, OneShotOffsets("g", b"")])
        # Of no chain, the first of one, or behind what was sent before.
        last = 0 if producer is None else producer.chain.first
        first = min(self.random.choice([0, number, last, last, last]), number)
        command = Transact(
            self._who(name), max(1, number), BATCHES, offsets, chain_first=max(0, first)
        )
        self._submit(command, name)

    def _look_at_chains(self) -> None:
        """Of each chain what is committed stands before what is aborted (I3, I10)."""
        refused: set[tuple[object, ...]] = set()
        decided = (t for t in self.machine.state.transactions if t.prepare_offset)
        for transaction in sorted(decided, key=lambda t: t.prepare_offset):
            if not transaction.chain_first:
                continue
            chain = (transaction.producer_id, transaction.generation, transaction.chain_first)
            assert not (transaction.is_committed and chain in refused), "behind a refused one"
            if not transaction.is_committed:
                refused.add(chain)

    def session(self, name: str) -> None:
        stream_id = self.random.randrange(1, 4)
        kind = self.random.choice([SessionOpened, SessionEnded])
        self.host.signal(kind(self._who(name), stream_id))

    # --------------------------------------------------------------------------------- the outside

    def deliver(self, name: str) -> None:
        for owed in self._owed(OweMarkers):
            self.host.signal(MarkersSent(owed.participant))
            applied = owed.markers[: self.random.randrange(len(owed.markers) + 1)]
            results = []
            for marker in applied:
                self._apply_marker(owed.participant, marker)
                status = MarkerStatus.APPLIED
                if marker.committed and self.random.random() < 0.1:
                    status = MarkerStatus.DAMAGED
                results.append(MarkerAnswer(marker.tx_id, status))
            if self.random.random() < 0.8:
                self.host.signal(MarkersAnswered(owed.participant, results))

    def fail(self, name: str) -> None:
        """The answer of what is under way is lost: it is sent again."""
        for participant in (A0, A1):
            self.host.signal(MarkersAnswered(participant))

    def offsets(self, name: str) -> None:
        for owed in self._owed(OweDecision):
            self.host.signal(OffsetsSent(owed.tx_id))
            self._submit(AnswerOffsets(owed.tx_id, None), name)
        for owed in self._owed(OweOffsets):
            self.host.signal(OffsetsSent(owed.tx_id))
        transactions = self.machine.state.transactions
        heads = [
            tx_id
            for tx_id in sorted(self.machine.state.first_staged.known())
            if transactions[tx_id].offsets is not None
        ]
        if heads:
            refusal = self.random.choice([None, NO])
            self._submit(AnswerOffsets(self.random.choice(heads), refusal), name)

    def finish(self, name: str) -> None:
        for owed in self._owed(OweFinish):
            for tx_id in owed.tx_ids:
                prepared = self.machine.state.transactions[tx_id].prepare_offset
                assert prepared < self.host.high_watermark, "over before it is durable"
            self._submit(FinishTransactions(tuple(owed.tx_ids)), name)

    def time(self, name: str) -> None:
        self.host.pass_time(self.random.choice([10, 1_000, 4_000, 12_000]))
        self._recorded(self.host.tick())

    def ask(self, name: str) -> None:
        tx_id, who = self._tx(), self._who(name)
        state, below = self.machine.state, self.host.high_watermark
        found = verdict(state, tx_id, who, A1, below=below)
        if found is AnswerCode.ABORTED:
            self._know(tx_id, committed=False)
        if found is AnswerCode.ONGOING:
            self.host.signal(PartitionAsked(tx_id, who, A1, self.random.randrange(2)))

    def sync(self, name: str) -> None:
        low = self.host.high_watermark
        to = self.random.choice([self.host.log_end, self.random.randint(low, self.host.log_end)])
        for parked in self.host.sync(to):
            self._told(parked.label, parked.reply)

    def crash(self, name: str) -> None:
        if self.random.random() < 0.3:
            self.host.failover(lose_tail=self.random.random() < 0.5)

    # ------------------------------------------------------------------------------ what must hold

    def _submit(self, command: object, label: str) -> None:
        self._recorded(self.host.submit(command, label))

    def _recorded(self, recorded: Any) -> None:
        for _, record in recorded:
            if isinstance(record, ProducerInitialized):
                producer = self.machine.state.producers[record.producer_id]
                assert not producer.open_tx, "I16: decided first"

    def _told(self, name: str, reply: object) -> None:
        match reply:
            case ProducerGranted():
                who = reply.producer
                earlier = self.holders.get(name)
                if earlier is not None:
                    assert who.generation >= earlier.generation, "I17"
                producer = self.machine.state.producers[who.producer_id]
                for transaction in self.machine.state.transactions:
                    if (
                        transaction.producer_id == who.producer_id
                        and not transaction.prepare_offset
                    ):
                        assert transaction.generation >= who.generation, "I16: decided"
                assert producer.generation >= who.generation
                self.holders[name] = who
            case BeginAnswer() if reply.tx_id:
                self.tx_ids.append(reply.tx_id)
            case TransactAnswer() if reply.tx_id and not reply.staged:
                self._know(reply.tx_id, committed=True)

    def _look_at_owed(self) -> None:
        """Every marker that goes out says the same for ever, and only what is durable (I4, I19)."""
        if not self.host.ready:
            return
        below = self.host.high_watermark
        for owed in self.machine.owed(below):
            match owed:
                case OweMarkers():
                    offsets = [marker.prepare_offset for marker in owed.markers]
                    assert offsets == sorted(set(offsets)), "PREPARE order"
                    assert offsets[-1] < below, "no marker before its PREPARE is durable"
                    for marker in owed.markers:
                        self._know(marker.tx_id, committed=marker.committed)
                case OweOffsets():
                    self._check_put(owed)

    def _check_put(self, owed: OweOffsets) -> None:
        state = self.machine.state
        for transaction in state.transactions:
            same = transaction.producer_id == owed.producer.producer_id
            if same and transaction.tx_id < owed.tx_id and transaction.is_one_shot:
                assert 0 < transaction.prepare_offset < self.host.high_watermark, "request order"
        for after in owed.after.values():
            assert state.transactions[after].is_committed, "chains on a committed one only"

    def _apply_marker(self, participant: PartitionId, marker: Any) -> None:
        """As a participant does: an older COMMITTED is a repeat, so one that it has not
        seen must never come after a newer one."""
        if not marker.committed:
            return
        last = self.applied.get(participant, 0)
        seen = self.seen_markers.setdefault(participant, set())
        assert marker.prepare_offset > last or marker.prepare_offset in seen, (
            "a COMMITTED marker overtook another: it would be taken for a repeat"
        )
        seen.add(marker.prepare_offset)
        self.applied[participant] = max(last, marker.prepare_offset)

    def _know(self, tx_id: TxId, *, committed: bool) -> None:
        assert self.outcomes.setdefault(tx_id, committed) == committed, "I4: one outcome for ever"

    def finally_(self) -> None:
        for parked in self.host.sync():
            self._told(parked.label, parked.reply)
        self.host.check_replay()
        decided: dict[TxId, bool] = {}
        for stored in self.host.frames:
            if not stored.frame.payload:
                continue
            record = CODEC.decode(stored.frame)
            if isinstance(record, PreparedCommit | PreparedAbort | OneShotPrepared):
                committed = not isinstance(record, PreparedAbort)
                assert record.tx_id not in decided, "I19: decided once"
                decided[record.tx_id] = committed
        for tx_id, committed in self.outcomes.items():
            assert decided[tx_id] == committed, "I5: what was told is in the journal"

    def _owed(self, kind: type) -> list[Any]:
        return [o for o in self.machine.owed(self.host.high_watermark) if isinstance(o, kind)]

    def _who(self, name: str) -> ProducerIdentity:
        return self.holders.get(name, ProducerIdentity(TxId(999), 1))  # type: ignore[arg-type]

    def _tx(self) -> TxId:
        return self.random.choice(self.tx_ids[-4:])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
# A crash tears the records of one decision apart.
@example(40488065)
def test_i4_i16_i17_i19_i35_hold_in_any_story(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.finally_()


@pytest.mark.parametrize("seed", range(10))
def test_one_seed_tells_one_story(seed: int) -> None:
    journals = []
    for _ in range(2):
        story = Story(seed)
        for _ in range(STEPS):
            story.step()
        journals.append(story.host.frames)
    assert journals[0] == journals[1]


def test_the_stories_reach_everything() -> None:
    """A property that never meets a rare record proves nothing about it."""
    kinds: set[str] = set()
    for seed in range(60):
        story = Story(seed)
        for _ in range(STEPS):
            story.step()
        for stored in story.host.frames:
            if stored.frame.payload:
                kinds.add(type(CODEC.decode(stored.frame)).__name__)
    assert kinds >= {
        "ProducerInitialized",
        "Begun",
        "PreparedCommit",
        "PreparedAbort",
        "OneShotStaged",
        "OneShotPrepared",
        "Committed",
        "Aborted",
    }

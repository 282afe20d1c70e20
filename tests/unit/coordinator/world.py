"""One coordinator machine in memory, durable at once, with a producer that was taken over once."""

from __future__ import annotations

from typing import Any

from oncelog_server.coordinator.commands import (
    BeginAnswer,
    BeginResult,
    BeginTransaction,
    CommitAnswer,
    CommitTransaction,
    InitProducer,
    ProducerIdentity,
    TransactAnswer,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.records import CODEC
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.values import CommitSeq, Manifest, OneShotBatch, TopicParts
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    TopicId,
    TxId,
)
from oncelogpb.errors import OncelogError
from oncelogpb.records import checksum
from tests.golden.host import MachineHost

PARTITION = PartitionId(TRANSACTION_CONTROL_ID, 0)
A0 = PartitionId(TopicId(b"a" * 16), 0)
A1 = PartitionId(TopicId(b"a" * 16), 1)
OFFSETS = PartitionId(CONSUMER_OFFSETS_ID, 3)
PARTS = Manifest((TopicParts(A0.topic_id, (0,), (0,), (1,)),))
BATCHES = (OneShotBatch(A0, 1, 1, checksum(b"x"), 0, b"x"),)
OLD_INSTANCE, INSTANCE = b"old.............", b"living.........."


class World:
    """`ask` gives the durable reply to a command, refusals included."""

    def __init__(self, **limits: int) -> None:
        config = CoordinatorConfig(**limits)
        self.host = MachineHost(lambda: CoordinatorMachine(PARTITION, config), CODEC)
        self.old = self.init(OLD_INSTANCE)
        self.who = self.init(INSTANCE)

    @property
    def state(self) -> CoordinatorState:
        machine: Any = self.host.machine
        state: CoordinatorState = machine.state
        return state

    def ask(self, command: object) -> Any:
        self.host.submit(command)
        return self.host.sync()[-1].reply

    def init(self, instance_id: bytes, name: str = "p") -> ProducerIdentity:
        granted = self.ask(InitProducer("g", name, instance_id))
        who: ProducerIdentity = granted.producer
        return who

    def begin(self, request_id: int = 5, **more: Any) -> TxId:
        answer: BeginAnswer = self.ask(BeginTransaction(self.who, request_id, **more))
        assert answer.result is BeginResult.OPEN, answer
        return answer.tx_id

    def commit(self, tx_id: TxId, seq: CommitSeq | None = None) -> TxId:
        assert isinstance(self.ask(CommitTransaction(tx_id, self.who, PARTS, seq)), CommitAnswer)
        return tx_id

    def transact(self, command: object) -> TxId:
        answer = self.ask(command)
        assert isinstance(answer, TransactAnswer), answer
        return answer.tx_id


def said(answer: object) -> str:
    """The reason of a refusal, or the class of an answer."""
    return answer.reason if isinstance(answer, OncelogError) else type(answer).__name__

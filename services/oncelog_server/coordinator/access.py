"""What the RPCs of Coordinator need of their caller (`core/needs`).

    init_producer                    write of the name, and fence to take it over from another
                                     identity; without a name: any right at all
    begin_transaction                write as the producer, write of each topic in `parts`
    commit_transaction               write as the producer, write of each topic in the manifest
    transact                         write as the producer, write of each topic, read of the group
                                     and of the topics of its offsets
    abort_transaction                abort of the transaction
    get_, list_transaction(s)        describe of the transaction; whether it is visible
                                     (`only_visibility`): an identity
    ask_transactions                 services

*As the producer*: by its name; one without a name is of who registered it alone. A transaction goes
by its producer's name, and who registered that may see and end it.

`parts` of an abort and of a commit's `begin_next` are hints: those that their caller may not write
are left out, for what the call decides must not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.ended_transactions import EndedTransactions
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.producers import Producer
from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.ids import (
    CONTROL_PARTITIONS,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    ProducerId,
    TxId,
    control_partition,
    journal_partition_of,
)
from oncelog_server.core.needs import (
    Entry,
    ItemNeed,
    TopicNames,
    UnheardTopics,
    require_few,
    serving,
)
from oncelog_server.core.ports import Call, led_machine
from oncelogpb.errors import OncelogError, UnknownProducer, UnknownTopic
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2

# What the offset manager takes at once; it is the one that will say so.
OFFSETS_PER_CALL_MAX: Final = 10_000


def entries(
    env: CoordinatorEnv,
    config: CoordinatorConfig,
    ended_transactions: Callable[[CoordinatorReplica], EndedTransactions],
) -> Mapping[str, Entry]:
    """By RPC."""
    needs = _Needs(env, config, ended_transactions)
    return {
        "init_producer": Entry(needs.of_init),
        "begin_transaction": Entry(needs.of_begin),
        "commit_transaction": Entry(needs.of_commit, items=needs.of_next_parts),
        "abort_transaction": Entry(
            needs.of_abort,
            items=needs.of_abort_parts,
            audited=lambda request: bool(request.operator),
        ),
        "transact": Entry(needs.of_transact),
        "get_transaction": Entry(needs.of_get),
        # Its handler shows what its caller sees.
        "list_transactions": Entry(),
        "ask_transactions": serving("ask_transactions"),
    }


class _Needs:
    def __init__(
        self,
        env: CoordinatorEnv,
        config: CoordinatorConfig,
        ended_transactions: Callable[[CoordinatorReplica], EndedTransactions],
    ) -> None:
        self._env = env
        self._config = config
        self._ended_transactions_of = ended_transactions
        self._topics = TopicNames(env.metadata)

    # ----------------------------------------------------------------------------------- producers

    def of_init(self, request: pb.InitProducerRequest, call: Call) -> Iterable[Need]:
        group = request.group or request.name
        if not group:
            return
        replica = self._env.replicas.lead(control_partition(TRANSACTION_CONTROL_ID, group))
        state = led_machine(replica).state
        known = state.producers.find(group, request.name, request.instance_id)
        owner = call.identity if known is None else known.owner
        if not request.name:
            yield Need(Verb.WRITE, ResourceKind.PRODUCER, "", owner)
            return
        yield Need(Verb.WRITE, ResourceKind.PRODUCER, request.name)
        # Of one that was registered when nobody had an identity, nobody is robbed.
        is_taken_over = known is not None and known.instance_id != request.instance_id
        if is_taken_over and owner not in ("", call.identity):
            yield Need(Verb.FENCE, ResourceKind.PRODUCER, request.name)

    def _as_producer(self, producer_id: int, led_by: int) -> Iterable[Need]:
        """Raises NotLeader, UnknownProducer."""
        producer = self._producer(producer_id, led_by)
        if producer is not None:
            owner = None if producer.name else producer.owner
            yield Need(Verb.WRITE, ResourceKind.PRODUCER, producer.name, owner)

    def _producer(self, producer_id: int, led_by: int) -> Producer | None:
        """`led_by`: the producer id or TxId that says who leads it. None where its handler says
        what is wrong with them. Raises NotLeader, UnknownProducer."""
        replica = self._lead(led_by)
        if replica is None or not producer_id:
            return None
        producer = led_machine(replica).state.producers.get(ProducerId(producer_id))
        if producer is None:
            raise UnknownProducer(
                "no such producer here; call InitProducer first", producer_id=show_id(producer_id)
            )
        return producer

    # -------------------------------------------------------------------------------- transactions

    def of_begin(self, request: pb.BeginTransactionRequest, call: Call) -> Iterable[Need]:
        require_few("parts_max", len(request.parts), self._config.parts_max)
        producer_id = request.producer.producer_id
        yield from self._as_producer(producer_id, producer_id)
        yield from self._topics.needs(Verb.WRITE, (part.topic_id for part in request.parts))

    def of_commit(self, request: pb.CommitTransactionRequest, call: Call) -> Iterable[Need]:
        most = self._config.manifest_parts_max
        require_few("manifest_parts_max", len(request.manifest.topics), most)
        yield from self._as_producer(request.producer.producer_id, request.tx_id)
        yield from self._topics.needs(
            Verb.WRITE, (topic.topic_id for topic in request.manifest.topics)
        )

    def of_next_parts(self, request: pb.CommitTransactionRequest, call: Call) -> Sequence[ItemNeed]:
        return self._hints(request.begin_next.parts)

    def of_transact(self, request: pb.TransactRequest, call: Call) -> Iterable[Need]:
        most = self._config.one_shot_partitions_max
        require_few("one_shot_partitions_max", len(request.batches), most)
        require_few("offsets_per_call_max", len(request.offsets.offsets), OFFSETS_PER_CALL_MAX)
        producer_id = request.producer.producer_id
        yield from self._as_producer(producer_id, producer_id)
        yield from self._topics.needs(
            Verb.WRITE, (batch.partition.topic_id for batch in request.batches)
        )
        if request.HasField("offsets"):
            yield Need(Verb.READ, ResourceKind.GROUP, request.offsets.group)
            yield from self._topics.needs(
                Verb.READ, (offset.partition.topic_id for offset in request.offsets.offsets)
            )

    def of_abort(self, request: pb.AbortTransactionRequest, call: Call) -> Iterable[Need]:
        return self._of_transaction(Verb.ABORT, request.tx_id)

    def of_abort_parts(self, request: pb.AbortTransactionRequest, call: Call) -> Sequence[ItemNeed]:
        return self._hints(request.parts)

    def of_get(self, request: pb.GetTransactionRequest, call: Call) -> Iterable[Need]:
        if request.tx_id and request.only_visibility:
            # No more than a reader of its partitions could see.
            return ()
        if request.tx_id:
            return self._of_transaction(Verb.DESCRIBE, request.tx_id)
        return self._of_one_shot(request.producer.producer_id)

    def _of_one_shot(self, producer_id: int) -> Iterable[Need]:
        """By its request number. Raises NotLeader, UnknownProducer."""
        producer = self._producer(producer_id, led_by=producer_id)
        if producer is not None:
            yield transaction_need(Verb.DESCRIBE, producer)

    def _of_transaction(self, verb: Verb, number: int) -> Iterable[Need]:
        """Raises NotLeader, UnknownTransaction, Unavailable, CorruptLog."""
        replica = self._lead(number)
        if replica is None or not number:
            return
        tx_id = TxId(number)
        state = led_machine(replica).state
        transaction = state.transactions.get(tx_id)
        if transaction is not None:
            yield transaction_need(verb, state.producers[transaction.producer_id])
            return
        outcome = self._ended_transactions_of(replica).known_outcome(tx_id)
        # Of one that has expired nothing is told, but that.
        if not outcome.expired:
            yield transaction_need(verb, state.producers.get(outcome.producer.producer_id))

    # --------------------------------------------------------------------------------------- parts

    def _hints(self, parts: Sequence[types_pb2.Partition]) -> Sequence[ItemNeed]:
        require_few("parts_max", len(parts), self._config.parts_max)
        return [self._hint(part.topic_id) for part in parts]

    def _hint(self, topic_id: bytes) -> ItemNeed:
        try:
            needs = self._topics.needs(Verb.WRITE, (topic_id,))
        except UnheardTopics:
            return UnknownTopic(f"no topic with id {topic_id.hex()}", topic_id=topic_id.hex())
        return needs[0] if needs else None

    def _lead(self, number: int) -> CoordinatorReplica | None:
        """None where no coordinator gave this number out: its handler says so."""
        journal_partition = journal_partition_of(number)
        if journal_partition >= CONTROL_PARTITIONS:
            return None
        return self._env.replicas.lead(PartitionId(TRANSACTION_CONTROL_ID, journal_partition))

    def _known_producer(self, producer_id: int) -> Producer | None:
        try:
            replica = self._lead(producer_id)
        except OncelogError:
            # Led elsewhere, since a moment.
            return None
        if replica is None:
            return None
        return led_machine(replica).state.producers.get(ProducerId(producer_id))


def transaction_need(verb: Verb, producer: Producer | None) -> Need:
    """Of a producer that is forgotten nobody knows whose it was."""
    if producer is None:
        return Need(verb, ResourceKind.TRANSACTION, "", "")
    return Need(verb, ResourceKind.TRANSACTION, producer.name, producer.owner)


def without_refused(field: Any, call: Call) -> None:
    """Takes the hints out of a request that its caller has no right to."""
    if call.refused:
        kept = [part for place, part in enumerate(field) if place not in call.refused]
        del field[:]
        field.extend(kept)

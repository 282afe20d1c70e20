"""The coordinator's words for golden scripts. Journal partition 0; `T5` is the transaction whose
first record stands at 5; topics have one letter, `offsets/3` is a partition of __consumer_offsets.

    init NAME instance=a [group=G] [held=E.C] [as=P]   InitProducer; NAME is `-` for an unnamed one
    begin P REQUEST [timeout=MS] [seq=S:N] [parts=a/0,...] [gen=E.C]
    commit T P [parts=a/0:10,a/0#7:5,offsets/3] [seq=S:N] [next=REQUEST] [next_seq=S:N]
        [next_timeout=MS] [gen=E.C]
    abort T P [parts=...] [gen=E.C]            by its producer; P is `operator` for an operator
    transact P NUMBER [batches=a/0:3,...] [offsets=GROUP[@b/0+b/1]] [seq=S:N] [gen=E.C]
             [chain=FIRST]
    find P NUMBER [gen=E.C]                    what became of a one-shot whose answer was lost
    accept T | refuse T REASON                 the offset manager's answer to a staged one-shot
    owed                                       what is to be done outside, below the HW
    send PARTITION                             the group that is owed is under way
    ack PARTITION T... [damaged|gone]          the group's answer
    fail PARTITION [full]                      no answer, or DISK_FULL
    put T                                      the offsets of T are under way
    finish                                     journals that what all acknowledged is over
    deliver                                    sends, acknowledges and finishes all that is owed
    ask T P PARTITION [bytes=N] [gen=E.C]      a participant's question
    prove                                      brings about what such a question waits for
    get T                                      what becomes of a repeated commit: kept or ended
    session P stream=N | end P stream=N        a producer's session
    producer P                                 what is remembered of it
    journal                                    its end, and from where on it is wanted
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from oncelog_server.coordinator.commands import (
    AbortAnswer,
    AbortTransaction,
    AnswerOffsets,
    BeginAnswer,
    BeginTransaction,
    CommitAnswer,
    CommitTransaction,
    Elsewhere,
    FindOneShot,
    FinishTransactions,
    FoundOneShot,
    InitProducer,
    MarkerAnswer,
    MarkersAnswered,
    MarkersSent,
    MarkerStatus,
    OffsetsSent,
    Owed,
    OweDecision,
    OweFinish,
    OweMarkers,
    OweOffsets,
    PartitionAsked,
    ProducerGranted,
    ProducerIdentity,
    ProveLogEnd,
    SessionEnded,
    SessionOpened,
    Transact,
    TransactAnswer,
    UnbornAsked,
    UnbornTold,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.decide_one_shot import refusal_of
from oncelog_server.coordinator.ended_transactions import EndedTransactions
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.outcomes import Outcomes
from oncelog_server.coordinator.questions import AnswerCode, is_unborn, verdict, verdict_of
from oncelog_server.coordinator.records import (
    CODEC,
    Aborted,
    Begun,
    Committed,
    LogEndProved,
    OneShotPrepared,
    OneShotSkipped,
    OneShotStaged,
    PreparedAbort,
    PreparedCommit,
    ProducerInitialized,
    ProducersForgotten,
    Record,
)
from oncelog_server.coordinator.values import (
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    TopicParts,
)
from oncelog_server.core.age import TimePassed
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    Generation,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    journal_offset_of,
)
from oncelog_server.core.wire import partition_message
from oncelogpb.errors import BY_REASON, OncelogError
from oncelogpb.ids import show_generation
from oncelogpb.records import checksum
from oncelogpb.v1 import offset_manager_pb2
from tests.golden.host import HostDriver, MachineHost, Parked

PARTITION = PartitionId(TRANSACTION_CONTROL_ID, 0)
T = TypeVar("T")


def make() -> CoordinatorDriver:
    return CoordinatorDriver(CoordinatorConfig())


class MemorySlots:
    """The Slots port."""

    def __init__(self) -> None:
        self._slots: dict[int, bytes] = {}

    def write(self, offset: int, slot: bytes) -> None:
        self._slots[offset] = slot

    def read(self, offset: int) -> bytes | None:
        return self._slots.get(offset)


class HostReplica:
    """As much of the Replica port as reading outcomes needs."""

    partition = PARTITION
    log_start = 0

    def __init__(self, host: MachineHost) -> None:
        self._host = host

    @property
    def machine(self) -> Any:
        return self._host.machine

    @property
    def high_watermark(self) -> int:
        return self._host.high_watermark

    @property
    def log_end(self) -> int:
        return self._host.log_end

    def require_lease(self) -> None:
        pass

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        return [stored for stored in self._host.frames if stored.at.offset in offsets]


class CoordinatorDriver(HostDriver):
    """See the module."""

    def __init__(self, config: CoordinatorConfig) -> None:
        outcomes = Outcomes(MemorySlots())
        super().__init__(
            MachineHost(lambda: CoordinatorMachine(PARTITION, config), CODEC, outcomes)
        )
        replica: Any = HostReplica(self.host)
        self.ended_transactions = EndedTransactions(replica, outcomes)
        # What the service looks up for commands whose transaction the machine does not keep.
        self._ended: dict[str, Any] = {}
        self.granted: dict[str, ProducerIdentity] = {}

    @property
    def machine(self) -> CoordinatorMachine:
        return self.host.machine  # type: ignore[return-value]

    # -------------------------------------------------------------------------------------- verbs

    def run(self, verb: str, words: Sequence[str], options: dict[str, str]) -> str:
        line = " ".join([verb, *words])
        match verb:
            case "init":
                return self._init(words[0], options)
            case "begin":
                return self.submit(self._begin(words, options), line)
            case "commit":
                return self._commit(words, options, line)
            case "abort":
                return self._abort(words, options, line)
            case "transact":
                return self.submit(self._transact(words, options), line)
            case "find":
                command = FindOneShot(self._identity(words[0], options), int(words[1]))
                return self.submit(command, line)
            case "prove":
                return self.submit(ProveLogEnd(), line)
            case "accept":
                return self.submit(AnswerOffsets(tx(words[0]), None), line)
            case "refuse":
                error = BY_REASON[words[1]]("as the script says")
                return self.submit(AnswerOffsets(tx(words[0]), refusal_of(error)), line)
            case "finish":
                return self._finish()
            case "deliver":
                return self._deliver()
            case "owed":
                return self._owed()
            case "ask":
                return self._ask(words, options)
            case "get":
                return self._get(tx(words[0]))
            case "producer":
                return self._producer(words[0])
            case "journal":
                machine = self.machine
                return f"to {machine.next_offset}, wanted from {machine.wanted_from()}"
        return self._signal(verb, words, options)

    def _signal(self, verb: str, words: Sequence[str], options: dict[str, str]) -> str:
        match verb:
            case "send":
                self.host.signal(MarkersSent(partition(words[0])))
            case "ack":
                status = MarkerStatus[words[-1].upper()] if words[-1][0] != "T" else None
                tx_ids = words[1:] if status is None else words[1:-1]
                results = [MarkerAnswer(tx(w), status or MarkerStatus.APPLIED) for w in tx_ids]
                self.host.signal(MarkersAnswered(partition(words[0]), results))
            case "fail":
                full = words[-1] == "full"
                self.host.signal(MarkersAnswered(partition(words[0]), disk_full=full))
            case "put":
                self.host.signal(OffsetsSent(tx(words[0])))
            case "session":
                who = self._identity(words[0], options)
                self.host.signal(SessionOpened(who, int(options["stream"])))
            case "end":
                who = self._identity(words[0], options)
                self.host.signal(SessionEnded(who, int(options["stream"])))
            case _:
                raise ValueError(f"no verb {verb}")
        return ""

    def _init(self, name: str, options: dict[str, str]) -> str:
        instance = options["instance"].encode().ljust(16, b".")
        unnamed = name == "-"
        held = generation(options["held"]) if "held" in options else Generation(0)
        command = InitProducer(
            options.get("group", name), "" if unnamed else name, instance, held=held
        )
        self._naming = options.get("as", name)
        return self.submit(command, f"init {name} {options['instance']}")

    def _begin(self, words: Sequence[str], options: dict[str, str]) -> BeginTransaction:
        return BeginTransaction(
            self._identity(words[0], options),
            int(words[1]),
            int(options.get("timeout", "0")),
            seq(options.get("seq")),
            tuple(sorted(partition(w) for w in options.get("parts", "").split(",") if w)),
        )

    def _commit(self, words: Sequence[str], options: dict[str, str], line: str) -> str:
        who = self._identity(words[1], options)
        following = None
        if "next" in options:
            following = BeginTransaction(
                who,
                int(options["next"]),
                int(options.get("next_timeout", "0")),
                seq(options.get("next_seq")),
            )
        command = CommitTransaction(
            tx(words[0]), who, manifest(options), seq(options.get("seq")), following
        )
        return self._or_ended(command, line, lambda: self.ended_transactions.repeat_commit(command))

    def _abort(self, words: Sequence[str], options: dict[str, str], line: str) -> str:
        who = None if words[1] == "operator" else self._identity(words[1], options)
        parts = tuple(sorted(partition(w) for w in options.get("parts", "").split(",") if w))
        command = AbortTransaction(tx(words[0]), who, parts)

        async def ended() -> AbortAnswer:
            return self.ended_transactions.repeat_abort(command)

        return self._or_ended(command, line, ended)

    def _or_ended(self, command: object, line: str, ended: Any) -> str:
        """What the service does with a transaction that the machine does not keep."""
        self._ended[line] = ended
        return self.submit(command, line)

    def show_parked(self, item: Parked) -> str:
        if isinstance(item.reply, Elsewhere):
            return self.show(told(self._ended[item.label]()))
        return super().show_parked(item)

    def _transact(self, words: Sequence[str], options: dict[str, str]) -> Transact:
        batches = []
        for word in filter(None, options.get("batches", "").split(",")):
            where, count = word.split(":")
            payload = b"r" * int(count)
            crc = checksum(payload)
            batches.append(OneShotBatch(partition(where), 1, int(count), crc, 9, payload))
        offsets = None
        if "offsets" in options:
            offsets = _offsets(options["offsets"])
        return Transact(
            self._identity(words[0], options),
            int(words[1]),
            tuple(batches),
            offsets,
            seq(options.get("seq")),
            chain_first=int(options.get("chain", 0)),
        )

    def _identity(self, name: str, options: dict[str, str]) -> ProducerIdentity:
        who = self.granted.get(name, ProducerIdentity(ProducerId(99), Generation(1 << 32 | 1)))
        if "gen" in options:
            return ProducerIdentity(who.producer_id, generation(options["gen"]))
        return who

    # ---------------------------------------------------------------------------------- the outbox

    def _owed(self) -> str:
        return "\n".join(map(show_owed, self.machine.owed(self.host.high_watermark))) or "nothing"

    def _finish(self) -> str:
        for owed in self.machine.owed(self.host.high_watermark):
            if isinstance(owed, OweFinish):
                return self.submit(FinishTransactions(tuple(owed.tx_ids)), "finish")
        return ""

    def _deliver(self) -> str:
        lines = []
        for owed in self.machine.owed(self.host.high_watermark):
            if isinstance(owed, OweMarkers):
                lines.append(show_owed(owed))
                results = [
                    MarkerAnswer(marker.tx_id, MarkerStatus.APPLIED) for marker in owed.markers
                ]
                self.host.signal(MarkersSent(owed.participant))
                self.host.signal(MarkersAnswered(owed.participant, results))
        return "\n".join(filter(None, [*lines, self._finish()]))

    # --------------------------------------------------------------------------------------- reads

    def _ask(self, words: Sequence[str], options: dict[str, str]) -> str:
        tx_id, who, where = tx(words[0]), self._identity(words[1], options), partition(words[2])
        if not self.host.ready:
            return "ask -> LOADING"
        found = verdict(self.machine.state, tx_id, who, where, below=self.host.high_watermark)
        if found is None:
            found = verdict_of(self.ended_transactions.outcome(tx_id), who)
        asked = UnbornAsked(tx_id, who, where)
        if is_unborn(self.machine.state, tx_id):
            self.host.signal(UnbornTold(*asked) if found is AnswerCode.NEVER else asked)
        elif found is AnswerCode.ONGOING:
            size = int(options.get("bytes", "0"))
            self.host.signal(PartitionAsked(tx_id, who, where, size))
        return f"ask {words[0]} {words[2]} -> {found.name}"

    def _get(self, tx_id: TxId) -> str:
        transaction = self.machine.state.transactions.get(tx_id)
        if transaction is not None:
            return f"{transaction.state.name}"
        try:
            outcome = self.ended_transactions.known_outcome(tx_id)
        except OncelogError as error:
            return self.show(error)
        if outcome.expired:
            return "EXPIRED"
        end = f"begin +{outcome.begin_ms % 100_000} end +{outcome.end_ms % 100_000}"
        how = "COMMITTED" if outcome.committed else f"ABORTED {outcome.cause.name}"
        return f"{how} {end} prepare @{outcome.prepare_offset}"

    def _producer(self, name: str) -> str:
        producer = self.machine.state.producers[self.granted[name].producer_id]
        begins = " ".join(f"{r.request_id}:{show_tx(r.tx_id)}" for r in producer.begins)
        shots = " ".join(f"{r.request_number}:{r.state.name}" for r in producer.one_shots)
        return (
            f"{show_who(producer.identity)} open={show_tx(producer.open_tx)} begins=[{begins}] "
            f"one-shots=[{shots}] seq={show_seq(producer.committed_seq)}"
        )

    # ----------------------------------------------------------------------------------- in words

    def show_reply(self, reply: Any) -> str:
        match reply:
            case ProducerGranted():
                self.granted[self._naming] = reply.producer
                last = f" last={show_tx(reply.last_committed)}" if reply.last_committed else ""
                visible = " visible" if reply.last_committed_visible else ""
                number = reply.last_commit_seq
                return f"{show_who(reply.producer)}{last}{visible}" + (
                    f" seq={show_seq(number)}" if number is not None else ""
                )
            case BeginAnswer():
                return show_begin(reply)
            case CommitAnswer():
                text = "ALREADY_COMMITTED" if reply.already_committed else "COMMITTED"
                text += " visible" if reply.visible else ""
                if reply.next_refusal is not None:
                    return f"{text} next: {self.show(reply.next_refusal)}"
                return text + (f" next: {show_begin(reply.next)}" if reply.next else "")
            case AbortAnswer():
                return f"ABORTED {reply.cause.name}"
            case TransactAnswer():
                if reply.already_committed:
                    return "ALREADY_COMMITTED" + (" again" if reply.duplicate else "")
                text = "staged" if reply.staged else "COMMITTED"
                again = " again" if reply.duplicate else ""
                return f"{show_tx(reply.tx_id)} {text}{' visible' if reply.visible else ''}{again}"
            case FoundOneShot():
                if reply.forgotten:
                    return "forgotten"
                return "ALREADY_COMMITTED" if reply.already_committed else show_tx(reply.tx_id)
            case tuple():
                return "decided " + (" ".join(map(show_tx, reply)) or "nothing")
        return ""

    def show_record(self, record: Record) -> str:
        match record:
            case ProducerInitialized():
                name = record.name or "-"
                return f"INIT {name} {show_generation(record.generation)}"
            case Begun():
                parts = f" parts={show_parts(record.parts)}" if record.parts else ""
                number = f" seq={show_seq(record.commit_seq)}" if record.commit_seq else ""
                return f"BEGIN {show_tx(record.tx_id)} timeout={record.timeout_ms}{number}{parts}"
            case PreparedCommit():
                parts = ",".join(
                    f"{show_partition(PartitionId(topic.topic_id, number))}:{count}"
                    + (f"#{writer}" if writer else "")
                    for topic in record.manifest.topics
                    for number, writer, count in zip(
                        topic.partitions, topic.writers, topic.counts, strict=True
                    )
                )
                number = f" seq={show_seq(record.commit_seq)}" if record.commit_seq else ""
                return f"PREPARE_COMMIT {show_tx(record.tx_id)}{number}" + (
                    f" parts={parts}" if parts else ""
                )
            case PreparedAbort():
                parts = f" parts={show_parts(record.parts)}" if record.parts else ""
                why = f" {record.refusal.reason}" if record.refusal else ""
                return f"PREPARE_ABORT {show_tx(record.tx_id)} {record.cause.name}{why}{parts}"
            case OneShotStaged():
                with_offsets = f" offsets={record.offsets.group}" if record.offsets else ""
                chained = f" chain={record.chain_first}" if record.chain_first else ""
                number = f"#{record.request_number}{chained}"
                return f"STAGED {show_tx(record.tx_id)} {number}{with_offsets}"
            case OneShotPrepared():
                return f"ONE_SHOT {show_tx(record.tx_id)} #{record.request_number}"
            case OneShotSkipped():
                return f"SKIPPED #{record.request_number}"
            case Committed():
                damaged = f" damaged={show_parts(record.damaged)}" if record.damaged else ""
                return f"COMMITTED {show_tx(record.tx_id)}{damaged}"
            case Aborted():
                return f"ABORTED {show_tx(record.tx_id)}"
            case ProducersForgotten():
                return (
                    f"FORGOTTEN {' '.join(f'P{journal_offset_of(p)}' for p in record.producer_ids)}"
                )
            case LogEndProved():
                return "PROVED"
            case TimePassed():
                return ""
        raise AssertionError(record)


# ---------------------------------------------------------------------------- words to values


def told(answer: Coroutine[Any, Any, T]) -> T | OncelogError:
    try:
        return asyncio.run(answer)
    except OncelogError as error:
        return error


def tx(word: str) -> TxId:
    return TxId(int(word.removeprefix("T")))


def partition(word: str) -> PartitionId:
    topic, number = word.split("/")
    topic_id = CONSUMER_OFFSETS_ID if topic == "offsets" else TopicId(topic.encode() * 16)
    return PartitionId(topic_id, int(number))


def generation(word: str) -> Generation:
    epoch, counter = word.split(".")
    return Generation(int(epoch) << 32 | int(counter))


def seq(word: str | None) -> CommitSeq | None:
    if word is None:
        return None
    scope, number = word.split(":")
    return CommitSeq(scope, int(number))


def manifest(options: dict[str, str]) -> Manifest:
    topics: dict[TopicId, list[tuple[int, int, int]]] = {}
    for word in filter(None, options.get("parts", "").split(",")):
        named, _, count = word.partition(":")
        where, _, writer = named.partition("#")
        found = partition(where)
        topics.setdefault(found.topic_id, []).append(
            (found.number, int(writer or "0"), int(count or "0"))
        )
    return Manifest(
        tuple(
            TopicParts(topic_id, *(tuple(column) for column in zip(*parts, strict=True)))
            for topic_id, parts in topics.items()
        )
    )


# ---------------------------------------------------------------------------- values to words


def show_tx(tx_id: TxId) -> str:
    return f"T{journal_offset_of(tx_id)}" if tx_id else "none"


def show_who(who: ProducerIdentity) -> str:
    return f"P{journal_offset_of(who.producer_id)} {show_generation(who.generation)}"


def show_seq(number: CommitSeq | None) -> str:
    return "none" if number is None else f"{number.scope}:{number.number}"


def show_partition(of: PartitionId) -> str:
    topic = "offsets" if of.topic_id == CONSUMER_OFFSETS_ID else of.topic_id[:1].decode()
    return f"{topic}/{of.number}"


def show_parts(parts: Sequence[PartitionId]) -> str:
    return ",".join(map(show_partition, parts))


def show_begin(answer: BeginAnswer) -> str:
    cause = f" {answer.cause.name}" if answer.cause else ""
    name = f"{show_tx(answer.tx_id)} " if answer.tx_id else ""
    return f"{name}{answer.result.name}{cause}"


def _offsets(word: str) -> OneShotOffsets:
    """Of one partition where none is named."""
    group, _, places = word.partition("@")
    message = offset_manager_pb2.GroupOffsets(group=group)
    for place in (places or "i/0").split("+"):
        where = partition(place)
        message.offsets.add().partition.MergeFrom(partition_message(where))
    return OneShotOffsets(group, message.SerializeToString())


def show_owed(owed: Owed) -> str:
    match owed:
        case OweMarkers():
            markers = " ".join(
                f"{'COMMITTED' if m.committed else 'ABORTED'}({show_tx(m.tx_id)}@{m.prepare_offset}"
                + "".join(f" {count}" + (f"#{w}" if w else "") for w, count in m.parts)
                + (" payload" if m.batch else "")
                + ")"
                for m in owed.markers
            )
            return f"markers to {show_partition(owed.participant)}: {markers}"
        case OweOffsets():
            before = sorted(set(owed.after.values()))
            if len(before) > 1:
                chained = ",".join(
                    f"{show_partition(p)}:{show_tx(t)}" for p, t in sorted(owed.after.items())
                )
            else:
                chained = "".join(map(show_tx, before))
            after = f" after {chained}" if chained else ""
            where = show_partition(owed.offsets.participant)
            return f"offsets of {show_tx(owed.tx_id)} to {where}{after}"
        case OweDecision():
            return f"decision of {show_tx(owed.tx_id)}"
        case OweFinish():
            return f"over: {' '.join(map(show_tx, owed.tx_ids))}"

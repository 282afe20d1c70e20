"""The offset manager's words in golden scripts.

    commit GROUP PARTITION:FROM>TO ...              a plain commit; FROM is an offset, none or any
    pend TX PRODUCER GEN GROUP PARTITION:FROM>TO ... [after=TX] [view=journal] [metadata=TEXT]
    fetch GROUP [PARTITION ...] [view=journal]      the last committed offsets, and last commits
    stable GROUP [PARTITION ...]                    offsets, refusing what is pending
    markers JOURNAL EPOCH TX:PREPARE:c|a:PRODUCER:GEN ...
    groups [PREFIX]   delete GROUP
    claim GROUP ID [timeout=MS]   unclaim GROUP ID
    reset GROUP ID PARTITION:FROM>TO ... [dry=yes]
    topic NAME PARTITIONS     what processes see of a topic from now on; 0: etcd says it is gone
    beat GROUP MEMBER[@INSTANCE] GENERATION [topics=A,B] [owned=a/0,b/1] [assignor=A] [session=MS]
                              [replaces=MEMBER]  a heartbeat
    leave GROUP MEMBER[@INSTANCE]   remove GROUP MEMBER|@INSTANCE   describe GROUP
    look, questions, asked, answered, moved, verdict   see tests/golden/asking.py

A commit, plain or pending, is a member's with by=MEMBER[@INSTANCE],GENERATION; timeout=MS is of its
transaction; beside=TEXT is the metadata that it starts from.

A partition is `orders/0`; a TX is `J.N` for offset N of journal partition J; a PRODUCER is a
number. JOURNAL and EPOCH are the coordinator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncelog_server.core.age import TimePassed
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    compose_tx_id,
    journal_offset_of,
    journal_partition_of,
)
from oncelog_server.offset_manager.commands import (
    FROM_ANY,
    FROM_NONE,
    Assigned,
    Claim,
    ClaimGroup,
    ClaimHeard,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DescribeGroup,
    FetchedOffset,
    FetchedOffsets,
    FetchOffsets,
    GroupDescription,
    GroupSummary,
    GroupTopic,
    Heartbeat,
    LeaveGroup,
    ListGroups,
    MemberHeard,
    MemberIdentity,
    OffsetCommit,
    Read,
    ReleaseGroup,
    RemoveMember,
    Reset,
    ResetOffsets,
    View,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_membership import WAITING_MS
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import (
    CODEC,
    ClaimsEnded,
    GroupClaimed,
    GroupsAlive,
    GroupsForgotten,
    Member,
    MembershipChanged,
    OffsetsCommitted,
    OffsetsPending,
    OffsetsReset,
    PartitionsReleased,
    ProducersForgotten,
    Record,
    Share,
    TransactionDropped,
    TransactionMarked,
)
from oncelog_server.participant.commands import (
    Marker,
    MarkersWritten,
    Outcome,
    Question,
    WriteMarkers,
)
from oncelogpb.ids import parse_id
from tests.golden.asking import AskingDriver
from tests.golden.host import MachineHost

# Small, so that a story can reach them.
CONFIG = OffsetManagerConfig(
    open_transactions_max=4,
    groups_max=3,
    offsets_per_group_max=6,
    members_per_group_max=3,
    partitions_per_group_max=5,
    subscriptions_per_group_max=2,
    claims_per_group_max=2,
)
FROM_WORDS = {FROM_NONE: "none", FROM_ANY: "any"}
OUTCOMES = {"c": Outcome.COMMITTED, "a": Outcome.ABORTED}


def make() -> OffsetManagerDriver:
    return OffsetManagerDriver(MachineHost(lambda: OffsetManagerMachine(CONFIG), CODEC))


class OffsetManagerDriver(AskingDriver):
    """See the module."""

    def __init__(self, host: MachineHost) -> None:
        super().__init__(host)
        # By name, what every process sees: a topic's partitions.
        self.topics: dict[str, int] = {}

    def run(self, verb: str, words: Sequence[str], options: dict[str, str]) -> str:
        line = " ".join([verb, *words, *(f"{key}={value}" for key, value in options.items())])
        shown = self.ask(verb, words, options, line)
        if shown is not None:
            return shown
        if verb == "topic":
            self.topics[words[0]] = int(words[1])
            return ""
        command = self._member_command(verb, words, options) or _command(verb, words, options)
        shown = self.submit(command, line)
        if isinstance(command, Heartbeat):
            self.host.signal(MemberHeard(command.group, command.member.member_id))
        if isinstance(command, ClaimGroup):
            self.host.signal(ClaimHeard(command.group, command.claim.claim_id))
        return shown

    def _member_command(
        self, verb: str, words: Sequence[str], options: dict[str, str]
    ) -> Heartbeat | LeaveGroup | RemoveMember | DescribeGroup | None:
        match verb:
            case "beat":
                names = tuple(sorted(_listed(options.get("topics"))))
                seen = {name: self.topics[name] for name in names if name in self.topics}
                return Heartbeat(
                    words[0],
                    _parse_member(words[1], int(words[2])),
                    names,
                    frozenset(map(_parse_partition, _listed(options.get("owned")))),
                    tuple(GroupTopic(name, _topic(name), n) for name, n in seen.items() if n),
                    frozenset(_topic(name) for name, n in seen.items() if not n),
                    options.get("assignor", ""),
                    int(options.get("session", "10000")),
                    replaces=options.get("replaces", ""),
                )
            case "leave":
                return LeaveGroup(words[0], _parse_member(words[1], 0))
            case "remove":
                identity = _parse_member(words[1], 0)
                return RemoveMember(words[0], identity.member_id, identity.instance_id)
            case "describe":
                return DescribeGroup(words[0])
        return None

    def parse_tx(self, word: str) -> TxId:
        return _parse_tx(word)

    def parse_who(self, word: str) -> tuple[ProducerId, Generation]:
        producer_id, generation = word.split(".")
        return ProducerId(int(producer_id)), Generation(int(generation))

    def held_for(self, tx_id: TxId) -> tuple[ProducerId, Generation]:
        machine = self.host.machine
        assert isinstance(machine, OffsetManagerMachine)
        held = machine._state.open.get(tx_id)
        if held is None:
            return ProducerId(0), Generation(0)
        return ProducerId(held.producer_id), Generation(held.generation)

    def show_question(self, question: Question) -> str:
        return (
            f"{_tx(question.tx_id)} producer={question.producer_id} "
            f"generation={question.generation} +{question.bytes_received} bytes"
        )

    def show_record(self, record: Record) -> str:
        match record:
            case OffsetsCommitted(group, offsets):
                return f"COMMITTED {group} {_steps(offsets)}"
            case OffsetsReset(group, reset_id, offsets):
                return f"RESET {group} {reset_id.decode()} {_steps(offsets)}"
            case OffsetsPending(tx_id, producer_id, generation, group, offsets):
                return (
                    f"PENDING {_tx(tx_id)} producer={producer_id} generation={generation} "
                    f"{group} {_steps(offsets)}"
                )
            case TransactionMarked(tx_id, _, _, outcome, prepare_offset, epoch):
                return f"MARKER {_tx(tx_id)} {outcome.value} prepare={prepare_offset} epoch={epoch}"
            case TransactionDropped(tx_id, verdict):
                return f"DROPPED {_tx(tx_id)} {verdict}"
            case GroupsForgotten(groups, why):
                return f"FORGOTTEN {' '.join(groups)} ({why.value})"
            case ProducersForgotten(producer_ids):
                return f"FORGOTTEN producers {' '.join(map(str, producer_ids))}"
            case MembershipChanged():
                return f"MEMBERS {record.group}{_change(record)}"
            case PartitionsReleased(group, shares):
                return f"RELEASED {group} {_shares(shares)}"
            case GroupClaimed(group, claim):
                return f"CLAIMED {group} {claim.claim_id}"
            case ClaimsEnded(group, claim_ids):
                return f"UNCLAIMED {group} {' '.join(claim_ids)}"
            case GroupsAlive(groups):
                return f"ALIVE {' '.join(groups)}"
            case TimePassed():
                return ""

    def show_reply(self, reply: Any) -> str:
        match reply:
            case None:
                return "OK"
            case FetchedOffsets(offsets, last_commits):
                shown = [_fetched(offset) for offset in offsets]
                shown += [f"last({producer})={_tx(tx_id)}" for producer, tx_id in last_commits]
                return " ".join(shown) or "nothing"
            case int():
                return f"{reply} dropped"
            case str():
                return f"{reply} removed"
            case Reset(duplicate):
                return "done before" if duplicate else "OK"
            case Claim():
                return "OK"
            case Assigned(member, partitions):
                shown = [_partition(partition) for partition in partitions]
                soon = reply.heartbeat_interval_ms == WAITING_MS
                waits = ", and waits for more" if soon else ""
                return f"generation={member.generation} {' '.join(shown) or 'nothing'}{waits}"
            case GroupDescription():
                return _description(reply)
            case MarkersWritten(results, refusal):
                applied = " ".join(["applied", *(_tx(result.tx_id) for result in results)])
                shown = [applied] if results or refusal is None else []
                shown += [self.show(refusal)] if refusal is not None else []
                return " then ".join(shown)
            case tuple():
                return "; ".join(_summary(group) for group in reply) or "no groups"
        raise AssertionError(f"a reply without words: {reply!r}")

    def show(self, reply: Any) -> str:
        """TxIds in errors in the script's words, without the topic's id."""
        if hasattr(reply, "metadata"):
            metadata = dict(reply.metadata)
            metadata.pop("topic_id", None)
            metadata.pop("group", None)
            if "tx_id" in metadata:
                metadata["tx_id"] = _tx(parse_id(metadata["tx_id"]))
            details = "".join(f" {key}={value}" for key, value in sorted(metadata.items()))
            return f"{reply.reason}{details}"
        return self.show_reply(reply)


def _command(verb: str, words: Sequence[str], options: dict[str, str]) -> object:
    match verb:
        case "commit":
            plain = _parse_steps(words[1:], options)
            return CommitOffsets(
                words[0],
                plain,
                member=_parse_by(options),
                from_metadata=_parse_beside(plain, options),
            )
        case "pend":
            tx_id, producer_id, generation, group, *steps = words
            held = _parse_steps(steps, options)
            return CommitTransactionOffsets(
                _parse_tx(tx_id),
                ProducerId(int(producer_id)),
                Generation(int(generation)),
                group,
                held,
                member=_parse_by(options),
                timeout_ms=int(options.get("timeout", "0")),
                from_metadata=_parse_beside(held, options),
            )
        case "fetch" | "stable":
            return FetchOffsets(
                words[0],
                tuple(_parse_partition(word) for word in words[1:]),
                Read.STABLE if verb == "stable" else Read.LAST_COMMITTED,
                _parse_view(options),
                with_last_commits=verb == "fetch",
            )
        case "markers":
            return WriteMarkers(
                int(words[0]),
                LeaderEpoch(int(words[1])),
                tuple(_parse_marker(word) for word in words[2:]),
            )
        case "groups":
            return ListGroups(tuple(words))
        case "delete":
            return DeleteGroup(words[0])
        case "claim":
            claim = Claim(words[1], f"query {words[1]}", int(options.get("timeout", "10000")))
            return ClaimGroup(words[0], claim)
        case "unclaim":
            return ReleaseGroup(words[0], words[1])
        case "reset":
            moved = _parse_steps(words[2:], options)
            return ResetOffsets(
                words[0],
                words[1].encode(),
                moved,
                "dry" in options,
                from_metadata=_parse_beside(moved, options),
            )
    raise ValueError(f"the offset manager's scripts have no verb {verb!r}")


def _parse_steps(words: Sequence[str], options: dict[str, str]) -> tuple[OffsetCommit, ...]:
    return tuple(_parse_step(word, options) for word in words)


def _parse_step(word: str, options: dict[str, str]) -> OffsetCommit:
    where, step = word.split(":")
    begin, end = step.split(">")
    from_ = {"none": FROM_NONE, "any": FROM_ANY}.get(begin)
    return OffsetCommit(
        _parse_partition(where),
        int(begin) if from_ is None else from_,
        int(end),
        _parse_view(options),
        options.get("metadata", ""),
        _parse_tx(options["after"]) if "after" in options else TxId(0),
    )


def _parse_beside(steps: Sequence[OffsetCommit], options: dict[str, str]) -> dict[PartitionId, str]:
    return {step.partition: options["beside"] for step in steps} if "beside" in options else {}


def _parse_by(options: dict[str, str]) -> MemberIdentity | None:
    if "by" not in options:
        return None
    member, generation = options["by"].split(",")
    return _parse_member(member, int(generation))


def _parse_member(word: str, generation: int) -> MemberIdentity:
    member_id, _, instance_id = word.partition("@")
    return MemberIdentity(generation, member_id, instance_id)


def _listed(words: str | None) -> list[str]:
    return words.split(",") if words else []


def _topic(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"."))


def _parse_view(options: dict[str, str]) -> View:
    return View[options.get("view", "committed").upper()]


def _parse_partition(word: str) -> PartitionId:
    topic, number = word.split("/")
    return PartitionId(_topic(topic), int(number))


def _parse_tx(word: str) -> TxId:
    journal_partition, offset = word.split(".")
    return compose_tx_id(int(journal_partition), int(offset))


def _parse_marker(word: str) -> Marker:
    tx_id, prepare_offset, outcome, producer_id, generation = word.split(":")
    return Marker(
        _parse_tx(tx_id),
        JournalOffset(int(prepare_offset)),
        OUTCOMES[outcome],
        ProducerId(int(producer_id)),
        Generation(int(generation)),
    )


def _tx(tx_id: int) -> str:
    return f"{journal_partition_of(tx_id)}.{journal_offset_of(tx_id)}"


def _partition(partition: PartitionId) -> str:
    return f"{partition.topic_id.rstrip(b'.').decode()}/{partition.number}"


def _change(record: MembershipChanged) -> str:
    shown = [f" +{_member(member)}" for member in record.members]
    for gone in record.gone:
        heir = f" by {gone.successor}" if gone.successor else ""
        shown.append(f" -{gone.member_id} ({gone.how.value}{heir})")
    shown += [f" {topic.name}={topic.partitions}" for topic in record.topics]
    return "".join(shown) + (f", {_shares(record.targets)}" if record.targets else "")


def _member(member: Member) -> str:
    return f"{member.member_id}{'@' if member.instance_id else ''}{member.instance_id}"


def _shares(shares: Sequence[Share]) -> str:
    return " ".join(
        f"{share.member_id or 'nobody'}:"
        + "+".join(_partition(PartitionId(share.topic_id, number)) for number in share.numbers)
        for share in shares
    )


def _description(group: GroupDescription) -> str:
    head = f"{group.group} {group.state.value} generation={group.generation} {group.assignor}"
    members = [
        f"  {one.member_id}{'@' if one.instance_id else ''}{one.instance_id} "
        f"owned={','.join(map(_partition, one.owned)) or 'nothing'} "
        f"target={','.join(map(_partition, one.target)) or 'nothing'} "
        + ("not heard of" if one.silent_ms is None else f"silent for {one.silent_ms} ms")
        for one in group.members
    ]
    claims = [
        f"  {one.claim.holder} keeps members out, "
        + ("not heard of" if one.silent_ms is None else f"silent for {one.silent_ms} ms")
        for one in group.claims
    ]
    return "\n".join([head.rstrip(), *members, *claims])


def _steps(steps: Sequence[OffsetCommit]) -> str:
    return " ".join(_step(step) for step in steps)


def _step(step: OffsetCommit) -> str:
    begin = FROM_WORDS.get(step.from_, str(step.from_))
    after = f"(after {_tx(step.after)})" if step.after else ""
    return f"{_partition(step.partition)}:{begin}>{step.to}{after}"


def _fetched(offset: FetchedOffset) -> str:
    position = "none" if offset.offset is None else str(offset.offset)
    view = "" if offset.view is View.COMMITTED else f"[{offset.view.name.lower()}]"
    metadata = f"({offset.metadata})" if offset.metadata else ""
    pending = f"(pending {_tx(offset.pending_tx_id)})" if offset.pending_tx_id else ""
    return f"{_partition(offset.partition)}={position}{view}{metadata}{pending}"


def _summary(group: GroupSummary) -> str:
    return (
        f"{group.group}: {group.committed_partitions} committed, {group.pending_partitions} pending"
        + (f", {group.members} members, {group.state.value}" if group.members else "")
    )

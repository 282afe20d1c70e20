"""What a history says about records, transactions, producers, groups and consumers: its index.

`Facts` is made in one pass over the operations, in order of invocation; nothing is judged here.
What follows from several facts together is beside it: `outcomes` (what became of a transaction),
`coverage` (what is provably absent), `exposure` (the order in which records became readable).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from oncelog.checker.history import NEVER_US, History, HistoryError, Operation

COMMITTED_VIEW: Final = "committed"
# Isolations of a read, and in which positions they count.
VIEWS: Final = {"committed": COMMITTED_VIEW, "uncommitted": "journal", "raw": "journal"}
COMMITTED: Final = frozenset(name for name, view in VIEWS.items() if view == COMMITTED_VIEW)


class Place(NamedTuple):
    """One partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(slots=True)
class Sent:
    """One record, as it was sent. `order` grows in the order in which its writer sent. `partition`
    None: the client chose, and the history does not say."""

    value: str
    topic: str
    partition: int | None
    writer: int | str
    transaction: Transaction | None
    operation: Operation
    order: tuple[int, int, int]
    # The input that it was made of: (partition, offset).
    source: tuple[Place, int] | None = None
    # Key, value and headers together, bytes; None: the history does not say.
    size: int | None = None


@dataclass(slots=True)
class Seen:
    """One position, as readers saw it: its record, and when the first of them did."""

    place: Place
    offset: int
    value: str
    first_us: int
    line: int
    tx_id: str | None = None


class Conflict(NamedTuple):
    """Two readers, or one, saw two records at one position."""

    view: str
    seen: Seen
    value: str
    line: int


class Marker(NamedTuple):
    """A marker in a partition's journal, as a RAW read gives it."""

    place: Place
    offset: int
    tx_id: str
    outcome: str
    line: int


@dataclass(slots=True)
class Start:
    """Where the committed log of a partition begins, as this operation was told: all before it is
    deleted."""

    place: Place
    offset: int
    operation: Operation

    @property
    def told_us(self) -> int:
        return self.operation.ended_us


@dataclass(slots=True)
class OffsetCommit:
    """A group's step in one partition: from `since` (an offset, "none" or "any") to `to`. `asked`
    is the operation that carried it; with a transaction it takes effect where that commits."""

    group: str
    place: Place
    since: int | str
    # Where the input that it covers begins: `since`, or where a group that had nothing began.
    base: int | None
    to: int
    consumer: str | None
    asked: Operation
    transaction: Transaction | None


@dataclass(slots=True)
class Transaction:
    """All that was asked and told about one transaction. `commits` holds `transact` as well."""

    name: str
    tx_ids: dict[str, int] = field(default_factory=dict)
    producer: str | None = None
    generation: int | None = None
    group: str | None = None
    sends: list[Sent] = field(default_factory=list)
    begins: list[Operation] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    aborts: list[Operation] = field(default_factory=list)
    answers: list[Operation] = field(default_factory=list)
    offsets: list[OffsetCommit] = field(default_factory=list)

    def asked_to_commit(self) -> Operation | None:
        """The first commit that was not refused."""
        return next((commit for commit in self.commits if commit.may_have_applied), None)

    def told_committed(self) -> Operation | None:
        """The first commit that was answered: it committed, and not something before it."""
        for commit in self.commits:
            if commit.is_ok and not commit.results.get("already_committed"):
                return commit
        return None

    def told_visible(self) -> Operation | None:
        """The first answer that says that every participant shows it."""
        for commit in self.commits:
            results = commit.results
            if commit.is_ok and results.get("visible") and not results.get("already_committed"):
                return commit
        for answer in self.answers:
            state = answer.results.get("state")
            if answer.is_ok and state == "committed" and answer.results.get("visible"):
                return answer
        return None

    def writers(self) -> list[int | str] | None:
        """Those whose records the manifest names, in its order; None: all, nothing was named."""
        asked = self.asked_to_commit()
        manifest = None if asked is None else asked.args.get("manifest")
        if manifest is None:
            return None
        return list(dict.fromkeys(part[2] for part in manifest if len(part) > 2))


class Registration(NamedTuple):
    """An `init_producer` that was answered."""

    producer: str
    generation: int
    group: str | None
    instance: str | None
    operation: Operation


class Facts:
    """See the module."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent: dict[str, Sent] = {}
        self.transactions: dict[str, Transaction] = {}
        self.by_tx_id: dict[str, Transaction] = {}
        # Two transactions that were given one TxId.
        self.shared_tx_ids: list[tuple[str, Transaction, Transaction]] = []
        # By view: what readers saw, position by position.
        self.seen: dict[str, dict[Place, dict[int, Seen]]] = {
            view: defaultdict(dict) for view in ("committed", "journal")
        }
        self.conflicts: list[Conflict] = []
        self.markers: list[Marker] = []
        # By producer id, in order of invocation.
        self.registrations: dict[str, list[Registration]] = defaultdict(list)
        self.offset_commits: dict[tuple[str, Place], list[OffsetCommit]] = defaultdict(list)
        self.offset_fetches: list[Operation] = []
        # By consumer, in order of invocation: read, position, seek.
        self.steps: dict[str, list[Operation]] = defaultdict(list)
        self.reads: list[Operation] = []
        # Ends of partitions: (operation, end), by view.
        self.ends: dict[str, dict[Place, list[tuple[Operation, int]]]] = {
            view: defaultdict(list) for view in ("committed", "journal")
        }
        # By partition: where the committed log begins, as somebody was told.
        self.starts: dict[Place, list[Start]] = defaultdict(list)
        # What a topic's retention was made, and truncations: by topic, in order of invocation.
        self.settings: dict[str, list[Operation]] = defaultdict(list)
        self.truncations: dict[str, list[Operation]] = defaultdict(list)
        # Between members of groups and services: heartbeat, take_offsets, remove_member.
        self.of_members: list[Operation] = []
        self.partitions: dict[str, int] = {}
        self.settled_us = [mark.time_us for mark in history.marks if mark.what == "settled"]
        for operation in history.operations:
            try:
                _TAKE[operation.do](self, operation)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                where = " and ".join(history.where(line) for line in operation.lines)
                raise HistoryError(
                    f"line {where}: {operation.do} is not as docs/history_format.md says: {error!r}"
                ) from error
        self._link()

    # --------------------------------------------------------------------------------- looking up

    def transaction_of(self, value: str) -> Transaction | None:
        sent = self.sent.get(value)
        return None if sent is None else sent.transaction

    def positions(self, value: str) -> list[Seen]:
        """Where committed reads found it."""
        return self._positions.get(value, [])

    def places(self, topic: str) -> list[Place]:
        """The partitions of a topic, as far as the history knows."""
        return [Place(topic, number) for number in range(self.partitions.get(topic, 0))]

    # ------------------------------------------------------------------------------------- taking

    def _transaction(self, name: str) -> Transaction:
        found = self.transactions.get(name)
        if found is None:
            found = self.transactions[name] = Transaction(name)
        return found

    def _take_create_topic(self, operation: Operation) -> None:
        self._know(operation.args["topic"], int(operation.results.get("partitions", 0)))
        self._take_alter_topic(operation)

    def _take_alter_topic(self, operation: Operation) -> None:
        if operation.may_have_applied and "configs" in operation.args:
            self.settings[operation.args["topic"]].append(operation)

    def _take_truncate(self, operation: Operation) -> None:
        if operation.may_have_applied:
            self.truncations[operation.args["topic"]].append(operation)
        self._take_starts(operation)

    def _take_starts(self, operation: Operation) -> None:
        """Whatever became of the operation: who is refused is told so, too."""
        for item in operation.results.get("starts", ()):
            self._begins(Place(item["topic"], item["partition"]), item["start"], operation)

    def _begins(self, place: Place, offset: int, operation: Operation) -> None:
        self.starts[place].append(Start(place, offset, operation))

    def _take_produce(self, operation: Operation) -> None:
        self._send(operation, operation.args, None)

    def _take_acknowledge(self, operation: Operation) -> None:
        """Only who acknowledged, and where: I18 looks at it by itself."""

    def _take_init_producer(self, operation: Operation) -> None:
        if operation.is_ok:
            answer = {**operation.args, **operation.results}
            registration = Registration(
                answer["producer"],
                int(answer["generation"]),
                answer.get("group") or answer.get("name"),
                answer.get("instance"),
                operation,
            )
            self.registrations[registration.producer].append(registration)

    def _take_begin(self, operation: Operation) -> None:
        self._of_transaction(operation).begins.append(operation)

    def _take_send(self, operation: Operation) -> None:
        self._send(operation, operation.args, self._transaction(operation.args["tx"]))

    def _take_commit(self, operation: Operation) -> None:
        transaction = self._of_transaction(operation)
        transaction.commits.append(operation)
        for send in operation.args.get("sends", ()):
            self._send(operation, send, transaction)
        for offset in operation.args.get("offsets", ()):
            self._commit_offset(operation, offset, transaction)

    def _take_abort(self, operation: Operation) -> None:
        self._of_transaction(operation).aborts.append(operation)

    def _take_get_transaction(self, operation: Operation) -> None:
        """Linked at the end: its answer may come before the TxId is told."""

    def _take_commit_offsets(self, operation: Operation) -> None:
        name = operation.args.get("tx")
        transaction = None if name is None else self._transaction(name)
        for offset in operation.args["offsets"]:
            self._commit_offset(operation, offset, transaction)

    def _take_fetch_offsets(self, operation: Operation) -> None:
        if operation.is_ok:
            self.offset_fetches.append(operation)

    def _take_step(self, operation: Operation) -> None:
        if operation.is_ok:
            self.steps[operation.args["consumer"]].append(operation)
        for item in operation.results.get("positions", ()):
            if "start" in item and operation.args.get("isolation", COMMITTED_VIEW) in COMMITTED:
                self._begins(Place(item["topic"], item["partition"]), item["start"], operation)

    def _take_read(self, operation: Operation) -> None:
        if operation.args.get("isolation", COMMITTED_VIEW) in COMMITTED:
            self._take_starts(operation)
        if not operation.is_ok:
            return
        if "consumer" in operation.args:
            self.steps[operation.args["consumer"]].append(operation)
        self.reads.append(operation)
        view = VIEWS[operation.args.get("isolation", COMMITTED_VIEW)]
        line, ended_us = operation.end_line, operation.ended_us
        for part in operation.results.get("parts", ()):
            place = Place(part["topic"], part["partition"])
            self._know(place.topic, place.partition + 1)
            known = self.seen[view][place]
            for offset, value, *more in part.get("records", ()):
                before = known.get(offset)
                if before is None:
                    tx_id = more[0] if more else None
                    known[offset] = Seen(place, offset, value, ended_us, line, tx_id)
                elif before.value != value:
                    self.conflicts.append(Conflict(view, before, value, line))
                elif ended_us < before.first_us:
                    before.first_us, before.line = ended_us, line
            for offset, tx_id, outcome in part.get("markers", ()):
                self.markers.append(Marker(place, offset, tx_id, outcome, line))

    def _take_list_offsets(self, operation: Operation) -> None:
        if not operation.is_ok:
            return
        offsets, topic = operation.results["offsets"], operation.args["topic"]
        self._know(topic, len(offsets))
        view = VIEWS[operation.args.get("isolation", COMMITTED_VIEW)]
        if operation.args.get("at", "latest") == "earliest" and view == COMMITTED_VIEW:
            for number, start in enumerate(offsets):
                self._begins(Place(topic, number), start, operation)
        if operation.args.get("at", "latest") != "latest":
            return
        for number, end in enumerate(offsets):
            self.ends[view][Place(topic, number)].append((operation, end))

    def _take_of_members(self, operation: Operation) -> None:
        """Who owned what: `ownership` says what follows."""
        self.of_members.append(operation)

    # ------------------------------------------------------------------------------------- inside

    def _of_transaction(self, operation: Operation) -> Transaction:
        args, results = operation.args, operation.results
        transaction = self._transaction(args["tx"])
        transaction.producer = args.get("producer", transaction.producer)
        transaction.generation = args.get("generation", transaction.generation)
        transaction.group = args.get("group", transaction.group)
        tx_id = results.get("tx_id") or args.get("tx_id")
        if tx_id and tx_id not in transaction.tx_ids:
            transaction.tx_ids[tx_id] = operation.end_line or operation.line
            owner = self.by_tx_id.setdefault(tx_id, transaction)
            if owner is not transaction:
                self.shared_tx_ids.append((tx_id, owner, transaction))
        return transaction

    def _send(
        self, operation: Operation, send: Mapping[str, Any], transaction: Transaction | None
    ) -> None:
        topic, partition = send["topic"], send.get("partition")
        writer, of = send.get("writer", 0), send.get("of")
        source = None if of is None else (Place(of[0], of[1]), int(of[2]))
        sizes = send.get("sizes") or ()
        for index, value in enumerate(send["values"]):
            if value in self.sent:
                raise ValueError(f"the value {value!r} is sent twice: every record has its own id")
            order = (operation.invoked_us, operation.line, index)
            size = sizes[index] if index < len(sizes) else None
            sent = Sent(
                value, topic, partition, writer, transaction, operation, order, source, size
            )
            self.sent[value] = sent
            if transaction is not None and operation.may_have_applied:
                transaction.sends.append(sent)

    def _commit_offset(
        self, operation: Operation, offset: Mapping[str, Any], transaction: Transaction | None
    ) -> None:
        commit = OffsetCommit(
            group=offset.get("group") or operation.args["group"],
            place=Place(offset["topic"], offset["partition"]),
            since=offset.get("from", "any"),
            base=offset.get("base"),
            to=offset["to"],
            consumer=offset.get("consumer"),
            asked=operation,
            transaction=transaction,
        )
        self.offset_commits[commit.group, commit.place].append(commit)
        if transaction is not None:
            transaction.offsets.append(commit)

    def deleted_below(self, place: Place) -> int:
        """The latest start of its committed log that somebody was told."""
        return max((start.offset for start in self.starts.get(place, ())), default=0)

    def _know(self, topic: str, partitions: int) -> None:
        self.partitions[topic] = max(self.partitions.get(topic, 0), partitions)

    def _take_what_services_took(self) -> None:
        """Plain offsets that an application did not commit by itself: a member that begins at the
        end does, one that commits now and then, and operators. Where it did, its own operation says
        more, unless only the service's answer says that they were taken."""
        known = {
            (*key, commit.since, commit.to)
            for key, commits in self.offset_commits.items()
            for commit in commits
            if commit.transaction is None
        }
        for operation in self.of_members:
            is_plain = operation.do == "take_offsets" and operation.args.get("request") is None
            for item in operation.args["offsets"] if is_plain else ():
                key = (operation.args["group"], Place(item["topic"], item["partition"]))
                is_known = (*key, item.get("from", "any"), item["to"]) in known
                if operation.is_ok or (operation.may_have_applied and not is_known):
                    self._commit_offset(operation, item, None)
        for commits in self.offset_commits.values():
            commits.sort(key=lambda commit: (commit.asked.invoked_us, commit.asked.line))

    def _link(self) -> None:
        """What needs all operations: answers by TxId, groups by producer, positions by value."""
        self._take_what_services_took()
        for operation in self.history.operations:
            if operation.do == "get_transaction" and operation.is_ok:
                asked_for = self.by_tx_id.get(operation.args["tx_id"])
                if asked_for is not None:
                    asked_for.answers.append(operation)
        for transaction in self.transactions.values():
            known = self.registrations.get(transaction.producer or "")
            if transaction.group is None and known:
                transaction.group = known[0].group
        self._positions: dict[str, list[Seen]] = defaultdict(list)
        for positions in self.seen[COMMITTED_VIEW].values():
            for seen in positions.values():
                self._positions[seen.value].append(seen)


_TAKE: Final = {
    "create_topic": Facts._take_create_topic,
    "alter_topic": Facts._take_alter_topic,
    "truncate": Facts._take_truncate,
    "produce": Facts._take_produce,
    "acknowledge": Facts._take_acknowledge,
    "init_producer": Facts._take_init_producer,
    "begin": Facts._take_begin,
    "send": Facts._take_send,
    "commit": Facts._take_commit,
    "transact": Facts._take_commit,
    "abort": Facts._take_abort,
    "get_transaction": Facts._take_get_transaction,
    "commit_offsets": Facts._take_commit_offsets,
    "fetch_offsets": Facts._take_fetch_offsets,
    "position": Facts._take_step,
    "seek": Facts._take_step,
    "read": Facts._take_read,
    "list_offsets": Facts._take_list_offsets,
    "heartbeat": Facts._take_of_members,
    "remove_member": Facts._take_of_members,
    "take_offsets": Facts._take_of_members,
}


def lines_of(operations: Iterable[Operation | None]) -> list[int]:
    """Where these are, for a violation."""
    return [line for operation in operations if operation is not None for line in operation.lines]


__all__ = [
    "COMMITTED_VIEW",
    "NEVER_US",
    "Conflict",
    "Facts",
    "Marker",
    "OffsetCommit",
    "Place",
    "Registration",
    "Seen",
    "Sent",
    "Start",
    "Transaction",
    "lines_of",
]

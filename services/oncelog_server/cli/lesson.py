"""What `oncelog quickstart` shows: six steps with a real client at a real cluster, and what each of
them proves. What is printed as seen was read; nothing here knows beforehand what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import oncelog

READ_SECONDS_MAX: Final = 10.0


class Step(NamedTuple):
    """One step, for people and for --json."""

    title: str
    # The program, as the reader would write it.
    code: str
    # What was read, by what it is called.
    seen: Sequence[tuple[str, str]]
    # What follows from it.
    lesson: str


class CardRefused(Exception):
    """What goes wrong in the program of the lesson."""


def steps(log: oncelog.Log) -> Iterator[Step]:
    """Each as it was done."""
    yield _topics(log)
    yield _commit(log)
    yield _abort(log)
    yield _crash(log)
    yield _again(log)
    yield _where(log)


def _topics(log: oncelog.Log) -> Step:
    for name, partitions in (("payments", 2), ("receipts", 1)):
        log.admin.create_topic(name, partitions=partitions)
    made = log.admin.topics()
    return Step(
        "Two topics",
        'log.admin.create_topic("payments", partitions=2)\n'
        'log.admin.create_topic("receipts", partitions=1)',
        [(topic.name, f"{len(topic.partitions)} partitions, each led") for topic in made],
        "A topic is a set of partitions; a partition is a log, durable on disk before anything is "
        "acknowledged.",
    )


def _commit(log: oncelog.Log) -> Step:
    producer = log.transactional_producer()
    with producer.transaction(wait="visible") as tx:
        for who, amount in ((b"alice", b"10"), (b"bob", b"20"), (b"carol", b"30")):
            tx.send("payments", amount, key=who)
        # Else so little would travel with the commit, and nobody could see it before.
        tx.flush()
        before = read(log, "payments")
        raw = read(log, "payments", isolation="uncommitted")
    after = read(log, "payments")
    return Step(
        "Three payments to two partitions, in one transaction",
        "with producer.transaction() as tx:\n"
        '    tx.send("payments", b"10", key=b"alice")\n'
        '    tx.send("payments", b"20", key=b"bob")\n'
        '    tx.send("payments", b"30", key=b"carol")\n'
        "                                       # here its block ends: it commits",
        [
            ("a reader, before it commits", before),
            ("one who asks for uncommitted records, too", raw),
            ("a reader, after it commits", after),
        ],
        "Readers see a transaction whole or not at all, in every partition. An open one holds back "
        "nobody.",
    )


def _abort(log: oncelog.Log) -> Step:
    producer = log.transactional_producer()
    try:
        with producer.transaction() as tx:
            tx.send("payments", b"1000000", key=b"mallory")
            tx.flush()
            raw = read(log, "payments", isolation="uncommitted")
            raise CardRefused("card refused")
    except CardRefused as error:
        raised = str(error)
    return Step(
        "A payment that fails half way",
        "with producer.transaction() as tx:\n"
        '    tx.send("payments", b"1000000", key=b"mallory")\n'
        '    raise CardRefused("card refused")',
        [
            ("uncommitted, before it fails", raw),
            ("the program", f"hears its own exception: {raised}"),
            ("a reader", read(log, "payments")),
        ],
        "An exception aborts. No reader is ever shown any of it, though it lay in the log already.",
    )


_CASHIER: Final = (
    'consumer = log.consumer(["payments"], group="cashier")\n'
    "with producer.transaction(consumer) as tx:\n"
    "    for payment in all_that_waits(consumer):\n"
    '        tx.send("receipts", b"paid " + payment.value, key=payment.key)'
)


def _crash(log: oncelog.Log) -> Step:
    def failing(number: int) -> None:
        if number == 2:
            raise CardRefused("trips over the second payment")

    try:
        _cashier(log, failing)
    except CardRefused as error:
        raised = str(error)
    return Step(
        "A cashier turns payments into receipts, and crashes half way",
        f"{_CASHIER}\n        ...                            # and trips over the second one",
        [("the program", raised), ("receipts", read(log, "receipts")), ("its group", _group(log))],
        "The receipts and the group's positions are one transaction: neither moved.",
    )


def _again(log: oncelog.Log) -> Step:
    _cashier(log, lambda number: None)
    once = read(log, "receipts")
    _cashier(log, lambda number: None)
    return Step(
        "It starts again, and once more to be sure",
        _CASHIER,
        [
            ("receipts, after it started again", once),
            ("receipts, after it started once more", read(log, "receipts")),
            ("its group", _group(log)),
        ],
        "Each payment has one receipt, whatever crashed in between: exactly once.",
    )


def _where(log: oncelog.Log) -> Step:
    ends = log.admin.offsets("payments")
    journal = log.admin.offsets("payments", isolation="uncommitted")
    return Step(
        "What is on disk",
        'log.admin.offsets("payments")                             # committed, dense\n'
        'log.admin.offsets("payments", isolation="uncommitted")    # the journal',
        [
            ("committed records", " + ".join(map(str, ends))),
            ("positions of the journals", " + ".join(map(str, journal))),
        ],
        "The journal holds all that arrived, with markers that say what became of it. Readers are "
        "given the committed log: in commit order, its offsets without gaps.",
    )


def _cashier(log: oncelog.Log, on_payment: Callable[[int], None]) -> None:
    """Makes a receipt of each payment that waits. `on_payment` is told its number."""
    producer = log.transactional_producer("cashier")
    with (
        log.consumer(["payments"], group="cashier") as consumer,
        producer.transaction(consumer, wait="visible") as tx,
    ):
        for number, payment in enumerate(_all_that_waits(consumer), start=1):
            tx.send("receipts", b"paid " + (payment.value or b""), key=payment.key)
            on_payment(number)


def _all_that_waits(consumer: oncelog.Consumer) -> Iterator[oncelog.Record]:
    while any(consumer.position(*p) < consumer.end_offset(*p) for p in consumer.assignment):
        yield from consumer.poll(READ_SECONDS_MAX) or ()


def _group(log: oncelog.Log) -> str:
    places = log.admin.group_offsets("cashier")
    if not places:
        return "has committed nothing"
    return f"has {sum(place.lag or 0 for place in places)} payments waiting"


def read(log: oncelog.Log, topic: str, *, isolation: str = "committed") -> str:
    """All that there is, as `key value` with commas between."""
    with log.consumer([topic], isolation=isolation) as consumer:
        found: list[str] = []
        ends = log.admin.offsets(topic, isolation=isolation)
        places = sorted(place for place in consumer.assignment if ends[place.partition])
        while places and any(consumer.position(*p) < ends[p.partition] for p in places):
            batch = consumer.poll(READ_SECONDS_MAX)
            if batch is None:
                # Control records end a journal: nothing more is given.
                break
            found += [
                f"{(record.key or b'').decode()} {(record.value or b'').decode()}"
                for record in batch
            ]
    return ", ".join(sorted(found)) or "nothing"

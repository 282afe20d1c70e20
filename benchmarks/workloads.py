"""All workloads, as one table: what is measured in which shape, and what it should reach. A line
here is all that another shape of a workload needs.

`ours.py` and `kafka.py` have one function for each kind, with the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks import ours
from benchmarks.measure import Result, Shape, Task
from benchmarks.ours import Cluster

KIB: Final = 1024


class Aim(NamedTuple):
    """A figure to reach: of Kafka's with its defaults, or of the workload that `ratio_to` names."""

    unit: str
    of: str
    reach: float


class Workload(NamedTuple):
    """What one line of the table says."""

    # W1 to W8: which question it belongs to.
    group: str
    name: str
    ours: Callable[[Cluster, Task], Result]
    # Function of kafka.py; "" where Kafka has no such thing.
    kafka: str
    shape: Shape
    # The workload whose figures it is shown as a ratio of.
    ratio_to: str = ""
    aims: tuple[Aim, ...] = ()
    # Whether this client can do it.
    possible: Callable[[], bool] = lambda: True


OF_KAFKA: Final = "kafka"
OF_OWN: Final = "own"
RATE: Final = "records_per_s"


def _reaches(reach: float, unit: str = RATE, of: str = OF_KAFKA) -> Aim:
    return Aim(unit, of, reach)


TABLE: Final[tuple[Workload, ...]] = (
    # One `send` a record, acknowledged at the end.
    Workload("W1", "plain-100", ours.plain, "plain", Shape(), "", (_reaches(1.4),)),
    Workload("W1", "plain-100-6p", ours.plain, "plain", Shape(partitions=6), "plain-100"),
    Workload("W1", "keys-100", ours.plain, "plain", Shape(keys=1000), "", (_reaches(1.4),)),
    Workload("W1", "keys-100-6p", ours.plain, "plain", Shape(keys=1000, partitions=6), "keys-100"),
    Workload("W1", "plain-1k", ours.plain, "plain", Shape(KIB), "", (_reaches(1.1),)),
    Workload("W1", "plain-1k-6p", ours.plain, "plain", Shape(KIB, 6), "plain-1k"),
    Workload("W1", "arrow-100", ours.arrow, "", Shape(arrow=True), "plain-100"),
    # The same within transactions: of so many ms, of so many records.
    *(
        Workload(
            "W2",
            f"every-{ms}ms{'-flight' * (in_flight > 1)}",
            ours.transactions,
            "transactions",
            Shape(every_ms=ms, in_flight=in_flight),
            "plain-100",
            (_reaches(reach, RATE, OF_OWN),),
            possible=ours.has_in_flight,
        )
        for in_flight in (1, 4)
        for ms, reach in ((10, 0.9), (100, 0.98), (1000, 0.99))
    ),
    Workload(
        "W2",
        "every-100ms-1k",
        ours.transactions,
        "transactions",
        Shape(KIB, every_ms=100),
        "plain-1k",
    ),
    *(
        Workload("W2", f"of-{count}", ours.transactions, "transactions", Shape(records=count))
        for count in (1, 10, 75, 750, 7_500)
    ),
    Workload("W2", "of-750-1k", ours.transactions, "transactions", Shape(KIB, records=750)),
    Workload(
        "W2", "of-750-6p", ours.transactions, "transactions", Shape(partitions=6, records=750)
    ),
    # One record in a transaction, one client.
    Workload(
        "W3",
        "one-record",
        ours.one_record,
        "one_record",
        Shape(),
        "",
        (_reaches(0.6, "p50_ms"), _reaches(0.2, "p99_ms")),
    ),
    Workload("W3", "one-record-1k", ours.one_record, "one_record", Shape(KIB), "one-record"),
    Workload(
        "W3",
        "flushed",
        ours.one_record,
        "one_record",
        Shape(flushed=True),
        "one-record",
        (_reaches(1.1, "p50_ms"),),
    ),
    # Read, send, offsets, commit.
    Workload("W4", "pipeline-75", ours.pipeline, "pipeline", Shape(records=75)),
    Workload(
        "W4", "pipeline-750", ours.pipeline, "pipeline", Shape(records=750), "", (_reaches(1.8),)
    ),
    Workload(
        "W4", "pipeline-7500", ours.pipeline, "pipeline", Shape(records=7_500), "", (_reaches(2.5),)
    ),
    Workload("W4", "pipeline-750-6p", ours.pipeline, "pipeline", Shape(partitions=6, records=750)),
    Workload(
        "W4", "pipeline-7500-arrow", ours.pipeline, "pipeline", Shape(records=7_500, arrow=True)
    ),
    *(
        Workload(
            "W4",
            f"pipeline-{count}{'-arrow' * arrow}-flight",
            ours.pipeline_in_flight,
            "pipeline",
            Shape(records=count, arrow=arrow, in_flight=8),
            f"pipeline-{count}{'-arrow' * arrow}",
            possible=ours.has_in_flight,
        )
        for count, arrow in ((750, False), (7_500, False), (7_500, True))
    ),
    # So many producers, each with a record for each of four partitions.
    *(
        Workload(
            "W5",
            f"producers-{count}-in-{processes}",
            ours.many_producers,
            "many_producers",
            Shape(partitions=4, producers=count, processes=processes),
            aims=(_reaches(1.8, "tx_per_s"),) if (count, processes) == (64, 1) else (),
        )
        for count, processes in ((1, 1), (8, 1), (64, 1), (8, 4), (64, 4))
    ),
    # Committed reads, from the front, from the page cache.
    Workload("W6", "read-100", ours.read, "read", Shape(arrow=True), "", (_reaches(5),)),
    Workload("W6", "read-100-objects", ours.read, "read", Shape(), "", (_reaches(2.2),)),
    Workload("W6", "read-100-6p", ours.read, "read", Shape(arrow=True, partitions=6), "read-100"),
    Workload("W6", "read-1k", ours.read, "read", Shape(KIB, arrow=True), "", (_reaches(1.3),)),
    Workload("W6", "read-1k-objects", ours.read, "read", Shape(KIB)),
    # One plain record, from `send` to the reader.
    Workload(
        "W7",
        "end-to-end",
        ours.end_to_end,
        "end_to_end",
        Shape(),
        "",
        (_reaches(3, "p50_ms"), _reaches(0.9, "p99_ms")),
    ),
    Workload("W7", "end-to-end-1k", ours.end_to_end, "end_to_end", Shape(KIB), "end-to-end"),
    # The same while a transaction stays open there. Kafka's readers would wait for its end.
    Workload(
        "W8",
        "beside-open",
        ours.end_to_end,
        "",
        Shape(beside_open=True),
        "end-to-end",
        (_reaches(1.1, "p50_ms", OF_OWN),),
    ),
)
WORKLOADS: Final = {workload.name: workload for workload in TABLE}
assert len(WORKLOADS) == len(TABLE), "two workloads have one name"

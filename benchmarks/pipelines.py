"""`python -m benchmarks.pipelines [--seconds 5] [--rounds 3] [--records 750]`: read, send, offsets,
commit, with 1, 4 and 16 transactions in flight, record by record and as Arrow tables.

Real processes on this machine (`oncelog up`: etcd and three roles), everything synced. All ways
take turns round by round, over one topic that is filled before, each in a group of its own, so that
what else the machine does meets all of them. A round lasts so many seconds; the first one warms up
and is not counted. Figures: median records a second, and the ratio to the same way with one in
flight.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from oncelog_spark.jobs.local_cluster import local_cluster

IN_FLIGHT: Final = (1, 4, 16)
VALUE: Final = b"v" * 100
# Records that are written before a round, for all ways together; whoever is through begins anew.
FILL: Final = 200_000
POLL_S: Final = 10.0


class Way(NamedTuple):
    """How the loop is made."""

    in_flight: int
    arrow: bool

    def __str__(self) -> str:
        return f"{'arrow' if self.arrow else 'records'}, {self.in_flight} in flight"


WAYS: Final = [Way(in_flight, arrow) for arrow in (False, True) for in_flight in IN_FLIGHT]


def copy_records(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
    for record in batch.records():
        tx.send("out", record.value, record.key)


def copy_table(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
    tx.send_arrow("out", batch.table.select(["key", "value"]))


def rate(log: oncelog.Log, way: Way, group: str, seconds: float, records: int) -> float:
    """Records a second, all of them committed."""
    step = copy_table if way.arrow else copy_records
    done = 0
    with (
        log.transactional_producer(in_flight=way.in_flight) as producer,
        log.consumer(["in"], group=group, batch_records_max=records) as consumer,
    ):
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            batch = consumer.poll(POLL_S)
            if batch is None or len(batch) < records // 2:
                # The end of the topic: from the front.
                producer.flush()
                consumer.seek_to_beginning()
                continue
            with producer.transaction(consumer) as tx:
                step(batch, tx)
            done += len(batch)
        producer.flush()
        return done / (time.perf_counter() - began)


def measure(log: oncelog.Log, seconds: float, rounds: int, records: int) -> dict[str, list[float]]:
    for topic in ("in", "out"):
        log.admin.create_topic(topic, partitions=1)
    with log.producer() as producer:
        for _ in range(FILL):
            producer.send("in", VALUE, partition=0)
    found: dict[str, list[float]] = {str(way): [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            group = f"{way.in_flight}-{way.arrow}-{number}"
            figure = rate(log, way, group, seconds if number else seconds / 2, records)
            if number:
                found[str(way)].append(figure)
            click.echo(f"  round {number} {way}: {figure:,.0f} records/s", err=True)
    return found


def table(found: dict[str, list[float]]) -> list[tuple[Any, ...]]:
    medians = {name: statistics.median(figures) for name, figures in found.items()}
    return [
        (name, f"{median:,.0f}", f"{median / medians[str(Way(1, name.startswith('arrow')))]:.2f}")
        for name, median in medians.items()
    ]


@click.command(help=__doc__)
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--records", default=750, show_default=True, help="Of a transaction, at most.")
def main(seconds: float, rounds: int, records: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="oncelog-pipelines-") as folder,
        local_cluster(Path(folder)) as bootstrap,
        oncelog.connect(bootstrap) as log,
    ):
        for name, median, ratio in table(measure(log, seconds, rounds, records)):
            click.echo(f"| {name} | {median} | {ratio} |")


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()

"""`oncelog-spark`: runs a function from topic to topic, as a stream or as a backfill.

    oncelog-spark run --transform shouting:shout --from words --to loud --name shouting
    oncelog-spark backfill --transform shouting:shout --from words --to loud --txn-id 2013-01

Exit code 0: done. 1: the query failed. 2: what was asked for cannot run, and it says why.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

try:
    import click
except ModuleNotFoundError:
    sys.exit("oncelog-spark needs more than the connector: pip install 'oncelog-spark[jobs]'")

from oncelog_spark.jobs.java import JavaMissing
from oncelog_spark.jobs.transform_job import (
    Job,
    JobRefused,
    Summary,
    batch_of,
    find_function,
    run_batch,
    run_stream,
    session,
    stream_of,
)
from oncelog_spark.options import OptionError, cluster_option

FAILED: Final = 1
CANNOT_RUN: Final = 2
INTERRUPTED: Final = 130

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Functions from topic to topic, on Spark, exactly once.

    A function takes a DataFrame with the columns key, value, topic, partition, offset, timestamp,
    and gives one with `value`, and if you like key, topic, partition, timestamp and headers.
    """


def _common(command: F) -> F:
    """Options of both commands."""
    for option in reversed(
        (
            click.option("--transform", required=True, metavar="MODULE:FUNCTION"),
            click.option(
                "--from", "topics", required=True, metavar="TOPICS", help="Topics, comma between."
            ),
            click.option(
                "--to", metavar="TOPIC", help="Where to; else the function gives a column `topic`."
            ),
            click.option(
                "--bootstrap",
                default="localhost:7400",
                show_default=True,
                envvar="ONCELOG_BOOTSTRAP",
                help="host:port of any processes of the cluster, comma between.",
            ),
            click.option(
                "--option",
                "options",
                multiple=True,
                metavar="NAME=VALUE",
                help="Of source and sink, e.g. oncelog.tls.ca=/etc/ca.pem. Repeatable.",
            ),
            click.option(
                "--starting",
                default="earliest",
                show_default=True,
                metavar="OFFSETS",
                help='earliest, latest, or JSON like {"topic": {"0": 5}}.',
            ),
            click.option(
                "--master", help="Of Spark, e.g. local[4]. Else spark-submit's, or local[*]."
            ),
            click.option(
                "--dry-run", is_flag=True, help="Shows Spark's plan and the names. Writes nothing."
            ),
        )
    ):
        command = option(command)
    return command


@main.command()
@_common
@click.option(
    "--name",
    help="Of the query, and so of its producer, its group and its checkpoint. "
    "Default: the function's.",
)
@click.option("--checkpoint", metavar="DIR", help="Default: checkpoints/NAME, here.")
@click.option("--once", is_flag=True, help="Ends when it is through with what is there now.")
@click.option("--max-offsets", type=click.IntRange(min=1), help="Of one micro-batch.")
def run(
    transform: str,
    topics: str,
    to: str | None,
    name: str | None,
    checkpoint: str | None,
    once: bool,
    max_offsets: int | None,
    **common: Any,
) -> None:
    """Runs a stream, until it is stopped or, with --once, through.

    Records and positions commit together, in one transaction per micro-batch.
    """
    name = name or transform.replace(":", ".")
    checkpoint = checkpoint or str(Path("checkpoints", name).absolute())

    def work(job: Job, spark: Any) -> Summary | None:
        frame = stream_of(spark, job)
        if common["dry_run"]:
            _show(job, frame, f"checkpoint {checkpoint}")
            return None
        click.echo(f"{name}: {job.topics} to {job.to or 'the topics of its column'}", err=True)
        return run_stream(frame, job, checkpoint, once=once)

    _do(name, transform, topics, to, work, common, max_offsets=max_offsets)


@main.command()
@_common
@click.option("--name", help="Of the producer. Default: the function's.")
@click.option(
    "--txn-id", required=True, help="Which backfill it is: one that is run again writes nothing."
)
@click.option("--ending", default="latest", show_default=True, metavar="OFFSETS")
def backfill(
    transform: str,
    topics: str,
    to: str | None,
    name: str | None,
    txn_id: str,
    ending: str,
    **common: Any,
) -> None:
    """Runs a batch over what is there, as one transaction."""
    name = name or transform.replace(":", ".") + ".backfill"

    def work(job: Job, spark: Any) -> Summary | None:
        frame = batch_of(spark, job)
        if common["dry_run"]:
            _show(job, frame, f"transaction {txn_id}")
            return None
        return run_batch(frame, job, txn_id)

    _do(name, transform, topics, to, work, common, ending=ending)


def _do(
    name: str,
    transform: str,
    topics: str,
    to: str | None,
    work: Callable[[Job, Any], Summary | None],
    common: dict[str, Any],
    **more: Any,
) -> None:
    """Makes the job and its session, and tells what came of it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster = {"bootstrap": common["bootstrap"], **_options(common["options"])}
        cluster_option(cluster)
        function = find_function(transform)
        job = Job(name, topics, to, cluster, function, starting=common["starting"], **more)
        with (
            tempfile.TemporaryDirectory(prefix="oncelog-spark-") as folder,
            session(name, common["master"], Path(folder)) as spark,
        ):
            summary = work(job, spark)
    except (JobRefused, OptionError, JavaMissing) as error:
        click.echo(f"oncelog-spark: {error}", err=True)
        sys.exit(CANNOT_RUN)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        click.echo(f"oncelog-spark: {name} failed: {_first_lines(error)}", err=True)
        sys.exit(FAILED)
    if summary is not None:
        click.echo(summary.line(name))


def _options(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [option.partition("=") for option in given]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise JobRefused(f"--option is NAME=VALUE, not {name!r}")
    return {name: value for name, _, value in pairs}


def _show(job: Job, frame: Any, what: str) -> None:
    click.echo(f"{job.name}: from {job.topics} to {job.to or 'the topics of its column'}, {what}")
    click.echo(f"group and producer: {job.name}; begins at: {job.starting}, or where it stands")
    frame.printSchema()
    frame.explain()


def _first_lines(error: Exception) -> str:
    """Spark's errors carry pages of Java."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.lstrip().startswith(("at ", "...", "JVM "))]
    return "\n".join(kept[:12]) or type(error).__name__


if __name__ == "__main__":
    main()

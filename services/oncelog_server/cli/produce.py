"""`oncelog produce`: lines of text, JSON or base64 become records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

import click

from oncelog_server.cli import lines, names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.formats import parse_escapes
from oncelog_server.cli.lines import BadLine, Headers, Parse, Record
from oncelog_server.cli.output import error_console, print_json
from oncelog_server.cli.session import Session, connected
from oncelog_server.cli.times import parse_time

# Records between two looks at the progress bar.
PROGRESS_EVERY: Final = 1_000


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after so many records."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count


class Sender(Protocol):
    """A producer, or an open transaction of one."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = ...,
        headers: Any = ...,
        partition: int | None = ...,
        timestamp_us: int | None = ...,
    ) -> Any: ...


class Plain(Sender, Protocol):
    """A producer."""

    def flush(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Input:
    """What is read, and what each record gets that does not say it itself."""

    topic: str
    source: IO[bytes]
    delimiter: bytes
    parse: Parse
    # Empty lines are none.
    skips_blank: bool
    key: bytes | None
    headers: Headers
    # Where all records go; None: by their key.
    partition: int | None
    # Those that say a partition go there.
    keep_partitions: bool
    timestamp_us: int | None


@click.command(
    epilog=examples(
        "printf 'alice:10\\nbob:20\\n' | oncelog produce payments --key-separator :",
        "oncelog produce payments --file day.txt --transactional --name loader",
        "oncelog produce payments --header source=shop --timestamp 2026-01-31T12:00:00Z",
        "oncelog consume payments --json | oncelog produce copy --format json --transactional",
        "base64 -w0 photo.jpg | oncelog produce photos --key p1 --base64",
    )
)
@click.argument("topic", shell_complete=names.topics)
@click.option("--file", "source", type=click.File("rb"), default="-", help="Default: stdin.")
@click.option(
    "--format",
    "form",
    type=click.Choice(lines.FORMATS),
    help="What a line is. Default: value; with --key-separator key-value. json: an object with "
    "key, value, headers, timestamp, as `oncelog consume --json` prints it.",
)
@click.option(
    "--key-separator", metavar="TEXT", help=r"Between key and value. Default of key-value: \t."
)
@click.option("--base64", "as_base64", is_flag=True, help="Keys and values are base64.")
@click.option(
    "--delimiter", metavar="TEXT", default="\\n", show_default=True, help=r"Between records: \0."
)
@click.option("--key", metavar="TEXT", help="Of every record that has none.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Of every record. Repeatable."
)
@click.option("--timestamp", metavar="TIME", help="Of every record that has none. Default: now.")
@click.option("--partition", type=click.IntRange(0), help="Of every record. Default: by its key.")
@click.option("--keep-partitions", is_flag=True, help="With json: where each record says.")
@click.option("--transactional", is_flag=True, help="All records in one transaction, or none.")
@click.option("--name", help="The producer's name: a second one of that name fences the first.")
@connected
def produce(session: Session, /, transactional: bool, name: str | None, **options: Any) -> None:
    """Append each line as a record.

    A line that is none is refused. With --transactional readers see all records or none: nothing of
    it, when it fails or is interrupted.

    TIME is like 2026-01-31T12:00:00Z (UTC where no zone is named), or 15m: so long ago.
    """
    if name and not transactional:
        raise click.UsageError("--name is for --transactional: plain producers have no name.")
    given = _input(**options)
    # So that a missing topic is told before the first line is read.
    described = session.topic(given.topic)
    if given.partition is not None and given.partition >= len(described.partitions):
        raise click.UsageError(
            f"Topic {given.topic} has {len(described.partitions)} partitions, no {given.partition}."
        )
    with session.connect() as log, _progress(given.source) as advance:
        if transactional:
            with (
                log.transactional_producer(
                    name, delivery_timeout_ms=session.timeout_ms
                ) as producer,
                producer.transaction() as tx,
            ):
                count = _send_all(tx, given, advance)
        else:
            with log.producer(delivery_timeout_ms=session.timeout_ms) as plain:
                count = _send_plain(session, plain, given, advance)
    if session.as_json:
        print_json({"topic": given.topic, "records": count, "transactional": transactional})
    else:
        where = " in one transaction" if transactional else ""
        click.echo(f"{count} records to {given.topic}{where}")


def _input(
    *,
    topic: str,
    source: IO[bytes],
    form: str | None,
    key_separator: str | None,
    as_base64: bool,
    delimiter: str,
    key: str | None,
    headers: tuple[str, ...],
    timestamp: str | None,
    partition: int | None,
    keep_partitions: bool,
) -> Input:
    """Raises UsageError."""
    form = form or ("value" if key_separator is None else "key-value")
    if key_separator is not None and form != "key-value":
        raise click.UsageError(f"--key-separator is for key-value, not for {form}.")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty: nothing would be the key.")
    if form == "json" and as_base64:
        raise click.UsageError("--base64 is for lines; in json say key_base64 and value_base64.")
    if keep_partitions and (form != "json" or partition is not None):
        raise click.UsageError("--keep-partitions is for --format json, without --partition.")
    separator = os.fsencode(key_separator or lines.DEFAULT_SEPARATOR)
    ends = parse_escapes(delimiter)
    if not ends:
        raise click.UsageError("--delimiter is empty: all would be one record.")
    return Input(
        topic=topic,
        source=source,
        delimiter=ends,
        parse=lines.parser(form, separator, as_base64=as_base64),
        skips_blank=form == "json",
        key=None if key is None else os.fsencode(key),
        headers=lines.parse_headers(headers),
        partition=partition,
        keep_partitions=keep_partitions,
        timestamp_us=_timestamp_us(timestamp),
    )


def _timestamp_us(timestamp: str | None) -> int | None:
    if timestamp is None:
        return None
    try:
        return parse_time(timestamp, now_us=time.time_ns() // 1000)
    except ValueError:
        raise click.UsageError(
            f"--timestamp {timestamp!r} is no time like 2026-01-31T12:00:00Z, nor 15m."
        ) from None


def _send_plain(session: Session, sender: Plain, given: Input, advance: Any) -> int:
    """Says of a line that is refused, and at an interrupt, what became of those before it."""
    try:
        return _send_all(sender, given, advance)
    except BadLine as error:
        before = f"{error.before} lines before it are appended"
        raise BadLine(f"{error.message}; {before}", error.before) from None
    except Interrupted as interrupted:
        sender.flush()
        session.say(f"interrupted: the first {interrupted.count} lines are appended")
        raise


def _send_all(sender: Sender, given: Input, advance: Any) -> int:
    count = size = number = 0
    try:
        pieces = lines.pieces(given.source, given.delimiter)
        for number, (piece, taken) in enumerate(pieces, start=1):
            if given.skips_blank and not piece.strip():
                continue
            try:
                record = given.parse(piece)
            except ValueError as error:
                raise BadLine(f"line {number} {error}", count) from None
            sender.send(given.topic, **_whole(record, given))
            count += 1
            size += taken
            if count % PROGRESS_EVERY == 0:
                advance(size)
                size = 0
    except lines.EndlessPiece as error:
        raise BadLine(f"line {number + 1} {error}", count) from None
    except KeyboardInterrupt:
        raise Interrupted(count) from None
    advance(size)
    return count


def _whole(record: Record, given: Input) -> Mapping[str, Any]:
    """With what the command line says of every record."""
    said = record.timestamp_us
    return {
        "value": record.value,
        "key": given.key if record.key is None else record.key,
        "headers": [*given.headers, *record.headers] or None,
        "partition": record.partition if given.keep_partitions else given.partition,
        "timestamp_us": given.timestamp_us if said is None else said,
    }


@contextmanager
def _progress(source: IO[bytes]) -> Iterator[Any]:
    """A bar on long input, where people look; gives what to call with bytes done."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = error_console()
    bar = Progress(
        TextColumn("producing"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("producing", total=_size(source))
        yield lambda size: bar.advance(task, size)


def _size(source: IO[bytes]) -> int | None:
    """None for what is no file."""
    try:
        status = os.fstat(source.fileno())
    except OSError:
        return None
    return status.st_size or None

"""`oncelog produce`: lines of text become records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, Protocol

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import error_console, print_json
from oncelog_server.cli.session import Session, connected

# Lines between two looks at the progress bar.
PROGRESS_EVERY_LINES: Final = 1_000


class BadLine(click.UsageError):
    """A line of the input that is no record."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after so many lines."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count


class Sender(Protocol):
    """A producer, or an open transaction of one."""

    def send(self, topic: str, value: bytes | None, key: bytes | None = ...) -> object: ...


class Plain(Sender, Protocol):
    """A producer."""

    def flush(self) -> None: ...


@click.command(
    epilog=examples(
        "printf 'alice:10\\nbob:20\\n' | oncelog produce payments --key-separator :",
        "oncelog produce payments --file payments.txt --transactional",
        "oncelog produce payments --file day.txt --transactional --name loader",
    )
)
@click.argument("topic")
@click.option("--file", "source", type=click.File("rb"), default="-", help="Default: stdin.")
@click.option("--key-separator", metavar="TEXT", help="What stands between key and value.")
@click.option("--transactional", is_flag=True, help="All lines in one transaction, or none.")
@click.option("--name", help="The producer's name: a second one of that name fences the first.")
@connected
def produce(
    session: Session,
    topic: str,
    source: IO[bytes],
    key_separator: str | None,
    transactional: bool,
    name: str | None,
) -> None:
    """Append each line as a record.

    A line without the key separator is refused. With --transactional readers see all lines or none:
    nothing of it, when it fails or is interrupted.
    """
    if name and not transactional:
        raise click.UsageError("--name is for --transactional: plain producers have no name.")
    # As it was typed, in whatever encoding.
    separator = os.fsencode(key_separator) if key_separator else None
    # So that a missing topic is told before the first line is read.
    session.topic(topic)
    with session.connect() as log, _progress(source) as advance:
        if transactional:
            with (
                log.transactional_producer(
                    name, delivery_timeout_ms=session.timeout_ms
                ) as producer,
                producer.transaction() as tx,
            ):
                count = _send_all(tx, topic, source, separator, advance)
        else:
            with log.producer(delivery_timeout_ms=session.timeout_ms) as plain:
                count = _send_plain(session, plain, topic, source, separator, advance)
    if session.as_json:
        print_json({"topic": topic, "records": count, "transactional": transactional})
    else:
        click.echo(f"{count} records to {topic}{' in one transaction' if transactional else ''}")


def _send_plain(
    session: Session,
    sender: Plain,
    topic: str,
    source: IO[bytes],
    separator: bytes | None,
    advance: Any,
) -> int:
    """Says of a line that is refused, and at an interrupt, what became of those before it."""
    try:
        return _send_all(sender, topic, source, separator, advance)
    except BadLine as error:
        before = f"{error.number - 1} lines before it are appended"
        raise BadLine(f"{error.message}; {before}", error.number) from None
    except Interrupted as interrupted:
        sender.flush()
        session.say(f"interrupted: the first {interrupted.count} lines are appended")
        raise


def _send_all(
    sender: Sender, topic: str, source: IO[bytes], separator: bytes | None, advance: Any
) -> int:
    count = size = 0
    try:
        for line in source:
            key, value = split_line(line, separator, number=count + 1)
            sender.send(topic, value=value, key=key)
            count += 1
            size += len(line)
            if count % PROGRESS_EVERY_LINES == 0:
                advance(size)
                size = 0
    except KeyboardInterrupt:
        raise Interrupted(count) from None
    advance(size)
    return count


def split_line(line: bytes, separator: bytes | None, *, number: int) -> tuple[bytes | None, bytes]:
    """Key and value, without the line's end. Raises BadLine where there is no separator."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if separator is None:
        return None, text
    key, found, value = text.partition(separator)
    if not found:
        shown = separator.decode(errors="backslashreplace")
        raise BadLine(f"line {number} has no key: {shown!r} does not stand in it", number)
    return key, value


@contextmanager
def _progress(source: IO[bytes]) -> Iterator[Any]:
    """A bar on long input, where people look; gives what to call with bytes done."""
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

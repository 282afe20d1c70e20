"""What commands print: tables for people, JSON for scripts, and the words for ids and times.

With `--json` a command prints one JSON value, or one per line where it streams. Ids are strings,
for JSON numbers end at 2^53. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog_server.core.printable import printable_lines

# Rich is imported where it is used: a command's help needs nothing of it.
if TYPE_CHECKING:
    from rich.console import Console

# Width of tables that go into a pipe: wide enough never to fold a cell.
PIPE_WIDTH: Final = 400
# A table of more rows has no colours and folds nothing: styled, a row takes a quarter of a
# millisecond, and a listing may have tens of thousands.
STYLED_ROWS_MAX: Final = 1_000
# Names that one line quotes.
FEW: Final = 5
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def console() -> Console:
    """Where people read. Made per use, so that a redirected stdout is found."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def error_console() -> Console:
    """Where people read what went wrong, and progress."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    click.echo(json.dumps(value))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str,
    only_where_told: Collection[str] = (),
) -> None:
    """A table, or what `empty` says. Numbers stand right. `only_where_told`: columns that are left
    out where no row has anything in them."""
    shown = [list(row) for row in rows]
    if not shown:
        console().print(empty)
        return
    kept = [
        place
        for place, name in enumerate(columns)
        if name not in only_where_told or any(row[place] is not None for row in shown)
    ]
    columns = [columns[place] for place in kept]
    shown = [[row[place] for place in kept] for row in shown]
    numeric = [all(isinstance(row[index], int) for row in shown) for index in range(len(columns))]
    cells = [["-" if cell is None else printable_lines(str(cell)) for cell in row] for row in shown]
    if len(cells) > STYLED_ROWS_MAX:
        click.echo("\n".join(_aligned([list(columns), *cells], numeric)))
    else:
        _print_styled(columns, cells, numeric)


def _print_styled(
    columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, is_numeric in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(escape, row))
    console().print(table)


def _aligned(cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> Iterator[str]:
    """A line per row, header and all, as a styled table without its style."""
    from rich.cells import cell_len

    flat = [[" ".join(cell.splitlines()) for cell in row] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(*flat, strict=True)]
    for row in flat:
        padded = []
        for cell, width, is_numeric in zip(row, widths, numeric, strict=True):
            blank = " " * (width - cell_len(cell))
            padded.append(blank + cell if is_numeric else cell + blank)
        yield "  ".join(padded)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """`name: value` lines, aligned."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        shown = "-" if value in (None, "") else printable_lines(str(value))
        table.add_row(name, escape(shown))
    console().print(table)


def show_few(names: Sequence[str]) -> str:
    """So many as one line takes."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def show_time(time_ms: int) -> str | None:
    """RFC 3339 in UTC; None for 0, which means unknown or not yet."""
    if not time_ms:
        return None
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_micros(time_us: int) -> str:
    """RFC 3339 in UTC with microseconds; a time that no calendar has, as a number."""
    try:
        moment = EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us}us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def show_age(ms: int) -> str:
    """The two largest units."""
    seconds = max(0, ms) // 1000
    for size, unit, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller}{small}"
    return f"{seconds // 60}m{seconds % 60}s" if seconds >= 60 else f"{seconds}s"


def show_bytes(count: int) -> str:
    """With one place behind the point, in the largest unit that gives a number from 1 on."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


class TxIdType(click.ParamType[int]):
    """A TxId as this command prints it: hexadecimal."""

    name = "TXID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            tx_id = int(value, 16)
        except ValueError:
            self.fail(f"{value!r} is not a TxId: 16 hex digits, as `oncelog tx list` shows.")
        if tx_id <= 0:
            self.fail(f"{value!r} is not a TxId: those are above 0.")
        if tx_id >= 1 << 64:
            self.fail(f"{value!r} is not a TxId: it has more than 64 bits.")
        return tx_id


TX_ID: Final = TxIdType()

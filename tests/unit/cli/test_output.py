"""Tables, short and long."""

from __future__ import annotations

from typing import Any

import pytest
from rich.table import Table

from oncelog_server.cli.output import STYLED_ROWS_MAX, print_fields, print_table

COLUMNS = ["GROUP", "PARTITIONS", "LAST COMMIT"]
CELLS: list[list[Any]] = [
    ["billing", 3, "2026-01-31T12:00:00.000Z"],
    ["a [bold]name[/]", 12, None],
    ["\u65e5\u672c", 0, "-"],
]


def test_a_long_table_reads_as_a_short_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table(COLUMNS, CELLS, empty="")
    header, *short = capsys.readouterr().out.splitlines()
    times = STYLED_ROWS_MAX // len(CELLS) + 1

    def unwanted(*_: Any, **__: Any) -> None:
        raise AssertionError("a styled table costs a quarter of a millisecond per row")

    monkeypatch.setattr(Table, "add_row", unwanted)
    print_table(COLUMNS, CELLS * times, empty="")
    assert capsys.readouterr().out.splitlines() == [header, *short * times]


def test_a_long_table_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a\nb\rc", 1]] * (STYLED_ROWS_MAX + 1)
    print_table(["METADATA", "OFFSET"], rows, empty="")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["METADATA  OFFSET", *["a b c          1"] * len(rows)]


ESCAPED = r"a\x1b[2J\x9b\u202eb"


@pytest.mark.parametrize("rows", [1, STYLED_ROWS_MAX + 1])
def test_names_of_others_write_nowhere_else_on_a_terminal(
    capsys: pytest.CaptureFixture[str], rows: int
) -> None:
    """An ESC in a group's name came to the terminal of the operator who listed groups."""
    name = "a\x1b[2J\x9b\u202eb"
    print_table(["GROUP", "MEMBERS"], [[name, 1]] * rows, empty="")
    print_fields([("holder", f"{name}\n{name}")])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert sum(ESCAPED in line for line in lines) == rows + 2


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [], empty="no groups")
    assert capsys.readouterr().out == "no groups\n"


def test_columns_without_anything_in_them_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["t/0", None, None], ["t/1", None, "n1"]]
    print_table(["NAME", "WHY", "GO TO"], rows, empty="", only_where_told=("WHY", "GO TO"))
    header, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "GO", "TO"]

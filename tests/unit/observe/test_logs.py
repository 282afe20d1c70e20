"""One event, one line, TxIds as hex, in both forms."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from oncelog_server.runtime.observe.logs import Log

TX_ID = 3 << 48 | 77


@pytest.mark.parametrize("form", ["json", "console"])
def test_one_event_is_one_line_and_a_tx_id_is_hex(form: Any) -> None:
    out = io.StringIO()
    log = Log(form=form, stream=out)
    log.line("exposed", tx_id=TX_ID, last_tx_id=TX_ID, boot_id=b"\x01\x02", traceback="a\nb\n")
    (line,) = out.getvalue().splitlines()
    assert line.count(f"{TX_ID:016x}") == 2
    assert "0102" in line
    assert "exposed" in line


@pytest.mark.parametrize("form", ["json", "console"])
def test_names_of_others_write_nowhere_else_on_a_terminal(form: Any) -> None:
    out = io.StringIO()
    Log(form=form, stream=out).line(
        "group\x1b[2J deleted", group="a\x1b[2J\x9b", holder="b \x1b[2J"
    )
    (line,) = out.getvalue().splitlines()
    assert line.isprintable()


def test_json_keeps_types_and_the_level() -> None:
    out = io.StringIO()
    Log(form="json", stream=out).line("cut", level="warning", end=7, partition="a/1")
    event = json.loads(out.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "cut", "level": "warning", "end": 7, "partition": "a/1"}


def test_lines_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    log = Log(level="warning", stream=out)
    log.line("leading")
    assert out.getvalue() == ""
    log.line("step down", level="error")
    assert "step down" in out.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_libraries_log_is_one_line_too(form: Any) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out = io.StringIO()
    try:
        Log(form=form, stream=out).adopt_libraries()
        try:
            raise ValueError("inside")
        except ValueError:
            logging.getLogger("some.library").exception("it %s", "broke")
        logging.getLogger("some.library").info("chatter")
    finally:
        root.handlers[:], root.level = handlers, level
    (line,) = out.getvalue().splitlines()
    assert "it broke" in line
    assert "ValueError: inside" in line
    assert "some.library" in line

"""docs/operating.md names every setting of the services, and says the defaults of those that it has
in a table of their own."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from oncelog_server.cli.settings import SECTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
SETTINGS = {
    f"{section}.{field.name}": field.default
    for section, kind in SECTIONS.items()
    for field in dataclasses.fields(kind)
}
# `node.tick_ms` | 100 |
ROW = re.compile(r"^\| `([a-z_]+\.[a-z_0-9]+)` \| ([^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_named(setting: str) -> None:
    name = setting.partition(".")[2]
    assert re.search(rf"\b{name}\b", PAGE), "docs/operating.md, Settings: say what it is for"


def test_the_table_of_settings_says_their_defaults() -> None:
    told = dict(ROW.findall(PAGE.partition("## Settings")[2].partition("\n##")[0]))
    assert len(told) > 10, "the search finds them"
    assert told == {name: _shown(SETTINGS[name]) for name in told}


def _shown(default: object) -> str:
    if isinstance(default, int):
        return f"{default:,}"
    return f"`{default}`" if default else "none"

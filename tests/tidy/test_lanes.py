"""`make test` runs every test file, each in one lane."""

from __future__ import annotations

from pathlib import Path

from tests.lanes import LANES

ROOT = Path(__file__).parents[2]


def test_every_test_file_is_in_exactly_one_lane() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    rooms = [room for lane in LANES.values() for room in lane]
    found = {
        str(file.relative_to(ROOT)): [
            room for room in rooms if file == ROOT / room or ROOT / room in file.parents
        ]
        for file in files
    }
    assert len(files) > 100, "the files are found"
    elsewhere = [file for file, held in found.items() if len(held) != 1]
    assert not elsewhere, f"name their rooms once in tests/lanes.py: {elsewhere}"
    assert [room for room in rooms if not (ROOT / room).exists()] == []

"""A data log is read through slowly, and all of it, however seldom a process lives for a week."""

from __future__ import annotations

from collections.abc import Callable
from errno import EMFILE

import pytest

from oncelog_server.runtime.replica import scrubbing
from oncelog_server.runtime.replica.scrubbing import SCRUB_EVERY_MS, Scrubbing
from oncelog_server.runtime.storage.data_damage import DamagedRange
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_walk import Checked
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import PARTITION, Bench
from tests.unit.runtime.test_healing import flip
from tests.unit.runtime.test_receiving_data import SETTLED, settled

FIRST = "partitions/p/data/00000000000000000000.data"


class Watched:
    """A data log of which is known what was read of it."""

    def __init__(self, data: DataLog) -> None:
        self._data = data
        self.read: list[tuple[int, int]] = []

    @property
    def begin(self) -> int:
        return self._data.begin

    @property
    def settled_end(self) -> int:
        return self._data.settled_end

    def check(self, offset: int, max_bytes: int) -> Checked | DamagedRange:
        found = self._data.check(offset, max_bytes)
        self.read.append((offset, found.end_offset))
        return found


def scrub(
    monkeypatch: pytest.MonkeyPatch,
    *,
    wall_ms: int = 0,
    steps: int,
    before: Callable[[Bench, Scrubbing, int], None] = lambda *_: None,
    wait_ms: int = 1_000,
) -> tuple[Bench, list[tuple[int, int]]]:
    """What was read, step by step, a second after each other."""
    monkeypatch.setattr(scrubbing, "SCRUB_STEP_BYTES", 1)
    loop = VirtualTimeLoop()
    told: list[tuple[Bench, list[tuple[int, int]]]] = []

    async def main() -> None:
        bench = Bench(loop)
        settled(bench.journal.data, 0, SETTLED, units_each=5)
        watched = Watched(bench.journal.data)
        one = Scrubbing(PARTITION, watched, bench.around)  # type: ignore[arg-type]
        begin = loop.now()
        for number in range(steps):
            moved = begin._replace(
                monotonic_ms=begin.monotonic_ms + wait_ms * number, wall_ms=wall_ms
            )
            monkeypatch.setattr(loop, "now", lambda moved=moved: moved)
            before(bench, one, number)
            await one.step()
        told.append((bench, watched.read))

    run(main(), loop)
    return told[0]


def test_the_first_pass_begins_where_the_clock_says_and_the_next_one_at_the_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    middle = 3 * SCRUB_EVERY_MS + SCRUB_EVERY_MS // 2
    bench, read = scrub(monkeypatch, wall_ms=middle, steps=20)
    assert read[:3] == [(30, 40), (40, 50), (50, 60)]
    assert read[3:] == [(at, at + 10) for at in range(0, 60, 10)], "and then all of it"
    assert bench.reporter.events.count("data log read through") == 1, "once, and not again so soon"


def test_it_is_read_no_faster_than_the_process_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "SCRUB_BYTES_PER_S", 500)
    bench, read = scrub(monkeypatch, steps=5, wait_ms=1)
    size = len(bench.disk.bytes_of(FIRST)) // 6
    assert len(read) == 1, "a step of all that the process reads"
    assert bench.around.scrubs.not_before_ms >= size * 900 // 500


def test_one_step_runs_at_a_time_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(bench: Bench, one: Scrubbing, number: int) -> None:
        bench.around.scrubs.is_busy = number < 3

    _, read = scrub(monkeypatch, steps=4, before=busy)
    assert read == [(0, 10)]


def test_i26_behind_what_is_damaged_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def rot(bench: Bench, one: Scrubbing, number: int) -> None:
        if number == 0:
            bench.disk.damage(FIRST, lambda content: flip(content, 200))

    bench, read = scrub(monkeypatch, steps=6, before=rot)
    assert read == [(at, at + 10) for at in range(0, 60, 10)]
    (damage,) = bench.journal.data.damaged
    assert (damage.first_offset, damage.end_offset, damage.file) == (0, 10, FIRST)


def test_i26_behind_what_the_disk_cannot_read_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(bench: Bench, one: Scrubbing, number: int) -> None:
        if number == 0:
            bench.disk.cannot_read(FIRST, 0, 200)

    bench, read = scrub(monkeypatch, steps=6, before=lose)
    assert (read[0][0], read[-1][1]) == (0, 60), "to the end"
    (damage, *_) = bench.journal.data.damaged
    assert (damage.first_offset, damage.file) == (0, FIRST)
    assert "data log not read through, trying again" not in bench.reporter.events


def test_a_disk_that_fails_is_read_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DataLog.check

    def failing(bench: Bench, one: Scrubbing, number: int) -> None:
        def check(log: DataLog, offset: int, max_bytes: int) -> Checked | DamagedRange:
            # Nothing is said of the bytes that stand there.
            raise OSError(EMFILE, "too many open files")

        monkeypatch.setattr(DataLog, "check", check if number == 0 else real)

    bench, read = scrub(monkeypatch, steps=70, before=failing)
    assert bench.reporter.events.count("data log not read through, trying again") == 1
    assert read[:1] == [(0, 10)]

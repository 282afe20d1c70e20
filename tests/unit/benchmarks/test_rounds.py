"""Which round comes when, what is counted, and what a run does when something fails or ends it."""

from __future__ import annotations

import click
import pytest

from benchmarks import rounds
from benchmarks.crowd import shared_out
from benchmarks.inputs import RECORDS_MIN, records_for
from benchmarks.kills import KILLS
from benchmarks.measure import Meter, Result, Task
from benchmarks.observer import Look, Usage
from benchmarks.rounds import Step, latencies, run, steps
from benchmarks.run import NAMES, chosen
from benchmarks.scale import GROWTHS, Sizes
from benchmarks.sides import Side
from benchmarks.workloads import WORKLOADS, Workload

PLAIN, ARROW = WORKLOADS["plain-100"], WORKLOADS["arrow-100"]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REST_S", 0.0)


class Fake:
    """A side that does nothing, and says in which order what was asked of it."""

    def __init__(self, name: str, *, fails: bool = False, ends: bool = False) -> None:
        self.name, self.fails, self.ends = name, fails, ends
        self.said: list[str] = []

    def side(self) -> Side:
        return Side(
            name=self.name,
            root_pids=[],
            replicas=1,
            run=self.run,
            has=lambda workload: self.name == "ours" or bool(workload.kafka),
            create=lambda topic, partitions: self.said.append(f"create {topic} {partitions}"),
            delete=lambda topic: self.said.append(f"delete {topic}"),
        )

    def run(self, workload: Workload, task: Task) -> Result:
        if self.ends:
            raise KeyboardInterrupt
        if self.fails:
            raise RuntimeError("no room\nand more")
        with task.meter as meter:
            self.said.append(workload.name)
        return Result(10, meter.seconds, latencies_s=(0.5,), workers=Usage(1.0, 7))


def look() -> Look:
    return Look(0.0, {})


def planned(*sides: Fake, count: int = 1) -> list[Step]:
    return list(steps([PLAIN, ARROW], [each.side() for each in sides], rounds=count, seconds=0.01))


def test_sides_take_turns_and_come_in_the_opposite_order_every_second_time() -> None:
    found = [
        (step.turn, step.workload.name, step.side.name)
        for step in planned(Fake("ours"), Fake("kafka"), count=2)
        if step.workload is PLAIN
    ]
    assert found == [
        (0, "plain-100", "ours"),
        (0, "plain-100", "kafka"),
        (1, "plain-100", "kafka"),
        (1, "plain-100", "ours"),
        (2, "plain-100", "ours"),
        (2, "plain-100", "kafka"),
    ]


def test_what_a_side_has_not_is_not_planned_there() -> None:
    found = [step.side.name for step in planned(Fake("ours"), Fake("kafka"))]
    assert found.count("ours") == 4
    assert found.count("kafka") == 2


def test_the_warm_up_is_shorter_and_apart() -> None:
    fake = Fake("ours")
    plan = planned(fake, count=2)
    assert {step.seconds for step in plan if step.turn} == {0.01}
    assert {step.seconds for step in plan if not step.turn} == {0.01 * rounds.WARM_UP_SHARE}
    found = run(plan, look, lambda step: None)
    assert len(found.warm_up["plain-100", "ours"]) == 1
    assert len(found.rounds["plain-100", "ours"]) == 2
    assert fake.said[:3] == ["create plain-100-0 1", "plain-100", "delete plain-100-0"]


def test_workers_of_a_round_are_credited() -> None:
    found = run(planned(Fake("ours")), look, lambda step: None)
    (measured,) = found.rounds["plain-100", "ours"]
    assert measured.used.client.switches >= 7


def test_what_fails_is_said_and_the_others_go_on() -> None:
    fails, works = Fake("kafka", fails=True), Fake("ours")
    found = run(planned(works, fails, count=2), look, lambda step: None)
    assert found.failed == {("plain-100", "kafka"): "RuntimeError: no room\nand more"}
    assert len(found.rounds["plain-100", "ours"]) == 2
    # Once: a workload that cannot be done is not tried for an hour.
    assert sum(word.startswith("create") for word in fails.said) == 1
    assert fails.said[-1] == "delete plain-100-0"


def test_who_ends_a_run_keeps_what_was_measured() -> None:
    works, ends = Fake("ours"), Fake("kafka", ends=True)
    found = run(planned(works, ends), look, lambda step: None)
    assert found.interrupted
    assert list(found.warm_up) == [("plain-100", "ours")]


def test_latencies_are_of_all_rounds_and_not_of_the_warm_up() -> None:
    found = run(planned(Fake("ours"), count=2), look, lambda step: None)
    assert latencies(found.rounds)["plain-100", "ours"] == [0.5, 0.5]


def test_a_meter_goes_on_for_its_time_and_measures_once() -> None:
    meter = Meter(60.0)
    with meter:
        assert meter.goes_on()
        assert 0 < meter.left_s() <= 60.0
    with pytest.raises(AssertionError), meter:
        pass
    with Meter(0.0) as over:
        assert not over.goes_on()


@pytest.mark.parametrize(
    ("producers", "processes", "expected"),
    [(64, 4, [16, 16, 16, 16]), (8, 3, [3, 3, 2]), (1, 4, [1]), (1, 1, [1])],
)
def test_producers_are_shared_out_evenly(
    producers: int, processes: int, expected: list[int]
) -> None:
    assert shared_out(producers, processes) == expected


def test_inputs_grow_with_the_time_and_not_with_the_size_of_records() -> None:
    assert records_for(100, 5.0) == 2_000_000
    assert records_for(1024, 5.0) * 1024 <= 600_000_000
    assert records_for(100, 0.0) == RECORDS_MIN


def test_a_group_means_all_of_its_workloads_in_the_order_of_the_table() -> None:
    assert chosen(()) == list(NAMES)
    assert chosen(("W7", "plain-100")) == ["plain-100", "end-to-end", "end-to-end-1k"]
    assert chosen(("W9", "W10")) == [*KILLS, *GROWTHS]


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--list"):
        chosen(("plain",))


def test_growth_begins_with_nothing_and_ends_with_all() -> None:
    assert Sizes(1_000, 5, 0).steps("open-transactions") == [0, 100, 1_000]
    assert Sizes(1_000, 5, 0).steps("many-partitions") == [0, 5]
    assert Sizes(1_000, 5, 0).steps("much-log") == [0]

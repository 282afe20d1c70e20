"""Random days of several applications under random faults: what they were told fits the promises.

Each seed is one run, the same everywhere. `python -m tests.simulation.workload SEED FILE` repeats
one and keeps its history, for `oncelog check FILE`.
"""

from __future__ import annotations

import pytest

from tests.simulation.workload import run_seed

SEEDS = range(1, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_i1_to_i24_hold_under_power_losses_lost_answers_and_without_etcd(seed: int) -> None:
    report, trace, events = run_seed(seed)
    assert report.clean, str(report)
    size = report.size
    assert size.committed > 50, "a day without work shows nothing"
    assert any("loses power" in line for line in trace) or any(
        event.get("what") == "etcd" for event in events
    ), "a day without trouble shows nothing"
    assert not size.unknown, "everything was read at the end: each commit has its outcome"

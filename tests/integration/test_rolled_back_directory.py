"""A machine of three gets a backup of its data directory back: a snapshot of its volume, a virtual
machine that is rolled back. It was in sync, so what it lacks was acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster import until
from tests.integration.machines import (
    Machines,
    all_in_sync,
    three_copies,
    values,
    wait_for,
)

pytestmark = pytest.mark.integration

OLDER = "data directory is older than it was"


def is_offline(machines: Machines) -> bool:
    return "partition offline" in machines.events("a").split(OLDER)[-1]


def test_i25_a_machine_from_a_backup_does_not_lead_without_what_it_lacks(tmp_path: Path) -> None:
    """All three fall, and it is the first one that is back: it could win each election, and cut
    from the others what they hold."""
    with three_copies(tmp_path) as machines:
        nodes = {machines.node(name) for name in "abc"}
        with machines.writer("early") as writer:
            writer.wrote(10)
            machines.kill("a")
            backup = machines.back_up("a")
            machines.start("a")
            writer.wrote(10)
        until(lambda: all_in_sync(machines, nodes), "three copies of everything")
        with machines.writer("late") as late:
            late.wrote(20)
        machines.kill("a", "b", "c")
        machines.put_back("a", backup)
        machines.start("a")
        until(lambda: OLDER in machines.events("a"), "it says that it is older")
        until(lambda: is_offline(machines), "it does not lead")
        machines.start("b", "c")
        until(lambda: all_in_sync(machines, nodes), "three copies of everything again")
        wait_for(machines, {*writer.acknowledged, *late.acknowledged})
        assert set(values(machines)) <= {*writer.tried, *late.tried}
        assert all(one["unclean_epoch"] is None for one in machines.ask("cluster", "partitions"))

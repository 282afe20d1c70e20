"""Drills for the worst day of a cluster with three copies: two of three machines burn down while
records are written. What an operator sees, what he does (docs/operating.md, "Two of three machines
are gone"), which records survive, and how there are three copies again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from oncelog.protocol import Protocol
from oncelogpb.v1 import offset_manager_pb2, types_pb2
from tests.integration.cluster import until
from tests.integration.machines import (
    PARTITIONS,
    TOPIC,
    Machines,
    all_in_sync,
    three_copies,
    values,
    wait_for,
)
from tests.integration.shell import REFUSED, WRONG_USAGE

pytestmark = pytest.mark.integration

GROUP = "enricher"
CONTROL = ("__transaction_control", "__consumer_offsets")
# A move copies little here; the bound only ends a test that would hang.
WAIT = "--wait-s=120"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with three_copies(tmp_path) as made:
        yield made


def offline(machines: Machines) -> set[str]:
    return set(machines.ask("cluster", "status")["partitions_without_leader"])


def everything() -> set[str]:
    return {f"{TOPIC}/{number}" for number in range(PARTITIONS)} | {
        f"{topic}/{number}" for topic in CONTROL for number in range(16)
    }


def replace(machines: Machines, gone: Sequence[str]) -> None:
    """Two new machines in the place of two that are gone."""
    machines.buy("d", "e")
    until(lambda: len(machines.ask("cluster", "status")["nodes"]) == 3, "they are there")
    first, second = gone
    # Nobody waits for this one: what is put on the second one cannot be there before that goes.
    machines.ask("cluster", "drain", first, "--wait-s=0")
    machines.ask("cluster", "drain", second, WAIT)
    nodes = {machines.node(name) for name in "cde"}
    until(lambda: all_in_sync(machines, nodes), "three copies of everything again")


def commit(machines: Machines, offset: int) -> None:
    """Whatever is there: `oncelog group reset-offsets` goes to what a partition has."""
    with contextlib.closing(Protocol(machines.bootstrap)) as protocol:
        partition = types_pb2.Partition(topic_id=protocol.topic(TOPIC).topic_id)
        step = offset_manager_pb2.OffsetCommit(
            partition=partition, from_any=True, to_offset=offset, view=types_pb2.VIEW_COMMITTED
        )
        offsets = offset_manager_pb2.GroupOffsets(group=GROUP, offsets=[step])
        request = offset_manager_pb2.CommitOffsetsRequest(offsets=offsets)
        protocol.call("offset_manager.commit_offsets", request)


def test_i5_two_of_three_burn_down_and_the_third_is_in_sync(machines: Machines) -> None:
    """Nothing is lost, and nothing has to be forced: it leads by itself, and waits for copies."""
    gone = [machines.node(name) for name in "ab"]
    commit(machines, 7)
    with machines.writer("payer") as writer:
        writer.wrote(20)
        machines.burn("a", "b")
    until(lambda: not offline(machines), "the third leads everything")
    # What an operator sees: it is led, and unwritable.
    places = (TOPIC, *CONTROL)
    assert machines.ask("cluster", "unclean-elect", *places, "--dry-run")["proposals"] == []
    refused = machines.refused("cluster", "unclean-elect", f"{TOPIC}/0", "--accept-loss")
    assert refused == "INVALID_ARGUMENT"
    found = machines.run("doctor")
    assert found.exit_code == REFUSED
    assert "are unwritable" in found.stdout
    unwritable = machines.ask("cluster", "partitions", TOPIC, "--unwritable")
    assert len(unwritable) == PARTITIONS
    replace(machines, gone)
    wait_for(machines, set(writer.acknowledged))
    survived = values(machines)
    assert set(survived) <= set(writer.tried)
    goes_on(machines, before=survived, committed=7)
    assert all(one["unclean_epoch"] is None for one in machines.ask("cluster", "partitions"))


def test_i5_two_of_three_burn_down_and_the_third_goes_on_alone(machines: Machines) -> None:
    """There are no new machines yet: with one copy of everything it takes writes at once."""
    with machines.writer("payer") as writer:
        writer.wrote(20)
        machines.burn("a", "b")
    until(lambda: not offline(machines), "the third leads everything")
    places = (TOPIC, *CONTROL)
    machines.ask("topic", "reassign", *places, f"--to={machines.node('c')}", WAIT)
    with machines.writer("alone") as alone:
        alone.wrote(10)
    acknowledged = {*writer.acknowledged, *alone.acknowledged}
    wait_for(machines, acknowledged)
    machines.buy("d", "e")
    until(lambda: len(machines.ask("cluster", "status")["nodes"]) == 3, "they are there")
    machines.ask("topic", "reassign", *places, "--replication-factor=3", WAIT)
    nodes = {machines.node(name) for name in "cde"}
    until(lambda: all_in_sync(machines, nodes), "three copies of everything again")
    wait_for(machines, acknowledged)


def test_i5_two_of_three_burn_down_and_the_third_is_behind(machines: Machines) -> None:
    """What it lacks is lost, and only that."""
    gone = [machines.node(name) for name in "ab"]
    third = machines.node("c")
    commit(machines, 7)
    with machines.writer("payer") as writer:
        writer.wrote(20)
        kept = list(writer.acknowledged)
        machines.freeze("c")
        until(lambda: only_two_in_sync(machines), "the third is dropped")
        writer.wrote(20)
        machines.burn("a", "b")
    machines.thaw("c")
    until(lambda: offline(machines) == everything(), "nothing is led")
    places = (TOPIC, *CONTROL)
    dry = machines.ask("cluster", "unclean-elect", *places, "--dry-run")
    assert dry["elected"] == []
    assert {one["node_id"] for one in dry["proposals"]} == {third}
    assert {one["node_id"] for one in dry["proposals"][0]["unheard"]} == set(gone)
    assert "does not run" in "\n".join(dry["proposals"][0]["may_be_lost"])
    assert machines.run("doctor").exit_code == REFUSED
    elected = machines.ask("cluster", "unclean-elect", *places, "--accept-loss")["elected"]
    assert {one["partition"] for one in elected} == everything()
    assert not offline(machines)
    assert "elected uncleanly, by an operator" in machines.events("c")
    audited = [line for line in machines.audit("c") if line["what"] == "Cluster.unclean_elect"]
    assert len(audited) == len(everything())
    told = [json.loads(line["request"])["told"] for line in audited]
    assert all("none of the 2 replicas in sync was found" in words for words in told)
    replace(machines, gone)
    wait_for(machines, set(kept))
    survived = values(machines)
    lost = set(writer.acknowledged) - set(survived)
    assert lost, "it lacked some"
    goes_on(machines, before=survived, committed=7)


def test_i5_of_one_that_is_behind_and_one_that_is_empty_the_first_is_proposed(
    machines: Machines,
) -> None:
    """One burns down, the logs of the other one in sync are lost. With two that run there are two
    copies at once."""
    empty, behind = machines.node("b"), machines.node("c")
    with machines.writer("payer") as writer:
        writer.wrote(20)
        kept = list(writer.acknowledged)
        machines.freeze("c")
        until(lambda: only_two_in_sync(machines), "the third is dropped")
        writer.wrote(20)
        machines.burn("a")
        machines.empty("b")
    machines.thaw("c")
    until(lambda: offline(machines) == everything(), "nothing is led")
    places = (TOPIC, *CONTROL)
    until(lambda: both_report(proposals(machines, places)), "both logs are open, and known")
    assert {one["best"] for one in proposals(machines, places)} == {behind}
    refused = machines.run(
        "cluster", "unclean-elect", f"{TOPIC}/0", f"--node={empty}", "--accept-loss"
    )
    assert refused.exit_code == WRONG_USAGE
    assert f"node {behind} has more than node {empty}" in refused.stderr
    assert offline(machines) == everything()
    machines.ask("cluster", "unclean-elect", *places, "--accept-loss")
    wait_for(machines, set(kept))
    with machines.writer("successor") as successor:
        successor.wrote(10)
    wait_for(machines, {*kept, *successor.acknowledged})


def proposals(machines: Machines, places: Sequence[str]) -> list[dict[str, Any]]:
    return list(machines.ask("cluster", "unclean-elect", *places, "--dry-run")["proposals"])


def both_report(found: list[dict[str, Any]]) -> bool:
    """Not while the one that was frozen still believes that the others lead."""
    return len(found) == len(everything()) and all(len(one["replicas"]) == 2 for one in found)


def only_two_in_sync(machines: Machines) -> bool:
    """Whoever asks may meet the one that is frozen first, and be late for the others."""
    done = machines.run("cluster", "partitions")
    found = json.loads(done.stdout) if done.exit_code == 0 else []
    return bool(found) and all(len(one["isr"]) == 2 for one in found)


def goes_on(machines: Machines, *, before: list[str], committed: int) -> None:
    """Transactions, groups, and what was there."""
    with machines.writer("successor") as writer:
        writer.wrote(10)
    wait_for(machines, {*before, *writer.acknowledged})
    positions = {
        row["partition"]: row["offset"]
        for row in machines.ask("group", "describe", GROUP)["offsets"]
    }
    assert positions[f"{TOPIC}/0"] == committed

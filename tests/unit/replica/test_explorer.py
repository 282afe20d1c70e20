"""Every state that three replicas can reach, a few failures deep: no acknowledged record is lost,
no reader sees another record at a position, an epoch has one leader.

Each scenario begins where something is about to go wrong, and bounds what may happen. The first
test goes through all of them with the code as it is. The second switches off one rule of those that
are kept around the pure classes (storage, lease, restart), and must find the loss that the rule
prevents: so the scenarios can see it. Rules within the classes are planted (tests/planted).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Final

import pytest

from tests.unit.replica.explorer import explore, walk
from tests.unit.replica.parts import Bounds, Rules
from tests.unit.replica.starts import quiet, settled, with_logs
from tests.unit.replica.world import World, members

ALL: Final = Rules()
# A process that syncs at once, and a network without delays.
AT_ONCE: Final = ("sync", "ack_arrives", "copy", "hear")


def _failover(rules: Rules) -> World:
    """Two records, a leader that dies with or without what it had not synced."""
    return settled(
        Bounds(elections=1, appends=2, changes=0, crashes=1), rules, eager=("ack_arrives",)
    )


def _isr_changes(rules: Rules) -> World:
    """Everybody may be dropped, and the answers of etcd get lost."""
    bounds = Bounds(elections=1, appends=1, changes=2, crashes=1)
    return settled(bounds, rules, eager=AT_ONCE)


def _joins(rules: Rules) -> World:
    """`c` is not in the ISR yet."""
    bounds = Bounds(elections=1, appends=1, changes=2, crashes=1)
    return settled(bounds, rules, isr="ab", eager=("sync", "ack_arrives", "hear"))


def _empty_joiner(rules: Rules) -> World:
    """A new leader knows of no HW, and `c` has nothing."""
    bounds = Bounds(elections=2, appends=0, changes=1, crashes=2)
    logs = {"a": (1, 1), "b": (1, 1), "c": ()}
    return with_logs(logs, bounds, rules, isr="ab", shown=2, eager=("sync", "ack_arrives"))


def _rot(rules: Rules) -> World:
    """The last synced entry of a replica is gone, or all of them."""
    bounds = Bounds(elections=1, appends=1, changes=0, crashes=2, rots=1)
    return settled(bounds, rules, eager=("sync", "ack_arrives", "copy"))


def _failed_sync(rules: Rules) -> World:
    bounds = Bounds(elections=1, appends=2, changes=0, crashes=0, failed_syncs=1)
    return settled(bounds, rules, eager=("ack_arrives",))


def _lapse(rules: Rules) -> World:
    """A lease runs out, and a new one is granted to the same run."""
    bounds = Bounds(elections=1, appends=1, changes=1, crashes=0, lapses=1)
    return settled(bounds, rules, eager=AT_ONCE)


def _returns(rules: Rules) -> World:
    """One run leads epoch 1 and epoch 3. An acknowledgement of epoch 1 is still on its way."""
    world = settled(Bounds(elections=3, appends=1, changes=0, crashes=1, lapses=2), rules)
    follow = ("follow", "a", world.revision + 1)
    world = walk(world, ("append", "a"), ("copy", "c"), ("sync", "c"), ("lapse", "a"))
    world = walk(world, ("stand", "b"), ("regain", "a"), follow, ("lapse", "b"), ("stand", "a"))
    world.eager = ("sync", "copy")
    return world


def _parted_logs(rules: Rules) -> World:
    """Epochs [1 2 4] against [1 3 5]: what they have in common is epoch 1."""
    logs = {"a": (1, 2, 4), "b": (1, 3, 5), "c": (1, 2, 4)}
    bounds = Bounds(elections=1, appends=0, changes=0, crashes=1)
    return with_logs(logs, bounds, rules, eager=("sync", "ack_arrives"))


def _recovery(rules: Rules) -> World:
    """etcd is lost; of the replicas that are asked, one has the longest log of an epoch in which
    nothing was ever acknowledged."""
    logs = {"a": (1, 2), "b": (1,), "c": (1, 3)}
    bounds = Bounds(elections=2, appends=0, changes=0, crashes=1, recoveries=1)
    return with_logs(logs, bounds, rules, isr="ab", eager=("sync", "ack_arrives"))


def _first(rules: Rules) -> World:
    """Nobody ever led."""
    return World(Bounds(elections=2, appends=1, changes=1, crashes=1), rules, eager=AT_ONCE)


def _reappearing(rules: Rules) -> World:
    """`b` has to cut what `c` has, too; both may die."""
    logs = {"a": (1, 2, 4), "b": (1, 3, 5), "c": (1, 3, 5)}
    bounds = Bounds(elections=2, appends=0, changes=0, crashes=2)
    return with_logs(logs, bounds, rules, eager=("sync", "ack_arrives"))


def _damaged_again(rules: Rules) -> World:
    """`c` lost its disk once, and is back in the ISR under its second name."""
    world = settled(Bounds(elections=1, appends=1, changes=2, crashes=1, wipes=1), rules)
    world = walk(world, ("crash", "c", "wipe"), ("start", "c"), ("follow", "c", world.revision))
    world = quiet(world)
    assert members(world.state) == (b"a1", b"b1", b"c2")
    world.left = Bounds(elections=1, appends=1, changes=0, crashes=2, wipes=1)
    world.eager = ("sync", "ack_arrives", "copy")
    return world


def _there_and_back(rules: Rules) -> World:
    """`c` joins, leaves, and a compare-and-set of before is still on its way."""
    bounds = Bounds(elections=1, appends=1, changes=3, crashes=1)
    return settled(bounds, rules, isr="ab", eager=("sync", "ack_arrives", "hear", "follow", "look"))


def _old_view(rules: Rules) -> World:
    """`a` led epoch 1 and does not know that `c` was elected. `b` has acknowledged x to it and cut
    it since; `c` lost its EPOCH_START in a crash."""
    bounds = Bounds(elections=2, appends=1, changes=0, crashes=1, lapses=1)
    world = settled(bounds, rules)
    follows = ("follow", "b", world.revision + 1)
    world = walk(world, ("append", "a"), ("sync", "a"), ("copy", "b"), ("sync", "b"))
    world = walk(world, ("ack_arrives", *world.acks), ("lapse", "a"), ("stand", "c"), follows)
    world = walk(world, ("copy", "b"), ("crash", "c", "clean"), ("start", "c"))
    world.eager = ("sync", "ack_arrives", "copy")
    return world


SCENARIOS: Final[Mapping[str, Callable[[Rules], World]]] = {
    "failover": _failover,
    "ISR changes": _isr_changes,
    "joins": _joins,
    "there and back": _there_and_back,
    "empty joiner": _empty_joiner,
    "rot": _rot,
    "damaged again": _damaged_again,
    "failed sync": _failed_sync,
    "lapse": _lapse,
    "returns": _returns,
    "old view": _old_view,
    "parted logs": _parted_logs,
    "reappearing": _reappearing,
    "recovery": _recovery,
    "first": _first,
}
# A rule that is kept around the pure classes, the scenario that sees what it is for, and how.
AROUND: Final = {
    "reads_before_it_follows": ("old view", "was shown"),
    "restart_ends_the_epoch": ("failover", "have synced"),
    "new_lease_is_checked": ("lapse", "answers from an old state"),
    "damage_takes_an_incarnation": ("rot", "is elected with"),
    "incarnations_are_fresh": ("damaged again", "is elected with"),
    "synced_end_is_own": ("rot", "is elected with"),
    "cuts_are_synced": ("reappearing", "was shown"),
    "failed_sync_resigns": ("failed sync", "have synced"),
    "revisions_are_compared": ("there and back", "is elected with"),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_i5_no_acknowledged_record_is_lost(scenario: str) -> None:
    found = explore(SCENARIOS[scenario](ALL))
    assert found.violation is None, str(found)


@pytest.mark.parametrize("rule", AROUND)
def test_a_rule_that_is_kept_elsewhere_is_needed(rule: str) -> None:
    scenario, shows = AROUND[rule]
    found = explore(SCENARIOS[scenario](replace(ALL, **{rule: False})))
    assert found.violation is not None, f"nothing is lost without {rule}"
    assert shows in found.violation, str(found)


def test_every_rule_of_the_world_is_looked_at() -> None:
    assert {rule.name for rule in fields(Rules)} == set(AROUND)

"""Rules and quotas in etcd: adding, removing, hearing of them, and what stands without etcd."""

from __future__ import annotations

import asyncio
import json

import pytest

from oncelog_server.core.access import Pattern, Rule, pattern_of
from oncelog_server.core.quotas import Quota
from oncelog_server.runtime.etcd import access_store, access_view
from oncelog_server.runtime.etcd.access_store import EtcdAccess
from oncelog_server.runtime.etcd.port import Delete, Put
from oncelogpb.errors import InvalidArgument, LimitExceeded, TooLarge, UnknownOutcome
from tests.access.world import rule_of
from tests.unit.etcd.world import LoopClock, Node, World


def store_of(node: Node) -> EtcdAccess:
    return EtcdAccess(node.etcd, node.view, LoopClock())


def rules(*lines: str) -> list[Rule]:
    return [rule for line in lines for rule in rule_of(line)]


def standing(node: Node) -> list[str]:
    return [str(stored.rule) for stored in store_of(node).rules()]


def test_a_rule_is_heard_of_everywhere_and_adding_it_again_changes_nothing(world: World) -> None:
    async def story() -> None:
        one, other = await world.node("n1").start(), await world.node("n2").start()
        store = store_of(one)
        assert await store.add_rules(rules("alice read,write topic:t"), by="root") == 2
        assert standing(one) == ["allow alice read topic:t", "allow alice write topic:t"]
        await world.until(lambda: standing(other) == standing(one))
        revision = world.server.revision
        assert await store.add_rules(rules("alice read topic:t"), by="somebody") == 0
        assert world.server.revision == revision
        assert {stored.added_by for stored in store.rules()} == {"root"}
        assert await store_of(other).remove_rules(rules("alice read,delete topic:t")) == 1
        await world.until(lambda: standing(one) == ["allow alice write topic:t"])
        assert await store_of(other).remove_rules(rules("alice read topic:t")) == 0

    world.run(story)


def test_a_quota_takes_the_place_of_the_one_before(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        store = store_of(node)
        await store.set_quotas([Quota(Pattern("alice"), 10, 0)], by="root")
        await store.set_quotas([Quota(Pattern("alice"), 0, 5), Quota(pattern_of("*"), 7)], by="r")
        held = [(str(s.quota.identity), s.quota.bytes_per_second) for s in store.quotas()]
        assert held == [("*", 7), ("alice", 0)]
        assert await store.remove_quotas([Pattern("alice"), Pattern("bob")]) == 1
        assert len(store.quotas()) == 1
        with pytest.raises(InvalidArgument):
            await store.set_quotas([Quota(Pattern("a"), 1), Quota(Pattern("a"), 2)], by="r")

    world.run(story)


def test_what_stands_in_etcd_can_be_read_by_people(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        await store_of(node).add_rules(rules("deny team-* read topic:t"), by="root")
        (found,) = world.server.range(access_view.RULES)
        value = json.loads(found.value)
        assert value.pop("added_ms") >= 0
        assert value == {
            "effect": "deny",
            "identity": {"text": "team-", "prefixed": True},
            "verb": "read",
            "kind": "topic",
            "name": {"text": "t", "prefixed": False},
            "added_by": "root",
        }

    world.run(story)


def test_rules_hold_on_while_etcd_is_away_and_a_change_is_in_doubt(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        store = store_of(node)
        await store.add_rules(rules("alice read topic:t"), by="root")
        node.etcd.unavailable = True
        with pytest.raises(UnknownOutcome):
            await store.add_rules(rules("bob read topic:t"), by="root")
        assert standing(node) == ["allow alice read topic:t"]
        with pytest.raises(UnknownOutcome):
            await store.remove_rules(rules("alice read topic:t"))
        assert standing(node) == ["allow alice read topic:t"]
        node.etcd.unavailable = False
        assert await store.add_rules(rules("bob read topic:t"), by="root") == 1

    world.run(story)


def test_a_short_absence_of_etcd_is_waited_for(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        node.etcd.unavailable = True
        adding = asyncio.ensure_future(
            store_of(node).add_rules(rules("alice read topic:t"), by="root")
        )
        await asyncio.sleep(2)
        node.etcd.unavailable = False
        assert await adding == 1

    world.run(story)


def test_what_this_version_does_not_understand_is_named_and_gives_nothing(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        key = f"{access_view.RULES}later"
        await node.etcd.txn([], [Put(key, b'{"effect": "allow", "verb": "bless"}')])
        await world.until(lambda: node.view.access.unreadable)
        assert standing(node) == []
        await node.etcd.txn([], [Delete(key)])
        await world.until(lambda: not node.view.access.unreadable)

    world.run(story)


def test_limits_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        store = store_of(node)
        many = rules(*(f"u{number} read topic:t" for number in range(101)))
        with pytest.raises(TooLarge, match="access_changes_max"):
            await store.add_rules(many, by="root")
        monkeypatch.setattr(access_store, "RULES_MAX", 2)
        monkeypatch.setattr(access_store, "QUOTAS_MAX", 1)
        assert await store.add_rules(many[:2], by="root") == 2
        with pytest.raises(LimitExceeded, match="rules_max"):
            await store.add_rules(many[2:3], by="root")
        assert await store.add_rules(many[:2], by="root") == 0, "they are there"
        await store.set_quotas([Quota(Pattern("a"), 1)], by="root")
        with pytest.raises(LimitExceeded, match="quotas_max"):
            await store.set_quotas([Quota(Pattern("b"), 1)], by="root")
        await store.set_quotas([Quota(Pattern("a"), 2)], by="root")

    world.run(story)

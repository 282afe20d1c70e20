"""How needs are judged: the order of judgement as a table, and what no set of rules can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.access import (
    IMPLIED_BY,
    VERBS_OF,
    Effect,
    Need,
    Pattern,
    ResourceKind,
    Rights,
    Rule,
    Verb,
    pattern_of,
    require_rule,
    would_allow,
)
from oncelogpb.errors import InvalidArgument
from tests.access.world import rule_of


def rights(*lines: str) -> Rights:
    rules = [rule for line in lines for rule in rule_of(line)]
    return Rights(rules, services=[Pattern("oncelog")], operators=[pattern_of("root*")])


def need(text: str, owner: str | None = None) -> Need:
    verb, place = text.split()
    kind, _, name = place.partition(":")
    return Need(Verb(verb), ResourceKind(kind), name, owner)


# Rules · who · what (and whose) · allowed.
JUDGED = [
    ([], "alice", "read topic:t", None, False),
    (["alice read topic:t"], "alice", "read topic:t", None, True),
    (["alice read topic:t"], "bob", "read topic:t", None, False),
    (["alice read topic:t"], "alice", "read topic:tt", None, False),
    (["alice read topic:t"], "alice", "write topic:t", None, False),
    (["alice read topic:t"], "alice", "read group:t", None, False),
    (["alice read topic:t*"], "alice", "read topic:tt", None, True),
    (["alice read topic:*"], "alice", "read topic:any", None, True),
    (["ali* read topic:t"], "alice", "read topic:t", None, True),
    (["* read topic:t"], "whoever", "read topic:t", None, True),
    # Deny before allow, however exact either is.
    (["alice read topic:t", "deny * read topic:*"], "alice", "read topic:t", None, False),
    (["* read topic:*", "deny alice read topic:t"], "alice", "read topic:t", None, False),
    (["* read topic:*", "deny alice read topic:t"], "alice", "read topic:u", None, True),
    (["* read topic:*", "deny alice read topic:t"], "bob", "read topic:t", None, True),
    (["alice read,write topic:t", "deny alice write topic:t"], "alice", "read topic:t", None, True),
    # What implies describe; denying is of one verb alone.
    (["alice read topic:t"], "alice", "describe topic:t", None, True),
    (["alice write topic:t"], "alice", "describe topic:t", None, True),
    (["alice alter topic:t"], "alice", "describe topic:t", None, True),
    (["alice delete topic:t"], "alice", "describe topic:t", None, True),
    (["alice create topic:t"], "alice", "describe topic:t", None, False),
    (["alice describe topic:t"], "alice", "read topic:t", None, False),
    (["alice read topic:t", "deny alice describe topic:t"], "alice", "read topic:t", None, True),
    (["alice read topic:t", "deny * describe topic:t"], "alice", "describe topic:t", None, False),
    (["alice read group:g"], "alice", "describe group:g", None, True),
    (["alice delete group:g"], "alice", "describe group:g", None, True),
    (["alice write producer:p"], "alice", "describe transaction:p", None, True),
    (["alice write producer:p"], "alice", "abort transaction:p", None, True),
    (["alice describe transaction:p"], "alice", "abort transaction:p", None, False),
    (["alice abort transaction:p"], "alice", "describe transaction:p", None, True),
    (["alice abort transaction:p"], "alice", "write producer:p", None, False),
    (["alice write producer:p"], "alice", "fence producer:p", None, False),
    # One's own, always; what nobody is known to own, never.
    ([], "alice", "abort transaction:p", "alice", True),
    ([], "alice", "describe transaction:", "alice", True),
    (["deny alice abort transaction:*"], "alice", "abort transaction:p", "alice", True),
    ([], "alice", "abort transaction:p", "bob", False),
    (["alice read topic:t"], "alice", "describe transaction:", "", False),
    (["alice describe transaction:*"], "alice", "describe transaction:", "", True),
    # Unnamed producers: one's own, with any right at all; by no rule those of others.
    ([], "alice", "write producer:", "alice", False),
    (["alice read group:g"], "alice", "write producer:", "alice", True),
    (["deny alice read group:g"], "alice", "write producer:", "alice", False),
    (["alice write producer:*"], "alice", "write producer:", "bob", False),
    (["alice write producer:*"], "alice", "write producer:", "", False),
    (["alice read group:g", "deny * write producer:*"], "alice", "write producer:", "alice", False),
    # By configuration alone.
    (["* create,alter,delete topic:*"], "alice", "serve cluster:x", None, False),
    (["* create,alter,delete topic:*"], "alice", "operate cluster:x", None, False),
    ([], "oncelog", "serve cluster:x", None, True),
    ([], "oncelog", "operate cluster:x", None, False),
    ([], "oncelog", "read topic:t", None, False),
    ([], "oncelog-2", "serve cluster:x", None, False),
    ([], "root", "serve cluster:x", None, False),
    ([], "root", "operate cluster:x", None, True),
    ([], "root-of-berlin", "operate cluster:x", None, True),
    ([], "root", "delete topic:t", None, True),
    (["deny * delete topic:*"], "root", "delete topic:t", None, True),
    ([], "root", "write producer:", "alice", True),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "who", "what", "owner", "allowed"), JUDGED)
def test_rulings(lines: list[str], who: str, what: str, owner: str | None, allowed: bool) -> None:
    held = rights(*lines)
    assert held.ruling(who, need(what, owner)).allowed is allowed
    assert held.may(who, need(what, owner)) is allowed
    assert held.may(who, need(what, owner)) is allowed, "the second time it is remembered"


def test_a_ruling_names_the_rule_that_made_it() -> None:
    held = rights("alice read topic:t*", "deny alice read topic:tt")
    allowed, denied = (
        held.ruling("alice", need("read topic:t")),
        held.ruling("alice", need("read topic:tt")),
    )
    assert str(allowed.rule) == "allow alice read topic:t*"
    assert str(denied.rule) == "deny alice read topic:tt"
    assert held.ruling("alice", need("write topic:t")).rule is None


def test_no_rule_locks_an_operator_out() -> None:
    """Who could take it away again?"""
    held = rights("deny * delete topic:*", "deny root delete topic:t")
    assert held.ruling("root", need("delete topic:t")).because == "an operator"


@pytest.mark.parametrize("allowed", [True, False])
def test_what_nothing_can_be_called_is_judged_and_not_kept(allowed: bool) -> None:
    """A fresh name of 30 MiB with each call, and the process was out of memory."""
    held = rights("alice read topic:t*") if allowed else rights()
    for letter in "ab":
        assert held.may("alice", need(f"read topic:t{letter * 255}")) is allowed
    assert held.known("alice") == {}
    longest = need(f"read topic:t{'a' * 254}")
    assert held.may("alice", longest) is allowed
    assert held.known("alice") == {longest: allowed}


def test_of_rules_that_decide_alike_always_the_same_one_is_named() -> None:
    lines = ["alice read topic:t*", "a* read topic:t*", "alice write topic:t*"]
    told = {
        str(rights(*order).ruling("alice", need("describe topic:tt")).rule)
        for order in (lines, lines[::-1], [lines[1], lines[0], lines[2]])
    }
    assert len(told) == 1


# -------------------------------------------------------------------------------- for any rules

NAMES = st.sampled_from(["", "a", "ab", "b", "abc"])
PATTERNS = st.builds(Pattern, NAMES, st.booleans())
KINDS = st.sampled_from([kind for kind in ResourceKind if kind in VERBS_OF])
RULES = KINDS.flatmap(
    lambda kind: st.builds(
        Rule,
        st.sampled_from(Effect),
        PATTERNS,
        st.sampled_from(VERBS_OF[kind]),
        st.just(kind),
        PATTERNS,
    )
)
NEEDS = KINDS.flatmap(
    lambda kind: st.builds(
        Need,
        st.sampled_from(VERBS_OF[kind]),
        st.just(kind),
        NAMES,
        st.one_of(st.none(), NAMES),
    )
)
SOMEBODY = st.sampled_from(["a", "ab", "b"])


@given(st.lists(RULES, max_size=6), RULES, SOMEBODY, NEEDS)
def test_a_deny_rule_never_allows_and_an_allow_rule_never_denies(
    rules: list[Rule], another: Rule, who: str, asked: Need
) -> None:
    before, after = Rights(rules).may(who, asked), Rights([*rules, another]).may(who, asked)
    if another.effect is Effect.DENY:
        assert after <= before
    else:
        assert before <= after


@given(st.lists(RULES, max_size=6), SOMEBODY, NEEDS)
def test_the_judgement_is_what_its_definition_says(
    rules: list[Rule], who: str, asked: Need
) -> None:
    """Said again, without an index."""

    def decides(rule: Rule, kind: ResourceKind, verb: Verb) -> bool:
        return (
            rule.identity.matches(who)
            and (rule.kind, rule.verb) == (kind, verb)
            and rule.name.matches(asked.name)
        )

    key = (asked.kind, asked.verb)
    denies = [r for r in rules if r.effect is Effect.DENY]
    allows = [r for r in rules if r.effect is Effect.ALLOW]
    if asked.kind is ResourceKind.TRANSACTION and asked.owner == who:
        expected = True
    elif any(decides(rule, *key) for rule in denies):
        expected = False
    elif asked.kind is ResourceKind.PRODUCER and not asked.name:
        expected = asked.owner == who and any(r.identity.matches(who) for r in allows)
    else:
        ways = (key, *IMPLIED_BY.get(key, ()))
        expected = any(decides(rule, *way) for rule in allows for way in ways)
    assert Rights(rules).may(who, asked) is expected


@given(SOMEBODY, NEEDS)
def test_what_would_allow_it_does(who: str, asked: Need) -> None:
    for rule in would_allow(who, asked):
        require_rule(rule)
        assert Rights([rule]).may(who, asked)


# ---------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("alice fence topic:t", "verb"),
        ("alice create group:g", "verb"),
        ("alice serve cluster:x", "verb"),
        ("alice operate cluster:x", "verb"),
        ("alice read topic:", "name"),
        (f"alice read topic:{'x' * 256}", "name"),
        (f"{'x' * 1025} read topic:t", "identity"),
    ],
)
def test_a_rule_that_could_never_decide_anything_is_refused(line: str, field: str) -> None:
    (rule,) = rule_of(line)
    with pytest.raises(InvalidArgument) as refused:
        require_rule(rule)
    assert refused.value.metadata["field"] == field


def test_every_kind_has_verbs_and_what_implies_another_can_be_said() -> None:
    for (kind, verb), ways in IMPLIED_BY.items():
        assert verb in VERBS_OF[kind]
        for other_kind, other_verb in ways:
            assert other_verb in VERBS_OF[other_kind]
    assert ResourceKind.CLUSTER not in VERBS_OF, "configuration says who serves and who operates"

"""Who may do what: verbs, kinds of things, rules, and how they are judged. PURE.

    need    what a call asks for: (verb, kind, name), and whose it is where it has an owner
    rule    allow or deny: an identity, a verb, a kind, a name; both names literal or prefixed
    ruling  yes or no, and which rule, or which absence of one, made it so

Order of judgement, the first that applies:

    1  what only services do (SERVE)     yes for a service, no for everybody else
    2  an operator                       yes: who may change the rules may give himself anything
    3  what only operators do (OPERATE)  no
    4  seeing and ending one's own       yes
    5  a deny rule                       no
    6  an unnamed producer               yes for who registered it, if any rule allows him anything
    7  an allow rule                     yes; of what implies the need, too (IMPLIED_BY)
    8  nothing                           no

Invariants: an identity without a rule may do nothing but see and end its own; a service may do
nothing by being one but serve; adding a deny rule never allows anything.

Left out: who a caller is (`runtime/rpc/tls`), which call needs what (`<role>/access`), what is said
and written about a refusal (`runtime/access`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from oncelogpb.errors import InvalidArgument

IDENTITY_BYTES_MAX: Final = 1_024
# Of a name in a rule: as long as a topic's, a group's or a producer's may be.
RULE_NAME_BYTES_MAX: Final = 255
# Identities, and rulings, that are kept at hand: above, all are found anew.
IDENTITIES_KEPT: Final = 10_000
RULINGS_KEPT: Final = 100_000


class Verb(StrEnum):
    CREATE = "create"
    READ = "read"
    WRITE = "write"
    DESCRIBE = "describe"
    ALTER = "alter"
    DELETE = "delete"
    # Taking over a producer's name from somebody else.
    FENCE = "fence"
    ABORT = "abort"
    # Not for rules to give: configuration says who is a service, and who an operator.
    SERVE = "serve"
    OPERATE = "operate"


class ResourceKind(StrEnum):
    """Of what is acted upon."""

    TOPIC = "topic"
    # A consumer group.
    GROUP = "group"
    # A producer's name.
    PRODUCER = "producer"
    # Transactions of others, by the name of their producer.
    TRANSACTION = "transaction"
    CLUSTER = "cluster"


# What a rule may say of each kind.
VERBS_OF: Final[Mapping[ResourceKind, tuple[Verb, ...]]] = {
    ResourceKind.TOPIC: (
        Verb.CREATE,
        Verb.READ,
        Verb.WRITE,
        Verb.DESCRIBE,
        Verb.ALTER,
        Verb.DELETE,
    ),
    ResourceKind.GROUP: (Verb.READ, Verb.DESCRIBE, Verb.ALTER, Verb.DELETE),
    ResourceKind.PRODUCER: (Verb.WRITE, Verb.FENCE),
    ResourceKind.TRANSACTION: (Verb.DESCRIBE, Verb.ABORT),
}
# Allowing one of these allows that, of the same name. Denying is of one verb alone.
IMPLIED_BY: Final[Mapping[tuple[ResourceKind, Verb], tuple[tuple[ResourceKind, Verb], ...]]] = {
    (ResourceKind.TOPIC, Verb.DESCRIBE): (
        (ResourceKind.TOPIC, Verb.READ),
        (ResourceKind.TOPIC, Verb.WRITE),
        (ResourceKind.TOPIC, Verb.ALTER),
        (ResourceKind.TOPIC, Verb.DELETE),
    ),
    (ResourceKind.GROUP, Verb.DESCRIBE): (
        (ResourceKind.GROUP, Verb.READ),
        (ResourceKind.GROUP, Verb.ALTER),
        (ResourceKind.GROUP, Verb.DELETE),
    ),
    # Who may write under a name sees and ends what is written under it.
    (ResourceKind.TRANSACTION, Verb.DESCRIBE): (
        (ResourceKind.TRANSACTION, Verb.ABORT),
        (ResourceKind.PRODUCER, Verb.WRITE),
    ),
    (ResourceKind.TRANSACTION, Verb.ABORT): ((ResourceKind.PRODUCER, Verb.WRITE),),
}
# Whose own these are, may always.
_OWNED: Final = frozenset(
    {(ResourceKind.TRANSACTION, Verb.DESCRIBE), (ResourceKind.TRANSACTION, Verb.ABORT)}
)


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class Pattern(msgspec.Struct, frozen=True, order=True):
    """A name, or every name that begins so."""

    text: str
    prefixed: bool = False

    def matches(self, name: str) -> bool:
        return name.startswith(self.text) if self.prefixed else name == self.text

    def __str__(self) -> str:
        return f"{self.text}*" if self.prefixed else self.text


class Rule(msgspec.Struct, frozen=True, order=True):
    """One line of who may what."""

    effect: Effect
    identity: Pattern
    verb: Verb
    kind: ResourceKind
    name: Pattern

    def __str__(self) -> str:
        return f"{self.effect} {self.identity} {self.verb} {self.kind}:{self.name}"


class Need(NamedTuple):
    """What a call asks for."""

    verb: Verb
    kind: ResourceKind
    # "" for a producer without a name, and its transactions.
    name: str
    # Who registered the producer that this is about; "" where nobody knows any more, None where
    # nothing is anybody's.
    owner: str | None = None


class Ruling(NamedTuple):
    """An answer, and why."""

    allowed: bool
    because: str
    # None: no rule decided it.
    rule: Rule | None = None


class _Names:
    """The names that the rules of one effect give one identity, of one verb and kind."""

    __slots__ = ("_literal", "_prefixed")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._literal: dict[str, Rule] = {}
        self._prefixed: list[tuple[str, Rule]] = []
        for rule in rules:
            if rule.name.prefixed:
                self._prefixed.append((rule.name.text, rule))
            else:
                self._literal[rule.name.text] = rule

    def find(self, name: str) -> Rule | None:
        found = self._literal.get(name)
        if found is not None:
            return found
        return next((rule for text, rule in self._prefixed if name.startswith(text)), None)


class _Holdings:
    """All rules that are about one identity."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._allow: dict[tuple[ResourceKind, Verb], list[Rule]] = {}
        self._deny: dict[tuple[ResourceKind, Verb], list[Rule]] = {}
        for rule in rules:
            lists = self._allow if rule.effect is Effect.ALLOW else self._deny
            lists.setdefault((rule.kind, rule.verb), []).append(rule)
        self._allowing: dict[tuple[ResourceKind, Verb], _Names] = {}
        self._denying: dict[tuple[ResourceKind, Verb], _Names] = {}

    @property
    def any_allowed(self) -> Rule | None:
        return next((rule for rules in self._allow.values() for rule in rules), None)

    def denies(self, need: Need) -> Rule | None:
        key = (need.kind, need.verb)
        names = self._denying.get(key)
        if names is None:
            names = self._denying[key] = _Names(self._deny.get(key, ()))
        return names.find(need.name)

    def allows(self, need: Need) -> Rule | None:
        key = (need.kind, need.verb)
        names = self._allowing.get(key)
        if names is None:
            ways = (key, *IMPLIED_BY.get(key, ()))
            names = _Names(rule for way in ways for rule in self._allow.get(way, ()))
            self._allowing[key] = names
        return names.find(need.name)


class Rights:
    """The rules that hold, and who are services and operators. Immutable: a change makes another.

    It keeps what it found out, so the answer to a question that was asked before is one look-up.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        services: Sequence[Pattern] = (),
        operators: Sequence[Pattern] = (),
    ) -> None:
        # In order, so that of several rules that decide alike the same one is told.
        self.rules: Final = tuple(sorted(rules))
        self._services = tuple(services)
        self._operators = tuple(operators)
        self._holdings: dict[str, _Holdings] = {}
        # By identity, and how many there are in all.
        self._allowed: dict[str, dict[Need, bool]] = {}
        self._rulings = 0

    def may(self, identity: str, need: Need) -> bool:
        """The ruling, in short."""
        known = self.known(identity)
        allowed = known.get(need)
        if allowed is None:
            allowed = self.ruling(identity, need).allowed
            if len(need.name) > RULE_NAME_BYTES_MAX:
                # Nothing has such a name, and whoever asks for many of them would fill the memory:
                # this is judged before a handler has looked at their length.
                return allowed
            if self._rulings >= RULINGS_KEPT:
                self._allowed.clear()
                self._rulings = 0
                known = self.known(identity)
            self._rulings += 1
            known[need] = allowed
        return allowed

    def known(self, identity: str) -> dict[Need, bool]:
        """What `may` was asked of this identity, for who asks of many things at once. Only to be
        read."""
        known = self._allowed.get(identity)
        if known is None:
            self._rulings += 1
            known = self._allowed[identity] = {}
        return known

    def is_service(self, identity: str) -> bool:
        return any(pattern.matches(identity) for pattern in self._services)

    def is_operator(self, identity: str) -> bool:
        return any(pattern.matches(identity) for pattern in self._operators)

    def ruling(self, identity: str, need: Need) -> Ruling:
        """See the module for the order."""
        assert identity, "who has no identity is asked for one first"
        if need.verb is Verb.SERVE:
            is_service = self.is_service(identity)
            return Ruling(is_service, "a service" if is_service else "no service")
        if self.is_operator(identity):
            return Ruling(True, "an operator")
        if need.verb is Verb.OPERATE:
            return Ruling(False, "no operator")
        if need.owner == identity and (need.kind, need.verb) in _OWNED:
            return Ruling(True, "its own")
        holdings = self._holdings_of(identity)
        denied = holdings.denies(need)
        if denied is not None:
            return Ruling(False, "a rule denies it", denied)
        if need.kind is ResourceKind.PRODUCER and not need.name:
            return _of_unnamed(identity, need, holdings)
        allowed = holdings.allows(need)
        if allowed is not None:
            return Ruling(True, "a rule allows it", allowed)
        return Ruling(False, "no rule allows it")

    def _holdings_of(self, identity: str) -> _Holdings:
        holdings = self._holdings.get(identity)
        if holdings is None:
            if len(self._holdings) >= IDENTITIES_KEPT:
                self._holdings.clear()
            mine = (rule for rule in self.rules if rule.identity.matches(identity))
            holdings = self._holdings[identity] = _Holdings(mine)
        return holdings


def _of_unnamed(identity: str, need: Need, holdings: _Holdings) -> Ruling:
    if need.owner != identity:
        return Ruling(False, "an unnamed producer is used by who registered it, and nobody else")
    any_allowed = holdings.any_allowed
    if any_allowed is None:
        return Ruling(False, "no rule allows this identity anything")
    return Ruling(True, "its own", any_allowed)


def would_allow(identity: str, need: Need) -> list[Rule]:
    """Rules of which each, added, allows it, unless another denies it; the closest first."""
    ways = ((need.kind, need.verb), *IMPLIED_BY.get((need.kind, need.verb), ()))
    if not need.name:
        return []
    return [
        Rule(Effect.ALLOW, Pattern(identity), verb, kind, Pattern(need.name))
        for kind, verb in ways
        if verb in VERBS_OF.get(kind, ())
    ]


def pattern_of(text: str) -> Pattern:
    """As people write it: a `*` at the end stands for every continuation."""
    return Pattern(text[:-1], prefixed=True) if text.endswith("*") else Pattern(text)


def require_rule(rule: Rule) -> None:
    """Raises InvalidArgument for one that could never decide anything."""
    verbs = VERBS_OF.get(rule.kind, ())
    if rule.verb not in verbs:
        said = f"has {', '.join(verbs)}" if verbs else "is not for rules to give"
        raise InvalidArgument(f"{rule.kind} has no verb {rule.verb}: it {said}", field="verb")
    require_pattern(rule.identity, "identity", IDENTITY_BYTES_MAX)
    require_pattern(rule.name, "name", RULE_NAME_BYTES_MAX)


def require_pattern(pattern: Pattern, field: str, bytes_max: int) -> None:
    """Raises InvalidArgument."""
    if not pattern.text and not pattern.prefixed:
        raise InvalidArgument(
            f"{field} is empty: give a name, or an empty prefix for all", field=field
        )
    if len(pattern.text.encode()) > bytes_max:
        raise InvalidArgument(f"{field} has at most {bytes_max} bytes", field=field)

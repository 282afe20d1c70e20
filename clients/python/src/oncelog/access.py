"""Who may do what, as operators see it: rules and quotas.

A pattern is a name, or a name that ends in `*` and stands for everything that begins so. What is
acted upon is written KIND:NAME; without a kind it is a topic:

    topic:payments      create, read, write, describe, alter, delete
    group:enricher      read (commit and fetch offsets), describe, alter (reset offsets), delete
    producer:enricher   write, fence (take the name over from another identity)
    transaction:...     describe, abort: transactions of others, by their producer's name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oncelog._core.requests import require_text
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import cluster_pb2 as pb

VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("create", "read", "write", "describe", "alter", "delete"),
    "group": ("read", "describe", "alter", "delete"),
    "producer": ("write", "fence"),
    "transaction": ("describe", "abort"),
}
# What only Oncelog's own processes do, and only operators: to ask about, not to give.
CLUSTER_VERBS: Final = ("serve", "operate")
EFFECTS: Final = ("allow", "deny")


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """A name, or every name that begins so."""

    text: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.text}*" if self.prefixed else self.text


@dataclass(frozen=True, slots=True, order=True)
class AccessRule:
    """One line of who may what. Deny stands before allow."""

    # allow or deny.
    effect: str
    # Of whom: the name in a certificate.
    identity: Pattern
    verb: str
    # topic, group, producer or transaction.
    kind: str
    name: Pattern
    # The identity that added it, and when, milliseconds since 1970. Of no matter where it is added
    # or removed.
    added_by: str = ""
    added_ms: int = 0

    def __str__(self) -> str:
        return f"{self.effect} {self.identity} {self.verb} {self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """Whether somebody may do something, and why."""

    allowed: bool
    because: str
    # The rule that decided it; None where none did.
    rule: AccessRule | None
    # Not allowed: each of these, added, would allow it, once no rule denies it.
    would_allow: tuple[AccessRule, ...]
    # off, warn or on: only with `on` is anything refused.
    mode: str


@dataclass(frozen=True, slots=True)
class Quota:
    """What an identity may do in a second, of each process that it calls; 0: no limit."""

    identity: Pattern
    # Of requests and replies together.
    bytes_per_second: int
    calls_per_second: int
    added_by: str = ""
    added_ms: int = 0


def pattern(text: str | Pattern) -> Pattern:
    """A `*` at its end stands for every continuation. Raises InvalidArgument."""
    if isinstance(text, Pattern):
        return text
    require_text("identity", text)
    return Pattern(text[:-1], prefixed=True) if text.endswith("*") else Pattern(text)


def place(text: str) -> tuple[str, str]:
    """KIND:NAME; without a kind that we know, a topic. Raises InvalidArgument."""
    require_text("what", text)
    kind, colon, name = text.partition(":")
    if colon and kind in (*VERBS, "cluster"):
        return kind, name
    if colon:
        raise InvalidArgument(
            f"{text!r}: what is acted upon is one of {', '.join(f'{k}:NAME' for k in VERBS)}",
            field="kind",
        )
    return "topic", text


def rules(effect: str, identity: str | Pattern, verbs: str, what: str) -> list[AccessRule]:
    """One for each verb; `verbs` with commas, or `all` of what there is. Raises InvalidArgument."""
    kind, name = place(what)
    require_text("verbs", verbs)
    if effect not in EFFECTS:
        raise InvalidArgument(f"effect is {effect!r}; allowed: allow, deny", field="effect")
    named = VERBS.get(kind, ()) if verbs == "all" else [v.strip() for v in verbs.split(",")]
    for verb in named:
        require_verb(kind, verb)
    return [AccessRule(effect, pattern(identity), verb, kind, pattern(name)) for verb in named]


def require_verb(kind: str, verb: str) -> None:
    """Raises InvalidArgument."""
    known = VERBS.get(kind, CLUSTER_VERBS)
    if verb not in known:
        raise InvalidArgument(
            f"a {kind} has no verb {verb!r}; allowed: {', '.join(known)}", field="verb"
        )


# ---------------------------------------------------------------------------- to and from the wire


def rule_message(rule: AccessRule) -> pb.AccessRule:
    return pb.AccessRule(
        effect=pb.AccessEffect.Value(f"ACCESS_EFFECT_{rule.effect.upper()}"),
        identity=pattern_message(rule.identity),
        verb=verb_number(rule.verb),
        kind=kind_number(rule.kind),
        name=pattern_message(rule.name),
    )


def rule_of(message: pb.AccessRule) -> AccessRule:
    return AccessRule(
        _word(pb.AccessEffect.Name(message.effect)),
        _pattern_of(message.identity),
        _word(pb.AccessVerb.Name(message.verb)),
        _word(pb.AccessKind.Name(message.kind)),
        _pattern_of(message.name),
        message.added_by,
        message.added_ms,
    )


def verdict_of(reply: pb.TestAccessReply) -> AccessVerdict:
    return AccessVerdict(
        reply.allowed,
        reply.because,
        rule_of(reply.rule) if reply.HasField("rule") else None,
        tuple(map(rule_of, reply.would_allow)),
        reply.mode,
    )


def quota_of(message: pb.Quota) -> Quota:
    return Quota(
        _pattern_of(message.identity),
        message.bytes_per_second,
        message.calls_per_second,
        message.added_by,
        message.added_ms,
    )


def pattern_message(of: Pattern) -> pb.AccessPattern:
    return pb.AccessPattern(text=of.text, prefixed=of.prefixed)


def verb_number(verb: str) -> Any:
    return pb.AccessVerb.Value(f"ACCESS_VERB_{verb.upper()}")


def kind_number(kind: str) -> Any:
    return pb.AccessKind.Value(f"ACCESS_KIND_{kind.upper()}")


def _pattern_of(message: pb.AccessPattern) -> Pattern:
    return Pattern(message.text, message.prefixed)


def _word(name: str) -> str:
    return name.rpartition("_")[2].lower()

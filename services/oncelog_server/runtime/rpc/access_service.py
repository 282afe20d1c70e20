"""The handlers of Cluster that show and change rules and quotas. Any process answers; all obey.

Rules are judged by `core/access`, kept in etcd (`runtime/etcd/access_store`). Here they are turned
from messages and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog_server.core.access import (
    IDENTITY_BYTES_MAX,
    Effect,
    Need,
    Pattern,
    ResourceKind,
    Rights,
    Rule,
    Verb,
    require_pattern,
    require_rule,
    would_allow,
)
from oncelog_server.core.ports import AccessStore, Call, StoredQuota, StoredRule
from oncelog_server.core.quotas import Quota, require_quota
from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.access.guard import Guard
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import cluster_pb2 as pb

_VERBS: Final[Mapping[int, Verb]] = {
    pb.AccessVerb.Value(f"ACCESS_VERB_{verb.name}"): verb for verb in Verb
}
_KINDS: Final[Mapping[int, ResourceKind]] = {
    pb.AccessKind.Value(f"ACCESS_KIND_{kind.name}"): kind for kind in ResourceKind
}
_EFFECTS: Final = {
    pb.ACCESS_EFFECT_ALLOW: Effect.ALLOW,
    pb.ACCESS_EFFECT_DENY: Effect.DENY,
}
_VERB_NUMBERS: Final = {verb: number for number, verb in _VERBS.items()}
_KIND_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_EFFECT_NUMBERS: Final = {effect: number for number, effect in _EFFECTS.items()}


class AccessService:
    """See the module."""

    def __init__(self, store: AccessStore, guard: Guard | None) -> None:
        """`guard`: the one that is obeyed; None where nobody is asked."""
        self._store = store
        self._guard = guard

    async def list_rules(self, request: pb.ListRulesRequest, call: Call) -> pb.ListRulesReply:
        return pb.ListRulesReply(
            rules=[
                _rule_message(stored.rule, stored)
                for stored in self._store.rules()
                if not request.identity or stored.rule.identity.matches(request.identity)
            ]
        )

    async def add_rules(self, request: pb.AddRulesRequest, call: Call) -> pb.AddRulesReply:
        rules = [_rule(message) for message in request.rules]
        return pb.AddRulesReply(added=await self._store.add_rules(rules, by=call.identity))

    async def remove_rules(self, request: pb.RemoveRulesRequest, call: Call) -> pb.RemoveRulesReply:
        rules = [_rule(message) for message in request.rules]
        return pb.RemoveRulesReply(removed=await self._store.remove_rules(rules))

    async def test_access(self, request: pb.TestAccessRequest, call: Call) -> pb.TestAccessReply:
        """As the rules of this process are now, whatever its mode."""
        require_pattern(Pattern(request.identity), "identity", IDENTITY_BYTES_MAX)
        need = Need(_verb(request.verb), _kind(request.kind), request.name)
        # Judged afresh: what somebody only asks about is not kept at hand.
        rights = self._rights()
        ruling = rights.ruling(request.identity, need)
        return pb.TestAccessReply(
            allowed=ruling.allowed,
            because=ruling.because,
            rule=None if ruling.rule is None else _rule_message(ruling.rule),
            would_allow=[]
            if ruling.allowed
            else [_rule_message(rule) for rule in would_allow(request.identity, need)],
            mode=Mode.OFF if self._guard is None else self._guard.mode,
        )

    def _rights(self) -> Rights:
        if self._guard is not None:
            return self._guard.rights
        return Rights(stored.rule for stored in self._store.rules())

    async def list_quotas(self, request: pb.ListQuotasRequest, call: Call) -> pb.ListQuotasReply:
        return pb.ListQuotasReply(quotas=map(_quota_message, self._store.quotas()))

    async def set_quotas(self, request: pb.SetQuotasRequest, call: Call) -> pb.SetQuotasReply:
        quotas = [_quota(message) for message in request.quotas]
        await self._store.set_quotas(quotas, by=call.identity)
        return pb.SetQuotasReply()

    async def remove_quotas(
        self, request: pb.RemoveQuotasRequest, call: Call
    ) -> pb.RemoveQuotasReply:
        identities = [_pattern(message) for message in request.identities]
        for identity in identities:
            require_pattern(identity, "identities", IDENTITY_BYTES_MAX)
        return pb.RemoveQuotasReply(removed=await self._store.remove_quotas(identities))


# --------------------------------------------------------------------------------- from messages


def _rule(message: pb.AccessRule) -> Rule:
    effect = _EFFECTS.get(message.effect)
    if effect is None:
        raise InvalidArgument("a rule allows or denies: say which", field="effect")
    rule = Rule(
        effect,
        _pattern(message.identity),
        _verb(message.verb),
        _kind(message.kind),
        _pattern(message.name),
    )
    require_rule(rule)
    return rule


def _quota(message: pb.Quota) -> Quota:
    quota = Quota(_pattern(message.identity), message.bytes_per_second, message.calls_per_second)
    require_quota(quota)
    return quota


def _pattern(message: pb.AccessPattern) -> Pattern:
    return Pattern(message.text, message.prefixed)


def _verb(number: int) -> Verb:
    verb = _VERBS.get(number)
    if verb is None:
        raise InvalidArgument(f"verb {number} is not known here", field="verb")
    return verb


def _kind(number: int) -> ResourceKind:
    kind = _KINDS.get(number)
    if kind is None:
        raise InvalidArgument(f"kind {number} is not known here", field="kind")
    return kind


# ----------------------------------------------------------------------------------- to messages


def _rule_message(rule: Rule, stored: StoredRule | None = None) -> pb.AccessRule:
    return pb.AccessRule(
        effect=_EFFECT_NUMBERS[rule.effect],
        identity=_pattern_message(rule.identity),
        verb=pb.AccessVerb.ValueType(_VERB_NUMBERS[rule.verb]),
        kind=pb.AccessKind.ValueType(_KIND_NUMBERS[rule.kind]),
        name=_pattern_message(rule.name),
        added_by="" if stored is None else stored.added_by,
        added_ms=0 if stored is None else stored.added_ms,
    )


def _quota_message(stored: StoredQuota) -> pb.Quota:
    quota = stored.quota
    return pb.Quota(
        identity=_pattern_message(quota.identity),
        bytes_per_second=quota.bytes_per_second,
        calls_per_second=quota.calls_per_second,
        added_by=stored.added_by,
        added_ms=stored.added_ms,
    )


def _pattern_message(pattern: Pattern) -> pb.AccessPattern:
    return pb.AccessPattern(text=pattern.text, prefixed=pattern.prefixed)

"""Rules and quotas as they stand in etcd: their keys, the JSON in them, and this process's picture.

    access/rules/<digest>     {"effect": "allow", "identity": {"text": "alice", "prefixed": false},
                               "verb": "read", "kind": "topic", "name": {...}, "added_by": ...}
    access/quotas/<digest>    {"identity": {...}, "bytes_per_second": 0, "calls_per_second": 9, ...}

The digest is of the rule itself (of the identity, for a quota), so the same rule is the same key,
whoever adds it, and adding it twice is adding it once.

A value that cannot be read counts as absent and is named (`unreadable`): an allow rule that nobody
understands allows nothing, and a deny rule of a later version is about what this one cannot do.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from oncelog_server.core.access import Effect, Pattern, ResourceKind, Rule, Verb
from oncelog_server.core.ports import StoredQuota, StoredRule
from oncelog_server.core.quotas import Quota

ACCESS: Final = "access/"
RULES: Final = f"{ACCESS}rules/"
QUOTAS: Final = f"{ACCESS}quotas/"
DIGEST_BYTES: Final = 16


class RuleValue(msgspec.Struct, frozen=True):
    """`access/rules/<digest>`."""

    effect: Effect
    identity: Pattern
    verb: Verb
    kind: ResourceKind
    name: Pattern
    added_by: str = ""
    added_ms: int = 0


class QuotaValue(msgspec.Struct, frozen=True):
    """`access/quotas/<digest>`."""

    identity: Pattern
    bytes_per_second: int = 0
    calls_per_second: int = 0
    added_by: str = ""
    added_ms: int = 0


_RULE: Final = msgspec.json.Decoder(RuleValue)
_QUOTA: Final = msgspec.json.Decoder(QuotaValue)
_ENCODER: Final = msgspec.json.Encoder()


def rule_key(rule: Rule) -> str:
    return RULES + _digest(rule)


def quota_key(identity: Pattern) -> str:
    return QUOTAS + _digest(identity)


def rule_value(stored: StoredRule) -> bytes:
    rule = stored.rule
    value = RuleValue(
        rule.effect,
        rule.identity,
        rule.verb,
        rule.kind,
        rule.name,
        stored.added_by,
        stored.added_ms,
    )
    return _ENCODER.encode(value)


def quota_value(stored: StoredQuota) -> bytes:
    quota = stored.quota
    value = QuotaValue(
        quota.identity,
        quota.bytes_per_second,
        quota.calls_per_second,
        stored.added_by,
        stored.added_ms,
    )
    return _ENCODER.encode(value)


class AccessView:
    """Part of a ClusterView."""

    def __init__(self) -> None:
        # By key.
        self.rules: dict[str, StoredRule] = {}
        self.quotas: dict[str, StoredQuota] = {}
        self.unreadable: dict[str, str] = {}

    def set(self, key: str, value: bytes | None) -> None:
        """A key below `access/` changed. None: it was deleted."""
        self.unreadable.pop(key, None)
        self.rules.pop(key, None)
        self.quotas.pop(key, None)
        if value is None:
            return
        try:
            if key.startswith(RULES):
                self.rules[key] = _rule(_RULE.decode(value))
            elif key.startswith(QUOTAS):
                self.quotas[key] = _quota(_QUOTA.decode(value))
        except msgspec.DecodeError as error:
            self.unreadable[key] = str(error)


def _rule(value: RuleValue) -> StoredRule:
    rule = Rule(value.effect, value.identity, value.verb, value.kind, value.name)
    return StoredRule(rule, value.added_by, value.added_ms)


def _quota(value: QuotaValue) -> StoredQuota:
    quota = Quota(value.identity, value.bytes_per_second, value.calls_per_second)
    return StoredQuota(quota, value.added_by, value.added_ms)


def _digest(value: Rule | Pattern) -> str:
    return hashlib.blake2b(_ENCODER.encode(value), digest_size=DIGEST_BYTES).hexdigest()

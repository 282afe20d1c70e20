"""Rules and quotas: changing and asking about them. For operators."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog import access
from oncelog._core.requests import made
from oncelog.access import AccessRule, AccessVerdict, Pattern, Quota
from oncelog.protocol import AsyncProtocol
from oncelogpb.v1 import cluster_pb2 as pb

# Rules of one call; more are sent in several.
RULES_PER_CALL = 100


class Access:
    """Made as `log.admin.access`."""

    def __init__(self, protocol: AsyncProtocol) -> None:
        self._protocol = protocol

    async def rules(self, identity: str = "") -> list[AccessRule]:
        """All, or those that are about this identity."""
        request = pb.ListRulesRequest(identity=identity)
        reply = await self._protocol.call("cluster.list_rules", request)
        return [access.rule_of(message) for message in reply.rules]

    async def allow(self, identity: str | Pattern, verbs: str, what: str) -> int:
        """`allow("alice", "read,write", "topic:payments*")`; how many rules are new. Every process
        obeys within seconds. Raises InvalidArgument, LimitExceeded."""
        return await self.add(access.rules("allow", identity, verbs, what))

    async def deny(self, identity: str | Pattern, verbs: str, what: str) -> int:
        """The same, with rules that stand before every allow."""
        return await self.add(access.rules("deny", identity, verbs, what))

    async def add(self, rules: Sequence[AccessRule]) -> int:
        """How many are new. A hundred at a time are added together or not at all."""
        added = 0
        for first in range(0, len(rules), RULES_PER_CALL):
            chosen = rules[first : first + RULES_PER_CALL]
            request = pb.AddRulesRequest(rules=map(access.rule_message, chosen))
            added += (await self._protocol.call("cluster.add_rules", request)).added
        return added

    async def remove(self, rules: Sequence[AccessRule]) -> int:
        """How many there were. Each exactly as it is listed."""
        removed = 0
        for first in range(0, len(rules), RULES_PER_CALL):
            chosen = rules[first : first + RULES_PER_CALL]
            request = pb.RemoveRulesRequest(rules=map(access.rule_message, chosen))
            removed += (await self._protocol.call("cluster.remove_rules", request)).removed
        return removed

    async def test(self, identity: str, verb: str, what: str) -> AccessVerdict:
        """Whether it may, and which rule says so. Raises InvalidArgument."""
        kind, name = access.place(what)
        access.require_verb(kind, verb)
        request = pb.TestAccessRequest(
            identity=identity,
            verb=access.verb_number(verb),
            kind=access.kind_number(kind),
            name=name,
        )
        return access.verdict_of(await self._protocol.call("cluster.test_access", request))

    async def quotas(self) -> list[Quota]:
        """By identity."""
        reply = await self._protocol.call("cluster.list_quotas", pb.ListQuotasRequest())
        return [access.quota_of(message) for message in reply.quotas]

    async def set_quota(
        self,
        identity: str | Pattern,
        *,
        bytes_per_second: int = 0,
        calls_per_second: int = 0,
    ) -> None:
        """In place of the one that it had. 0: no limit; both is an error: remove it then."""
        quota = made(
            pb.Quota,
            identity=access.pattern_message(access.pattern(identity)),
            bytes_per_second=bytes_per_second,
            calls_per_second=calls_per_second,
        )
        await self._protocol.call("cluster.set_quotas", pb.SetQuotasRequest(quotas=[quota]))

    async def remove_quota(self, identity: str | Pattern) -> int:
        """1, or 0 where there was none."""
        named = access.pattern_message(access.pattern(identity))
        request = pb.RemoveQuotasRequest(identities=[named])
        return int((await self._protocol.call("cluster.remove_quotas", request)).removed)

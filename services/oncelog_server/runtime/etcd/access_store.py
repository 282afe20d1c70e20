"""EtcdAccess: changing rules and quotas (the AccessStore port). Each change is one transaction of
etcd, and means the same when it is repeated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from oncelog_server.core.access import Pattern, Rule
from oncelog_server.core.ports import Clock, StoredQuota, StoredRule
from oncelog_server.core.quotas import Quota
from oncelog_server.runtime.etcd import access_view
from oncelog_server.runtime.etcd.access_view import AccessView
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import CLUSTER, TXN_KEYS_MAX
from oncelog_server.runtime.etcd.port import Delete, Etcd, EtcdUnavailable, Exists, Put
from oncelogpb.errors import InvalidArgument, LimitExceeded, TooLarge, UnknownOutcome

# Rules of a cluster, and quotas. Each process holds all of them, and judges an identity that it
# meets for the first time by looking at each.
RULES_MAX: Final = 10_000
QUOTAS_MAX: Final = 10_000
# Changes of one call: they happen together or not at all.
CHANGES_PER_CALL_MAX: Final = TXN_KEYS_MAX
CHANGE_TIMEOUT_MS: Final = 10_000
RETRY_MS: Final = 200


class EtcdAccess:
    """See the module."""

    def __init__(self, etcd: Etcd, view: ClusterView, clock: Clock) -> None:
        self._etcd = etcd
        self._view = view
        self._clock = clock

    def rules(self) -> Sequence[StoredRule]:
        return sorted(self._view.access.rules.values())

    def quotas(self) -> Sequence[StoredQuota]:
        return sorted(self._view.access.quotas.values())

    async def add_rules(self, rules: Sequence[Rule], *, by: str) -> int:
        """See the port."""
        known = self._view.access.rules
        fresh = {key: rule for rule in rules if (key := access_view.rule_key(rule)) not in known}
        if len(known) + len(fresh) > RULES_MAX:
            raise LimitExceeded(
                f"the cluster holds {len(known)} rules, and rules_max is {RULES_MAX}: say more "
                "with one rule, by a prefix",
                limit="rules_max",
            )
        now_ms = self._clock.now().wall_ms
        puts = [
            Put(key, access_view.rule_value(StoredRule(rule, by, now_ms)))
            for key, rule in sorted(fresh.items())
        ]
        await self._change(len(rules), puts, lambda access: fresh.keys() <= access.rules.keys())
        return len(fresh)

    async def remove_rules(self, rules: Sequence[Rule]) -> int:
        """See the port."""
        keys = {access_view.rule_key(rule) for rule in rules}
        found = len(keys & self._view.access.rules.keys())
        # Also what this process does not see: it may lag behind.
        deletes = [Delete(key) for key in sorted(keys)]
        await self._change(len(rules), deletes, lambda access: not keys & access.rules.keys())
        return found

    async def set_quotas(self, quotas: Sequence[Quota], *, by: str) -> None:
        """See the port."""
        values = {access_view.quota_key(quota.identity): quota for quota in quotas}
        if len(values) < len(quotas):
            raise InvalidArgument("a call sets one quota of an identity", field="quotas")
        known = self._view.access.quotas.keys()
        if len(known | values.keys()) > QUOTAS_MAX:
            raise LimitExceeded(
                f"the cluster holds {len(known)} quotas, and quotas_max is {QUOTAS_MAX}: say more "
                "with one quota, by a prefix",
                limit="quotas_max",
            )
        now_ms = self._clock.now().wall_ms
        puts = [
            Put(key, access_view.quota_value(StoredQuota(quota, by, now_ms)))
            for key, quota in sorted(values.items())
        ]

        def shown(access: AccessView) -> bool:
            return all(
                key in access.quotas and access.quotas[key].quota == quota
                for key, quota in values.items()
            )

        await self._change(len(quotas), puts, shown)

    async def remove_quotas(self, identities: Sequence[Pattern]) -> int:
        """See the port."""
        keys = {access_view.quota_key(identity) for identity in identities}
        found = len(keys & self._view.access.quotas.keys())
        deletes = [Delete(key) for key in sorted(keys)]
        await self._change(len(identities), deletes, lambda access: not keys & access.quotas.keys())
        return found

    # ------------------------------------------------------------------------------ how it changes

    async def _change(
        self, count: int, then: Sequence[Put | Delete], shown: Callable[[AccessView], bool]
    ) -> None:
        """Returns when this process's view shows it. Raises TooLarge, UnknownOutcome."""
        if count > CHANGES_PER_CALL_MAX:
            raise TooLarge(
                f"{count} are above access_changes_max = {CHANGES_PER_CALL_MAX} of one call; send "
                "fewer at once",
                limit="access_changes_max",
                maximum=CHANGES_PER_CALL_MAX,
            )
        if not then:
            return
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_MS / 1000):
                await self._write(then)
            await self._view.wait_for(lambda view: shown(view.access), timeout_ms=CHANGE_TIMEOUT_MS)
        except TimeoutError as error:
            raise UnknownOutcome(
                "etcd did not say whether it was done; repeating it does no harm"
            ) from error

    async def _write(self, then: Sequence[Put | Delete]) -> None:
        """Nothing in an etcd that was wiped: this process ends when it sees that."""
        while True:
            with contextlib.suppress(EtcdUnavailable):
                if (await self._etcd.txn([Exists(CLUSTER)], then)).succeeded:
                    return
            await asyncio.sleep(RETRY_MS / 1000)

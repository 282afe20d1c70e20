"""The blocking twin of `aio.access`."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog._loop import LoopThread
from oncelog.access import AccessRule, AccessVerdict, Pattern, Quota
from oncelog.aio.access import Access as Twin


class Access:
    """Rules and quotas, for operators. Made as `log.admin.access`. See `aio.Access`."""

    def __init__(self, loop: LoopThread, twin: Twin) -> None:
        self._loop = loop
        self._twin = twin

    def rules(self, identity: str = "") -> list[AccessRule]:
        """See `aio.Access.rules`."""
        return self._loop.run(self._twin.rules(identity))

    def allow(self, identity: str | Pattern, verbs: str, what: str) -> int:
        """See `aio.Access.allow`."""
        return self._loop.run(self._twin.allow(identity, verbs, what))

    def deny(self, identity: str | Pattern, verbs: str, what: str) -> int:
        """See `aio.Access.deny`."""
        return self._loop.run(self._twin.deny(identity, verbs, what))

    def add(self, rules: Sequence[AccessRule]) -> int:
        """See `aio.Access.add`."""
        return self._loop.run(self._twin.add(rules))

    def remove(self, rules: Sequence[AccessRule]) -> int:
        """See `aio.Access.remove`."""
        return self._loop.run(self._twin.remove(rules))

    def test(self, identity: str, verb: str, what: str) -> AccessVerdict:
        """See `aio.Access.test`."""
        return self._loop.run(self._twin.test(identity, verb, what))

    def quotas(self) -> list[Quota]:
        """See `aio.Access.quotas`."""
        return self._loop.run(self._twin.quotas())

    def set_quota(
        self,
        identity: str | Pattern,
        *,
        bytes_per_second: int = 0,
        calls_per_second: int = 0,
    ) -> None:
        """See `aio.Access.set_quota`."""
        self._loop.run(
            self._twin.set_quota(
                identity, bytes_per_second=bytes_per_second, calls_per_second=calls_per_second
            )
        )

    def remove_quota(self, identity: str | Pattern) -> int:
        """See `aio.Access.remove_quota`."""
        return self._loop.run(self._twin.remove_quota(identity))

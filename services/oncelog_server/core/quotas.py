"""How much an identity may do in a second, of each process that it calls. PURE.

Of several quotas that are about one identity the closest holds, alone: the literal one, else the
one with the longest prefix. Nobody without an identity has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from oncelog_server.core.access import IDENTITY_BYTES_MAX, Pattern, require_pattern
from oncelogpb.errors import InvalidArgument

# What a quota may be set to, so that sums of it stay exact.
PER_SECOND_MAX: Final = 1 << 50


class Quota(msgspec.Struct, frozen=True, order=True):
    """0 is no limit."""

    identity: Pattern
    # Of requests and replies together.
    bytes_per_second: int = 0
    calls_per_second: int = 0


def closest(quotas: Iterable[Quota], identity: str) -> Quota | None:
    """The one that holds for this identity."""
    about = [quota for quota in quotas if quota.identity.matches(identity)]
    return max(about, key=lambda q: (not q.identity.prefixed, len(q.identity.text)), default=None)


def require_quota(quota: Quota) -> None:
    """Raises InvalidArgument."""
    require_pattern(quota.identity, "identity", IDENTITY_BYTES_MAX)
    for field in ("bytes_per_second", "calls_per_second"):
        if not 0 <= getattr(quota, field) <= PER_SECOND_MAX:
            raise InvalidArgument(f"{field} is 0 (no limit) to {PER_SECOND_MAX}", field=field)
    if not quota.bytes_per_second and not quota.calls_per_second:
        raise InvalidArgument(
            "a quota limits bytes_per_second, calls_per_second or both; remove it to lift it",
            field="bytes_per_second",
        )

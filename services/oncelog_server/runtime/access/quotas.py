"""Quotas at the door: one token bucket per identity and dimension, of this process.

A bucket holds one second's worth. A call is let in while there is anything in it, and may take more
than there is: what a message costs is known when it is there, and a reply when it is made. So a
large message passes, and its caller waits for it afterwards, and over time nobody has more than
his share.

Signs of life (`runtime/rpc/limits`) are let in whatever is left, and charged: who overdrew with one
large message would be taken for dead before he had earned it again.

Left out: sharing over processes. Who calls three of them has three buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from oncelog_server.core.ports import Clock, Reporter
from oncelog_server.core.quotas import Quota, closest
from oncelogpb.errors import Throttled

# Identities whose buckets are kept: above, all start full again.
METERS_KEPT: Final = 10_000
BYTES: Final = "quota_bytes_per_second"
CALLS: Final = "quota_calls_per_second"


class Bucket:
    """What may still be taken now; below 0 it is owed. Who is let in finds at least one in it."""

    __slots__ = ("_at_ms", "_left", "_per_second")

    def __init__(self, per_second: int, now_ms: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._at_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Until the next one is let in; 0: now."""
        earned = (now_ms - self._at_ms) * self._per_second / 1000
        self._left = min(float(self._per_second), self._left + earned)
        self._at_ms = now_ms
        if self._left >= 1.0:
            return 0
        return max(1, math.ceil((1.0 - self._left) * 1000 / self._per_second))

    def take(self, amount: float) -> None:
        self._left -= amount


class Meter:
    """What one identity may do here."""

    __slots__ = ("_bytes", "_calls", "_clock", "_quota", "_reporter", "_who")

    def __init__(self, who: str, quota: Quota, clock: Clock, reporter: Reporter) -> None:
        now_ms = clock.now().monotonic_ms
        self._who = who
        self._quota = quota
        self._clock = clock
        self._reporter = reporter
        self._bytes = _bucket(quota.bytes_per_second, now_ms)
        self._calls = _bucket(quota.calls_per_second, now_ms)

    def refusal(self, size: int, *, is_let_in: bool = False) -> Throttled | None:
        """Why a call of that size is not let in now. None: it is, and is counted; so is one that is
        let in whatever is left."""
        if is_let_in:
            self._count(size)
            return None
        now_ms = self._clock.now().monotonic_ms
        for bucket, limit, maximum in (
            (self._bytes, BYTES, self._quota.bytes_per_second),
            (self._calls, CALLS, self._quota.calls_per_second),
        ):
            wait_ms = 0 if bucket is None else bucket.wait_ms(now_ms)
            if wait_ms:
                self._reporter.count("quota_refusals", limit=limit)
                return Throttled(
                    f"{limit} = {maximum} of {self._who} is used up; come back in {wait_ms} ms",
                    limit=limit,
                    maximum=maximum,
                    retry_after_ms=wait_ms,
                )
        self._count(size)
        return None

    def _count(self, size: int) -> None:
        """A call that is let in."""
        self.charge(size)
        if self._calls is not None:
            self._calls.take(1.0)

    def charge(self, size: int) -> None:
        """Bytes that came or went."""
        if self._bytes is not None:
            self._bytes.take(size)

    def wait_ms(self) -> int:
        """Until what was charged is earned again: for a stream of replies, which is slowed down
        and not ended."""
        if self._bytes is None:
            return 0
        return self._bytes.wait_ms(self._clock.now().monotonic_ms)


def _bucket(per_second: int, now_ms: int) -> Bucket | None:
    return Bucket(per_second, now_ms) if per_second else None


class Quotas:
    """All of a process. Belongs to its event loop."""

    def __init__(self, clock: Clock, reporter: Reporter) -> None:
        self._clock = clock
        self._reporter = reporter
        self._quotas: tuple[Quota, ...] = ()
        self._meters: dict[str, Meter | None] = {}

    def learn(self, quotas: Iterable[Quota]) -> None:
        """These hold from now on. Where any changed, every bucket is full again."""
        fresh = tuple(sorted(quotas))
        if fresh != self._quotas:
            self._quotas = fresh
            self._meters.clear()

    def meter(self, identity: str, is_exempt: Callable[[str], bool]) -> Meter | None:
        """None where nothing limits this identity."""
        if not self._quotas or not identity:
            return None
        if identity in self._meters:
            return self._meters[identity]
        quota = None if is_exempt(identity) else closest(self._quotas, identity)
        made = None if quota is None else Meter(identity, quota, self._clock, self._reporter)
        if len(self._meters) >= METERS_KEPT:
            self._meters.clear()
        self._meters[identity] = made
        return made

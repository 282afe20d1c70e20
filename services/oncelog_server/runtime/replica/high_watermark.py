"""The high watermark (HW) of one leader epoch. Pure.

HW = minimum of what the in-sync replicas have synced, by acknowledgements of this epoch. Which
replicas those are is decided in `in_sync`; a lone leader counts itself.

Invariants:
  * it never moves back;
  * it does not move in an epoch until it can pass EPOCH_START (Raft's figure 8: an inherited frame
    would be shown, then another log wins);
  * only incarnations that count, count: acknowledgements of others are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oncelog_server.core.ids import Incarnation


class HighWatermark:
    """Exclusive: everything below `value` is durable and may be seen."""

    def __init__(
        self,
        *,
        own: Incarnation,
        counted: Iterable[Incarnation],
        epoch_start: int,
        inherited: int = 0,
    ) -> None:
        """`epoch_start` is the journal offset of this epoch's EPOCH_START, `inherited` the HW that
        was known before (a lower bound)."""
        self._counted: frozenset[Incarnation] = frozenset(counted) | {own}
        self._epoch_start = epoch_start
        self._synced: dict[Incarnation, int] = dict.fromkeys(sorted(self._counted), 0)
        self.value = min(inherited, epoch_start)

    @property
    def passed_epoch_start(self) -> bool:
        """True once the leader may answer, owe and serve."""
        return self.value > self._epoch_start

    def synced(self, incarnation: Incarnation, end: int) -> bool:
        """A replica has synced everything below `end`. True where the HW moved."""
        if incarnation not in self._counted or end <= self._synced[incarnation]:
            return False
        self._synced[incarnation] = end
        return self._move()

    def recount(self, synced: Mapping[Incarnation, int]) -> bool:
        """From now on these count, with what each of them has synced. True where the HW moved."""
        self._counted = frozenset(synced)
        self._synced = dict(synced)
        return self._move()

    def _move(self) -> bool:
        covered = min(self._synced.values())
        if covered <= self._epoch_start or covered <= self.value:
            return False
        self.value = covered
        return True

"""Whether what is readable of a log, and not settled, is worth a copy: where a topic's settings
leave it to the replica (`materialization=auto`, docs/adr/0076). PURE.

    rows of a snapshot ──► weight: batches, payload ──► mean ──► settles, or not
                           from the settled end on

Readers gain for each batch that they need not fetch by itself, and each payload byte is written
once more: so small batches are worth it, and large ones are not. In between, and while there is too
little to tell, it stays as it was.

Invariants:
  * each replica decides for itself, by its own snapshots: two of them may differ (I35 is about the
    machine, which knows nothing of it);
  * it turns at a snapshot only, and back only once the mean is LARGE_BYTES / SMALL_BYTES times as
    large.

Left out: reading the rows, and what settling does about it (`settling`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from oncelog_server.core.machine import Settled
from oncelog_server.core.settling import Weight

# Mean payload of a batch: what has less is settled; what has so much, or more, is not.
SMALL_BYTES: Final = 8 << 10
LARGE_BYTES: Final = 32 << 10
# With fewer batches nothing is begun: readers would gain less than a tenth of a second.
LEAST_BATCHES: Final = 1_024
# With less payload nothing is ended: it is a block.
LEAST_BYTES: Final = 1 << 20


class Worth:
    """Of one log, as one leadership or followership sees it."""

    def __init__(self, *, settles: bool) -> None:
        """`settles`: where nothing else is known. What has a data log had reasons."""
        self.settles = settles
        # Number behind the last row that was counted; None: none was.
        self.counted_row: int | None = None
        # Ascending.
        self._weights: deque[Weight] = deque()
        self.batches = self.payload_bytes = 0

    @property
    def mean_bytes(self) -> int:
        """Payload of a batch that is not settled; 0: there is none."""
        return self.payload_bytes // self.batches if self.batches else 0

    def add(self, weights: Iterable[Weight], *, end_row: int) -> None:
        """Of the rows from `counted_row` on."""
        for weight in weights:
            self._weights.append(weight)
            self.batches += weight.batches
            self.payload_bytes += weight.payload_bytes
        self.counted_row = end_row

    def drop_below(self, offset: int) -> None:
        """All below is settled, or deleted. What begins below and goes on above stays as a
        whole."""
        weights = self._weights
        while len(weights) > 1 and weights[1].first_offset <= offset:
            gone = weights.popleft()
            self.batches -= gone.batches
            self.payload_bytes -= gone.payload_bytes

    def follow(self, settled: Settled) -> None:
        """What settings say is how it was, once they leave it open."""
        if settled.wanted or not settled.auto:
            self.settles = settled.wanted

    def decide(self) -> bool:
        """Whether that turned."""
        is_worth = self._is_worth_it()
        turned, self.settles = is_worth != self.settles, is_worth
        return turned

    def _is_worth_it(self) -> bool:
        if self.settles:
            return self.payload_bytes < LEAST_BYTES or self.mean_bytes < LARGE_BYTES
        return self.batches >= LEAST_BATCHES and self.mean_bytes < SMALL_BYTES

    def wants(self, settled: Settled) -> bool:
        """Whether what is readable is to be settled, as settings and all this say."""
        return settled.wanted or (settled.auto and not settled.short_lived and self.settles)

    def why(self, settled: Settled) -> str:
        """What `auto` does, in words; "" where the settings say it."""
        if settled.wanted or not settled.auto:
            return ""
        if settled.short_lived:
            return "retention.ms is less than an hour"
        if self.counted_row is None:
            return "nothing was counted yet"
        counted = f"{self.batches} batches of {self.mean_bytes} bytes are not settled"
        if self.settles:
            return f"{counted}; from {LARGE_BYTES} bytes on they are not copied"
        if self.batches < LEAST_BATCHES:
            return f"{counted}; from {LEAST_BATCHES} on they may be copied"
        return f"{counted}; below {SMALL_BYTES} bytes they are copied"

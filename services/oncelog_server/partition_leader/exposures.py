"""Where the parts of the latest transactions became readable, for repeats of their markers. PURE.

Part of the replicated state: every leader answers a repeat alike, until it is forgotten.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.ids import journal_partition_of
from oncelog_server.participant.commands import Exposed

# Per journal partition: transactions, and their parts in all, for a transaction of many writers has
# many.
EXPOSURES_REMEMBERED: Final = 256
EXPOSED_PARTS_REMEMBERED: Final = 20_000


class Exposures(msgspec.Struct):
    """Journal partition -> TxId -> parts, latest last."""

    by_journal: dict[int, dict[int, tuple[Exposed, ...]]] = {}

    def of(self, tx_id: int) -> tuple[Exposed, ...]:
        """Empty where it is forgotten."""
        return self.by_journal.get(journal_partition_of(tx_id), {}).get(tx_id, ())

    def remember(self, tx_id: int, exposed: tuple[Exposed, ...]) -> None:
        known = self.by_journal.setdefault(journal_partition_of(tx_id), {})
        known[tx_id] = exposed
        parts = sum(map(len, known.values())) if len(exposed) > 1 else 0
        while len(known) > EXPOSURES_REMEMBERED or (
            parts > EXPOSED_PARTS_REMEMBERED and len(known) > 1
        ):
            parts -= len(known.pop(next(iter(known))))

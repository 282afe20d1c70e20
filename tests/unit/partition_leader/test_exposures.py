"""What is remembered for repeats of markers is bounded, by transactions and by parts."""

from __future__ import annotations

from oncelog_server.core.ids import Offset
from oncelog_server.participant.commands import Exposed
from oncelog_server.partition_leader.exposures import (
    EXPOSED_PARTS_REMEMBERED,
    EXPOSURES_REMEMBERED,
    Exposures,
)


def remembered(exposures: Exposures, tx_ids: range) -> list[int]:
    return [tx_id for tx_id in tx_ids if exposures.of(tx_id)]


def test_of_narrow_commits_the_latest_are_remembered() -> None:
    exposures = Exposures()
    for tx_id in range(1, 301):
        exposures.remember(tx_id, (Exposed(0, Offset(tx_id), 1),))
    kept = remembered(exposures, range(1, 301))
    assert kept == list(range(301 - EXPOSURES_REMEMBERED, 301))


def test_of_wide_commits_so_many_parts_are_remembered_and_always_the_latest() -> None:
    exposures = Exposures()
    wide = tuple(Exposed(writer, Offset(writer), 1) for writer in range(3_000))
    for tx_id in range(1, 31):
        exposures.remember(tx_id, wide)
    kept = remembered(exposures, range(1, 31))
    assert len(kept) * len(wide) <= EXPOSED_PARTS_REMEMBERED
    assert kept == list(range(31 - len(kept), 31))
    exposures.remember(31, wide * 10)
    assert remembered(exposures, range(1, 32)) == [31]

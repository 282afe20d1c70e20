"""Whose markers are taken: epochs that etcd granted, of the journal partition that they name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId
from oncelog_server.core.ports import ClusterMetadata, PartitionInfo
from oncelog_server.participant.senders import require_granted
from oncelogpb.errors import NotLeader


class Granted:
    """The epochs of the journal partitions, by number."""

    def __init__(self, epochs: dict[int, int]) -> None:
        self._epochs = epochs

    def partition(self, partition: PartitionId) -> PartitionInfo | None:
        assert partition.topic_id == TRANSACTION_CONTROL_ID
        epoch = self._epochs.get(partition.number)
        return None if epoch is None else PartitionInfo(partition, ["n1"], [], None, epoch)


@pytest.mark.parametrize(
    ("journal_partition", "epoch", "taken"),
    [(0, 1, True), (0, 2, False), (2, 5, True), (2, 6, False), (3, 9, True)],
)
def test_i19_an_epoch_counts_for_its_own_journal_partition(
    journal_partition: int, epoch: int, taken: bool
) -> None:
    """Of a partition that is not known here nothing can be said."""
    metadata: Any = Granted({0: 1, 2: 5})
    try:
        require_granted(cast(ClusterMetadata, metadata), journal_partition, epoch)
    except NotLeader:
        assert not taken
    else:
        assert taken

"""Settings that would fail later are refused at the start."""

from __future__ import annotations

import pytest

from oncelog_server.offset_manager.config import OFFSETS_PER_CALL_MAX, OffsetManagerConfig


def test_a_lone_member_can_name_all_that_it_owns_in_one_heartbeat() -> None:
    OffsetManagerConfig(partitions_per_group_max=OFFSETS_PER_CALL_MAX).validate()
    with pytest.raises(ValueError, match="partitions_per_group_max must be at most"):
        OffsetManagerConfig(partitions_per_group_max=OFFSETS_PER_CALL_MAX + 1).validate()

"""What a topic asks of its writers, as far as more than one role holds them to it. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelogpb.errors import LimitExceeded

# Of a topic's name: its characters are ASCII.
TOPIC_NAME_BYTES_MAX: Final = 249
# Of one setting, name and value.
CONFIG_BYTES_MAX: Final = 4 << 10
# Name of the setting, and of the limit in errors.
MAX_BATCH_BYTES: Final = "max.batch.bytes"
BATCH_BYTES_LEAST: Final = 1024
BATCH_BYTES_MOST: Final = 16 * 1024 * 1024
CLEANUP_POLICY: Final = "cleanup.policy"
# One of the policies that the setting lists.
COMPACT: Final = "compact"


def max_batch_bytes(configs: Mapping[str, str]) -> int:
    """Largest payload of a batch, bytes."""
    return int(configs.get(MAX_BATCH_BYTES) or BATCH_BYTES_MOST)


def require_config_bytes(name: str, value: str) -> None:
    """Raises LimitExceeded."""
    if len(name.encode()) + len(value.encode()) > CONFIG_BYTES_MAX:
        raise LimitExceeded(
            f"the setting {name[:40]!r} is longer than config_bytes_max ({CONFIG_BYTES_MAX})",
            limit="config_bytes_max",
        )


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Of each key the last value is kept, so each record needs one."""
    return COMPACT in configs.get(CLEANUP_POLICY, "")

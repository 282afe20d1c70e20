"""The roles by name, and which topics each leads. PURE.

The first file to change for another role; tests/tidy then names every table that lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, TRANSACTION_CONTROL_ID, TopicId

COORDINATOR: Final = "coordinator"
PARTITION_LEADER: Final = "partition_leader"
OFFSET_MANAGER: Final = "offset_manager"
# In the order in which processes and pages list them.
ROLES: Final = (COORDINATOR, PARTITION_LEADER, OFFSET_MANAGER)
# Where each listens if nothing else is said.
PORTS: Final[Mapping[str, int]] = {COORDINATOR: 7400, PARTITION_LEADER: 7401, OFFSET_MANAGER: 7402}

# The partition leader leads all other topics.
CONTROL_TOPIC_OF_ROLE: Final[Mapping[str, TopicId]] = {
    COORDINATOR: TRANSACTION_CONTROL_ID,
    OFFSET_MANAGER: CONSUMER_OFFSETS_ID,
}
_ROLE_OF_CONTROL_TOPIC: Final = {topic: role for role, topic in CONTROL_TOPIC_OF_ROLE.items()}


def role_of(topic_id: TopicId) -> str:
    """The role that leads a topic's partitions."""
    return _ROLE_OF_CONTROL_TOPIC.get(topic_id, PARTITION_LEADER)

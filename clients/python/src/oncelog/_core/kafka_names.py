"""What the settings of Kafka's clients are called here: for whoever comes with them. PURE.

By Kafka's name, with underscores for dots. docs/from_confluent_kafka.md has the same in a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# What is said of those that have no twin.
_ALWAYS: Final = "leave it out: it is always so"

HINTS: Final[Mapping[str, str]] = {
    # ------------------------------------------------------------------------------- connect
    "bootstrap_servers": "the first argument of connect",
    "client_id": "`client_id` of consumer",
    "request_timeout_ms": "`timeout_ms` of connect",
    "socket_timeout_ms": "`timeout_ms` of connect",
    "topic_metadata_refresh_interval_ms": "`topic_refresh_ms` of connect",
    "metadata_max_age_ms": "`topic_refresh_ms` of connect",
    "security_protocol": "`tls` of connect; without it there is none",
    "ssl_ca_location": "`tls` of connect: its `ca_file`",
    "ssl_certificate_location": "`tls` of connect: its `certificate_file`",
    "ssl_key_location": "`tls` of connect: its `key_file`",
    # ------------------------------------------------------------------------------ consumer
    "group_id": "`group`, an argument of consumer",
    "group_instance_id": "`instance_id`",
    "group_protocol": "leave it out: there is one, which works as Kafka's `consumer`",
    "group_remote_assignor": "`assignor`: uniform or range",
    "partition_assignment_strategy": "`assignor`: uniform or range",
    "auto_offset_reset": (
        "`start`: earliest or latest, where a group has no offset; `if_deleted`: error, earliest "
        "or latest, where its records were deleted"
    ),
    "enable_auto_commit": "`auto_commit_ms`; 0, the default, means no",
    "auto_commit_interval_ms": "`auto_commit_ms`",
    "enable_auto_offset_store": "leave it out: commit(offsets) says what is processed",
    "isolation_level": "`isolation`: committed, the default, or uncommitted",
    "heartbeat_interval_ms": "leave it out: the group says it, at most a third of the session",
    "max_poll_records": "`batch_records_max`",
    "fetch_max_bytes": "`prefetch_bytes_max`",
    "queued_max_messages_kbytes": "`prefetch_bytes_max`",
    "enable_partition_eof": "leave it out: `end_offset` says where a partition ends",
    # ------------------------------------------------------------------------------ producer
    "transactional_id": "the first argument of transactional_producer; it may be left out",
    "enable_idempotence": _ALWAYS,
    "acks": _ALWAYS,
    "retries": "`delivery_timeout_ms` bounds them",
    "message_timeout_ms": "`delivery_timeout_ms`",
    "queue_buffering_max_ms": "`linger_ms`",
    "batch_size": "`batch_bytes`",
    "batch_num_messages": "`batch_bytes`",
    "buffer_memory": "`buffer_bytes_max`",
    "queue_buffering_max_kbytes": "`buffer_bytes_max`",
    "compression_type": "`compression`: none, lz4 or zstd",
    "compression_codec": "`compression`: none, lz4 or zstd",
    "max_in_flight_requests_per_connection": "leave it out: order is kept whatever is in flight",
}


def hint(name: str, known: list[str]) -> str | None:
    """What to write instead of `name`; None: it is no name of Kafka's."""
    plain = name.replace(".", "_").replace("-", "_")
    if plain in HINTS:
        return f"it is called otherwise here: {HINTS[plain]}"
    if plain != name and plain in known:
        return f"write it {plain!r}"
    return None

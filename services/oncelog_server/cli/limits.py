"""Every limit there is, in one table: on messages, on what is held open, on queues and buffers.
The one in docs/operating.md is made from it
(`python -m oncelog_server.cli.limits docs/operating.md`; tests hold the two equal, and that no
setting that ends in _max and no limit that an error names is missing).

A limit has a name, a value that comes from the code that holds it, what the caller hears who meets
it (`limit` in the error's metadata is the name), and the metric that says how full it is, if any.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncelog import options
from oncelog._core import buffers, routing, sequencing, transaction
from oncelog.aio import producer, sender, table_view
from oncelog_server.cli import lines, supervision
from oncelog_server.cli import names as completed_names
from oncelog_server.coordinator import config as coordinator_config
from oncelog_server.coordinator import deliveries, producers, unborn
from oncelog_server.coordinator import listing as coordinator_listing
from oncelog_server.coordinator import service as coordinator_service
from oncelog_server.coordinator import state as coordinator_state
from oncelog_server.coordinator import wire as coordinator_wire
from oncelog_server.core import access, topic_limits
from oncelog_server.offset_manager import config as offsets_config
from oncelog_server.offset_manager import wire as offsets_wire
from oncelog_server.partition_leader import config as leader_config
from oncelog_server.partition_leader import damage, exposures
from oncelog_server.runtime import node_config
from oncelog_server.runtime.access import audit, quotas
from oncelog_server.runtime.config import help_of
from oncelog_server.runtime.etcd import access_store, deletions, topics
from oncelog_server.runtime.rpc import cluster_access
from oncelog_server.runtime.rpc import limits as rpc_limits
from oncelog_server.runtime.storage import slots
from oncelogpb import calls, errors
from oncelogpb.errors import (
    InvalidArgument,
    InvalidTimeout,
    LimitExceeded,
    OncelogError,
    Throttled,
    TooLarge,
)

WAITS: Final = "waits"
FORGETS: Final = "forgets the oldest"


class Limit(NamedTuple):
    """One line of the table."""

    name: str
    value: int
    meaning: str
    # What the caller hears; None: `otherwise` happens.
    error: type[OncelogError] | None
    otherwise: str = ""
    # Full name of the gauge that says how full it is.
    metric: str = ""

    @property
    def outcome(self) -> str:
        return self.otherwise if self.error is None else self.error.reason


class Section(NamedTuple):
    """Limits that are set in one place."""

    title: str
    # How they are changed.
    note: str
    limits: tuple[Limit, ...]


def _settings(
    kind: type[Any], *rows: tuple[str, type[OncelogError] | str, str]
) -> tuple[Limit, ...]:
    """Fields of a settings class: their defaults, and what the comments above them say."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    texts = help_of(kind)
    return tuple(_limit(name, defaults[name], texts[name], outcome, m) for name, outcome, m in rows)


def _limit(
    name: str, value: Any, meaning: str, outcome: type[OncelogError] | str, metric: str = ""
) -> Limit:
    if isinstance(outcome, str):
        return Limit(name, int(value), meaning, None, outcome, metric)
    return Limit(name, int(value), meaning, outcome, "", metric)


_PROCESS: Final = Section(
    "every process",
    "Those of `runtime/node_config.py` are settings (`node.<name>`); the others are fixed "
    "(`runtime/rpc/limits.py` and the modules that hold them).",
    (
        *_settings(
            rpc_limits.RpcLimits,
            ("message_bytes_max", TooLarge, ""),
            ("message_fields_max", TooLarge, ""),
            ("inflight_bytes_max", Throttled, "oncelog_node_inflight_bytes"),
            ("stream_calls_max", Throttled, ""),
            ("stream_answer_bytes_max", WAITS, ""),
            ("connection_unread_bytes_max", WAITS, ""),
            ("unread_bytes_max", WAITS, "oncelog_node_unread_bytes"),
            ("calls_max", Throttled, "oncelog_node_calls"),
            ("streams_max", Throttled, "oncelog_node_streams"),
            ("connections_max", "is closed", "oncelog_node_open_files"),
            ("connection_calls_max", WAITS, ""),
            ("default_timeout_ms", "–", ""),
            ("timeout_ms_max", "is cut to it", ""),
        ),
        *_settings(
            node_config.NodeConfig,
            ("tail_bytes_max", "older ones are read from disk", "oncelog_node_tail_bytes"),
            ("control_journal_bytes_max", "outcomes are told without their parts", ""),
            ("compaction_map_bytes", "another pass goes on with more keys", ""),
        ),
        _limit(
            "metadata_names_max",
            cluster_access.METADATA_NAMES_MAX,
            "Names and ids of one GetMetadata.",
            TooLarge,
        ),
        _limit(
            "reassigned_max",
            cluster_access.REASSIGNED_MAX,
            "Partitions of one ReassignPartitions.",
            TooLarge,
        ),
        _limit(
            "replicas_described_max",
            cluster_access.REPLICAS_DESCRIBED_MAX,
            "Partitions that one DescribeReplicas names.",
            TooLarge,
        ),
        _limit(
            "told_characters_max",
            cluster_access.TOLD_CHARACTERS_MAX,
            "What one UncleanElect says that its caller was told.",
            TooLarge,
        ),
        _limit(
            "rules_max",
            access_store.RULES_MAX,
            "Rules of who may do what, of a cluster.",
            LimitExceeded,
        ),
        _limit("quotas_max", access_store.QUOTAS_MAX, "Quotas of a cluster.", LimitExceeded),
        _limit(
            "access_changes_max",
            access_store.CHANGES_PER_CALL_MAX,
            "Rules or quotas that one call adds or removes.",
            TooLarge,
        ),
        _limit(
            "rule_name_bytes_max",
            access.RULE_NAME_BYTES_MAX,
            "Bytes of the name in a rule.",
            InvalidArgument,
        ),
        _limit(
            "identity_bytes_max",
            access.IDENTITY_BYTES_MAX,
            "Bytes of the identity in a rule or quota.",
            InvalidArgument,
        ),
        Limit(
            quotas.BYTES,
            0,
            "What an identity may send and be sent in a second, of each process; 0: no limit. Set "
            "by `oncelog quota set`; Oncelog's own processes have none.",
            Throttled,
        ),
        Limit(
            quotas.CALLS,
            0,
            "Calls that an identity may make in a second, of each process; 0: no limit. Likewise.",
            Throttled,
        ),
        _limit(
            "audited_refusals_per_minute",
            audit.REFUSALS_PER_MINUTE,
            "Refusals of one identity that are written into the audit log; the others are counted.",
            "is counted",
        ),
        _limit(
            "audit_lines_waiting_max",
            audit.LINES_WAITING_MAX,
            "Lines of the audit log that its disk has not taken yet.",
            "is lost, and counted",
        ),
        _limit(
            "restarts_max",
            supervision.RESTARTS_MAX,
            "`oncelog up`: restarts of one of its processes within a minute.",
            "`oncelog up` ends",
        ),
        _limit(
            "deletions_remembered",
            deletions.DELETIONS_REMEMBERED,
            "Deleted topics that etcd need not be asked about again.",
            FORGETS,
        ),
        _limit(
            "error_message_bytes",
            errors.MESSAGE_BYTES_MAX,
            "Text of an error: it may quote a name of any length, and clients take 8 KiB of it.",
            "is cut",
        ),
    ),
)

_COORDINATOR: Final = Section(
    "coordinator",
    "Settings `coordinator.<name>`, except those in parentheses, which are fixed.",
    (
        *_settings(
            coordinator_config.CoordinatorConfig,
            ("transaction_timeout_ms_min", InvalidTimeout, ""),
            ("transaction_timeout_ms_max", InvalidTimeout, ""),
            (
                "transaction_lifetime_ms_max",
                "is aborted",
                "oncelog_coordinator_oldest_open_transaction_age_ms",
            ),
            ("replaced_instances_max", FORGETS, ""),
            ("producers_max", LimitExceeded, "oncelog_coordinator_producers"),
            ("open_transactions_max", LimitExceeded, "oncelog_coordinator_open_transactions"),
            ("manifest_parts_max", TooLarge, ""),
            ("manifest_bytes_max", TooLarge, ""),
            ("one_shot_bytes_max", TooLarge, ""),
            ("one_shot_partitions_max", TooLarge, ""),
            ("one_shot_decompressed_bytes_max", TooLarge, ""),
            ("parts_max", TooLarge, ""),
            ("participants_max", Throttled, "oncelog_coordinator_participants"),
            ("marker_backlog_max", Throttled, "oncelog_coordinator_unacknowledged_markers"),
            ("marker_backlog_bytes_max", Throttled, ""),
            (
                "one_shot_undelivered_bytes_max",
                Throttled,
                "oncelog_coordinator_undelivered_bytes",
            ),
            ("staged_pending_ms_max", "is aborted", ""),
        ),
        _limit(
            "(one_shots_in_flight_max)",
            producers.ONE_SHOTS_IN_FLIGHT_MAX,
            "One-shots of one producer that are not decided; as many request ids are remembered.",
            Throttled,
        ),
        _limit(
            "(questions_max)",
            coordinator_service.QUESTIONS_MAX,
            "Questions of one AskTransactions.",
            TooLarge,
        ),
        _limit(
            "(unborn_kept)",
            unborn.UNBORN_KEPT,
            "Questions about TxIds that nobody has given out; their answer costs a record.",
            WAITS,
        ),
        _limit(
            "(listed_max)",
            coordinator_listing.LISTED_MAX,
            "Transactions of one ListTransactions.",
            "`more` is true",
        ),
        _limit(
            "(listed_bytes_max)",
            coordinator_listing.LISTED_BYTES_MAX,
            "Their descriptions, bytes.",
            "`more` is true",
        ),
        _limit(
            "(name_bytes_max)",
            coordinator_wire.NAME_BYTES_MAX,
            "Bytes of a producer's or group's name, and of a commit_seq's scope.",
            InvalidArgument,
        ),
        _limit(
            "(markers_per_group_max)",
            deliveries.MARKERS_PER_GROUP_MAX,
            "Markers that go to one participant at once.",
            WAITS,
            "oncelog_coordinator_unacknowledged_markers",
        ),
        _limit(
            "(exposures_kept)",
            deliveries.EXPOSURES_KEPT,
            "Commits of which it is remembered where they became readable.",
            FORGETS,
        ),
        _limit(
            "(slots_held_max)",
            slots.SLOTS_HELD_MAX,
            "Outcomes that memory holds for a journal because the disk does not take them.",
            "the partition is offline until it does",
            "oncelog_coordinator_snapshot_failing",
        ),
        _limit(
            "(exposed_parts_kept)",
            deliveries.EXPOSED_PARTS_KEPT,
            "Parts of these commits, in all.",
            FORGETS,
        ),
        _limit(
            "(damaged_partitions_kept)",
            coordinator_state.DAMAGED_PARTITIONS_KEPT,
            "Their partitions, in all.",
            FORGETS,
        ),
        _limit(
            "(damaged_kept)",
            coordinator_state.DAMAGED_KEPT,
            "Damaged commits that are listed with their partitions.",
            FORGETS,
        ),
    ),
)

_PARTITION_LEADER: Final = Section(
    "partition_leader",
    "Settings `partition_leader.<name>`, except those in parentheses, which are fixed.",
    (
        *_settings(
            leader_config.PartitionLeaderConfig,
            ("open_transactions_max", LimitExceeded, "oncelog_partition_leader_open_transactions"),
            ("batches_per_part_max", LimitExceeded, ""),
            ("writers_per_transaction_max", LimitExceeded, ""),
            ("damaged_max", LimitExceeded, "oncelog_partition_leader_damaged"),
            ("producers_max", LimitExceeded, "oncelog_partition_leader_producers"),
            ("max_batch_bytes", TooLarge, ""),
            ("decompressed_bytes_max", TooLarge, ""),
            ("items_per_call_max", TooLarge, ""),
            ("described_partitions_max", TooLarge, ""),
            ("fetch_partitions_max", TooLarge, ""),
            ("fetch_wait_ms_max", "is cut to it", ""),
            ("fetch_bytes_max", "is cut to it", ""),
            ("fetch_batches_max", "is cut to it", ""),
            ("rows_bytes_max", "is cut to it", ""),
            ("topic_partitions_max", TooLarge, ""),
        ),
        _limit(
            "(max.batch.bytes)",
            topic_limits.BATCH_BYTES_MOST,
            "Payload of a batch, bytes, where its topic sets less; of one-shots too.",
            TooLarge,
        ),
        _limit(
            "(partitions_per_topic_max)",
            topics.PARTITIONS_PER_TOPIC_MAX,
            "Partitions of any topic, whatever the setting says.",
            LimitExceeded,
        ),
        _limit(
            "(topics_max)",
            topics.TOPICS_MAX,
            "Topics of a cluster.",
            LimitExceeded,
            "oncelog_node_topics",
        ),
        _limit(
            "(partitions_max)",
            topics.PARTITIONS_MAX,
            "Partitions of all topics of a cluster.",
            LimitExceeded,
            "oncelog_node_partitions",
        ),
        _limit("(configs_max)", topics.CONFIGS_MAX, "Settings of a topic.", LimitExceeded),
        _limit(
            "(config_bytes_max)",
            topic_limits.CONFIG_BYTES_MAX,
            "One setting of a topic, name and value, bytes.",
            LimitExceeded,
        ),
        _limit(
            "(exposures_remembered)",
            exposures.EXPOSURES_REMEMBERED,
            "Commits per journal partition of which it is remembered where they became readable.",
            FORGETS,
        ),
        _limit(
            "(exposed_parts_remembered)",
            exposures.EXPOSED_PARTS_REMEMBERED,
            "Parts of these commits, in all.",
            FORGETS,
        ),
        _limit(
            "(empty_kept)",
            damage.EMPTY_KEPT,
            "Damaged parts without a batch here that are listed.",
            FORGETS,
        ),
        _limit(
            "(resolutions_remembered)",
            damage.RESOLUTIONS_REMEMBERED,
            "Resolutions of damaged parts that a repeat is answered from.",
            FORGETS,
        ),
    ),
)

_OFFSET_MANAGER: Final = Section(
    "offset_manager",
    "Settings `offset_manager.<name>`, except those in parentheses, which are fixed.",
    (
        *_settings(
            offsets_config.OffsetManagerConfig,
            ("open_transactions_max", LimitExceeded, "oncelog_offset_manager_open_transactions"),
            ("groups_max", LimitExceeded, "oncelog_offset_manager_groups"),
            ("offsets_per_group_max", LimitExceeded, ""),
            ("members_per_group_max", LimitExceeded, ""),
            ("partitions_per_group_max", LimitExceeded, ""),
            ("subscriptions_per_group_max", LimitExceeded, ""),
            ("claims_per_group_max", LimitExceeded, ""),
            ("member_session_ms_min", InvalidTimeout, ""),
            ("member_session_ms_max", InvalidTimeout, ""),
            ("producers_max", LimitExceeded, "oncelog_offset_manager_producers"),
            ("lag_series_max", "is not shown", "oncelog_offset_manager_group_lag_left_out"),
        ),
        _limit(
            "(offsets_per_call_max)",
            offsets_config.OFFSETS_PER_CALL_MAX,
            "Partitions of one call.",
            TooLarge,
        ),
        _limit(
            "(listed_max)", offsets_wire.LISTED_MAX, "Groups of one ListGroups.", "`more` is true"
        ),
        _limit(
            "(session_timeout_ms)",
            offsets_wire.SESSION_MS,
            "Timeout of a transaction that takes offsets of a member, milliseconds: the member's "
            "session, which is this where it asks for no other.",
            InvalidTimeout,
        ),
        _limit(
            "(claim_ms_max)",
            offsets_wire.CLAIM_MS_MAX,
            "How long a claim on a group lasts that is not renewed, milliseconds.",
            InvalidTimeout,
        ),
        _limit(
            "(metadata_bytes_max)",
            offsets_wire.METADATA_BYTES_MAX,
            "Metadata of one offset, bytes of UTF-8.",
            TooLarge,
        ),
        _limit(
            "(subscription_bytes_max)",
            offsets_wire.SUBSCRIPTION_BYTES_MAX,
            "Names of the topics that one member subscribes to, together, bytes.",
            TooLarge,
        ),
        _limit(
            "(group_name_bytes_max)",
            offsets_wire.GROUP_NAME_BYTES_MAX,
            "Bytes of a consumer group's name.",
            InvalidArgument,
        ),
    ),
)

_CLIENT: Final = Section(
    "Python client",
    "Options of `producer`, `consumer` and `table`, except those in parentheses, which are fixed.",
    (
        *_settings(options.ProducerOptions, ("buffer_bytes_max", "`send` waits", "")),
        *_settings(
            options.ConsumerOptions,
            ("batch_records_max", "comes with the next batch", ""),
            ("prefetch_bytes_max", WAITS, ""),
            ("max_poll_interval_ms", errors.UnknownMember, ""),
        ),
        *_settings(options.TableOptions, ("memory_bytes_max", TooLarge, "")),
        _limit(
            "(changes_keys_max)",
            table_view.CHANGES_KEYS_MAX,
            "Keys of a table that changed, and that an iteration over changes did not take yet.",
            TooLarge,
        ),
        _limit(
            "(record_bytes_max)",
            buffers.RECORD_BYTES_MAX,
            "One record, key and value and headers, bytes.",
            TooLarge,
        ),
        _limit(
            "(untold_failures_max)",
            producer.UNTOLD_FAILURES_MAX,
            "Records of a plain producer that failed, and that no `flush` has told yet.",
            LimitExceeded,
        ),
        _limit(
            "(in_flight_max)",
            sequencing.IN_FLIGHT_MAX,
            "Batches of one partition that are sent and not acknowledged.",
            WAITS,
        ),
        _limit(
            "(messages_in_flight_max)",
            sender.MESSAGES_IN_FLIGHT_MAX,
            "Produce messages to one leader that are not answered.",
            WAITS,
        ),
        _limit(
            "(open_calls_max)",
            calls.OPEN_CALLS_MAX,
            "Calls on one stream that are not answered.",
            Throttled,
        ),
        _limit(
            "(waiting_bytes_max)",
            calls.WAITING_BYTES_MAX,
            "Calls on one stream that are not sent, bytes.",
            Throttled,
        ),
        _limit(
            "(manifest_parts_max)",
            transaction.MANIFEST_PARTS_MAX,
            "Partitions, and writers in them, of one transaction.",
            TooLarge,
        ),
        _limit(
            "(routes_kept)",
            routing.ROUTES_KEPT,
            "Leaders of groups and journal partitions that a connection remembers.",
            FORGETS,
        ),
    ),
)

_COMMAND: Final = Section(
    "`oncelog` command",
    "Fixed.",
    (
        _limit(
            "(piece_bytes_max)",
            lines.PIECE_BYTES_MAX,
            "What stands between two delimiters of `oncelog produce`, bytes.",
            "is refused",
        ),
        _limit(
            "(completed_names_max)",
            completed_names.NAMES_MAX,
            "Names that the shell is given to complete a word.",
            "are left out",
        ),
    ),
)

SECTIONS: Final = (_PROCESS, _COORDINATOR, _PARTITION_LEADER, _OFFSET_MANAGER, _CLIENT, _COMMAND)
# Settings whose bound is no limit on what callers do.
NO_LIMITS: Final = frozenset({"timeout_ms_max"})
# The line of the document behind which the table stands.
ANNOUNCED: Final = "<!-- made from oncelog_server/cli/limits.py, do not edit -->"


def names() -> set[str]:
    """All names, as errors say them."""
    return {limit.name.strip("()") for section in SECTIONS for limit in section.limits}


def written_into(document: str) -> str:
    """The document with the table behind the line that announces it. Raises ValueError."""
    text, announced, _ = document.partition(ANNOUNCED)
    if not announced:
        raise ValueError(f"no line {ANNOUNCED!r}")
    return "\n".join([f"{text}{announced}", "", *_as_markdown(), ""])


def _as_markdown() -> list[str]:
    notes = [f"* **{section.title}**: {section.note}" for section in SECTIONS]
    head = [
        "| of | limit | default | above it | metric | what |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    rows = [row for section in SECTIONS for row in _rows(section)]
    return [*notes, "", *head, *rows]


def _rows(section: Section) -> Iterable[str]:
    for limit in section.limits:
        metric = f"`{limit.metric}`" if limit.metric else "–"
        outcome = limit.outcome if limit.error is None else f"`{limit.outcome}`"
        cells = (f"`{limit.name}`", f"{limit.value:,}", outcome, metric, limit.meaning)
        yield f"| {section.title} | {' | '.join(cells)} |"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(written_into(page.read_text()))

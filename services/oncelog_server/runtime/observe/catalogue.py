"""Every metric there is: the contract with whoever draws a dashboard. docs/metrics.md is made from
it (`python -m oncelog_server.runtime.observe.catalogue > docs/metrics.md`; a test holds the two
equal).

A metric's full name is oncelog_<role>_<name>, with `_total` behind a counter and `_seconds` behind
a duration. Names use the words of the glossary. Labels have few values: partitions and reasons; of
the names that users choose those of topics, and those of groups up to a limit (`lag_series_max`).
The code says `partition`, and the topic is shown beside its number, by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

# Stands for a role in what belongs to the process.
PROCESS: Final = "node"
# The label of a partition: its topic's id (or a control topic's name), a slash, its number.
PARTITION: Final = "partition"


class MetricKind(StrEnum):
    """How a metric is read."""

    COUNTER = "counter"
    GAUGE = "gauge"
    # A histogram of durations; reported in milliseconds, exposed in seconds.
    DURATION = "duration"


class Metric(NamedTuple):
    """One metric of a role."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_labels(self) -> tuple[str, ...]:
        """As Prometheus shows them: a partition is a topic and a number."""
        shown = (("topic", label) if label == PARTITION else (label,) for label in self.labels)
        return tuple(name for names in shown for name in names)

    def full_name(self, role: str) -> str:
        """As Prometheus shows it."""
        suffix = {
            MetricKind.COUNTER: "_total",
            MetricKind.GAUGE: "",
            MetricKind.DURATION: "_seconds",
        }[self.kind]
        return f"oncelog_{role}_{self.name}{suffix}"


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, text, labels)


def _duration(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.DURATION, text, labels)


# Of every role.
COMMON: Final = (
    _counter("elections_won", "Partitions whose leadership this process won."),
    _counter("step_downs", "Partitions whose leadership this process lost or gave up.", "reason"),
    _gauge("leading", "1 while this process leads the partition and answers.", "partition"),
    _gauge("epoch", "Leader epoch of the partition here.", "partition"),
    _gauge("high_watermark", "Journal offset below which all is durable.", "partition"),
    _gauge("high_watermark_lag", "Journal offsets appended and not durable yet.", "partition"),
    _gauge("in_sync_replicas", "Replicas in sync of a partition that is led here.", "partition"),
    _gauge(
        "missing_replicas",
        "Replicas that a partition led here should have, and that are not in sync. Alarm on it.",
        "partition",
    ),
    _gauge(
        "writes_refused",
        "1 while fewer replicas than min_insync_replicas keep up. Alarm on it.",
        "partition",
    ),
    _gauge(
        "replica_lag",
        "Journal offsets that the follower farthest behind has not synced, of those that follow a "
        "partition led here.",
        "partition",
    ),
    _gauge("replica_lag_ms", "Since it last had everything.", "partition"),
    _counter("isr_changes", "Changes of the replicas in sync that etcd took.", "why"),
    _gauge("following", "1 while this process follows the partition's leader.", "partition"),
    _gauge(
        "follower_lag", "Journal offsets below the leader's HW that are not here yet.", "partition"
    ),
    _gauge(
        "follower_replay_bytes",
        "About how many bytes of frames a follower would replay if it were elected: those behind "
        "its snapshot.",
        "partition",
    ),
    _gauge(
        "replica_unusable",
        "1 while the replica can neither lead nor follow: its log or what it is sent is damaged, "
        "or its disk fails. Alarm on it.",
        "partition",
    ),
    _duration("append", "From an append to its records being durable."),
    _counter("snapshots", "Snapshots of machines written."),
    _counter("snapshot_failures", "Snapshots, and slots of outcomes, that the disk did not take."),
    _gauge("snapshot_failing", "1 while the last try of these failed. Alarm on it.", "partition"),
    _counter("trims", "Times that a log began later than before."),
    _counter("settled_records", "Offsets of committed logs that were settled, in the data log."),
    _counter("settled_bytes", "Payload bytes of the blocks that were written for them."),
    _gauge(
        "settled_end",
        "Offset behind the last settled record of a committed log that is led.",
        "partition",
    ),
    _gauge(
        "settling_lag",
        "Records of a committed log that is led and to be settled, that are readable and not "
        "settled yet.",
        "partition",
    ),
    _gauge(
        "settling_lag_bytes",
        "About how many bytes of the journal stand for them, and what came since: more rather "
        "than fewer.",
        "partition",
    ),
    _gauge(
        "settling_lag_ms",
        "For how long the oldest of them has been readable, as the process that leads has seen "
        "it. Alarm on it.",
        "partition",
    ),
    _gauge(
        "data_log_bytes",
        "What a replica's data log takes on the disk, measured once in a minute while it grows.",
        "partition",
    ),
    _gauge(
        "settling_waits",
        "1 while a committed log cannot be settled, for the disk or a damaged log: its journal "
        "grows. Alarm on it.",
        "partition",
    ),
    _gauge(
        "compacted_to",
        "Offset below which a data log that is led has nothing superseded; 0 where "
        "it was never compacted.",
        "partition",
    ),
    _counter("compactions", "Passes of compaction over a data log."),
    _counter("compacted_records", "Superseded records and tombstones that these took out."),
    _gauge(
        "compaction_waits",
        "1 while a data log cannot be compacted, for the disk or a damaged log: it grows. Alarm on "
        "it.",
        "partition",
    ),
    _gauge(
        "records_missing",
        "Records that this replica had settled, and that are in neither its data log nor its "
        "journal, as far as that was found when it was opened. Alarm on it.",
        "partition",
    ),
    _counter("scrubbed_bytes", "Bytes of data logs that were read through, for what rots."),
    _counter("scrub_passes", "Data logs that were read through, from their begin to their end."),
    _gauge(
        "damaged_records",
        "Settled records that no intact block of a replica serves, until they come from another "
        "replica. Alarm on it.",
        "partition",
    ),
    _counter("healed_records", "Settled records that came from another replica."),
    _gauge("log_start", "First journal offset of a log that is led.", "partition"),
    _gauge(
        "needed_from",
        "Journal offset from which on frames of a log that is led are read again: what is before "
        "may go.",
        "partition",
    ),
)

COORDINATOR: Final = (
    _counter("transactions_begun", "Transactions begun (BEGIN durable), one-shots included."),
    _counter("transactions_committed", "Transactions decided COMMIT, one-shots included."),
    _counter("transactions_aborted", "Transactions decided ABORT.", "cause"),
    _counter("transactions_timed_out", "Of these: idle too long or past their lifetime."),
    _counter("transactions_fenced", "Of these: ended by a later InitProducer."),
    _counter("one_shots", "Transactions that came as one Transact."),
    _counter("producers_initialized", "Generations granted by InitProducer."),
    _counter("already_committed", "Begins and commits at or below the last commit_seq."),
    _duration("commit_prepare", "From a commit's arrival to its durable PREPARE."),
    _duration("commit_marker", "From the durable PREPARE to the last marker acknowledged."),
    _duration("commit_visible", "From a commit's arrival to the last marker acknowledged."),
    _gauge("open_transactions", "Transactions that are ONGOING or STAGED.", "partition"),
    _gauge("oldest_open_transaction_age_ms", "Age of the oldest of these.", "partition"),
    _gauge("unacknowledged_markers", "Markers that participants still owe.", "partition"),
    _gauge(
        "participants",
        "These, and participants that are known of open transactions (participants_max).",
        "partition",
    ),
    _counter("markers_written", "Markers acknowledged by participants.", "status"),
    _counter("markers_refused", "WriteMarkers groups refused, to be sent again.", "reason"),
    _counter("questions_answered", "Answers to participants.", "verdict"),
    _gauge("producers", "Producers that are known (producers_max).", "partition"),
    _gauge(
        "undelivered_bytes",
        "One-shot payload that is not delivered yet (one_shot_undelivered_bytes_max).",
        "partition",
    ),
    _gauge("sessions", "Producers that hold a session.", "partition"),
    _gauge(
        "outcomes_told_from",
        "Journal offset from which on outcomes are told: transactions that began before are "
        "EXPIRED, and their slots may go.",
        "partition",
    ),
    _counter(
        "parts_forgotten",
        "Transactions that were described without their parts: their journal has outgrown "
        "control_journal_bytes_max.",
    ),
)

PARTITION_LEADER: Final = (
    _counter("refused_writes", "Writes refused, by reason of errors.proto.", "reason"),
    _counter("bytes_in", "Payload bytes appended."),
    _counter("records_in", "Records appended."),
    _counter("batches_in", "Batches appended."),
    _counter("duplicate_batches", "Batches acknowledged as repeats."),
    _counter("bytes_out", "Payload bytes read."),
    _counter("records_out", "Records read."),
    _counter("transactions_exposed", "COMMITTED markers applied."),
    _counter("transactions_dropped", "ABORTED markers and local aborts applied."),
    _counter("transactions_damaged", "Markers whose manifest the log does not hold."),
    _counter(
        "surplus_records",
        "Records that came too late to belong to their committed transaction, and were dropped.",
    ),
    _counter("questions_asked", "Questions about transactions that stay open."),
    _counter("questions_unanswered", "Questions that got an error instead.", "reason"),
    _gauge("open_transactions", "Transactions with batches and without a marker.", "partition"),
    _gauge("oldest_open_transaction_age_ms", "Age of the oldest of these.", "partition"),
    _gauge(
        "damaged",
        "Damaged parts that wait for an operator (damaged_max). Alarm on it.",
        "partition",
    ),
    _gauge("producers", "Producers, the more of either kind (producers_max).", "partition"),
    _gauge(
        "committed_start_offset", "Start of the committed log: below, all was deleted.", "partition"
    ),
    _gauge("committed_end_offset", "End of the committed log.", "partition"),
    _gauge("committed_bytes", "Payload of the committed log, as stored.", "partition"),
    _gauge("needed_from", "Journal offset from which on the journal is needed.", "partition"),
    _counter("records_truncated", "Records that operators deleted (TruncatePartition)."),
    _gauge("index_bytes", "Memory of the index of the committed log.", "partition"),
    _gauge("first_open_position", "Journal offset of the earliest pending batch.", "partition"),
    _gauge("subscriptions", "Subscribe streams that are open."),
)

OFFSET_MANAGER: Final = (
    _counter("offsets_committed", "Offsets committed outside of a transaction."),
    _counter("offsets_pending", "Offsets that became pending under a transaction."),
    _counter(
        "transactions_dropped",
        "Transactions whose offsets were dropped by a coordinator's verdict.",
    ),
    _counter("questions_asked", "Questions about transactions that stay open."),
    _counter("questions_unanswered", "Questions that got an error instead.", "reason"),
    _counter(
        "memberships_changed",
        "Members that came, went or changed what they want: each time partitions may move.",
    ),
    _gauge("members", "Members of groups (members_per_group_max is of each group).", "partition"),
    _gauge(
        "partitions_left_out",
        "Partitions of topics that grew beyond partitions_per_group_max: assigned to nobody.",
        "partition",
    ),
    _gauge("open_transactions", "Transactions with pending offsets.", "partition"),
    _gauge("oldest_open_transaction_age_ms", "Age of the oldest of these.", "partition"),
    _gauge("groups", "Groups with offsets (groups_max).", "partition"),
    _gauge("producers", "Producers that are remembered (producers_max).", "partition"),
    _gauge(
        "group_lag",
        "Records that wait for a group, in all partitions of the topics that it has offsets of.",
        "group",
        "partition",
    ),
    _gauge(
        "group_lag_left_out", "Groups whose lag is not shown, above lag_series_max.", "partition"
    ),
)

# Of the process, whatever roles it runs.
NODE: Final = (
    _gauge("inflight_bytes", "Bytes of requests whose handlers run (inflight_bytes_max)."),
    _gauge("calls", "Calls under way, on streams too (calls_max)."),
    _gauge("streams", "Streams that are open (streams_max)."),
    _gauge("unread_bytes", "Fetched records that callers have not read yet (unread_bytes_max)."),
    _gauge("open_files", "Open files, connections included (connections_max, ulimit -n)."),
    _counter("rpc_errors", "Calls answered with an error.", "service", "method", "reason"),
    _counter("refusals", "Calls, or items of calls, that no rule allows their caller."),
    _counter("would_be_refusals", "The same with authorization.mode=warn: they went through."),
    _counter("quota_refusals", "Calls refused because their caller's quota is used up.", "limit"),
    _counter("audit_suppressed", "Refusals that were not written into the audit log: too many."),
    _counter("audit_lost", "Lines of the audit log that its disk was too slow for. Alarm on it."),
    _gauge("certificate_seconds_left", "Until the certificate in use ends. Alarm on it.", "of"),
    _gauge("followers", "Processes that follow this one."),
    _gauge("followed", "Processes that this one follows."),
    _gauge("catch_up_bytes", "Read from files for followers, and not acknowledged by them."),
    _gauge("tail_bytes", "Newest frames of journals in memory (tail_bytes_max)."),
    _duration(
        "rpc",
        "From a call's start to its answer, what it waits for included (Fetch: records).",
        "service",
        "method",
    ),
    _gauge("topics", "Topics of the cluster, without its own (topics_max)."),
    _gauge("partitions", "Partitions of these (partitions_max)."),
    _gauge("etcd_reachable", "1 while etcd answers this process."),
    _gauge("disk_free_bytes", "Free space of the data directory's volume."),
    _gauge("disk_full", "1 while data is refused because of disk_free_floor_bytes."),
    _duration("sync", "One write and sync of the group commit."),
    _counter("journal_bytes", "Bytes appended to journals."),
)

ROLES: Final[dict[str, tuple[Metric, ...]]] = {
    "coordinator": COORDINATOR,
    "partition_leader": PARTITION_LEADER,
    "offset_manager": OFFSET_MANAGER,
    PROCESS: NODE,
}


def metrics_of(role: str) -> tuple[Metric, ...]:
    """All metrics of a role, or of the process."""
    return NODE if role == PROCESS else (*COMMON, *ROLES[role])


def as_markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Made from `oncelog_server/runtime/observe/catalogue.py`; do not edit. Every process",
        "serves them under `/metrics` of `--metrics-listen`. Durations are histograms in seconds.",
        "Of a partition that a process leads no more it shows `leading` only, of a deleted one",
        "nothing. `topic` is the topic's name.",
        "",
        "Beside these there are `process_*` (memory, CPU, open files), `python_gc_*` and",
        "`python_info` of prometheus_client. Alerts to begin with are in",
        "`deploy/monitoring/alerts.yaml`.",
        "",
        "## Of every role",
        "",
        "`<role>` is coordinator, partition_leader or offset_manager.",
        "",
        *_table("<role>", COMMON),
    ]
    for role, metrics in ROLES.items():
        lines += ["", f"## {role}", "", *_table(role, metrics)]
    return "\n".join(lines) + "\n"


def _table(role: str, metrics: Iterable[Metric]) -> Iterable[str]:
    yield "| metric | kind | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for metric in metrics:
        name, labels = metric.full_name(role), ", ".join(metric.exposed_labels) or "–"
        yield f"| `{name}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    print(as_markdown(), end="")

"""What users may set: one frozen class per noun. Each field: meaning, unit, danger.

`connect`, `producer`, `transactional_producer`, `consumer` and `table` take these names as
keywords; an unknown one is refused with the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from oncelog._core import batching, deletions, kafka_names, partitioners
from oncelogpb import errors, records

# Transactions of one producer that may be on their way: of so many a coordinator remembers the
# answers.
ONE_SHOTS_IN_FLIGHT_MAX: Final = 16
# The longest that one call may be told to take.
CALL_TIMEOUT_MS_MAX: Final = 10 * 60 * 1000
# Of names that a server keeps.
NAME_BYTES_MAX: Final = 255

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tls:
    """Transport security. Files in PEM form, read at connect, and again when they change: then new
    calls use the new ones, and what is under way ends with the old."""

    # Certificate authority that signed the servers' certificates. None: the system's.
    ca_file: str | Path | None = None
    # This client's certificate and key, both or neither: identity comes from the certificate alone.
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    # The name that the servers' certificates carry, where it is not the host. Danger: trust that
    # one name for every server.
    server_name: str | None = None

    def validate(self) -> None:
        """Raises InvalidArgument."""
        if (self.certificate_file is None) != (self.key_file is None):
            raise errors.InvalidArgument(
                "give certificate_file and key_file, or neither", field="tls"
            )


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Of `connect`."""

    # How long one call may take, all retries and redirects included, milliseconds.
    timeout_ms: int = 30_000
    # How long a first contact may take, milliseconds: where no process of the bootstrap list was
    # ever reached, or none of the role that a call needs, the call ends so soon, and says why
    # (CannotConnect). Once one was reached, `timeout_ms` counts: a process that is away restarts.
    connect_timeout_ms: int = 3_000
    # None: no TLS; for loopback and for trusted networks only. A dict of its fields will do, too.
    tls: Tls | None = None
    # How often topics that are in use are asked about again, for partitions that were added to
    # them, milliseconds. Long: a producer goes on with the old ones, a consumer finds the new
    # ones late.
    topic_refresh_ms: int = 60_000

    def validate(self) -> None:
        """Raises InvalidArgument naming the field."""
        require("timeout_ms", self.timeout_ms, 1, CALL_TIMEOUT_MS_MAX)
        require("connect_timeout_ms", self.connect_timeout_ms, 1, CALL_TIMEOUT_MS_MAX)
        require("topic_refresh_ms", self.topic_refresh_ms, 100, 24 * 3_600_000)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Of `producer` and `transactional_producer`."""

    # How long a record may wait for company before its batch goes, milliseconds. 0: goes at once.
    # A transaction does not linger: what is buffered goes at its end.
    linger_ms: float = 5.0
    # A batch is sealed at about this many bytes. Above 1 MiB nothing is gained.
    batch_bytes: int = batching.BATCH_BYTES
    # Bytes sent and not acknowledged, above which `send` waits.
    buffer_bytes_max: int = 64 * 1024 * 1024
    # Where keys go: crc32 (librdkafka) or murmur2 (Kafka's Java client). Danger: changing it moves
    # keys to other partitions.
    partitioner: str = "crc32"
    # none, lz4 or zstd: of Arrow batches. Costs CPU on both sides, saves network and disk.
    compression: str = "none"
    # How long a batch may take, retries included, milliseconds. Danger: what fails after it has an
    # unknown outcome.
    delivery_timeout_ms: int = 120_000
    # Idle time after which a transaction is aborted by the coordinator, milliseconds. 0: its
    # default (60 s), or, of what a member of a group consumes, that member's session. One that is
    # longer than the session is refused (InvalidTimeout).
    transaction_timeout_ms: int = 0
    # Transactions of a transactional producer that may be on their way, 1 to 16. Above 1, whoever
    # leaves a transaction goes on before it is decided; a refusal takes it back with all that come
    # behind it, and is told where the next one begins or ends, by `flush` or by `close`. Of large
    # ones one ends while the next is filled. Those with a commit_seq or with send_offsets go alone.
    in_flight: int = 1

    def validate(self) -> None:
        """Raises InvalidArgument naming the field."""
        require("linger_ms", self.linger_ms, 0, 60_000)
        require("batch_bytes", self.batch_bytes, 1_024, 8 * 1024 * 1024)
        require("buffer_bytes_max", self.buffer_bytes_max, self.batch_bytes, 1 << 40)
        require("delivery_timeout_ms", self.delivery_timeout_ms, 1, CALL_TIMEOUT_MS_MAX)
        require("transaction_timeout_ms", self.transaction_timeout_ms, 0, 24 * 3_600_000)
        require_in_flight(self.in_flight)
        require_one("partitioner", self.partitioner, list(partitioners.PARTITIONERS))
        require_one("compression", self.compression, [kind.value for kind in records.Compression])


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Of `consumer`."""

    # committed: what is committed, in commit order. uncommitted: the journal as it arrives, open
    # and aborted transactions too; its positions are journal offsets.
    isolation: str = "committed"
    # Who puts records in commit order. leader: the partition leaders. buffered: this consumer; it
    # reads journals as they arrive, and holds open transactions itself. The records and their
    # offsets are the same. Danger: needs memory and disk for what is open (below).
    delivery: str = "leader"
    # Of delivery="buffered": bytes of open transactions that are held in memory, of all partitions
    # together; what is above goes to `buffer_dir`.
    buffer_memory_bytes: int = 64 * 1024 * 1024
    # Of delivery="buffered": where it goes; needs room for the transactions that are open at one
    # time. Its files are removed at `close`, those of a process that died by the next consumer that
    # begins there. None: a folder of the user's among the system's temporary files (which may lie
    # in memory: then name another one).
    buffer_dir: str | Path | None = None
    # Where a partition starts of which the group has committed nothing: earliest or latest. A
    # member that begins at the end commits where that is: its next owner goes on there.
    start: str = "earliest"
    # Where records were deleted (retention, an operator) before this consumer read them: error
    # raises OffsetOutOfRange until somebody seeks; earliest goes on at the first record that is
    # kept, latest at the end. Danger: both of these pass over records; `skipped` counts them.
    if_deleted: str = "error"
    # Records that one batch given to the user holds at most.
    batch_records_max: int = 10_000
    # Bytes that are read ahead at most; the transport holds back the rest.
    prefetch_bytes_max: int = 16 * 1024 * 1024
    # How long positions that a transaction in flight holds are waited for, milliseconds
    # (PENDING_TRANSACTION is raised then).
    pending_timeout_ms: int = 30_000
    # How long a group may be quiet before its consumer says that it lives, milliseconds; at most a
    # quarter of the services' `group_retention_ms` (7 days), whatever is said here. A group that
    # nobody says that of is forgotten then, and its consumers begin again at `start`.
    sign_of_life_ms: int = 3_600_000
    # Commit by itself what was given, so often, milliseconds: at the first poll after it, before
    # partitions go to another member, and at `close`. 0: only `commit` and transactions do.
    auto_commit_ms: int = 0
    # A name that outlives the process: who comes again under it within the session keeps its
    # partitions. One process at a time: the newest one fences the others. Empty: it has none.
    instance_id: str = ""
    # How the group shares out partitions: uniform or range. Empty: it does not mind.
    assignor: str = ""
    # What operators see of it, at most 255 bytes. Empty: host and process number.
    client_id: str = ""
    # A member that the group hears nothing of for so long is taken for dead, milliseconds, and its
    # partitions go to others. Heartbeats come three times as often or more, whatever the user does.
    session_timeout_ms: int = 10_000
    # How long a member may process without polling, milliseconds; after it, it leaves its group.
    max_poll_interval_ms: int = 300_000

    def validate(self) -> None:
        """Raises InvalidArgument naming the field."""
        require("sign_of_life_ms", self.sign_of_life_ms, 100, 30 * 24 * 3_600_000)
        require_one("isolation", self.isolation, ["committed", "uncommitted"])
        require_one("delivery", self.delivery, ["leader", "buffered"])
        if self.delivery == "buffered" and self.isolation != "committed":
            raise errors.InvalidArgument(
                "delivery='buffered' is for isolation='committed': who wants what is not committed "
                "has nothing to wait for",
                field="delivery",
            )
        require("buffer_memory_bytes", self.buffer_memory_bytes, 64 * 1024, 1 << 40)
        require_one("start", self.start, ["earliest", "latest"])
        require_one("if_deleted", self.if_deleted, list(deletions.CHOICES))
        require("batch_records_max", self.batch_records_max, 1, 10_000_000)
        require("prefetch_bytes_max", self.prefetch_bytes_max, 1, 1 << 40)
        require("pending_timeout_ms", self.pending_timeout_ms, 0, CALL_TIMEOUT_MS_MAX)
        require("auto_commit_ms", self.auto_commit_ms, 0, 24 * 3_600_000)
        require_one("assignor", self.assignor, ["", "uniform", "range"])
        require("session_timeout_ms", self.session_timeout_ms, 1_000, 30 * 60_000)
        require("max_poll_interval_ms", self.max_poll_interval_ms, 1_000, 24 * 3_600_000)
        require_short("instance_id", self.instance_id)
        require_short("client_id", self.client_id)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Of `table`."""

    # What its keys and values may take in memory, with what Python needs beside them (256 bytes for
    # each key), bytes. Above it the table ends, and raises TooLarge, which names this.
    memory_bytes_max: int = 1024 * 1024 * 1024
    # Bytes that are read ahead at most, beside that.
    prefetch_bytes_max: int = 16 * 1024 * 1024
    # Where records were deleted (retention, an operator) before the table read them: earliest
    # begins that partition anew, with what is kept, so that the table shows what one that is opened
    # now shows; `skipped` counts. error: the table ends, and raises OffsetOutOfRange.
    if_deleted: str = deletions.EARLIEST

    def validate(self) -> None:
        """Raises InvalidArgument naming the field."""
        require("memory_bytes_max", self.memory_bytes_max, 1, 1 << 50)
        require("prefetch_bytes_max", self.prefetch_bytes_max, 1, 1 << 40)
        require_one("if_deleted", self.if_deleted, [deletions.ERROR, deletions.EARLIEST])


def make_options(kind: type[T], given: Mapping[str, Any]) -> T:
    """The options as users gave them, validated. Raises InvalidArgument."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise errors.InvalidArgument(f"no option {name!r}; {_instead(name, known)}", field=name)
    if "tls" in given and "tls" in known:
        given = {**given, "tls": make_tls(given["tls"])}
    options = kind(**given)
    options.validate()  # type: ignore[attr-defined]
    return options


def _instead(name: str, known: list[str]) -> str:
    kafka = kafka_names.hint(name, known)
    if kafka is not None:
        return kafka
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"


def make_tls(given: Tls | Mapping[str, Any] | None) -> Tls | None:
    """As users gave it: a Tls, or its fields as a dict (empty: TLS with the system's authorities).
    Raises InvalidArgument."""
    if given is None or isinstance(given, Tls):
        return given
    if isinstance(given, Mapping):
        return make_options(Tls, given)
    raise errors.InvalidArgument(
        f"tls is {given!r}, not a Tls, nor a dict of its fields (empty: TLS with the system's "
        "certificate authorities)",
        field="tls",
    )


def require(name: str, value: float, least: float, most: float) -> None:
    """Raises InvalidArgument where value is no number in [least, most]."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise errors.InvalidArgument(f"{name} is {value!r}, not in {least} to {most}", field=name)


def require_in_flight(in_flight: int) -> None:
    """Raises InvalidArgument, which names the limit."""
    most = ONE_SHOTS_IN_FLIGHT_MAX
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or not 1 <= in_flight <= most:
        raise errors.InvalidArgument(
            f"in_flight is {in_flight!r}, not in 1 to one_shots_in_flight_max = {most}: a "
            "coordinator remembers the answers of so many",
            field="in_flight",
            limit="one_shots_in_flight_max",
        )


def require_short(name: str, value: str) -> None:
    """Raises InvalidArgument where value is no text of NAME_BYTES_MAX at most."""
    if not isinstance(value, str) or len(value.encode()) > NAME_BYTES_MAX:
        raise errors.InvalidArgument(
            f"{name} is no text of {NAME_BYTES_MAX} bytes at most", field=name
        )


def require_one(name: str, value: str, allowed: list[str]) -> None:
    """Raises InvalidArgument where value is none of `allowed`."""
    if value not in allowed:
        raise errors.InvalidArgument(
            f"{name} is {value!r}; allowed: {', '.join(allowed)}", field=name
        )

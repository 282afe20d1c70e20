"""Options of source and sink: strings from Spark in, frozen values out.

Names are those of Spark's Kafka source where it has them, and case does not matter. Whatever is not
known is refused (`unknown_options`): a misspelt `startingOffset` must not silently read from the
wrong place, nor an option that asks for TLS in the words of another system be passed over.

A temporary view is read and written with one set of options, so batch jobs take the names of both
sides, except where one of them would be a promise that nobody keeps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from oncelog_spark.batch_transaction import IDLE_TIMEOUT_MS
from oncelog_spark.connection import ClusterAddress, TlsFiles
from oncelog_spark.offsets import (
    EARLIEST_MARK,
    LATEST_MARK,
    Edge,
    Place,
    Times,
    TopicPartition,
    parse_positions,
    parse_times,
)
from oncelog_spark.unknown_options import complaint

BOOTSTRAP: Final = "oncelog.bootstrap.servers"
TLS_CA: Final = "oncelog.tls.ca"
TLS_CERTIFICATE: Final = "oncelog.tls.certificate"
TLS_KEY: Final = "oncelog.tls.key"
TLS_SERVER_NAME: Final = "oncelog.tls.server.name"
TLS_NAMES: Final = (TLS_CA, TLS_CERTIFICATE, TLS_KEY, TLS_SERVER_NAME)
# Instead of a file: the authorities that the machine trusts.
SYSTEM_CA: Final = "system"

COMMON_NAMES: Final = (BOOTSTRAP, "bootstrap", *TLS_NAMES, "sinkName", "transactionTimeout")
SOURCE_NAMES: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "failOnDataLoss",
    "includeHeaders",
    "group",
    "transactionalSink",
    "longPollMs",
)
SINK_NAMES: Final = ("topic", "producer", "inputGroups", "txnId", "wait")
# What Spark itself gives a stream's sink.
QUERY_NAMES: Final = ("checkpointLocation", "queryName")
# Of our own, between processes: the writer of one of a transaction's DataFrames hands over to this
# file what its tasks wrote, and commits nothing.
PART_FILE: Final = "oncelog.transaction.part"
# Of the other side, where this side has the same thing under another name.
INSTEAD: Final = {
    "group": "inputGroups",
    "inputGroups": "group",
    "transactionalSink": "producer",
    "producer": "transactionalSink",
}
# An end may be said in each of these words.
PLACE_KINDS: Final = ("Offsets", "Timestamp", "OffsetsByTimestamp")
# Options of the source that a batch job's sink must not pass over.
PROMISES: Final = ("group", "transactionalSink")
LONG_POLL_MS: Final = 500
LONG_POLL_MS_MAX: Final = 30_000
NAME_BYTES_MAX: Final = 255
# As the Kafka source has them.
TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
OFFSET_RETRIES: Final = 3
OFFSET_RETRY_INTERVAL_MS: Final = 1_000
POLL_TIMEOUT_MS: Final = 120_000
NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
# Spark's spelling of durations; a bare number is milliseconds.
DURATION: Final = re.compile(r"([0-9]{1,15})\s*([a-z]*)")
DURATION_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class OptionError(ValueError):
    """An option is absent, wrong or unknown; the message says what to write."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Of one batch or streaming source."""

    cluster: ClusterAddress
    # Topics to read whole; or the partitions to read; or which names to read (the whole name must
    # match). Two of the three are empty.
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]
    # Where to begin, unless a checkpoint (or the group) knows better.
    start: Place
    # The user said so.
    start_is_given: bool = False
    # Where a batch read ends; LATEST for streams.
    end: Place = Edge.LATEST
    pattern: re.Pattern[str] | None = None
    # A partition that has nothing so late as the time to begin at: an error, or its end.
    late_start: Literal["error", "latest"] = "error"
    max_offsets_per_trigger: int | None = None
    # Fewer are left to a later trigger, for as long as the delay says.
    min_offsets_per_trigger: int | None = None
    trigger_delay_ms_max: int = TRIGGER_DELAY_MS
    # More tasks than the batch needs.
    min_partitions: int | None = None
    records_per_partition_max: int | None = None
    # Where partitions begin and end is asked for again so often, after so long.
    offset_retries: int = OFFSET_RETRIES
    offset_retry_interval_ms: int = OFFSET_RETRY_INTERVAL_MS
    # How long a task waits for records that are there to be read.
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    fail_on_data_loss: bool = True
    include_headers: bool = False
    # Consumer group that gets the positions; None: nobody does.
    group: str | None = None
    # Producer name of the sink whose transactions carry the positions; "" is the default name;
    # None: positions are committed plainly, for lag only.
    transactional_sink: str | None = None
    sink_name: str | None = None
    # Without data for so long, a batch's transaction is aborted.
    transaction_timeout_ms: int = IDLE_TIMEOUT_MS
    long_poll_ms: int = LONG_POLL_MS


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Of one batch or streaming sink."""

    cluster: ClusterAddress
    # Wins over the column `topic`; None: the column is needed.
    topic: str | None = None
    # Name of the producer; None: the query's name, or its id.
    producer: str | None = None
    # Tells two writes in one micro-batch apart; part of the producer's name.
    sink_name: str | None = None
    # Without data for so long, its transaction is aborted.
    transaction_timeout_ms: int = IDLE_TIMEOUT_MS
    # Groups whose positions the transactions carry (source option `transactionalSink`).
    input_groups: tuple[str, ...] = ()
    # Identity of a batch job: a job that is run again with the same one writes nothing.
    txn_id: str | None = None
    # VISIBLE: a commit returns when readers see it; PREPARED: when it is decided for ever.
    wait: Literal["visible", "prepared"] = "visible"
    # Of one DataFrame of several: where what it wrote is handed over to.
    part_file: str | None = None


@dataclass(frozen=True, slots=True)
class _Given:
    """Options by lower-case name, each asked for by its written name."""

    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        value = self.values.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def name(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and len(value.encode()) > NAME_BYTES_MAX:
            raise OptionError(f"`{name}` is longer than {NAME_BYTES_MAX} bytes")
        return value

    def number(self, name: str, *, minimum: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not NUMBER.fullmatch(value) or int(value) < minimum:
            raise OptionError(f"`{name}` must be a whole number from {minimum}, not {value!r}")
        return int(value)

    def duration_ms(self, name: str, *, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        found = DURATION.fullmatch(value.lower())
        if found is None or found[2] not in DURATION_MS:
            raise OptionError(f"`{name}` must be a duration like 500ms, 30s, 15m, not {value!r}")
        return int(found[1]) * DURATION_MS[found[2]]

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"`{name}` must be true or false, not {value!r}")
        return value.lower() == "true"

    def listed(self, name: str) -> tuple[str, ...]:
        parts = (self.text(name) or "").split(",")
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def cluster(self) -> ClusterAddress:
        given = [value for name in (BOOTSTRAP, "bootstrap") if (value := self.text(name))]
        if not given:
            raise OptionError(f"`{BOOTSTRAP}` is missing: host:port of any Oncelog process")
        if len(given) > 1:
            raise OptionError(f"`bootstrap` is short for `{BOOTSTRAP}`: give one of them")
        return ClusterAddress(given[0], self._tls())

    def _tls(self) -> TlsFiles | None:
        """None where not one of its options is given: whoever gives one, even an empty one, does
        not want plain text."""
        asked = [name for name in TLS_NAMES if name in self.values]
        if not asked:
            return None
        for name in asked:
            if self.text(name) is None:
                raise OptionError(
                    f"`{name}` is empty; without any `oncelog.tls` option there is no TLS"
                )
        ca, certificate, key = (self.text(name) for name in (TLS_CA, TLS_CERTIFICATE, TLS_KEY))
        if (certificate is None) != (key is None):
            raise OptionError(f"give both `{TLS_CERTIFICATE}` and `{TLS_KEY}`, or neither")
        return TlsFiles(
            ca=None if ca == SYSTEM_CA else ca,
            certificate=certificate,
            key=key,
            server_name=self.text(TLS_SERVER_NAME),
        )


class _Side(Enum):
    SOURCE = "source"
    SINK = "sink"


def includes_headers(options: Mapping[str, str]) -> bool:
    """Option includeHeaders alone: all that the source's schema depends on."""
    return _Given(_lower(options)).flag("includeHeaders", default=False)


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a source. Raises OptionError."""
    given = _given(options, _Side.SOURCE, streaming=streaming)
    topics, assigned, pattern = _subscription(given)
    group, sink = given.name("group"), _transactional_sink(given)
    if sink is not None and group is None:
        raise OptionError("`transactionalSink` needs `group`: whose positions shall be committed?")
    if not streaming and (group is not None or sink is not None):
        raise OptionError(
            "`group` and `transactionalSink` belong to streams: a batch read has none"
        )
    if streaming and any(given.text(f"ending{kind}") for kind in PLACE_KINDS):
        raise OptionError("a stream has no end: use a batch read, or Trigger.AvailableNow")
    at_most = given.number("maxOffsetsPerTrigger", minimum=1)
    at_least = given.number("minOffsetsPerTrigger", minimum=1)
    if at_most is not None and at_least is not None and at_least > at_most:
        raise OptionError(
            f"`minOffsetsPerTrigger` ({at_least}) is above `maxOffsetsPerTrigger` ({at_most})"
        )
    start, end = _place(given, "starting"), _place(given, "ending")
    if not streaming:
        _require_a_span(start, end)
    return SourceOptions(
        cluster=given.cluster(),
        topics=topics,
        assigned=assigned,
        pattern=pattern,
        start=start or (Edge.LATEST if streaming else Edge.EARLIEST),
        start_is_given=start is not None,
        end=end or Edge.LATEST,
        late_start=_late_start(given),
        max_offsets_per_trigger=at_most,
        min_offsets_per_trigger=at_least,
        trigger_delay_ms_max=given.duration_ms("maxTriggerDelay", default=TRIGGER_DELAY_MS),
        min_partitions=given.number("minPartitions", minimum=1),
        records_per_partition_max=given.number("maxRecordsPerPartition", minimum=1),
        offset_retries=_or(given.number("fetchOffset.numRetries", minimum=0), OFFSET_RETRIES),
        offset_retry_interval_ms=_or(
            given.number("fetchOffset.retryIntervalMs", minimum=0), OFFSET_RETRY_INTERVAL_MS
        ),
        poll_timeout_ms=_or(
            given.number("kafkaConsumer.pollTimeoutMs", minimum=1), POLL_TIMEOUT_MS
        ),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        group=group,
        transactional_sink=sink,
        sink_name=given.name("sinkName"),
        transaction_timeout_ms=given.duration_ms("transactionTimeout", default=IDLE_TIMEOUT_MS),
        long_poll_ms=_long_poll(given),
    )


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a sink. Raises OptionError."""
    given = _given(options, _Side.SINK, streaming=streaming)
    wait = (given.text("wait") or "visible").lower()
    if wait not in ("visible", "prepared"):
        raise OptionError(f"`wait` must be visible or prepared, not {wait!r}")
    return SinkOptions(
        cluster=given.cluster(),
        topic=given.text("topic"),
        producer=given.name("producer"),
        sink_name=given.name("sinkName"),
        transaction_timeout_ms=given.duration_ms("transactionTimeout", default=IDLE_TIMEOUT_MS),
        input_groups=given.listed("inputGroups"),
        txn_id=given.name("txnId"),
        wait="prepared" if wait == "prepared" else "visible",
        part_file=None if streaming else given.text(PART_FILE),
    )


def cluster_option(options: Mapping[str, str]) -> ClusterAddress:
    """Where the cluster is; options of source and sink are passed over. Raises OptionError."""
    known = (*COMMON_NAMES, *SOURCE_NAMES, *SINK_NAMES, *QUERY_NAMES)
    said = complaint(options, {name.lower(): name for name in known}, {})
    if said is not None:
        raise OptionError(said)
    return _Given(_lower(options)).cluster()


def _given(options: Mapping[str, str], side: _Side, *, streaming: bool) -> _Given:
    values = _lower(options)
    mine: tuple[str, ...] = SOURCE_NAMES if side is _Side.SOURCE else SINK_NAMES
    others: tuple[str, ...] = SINK_NAMES if side is _Side.SOURCE else SOURCE_NAMES
    known = [*COMMON_NAMES, *mine]
    if streaming and side is _Side.SINK:
        known += QUERY_NAMES
    if not streaming:
        known += [name for name in others if side is _Side.SOURCE or name not in PROMISES]
    elsewhere = {name.lower(): _belongs(name, side) for name in others}
    asked = [key for key in values if key != PART_FILE or streaming or side is _Side.SOURCE]
    said = complaint(asked, {name.lower(): name for name in known}, elsewhere)
    if said is not None:
        raise OptionError(said)
    return _Given(values)


def _belongs(name: str, side: _Side) -> str:
    where = "source" if side is _Side.SINK else "sink"
    instead = f": here `{INSTEAD[name]}`" if name in INSTEAD else ""
    return f"it belongs to the {where}{instead}"


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _subscription(
    given: _Given,
) -> tuple[tuple[str, ...], tuple[TopicPartition, ...], re.Pattern[str] | None]:
    topics, assign = given.listed("subscribe"), given.text("assign")
    pattern = given.text("subscribePattern")
    if sum(map(bool, (topics, assign, pattern))) != 1:
        raise OptionError(
            "give one of `subscribe` (topics, comma between), `subscribePattern` (a regular "
            'expression) and `assign` (JSON: {"topic": [0, 1]}), and no two of them'
        )
    if pattern is not None:
        try:
            return (), (), re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"`subscribePattern` {pattern!r} is no regular expression of Python's: {error}"
            ) from None
    if assign is None:
        return topics, (), None
    return (), _assigned(assign), None


def _assigned(assign: str) -> tuple[TopicPartition, ...]:
    try:
        parsed = json.loads(assign)
        pairs = [TopicPartition(str(t), int(p)) for t, numbers in parsed.items() for p in numbers]
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f'`assign` must be JSON like {{"topic": [0, 1]}}, not {assign}') from None
    if not pairs or len(set(pairs)) != len(pairs) or any(pair.number < 0 for pair in pairs):
        raise OptionError("`assign` must name each partition once, and at least one")
    return tuple(sorted(pairs))


def _place(given: _Given, which: Literal["starting", "ending"]) -> Place | None:
    """One time wins over a time for each partition, and that over offsets. None: not given."""
    time_ms = given.number(f"{which}Timestamp", minimum=0)
    if time_ms is not None:
        return Times(time_ms)
    name = f"{which}OffsetsByTimestamp"
    try:
        if (times := given.text(name)) is not None:
            return parse_times(times)
        name = f"{which}Offsets"
        if (value := given.text(name)) is None:
            return None
        if value.lower() not in (Edge.EARLIEST.value, Edge.LATEST.value):
            return parse_positions(value)
    except ValueError as error:
        raise OptionError(f"`{name}`: {error}") from None
    return Edge(value.lower())


def _require_a_span(start: Place | None, end: Place | None) -> None:
    """A batch read that begins at the end, or ends at the beginning, reads nothing."""
    if start is Edge.LATEST or _marks(start, LATEST_MARK):
        raise OptionError("`startingOffsets` of a batch cannot be latest (-1): nothing is read")
    if end is Edge.EARLIEST or _marks(end, EARLIEST_MARK):
        raise OptionError("`endingOffsets` cannot be earliest (-2): nothing would be read")


def _marks(place: Place | None, mark: int) -> bool:
    return isinstance(place, Mapping) and mark in place.values()


def _late_start(given: _Given) -> Literal["error", "latest"]:
    value = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if value not in ("error", "latest"):
        raise OptionError(
            f"`startingOffsetsByTimestampStrategy` must be error or latest, not {value!r}"
        )
    return "latest" if value == "latest" else "error"


def _transactional_sink(given: _Given) -> str | None:
    value = given.name("transactionalSink")
    if value is None or value.lower() == "false":
        return None
    return "" if value.lower() == "true" else value


def _long_poll(given: _Given) -> int:
    value = given.number("longPollMs", minimum=0)
    if value is None:
        return LONG_POLL_MS
    if value > LONG_POLL_MS_MAX:
        raise OptionError(f"`longPollMs` is at most {LONG_POLL_MS_MAX}")
    return value

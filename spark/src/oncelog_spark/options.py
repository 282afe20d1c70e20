"""Options of source and sink: strings from Spark in, frozen values out.

Names are those of Spark's Kafka source where it has them, and case does not matter. Whatever is not
known is refused (`unknown_options`): a misspelt `startingOffset` must not silently read from the
wrong place, nor an option that asks for TLS in the words of another system be passed over.

A temporary view is read and written with one set of options, so batch jobs take the names of both
sides, except where one of them would be a promise that nobody keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from oncelog_spark.connection import ClusterAddress, TlsFiles
from oncelog_spark.offsets import Edge, Positions, TopicPartition, parse_positions
from oncelog_spark.unknown_options import complaint

BOOTSTRAP: Final = "oncelog.bootstrap.servers"
TLS_CA: Final = "oncelog.tls.ca"
TLS_CERTIFICATE: Final = "oncelog.tls.certificate"
TLS_KEY: Final = "oncelog.tls.key"
TLS_SERVER_NAME: Final = "oncelog.tls.server.name"
TLS_NAMES: Final = (TLS_CA, TLS_CERTIFICATE, TLS_KEY, TLS_SERVER_NAME)
# Instead of a file: the authorities that the machine trusts.
SYSTEM_CA: Final = "system"

COMMON_NAMES: Final = (BOOTSTRAP, "bootstrap", *TLS_NAMES, "sinkName")
SOURCE_NAMES: Final = (
    "subscribe",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "group",
    "transactionalSink",
    "longPollMs",
)
SINK_NAMES: Final = ("topic", "producer", "inputGroups", "txnId", "wait")
# What Spark itself gives a stream's sink.
QUERY_NAMES: Final = ("checkpointLocation", "queryName")
# Of the other side, where this side has the same thing under another name.
INSTEAD: Final = {
    "group": "inputGroups",
    "inputGroups": "group",
    "transactionalSink": "producer",
    "producer": "transactionalSink",
}
# Options of the source that a batch job's sink must not pass over.
PROMISES: Final = ("group", "transactionalSink")
LONG_POLL_MS: Final = 500
LONG_POLL_MS_MAX: Final = 30_000
NAME_BYTES_MAX: Final = 255


class OptionError(ValueError):
    """An option is absent, wrong or unknown; the message says what to write."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Of one batch or streaming source."""

    cluster: ClusterAddress
    # Topics to read whole; or the partitions to read. One of the two is empty.
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]
    # Where to begin, unless a checkpoint (or the group) knows better.
    start: Edge | Positions
    # Where a batch read ends; LATEST for streams.
    end: Edge | Positions = Edge.LATEST
    # Milliseconds since the epoch; each wins over its offsets.
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    # Consumer group that gets the positions; None: nobody does.
    group: str | None = None
    # Producer name of the sink whose transactions carry the positions; "" is the default name;
    # None: positions are committed plainly, for lag only.
    transactional_sink: str | None = None
    sink_name: str | None = None
    long_poll_ms: int = LONG_POLL_MS


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Of one batch or streaming sink."""

    cluster: ClusterAddress
    # Wins over the column `topic`; None: the column is needed.
    topic: str | None = None
    # Name of the producer; None: the query id.
    producer: str | None = None
    # Tells two writes in one micro-batch apart; part of the producer's name.
    sink_name: str | None = None
    # Groups whose positions the transactions carry (source option `transactionalSink`).
    input_groups: tuple[str, ...] = ()
    # Identity of a batch job: a job that is run again with the same one writes nothing.
    txn_id: str | None = None
    # VISIBLE: a commit returns when readers see it; PREPARED: when it is decided for ever.
    wait: Literal["visible", "prepared"] = "visible"


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
        if not value.removeprefix("-").isdecimal() or int(value) < minimum:
            raise OptionError(f"`{name}` must be a whole number from {minimum}, not {value!r}")
        return int(value)

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
    topics, assigned = _subscription(given)
    group, sink = given.name("group"), _transactional_sink(given)
    if sink is not None and group is None:
        raise OptionError("`transactionalSink` needs `group`: whose positions shall be committed?")
    if not streaming and (group is not None or sink is not None):
        raise OptionError(
            "`group` and `transactionalSink` belong to streams: a batch read has none"
        )
    if streaming and (given.text("endingOffsets") or given.text("endingTimestamp")):
        raise OptionError("a stream has no end: use a batch read, or Trigger.AvailableNow")
    return SourceOptions(
        cluster=given.cluster(),
        topics=topics,
        assigned=assigned,
        start=_edge(given, "startingOffsets", Edge.LATEST if streaming else Edge.EARLIEST),
        end=_edge(given, "endingOffsets", Edge.LATEST),
        start_time_ms=given.number("startingTimestamp", minimum=0),
        end_time_ms=given.number("endingTimestamp", minimum=0),
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger", minimum=1),
        min_partitions=given.number("minPartitions", minimum=1),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        group=group,
        transactional_sink=sink,
        sink_name=given.name("sinkName"),
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
        input_groups=given.listed("inputGroups"),
        txn_id=given.name("txnId"),
        wait="prepared" if wait == "prepared" else "visible",
    )


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
    said = complaint(values, {name.lower(): name for name in known}, elsewhere)
    if said is not None:
        raise OptionError(said)
    return _Given(values)


def _belongs(name: str, side: _Side) -> str:
    where = "source" if side is _Side.SINK else "sink"
    instead = f": here `{INSTEAD[name]}`" if name in INSTEAD else ""
    return f"it belongs to the {where}{instead}"


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def _subscription(given: _Given) -> tuple[tuple[str, ...], tuple[TopicPartition, ...]]:
    topics, assign = given.listed("subscribe"), given.text("assign")
    if bool(topics) == bool(assign):
        raise OptionError(
            "give either `subscribe` (topics, comma between) or `assign` (JSON: "
            '{"topic": [0, 1]}), and not both'
        )
    if assign is None:
        return topics, ()
    try:
        parsed = json.loads(assign)
        pairs = [TopicPartition(str(t), int(p)) for t, numbers in parsed.items() for p in numbers]
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f'`assign` must be JSON like {{"topic": [0, 1]}}, not {assign}') from None
    if not pairs or len(set(pairs)) != len(pairs) or any(pair.number < 0 for pair in pairs):
        raise OptionError("`assign` must name each partition once, and at least one")
    return (), tuple(sorted(pairs))


def _edge(given: _Given, name: str, default: Edge) -> Edge | Positions:
    value = given.text(name)
    if value is None:
        return default
    if value.lower() in (Edge.EARLIEST.value, Edge.LATEST.value):
        edge = Edge(value.lower())
        if name == "endingOffsets" and edge is Edge.EARLIEST:
            raise OptionError("`endingOffsets` cannot be earliest: nothing would be read")
        return edge
    try:
        return parse_positions(value)
    except ValueError as error:
        raise OptionError(f"`{name}`: {error}") from None


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

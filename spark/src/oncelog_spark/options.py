"""Options of source and sink: strings from Spark in, frozen values out.

Names are those of Spark's Kafka source where it has them, and case does not matter. An option that
is nearly a known one, or that the Kafka source has and this one has not, is refused: a misspelt
`startingOffset` must not silently read from the wrong place. Options of Spark's own pass.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from oncelog_spark.offsets import Edge, Positions, TopicPartition, parse_positions

BOOTSTRAP: Final = "oncelog.bootstrap.servers"
SOURCE_NAMES: Final = (
    BOOTSTRAP,
    "bootstrap",
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
    "sinkName",
    "longPollMs",
)
SINK_NAMES: Final = (
    BOOTSTRAP,
    "bootstrap",
    "topic",
    "producer",
    "sinkName",
    "inputGroups",
    "txnId",
    "wait",
)
# Options that users of other sources know, and what to do instead.
ELSEWHERE: Final = {
    "kafka.bootstrap.servers": f"use `{BOOTSTRAP}`",
    "subscribepattern": "name the topics in `subscribe`",
    "startingoffsetsbytimestamp": "use `startingTimestamp`",
    "endingoffsetsbytimestamp": "use `endingTimestamp`",
    "minoffsetspertrigger": "use a processing-time trigger",
    "kafka.group.id": "use `group`",
    "groupidprefix": "use `group`",
}
NEAR_MISS: Final = 0.85
LONG_POLL_MS: Final = 500
LONG_POLL_MS_MAX: Final = 30_000
NAME_BYTES_MAX: Final = 255


class OptionError(ValueError):
    """An option is absent, wrong or unknown; the message says what to write."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Of one batch or streaming source."""

    bootstrap: str
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

    bootstrap: str
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

    def bootstrap(self) -> str:
        value = self.text(BOOTSTRAP) or self.text("bootstrap")
        if value is None:
            raise OptionError(f"`{BOOTSTRAP}` is missing: host:port of any Oncelog process")
        return value


def includes_headers(options: Mapping[str, str]) -> bool:
    """Option includeHeaders alone: all that the source's schema depends on."""
    return _Given(_lower(options)).flag("includeHeaders", default=False)


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a source. Raises OptionError."""
    given = _given(options)
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
        bootstrap=given.bootstrap(),
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


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink. Raises OptionError."""
    given = _given(options)
    wait = (given.text("wait") or "visible").lower()
    if wait not in ("visible", "prepared"):
        raise OptionError(f"`wait` must be visible or prepared, not {wait!r}")
    return SinkOptions(
        bootstrap=given.bootstrap(),
        topic=given.text("topic"),
        producer=given.name("producer"),
        sink_name=given.name("sinkName"),
        input_groups=given.listed("inputGroups"),
        txn_id=given.name("txnId"),
        wait="prepared" if wait == "prepared" else "visible",
    )


def _given(options: Mapping[str, str]) -> _Given:
    values = _lower(options)
    known = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)}
    for key in values:
        if key in ELSEWHERE:
            raise OptionError(f"option `{key}` is not known here: {ELSEWHERE[key]}")
        if key in known:
            continue
        near = difflib.get_close_matches(key, known, n=1, cutoff=NEAR_MISS)
        if near:
            raise OptionError(f"unknown option `{key}`: did you mean `{known[near[0]]}`?")
    return _Given(values)


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

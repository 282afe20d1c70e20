"""Options: defaults, and what is refused with which advice."""

from __future__ import annotations

import pytest

from oncelog_spark.connection import ClusterAddress, TlsFiles
from oncelog_spark.offsets import Edge, Times, TopicPartition
from oncelog_spark.options import OptionError, sink_options, source_options

BASE = {"oncelog.bootstrap.servers": "localhost:7400", "subscribe": "a, b,a"}


def test_defaults_are_those_of_the_kafka_source() -> None:
    stream = source_options(BASE, streaming=True)
    assert stream.topics == ("a", "b")
    assert (stream.start, stream.fail_on_data_loss, stream.group) == (Edge.LATEST, True, None)
    assert source_options(BASE, streaming=False).start is Edge.EARLIEST


def test_case_does_not_matter() -> None:
    given = {"BOOTSTRAP": "x:1", "Assign": '{"a": [1, 0]}', "MAXOFFSETSPERTRIGGER": "5"}
    options = source_options(given, streaming=True)
    assert options.assigned == (TopicPartition("a", 0), TopicPartition("a", 1))
    assert options.max_offsets_per_trigger == 5


@pytest.mark.parametrize(
    ("extra", "advice"),
    [
        ({"startingOffset": "earliest"}, "did you mean `startingOffsets`"),
        ({"subscribePattern": "x.*"}, "no two of them"),
        ({"kafka.bootstrap.servers": "x"}, "use `oncelog.bootstrap.servers`"),
        ({"kafka.max.partition.fetch.bytes": "1"}, "sized by themselves"),
        ({"kafka.metrics.sample.window.ms": "1"}, "a setting of Kafka's own clients"),
        ({"kafka.session.timeout.ms": "1"}, "no member of its `group`"),
        ({"kafkaConsumer.retries": "1"}, "`kafkaConsumer.pollTimeoutMs` says"),
        ({"fetchOffset.retries": "1"}, "did you mean `fetchOffset.numRetries`"),
        ({"groupIdPrefix": "x"}, "without `group` joins none"),
        ({"kafka.sasl.jaas.config": "x"}, "there are no passwords"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "must be error or latest"),
        ({"startingOffsetsByTimestamp": "{}"}, "`startingOffsetsByTimestamp`: must be JSON"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "milliseconds since 1970"),
        ({"endingOffsetsByTimestamp": '{"a": {"0": 1}}'}, "no end"),
        ({"maxTriggerDelay": "soon"}, "duration like 500ms"),
        ({"maxTriggerDelay": "3 weeks"}, "duration like 500ms"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above"),
        ({"maxRecordsPerPartition": "0"}, "from 1"),
        ({"maxRecordsPerPartition": "1" * 5_000}, "from 1"),
        ({"maxTriggerDelay": "1" * 5_000 + "s"}, "duration like 500ms"),
        ({"path": "a"}, "has no path: name it in `subscribe`"),
        ({"checkpointLocation": "/c"}, "belongs to a stream's sink"),
        ({"oncelog.tls.cert": "/c"}, "did you mean `oncelog.tls.certificate`"),
        ({"tls.ca": "/c"}, "did you mean `oncelog.tls.ca`"),
        ({"xyzzy": "1"}, "there are `assign`, "),
        ({"producer": "p"}, "belongs to the sink: here `transactionalSink`"),
        ({"topic": "t"}, "belongs to the sink"),
        ({"bootstrap": "x:1"}, "give one of them"),
        ({"assign": '{"a": [0]}'}, "no two of them"),
        ({"maxOffsetsPerTrigger": "0"}, "from 1"),
        ({"minPartitions": "many"}, "whole number"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"startingOffsets": "newest"}, "earliest, latest or JSON"),
        ({"endingOffsets": "latest"}, "no end"),
        ({"transactionalSink": "true"}, "needs `group`"),
        ({"group": "g" * 256}, "255 bytes"),
        ({"longPollMs": "60000"}, "at most 30000"),
    ],
)
def test_a_wrong_source_option_is_refused_with_advice(extra: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        source_options({**BASE, **extra}, streaming=True)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"subscribe": "a"}, "bootstrap.servers` is missing"),
        ({"bootstrap": "x:1"}, "give one of `subscribe`"),
        ({"bootstrap": "x:1", "assign": '{"a": [0, 0]}'}, "once"),
        ({"bootstrap": "x:1", "assign": "a"}, "JSON like"),
        ({**BASE, "group": "g"}, "belong to streams"),
        ({**BASE, "queryName": "q"}, "belongs to a stream's sink"),
        ({**BASE, "endingOffsets": "earliest"}, "nothing would be read"),
        ({**BASE, "endingOffsets": '{"a": {"0": -2}}'}, "nothing would be read"),
        ({**BASE, "startingOffsets": "latest"}, "cannot be latest"),
        ({**BASE, "startingOffsets": '{"a": {"0": -1}}'}, "cannot be latest"),
    ],
)
def test_a_wrong_batch_option_is_refused_with_advice(given: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        source_options(given, streaming=False)


def test_a_pattern_is_a_regular_expression() -> None:
    given = {"bootstrap": "x:1", "subscribePattern": "orders-.*"}
    options = source_options(given, streaming=True)
    assert options.pattern is not None
    assert options.pattern.pattern == "orders-.*"
    assert (options.topics, options.assigned) == ((), ())
    with pytest.raises(OptionError, match="no regular expression"):
        source_options({**given, "subscribePattern": "orders-("}, streaming=True)


def test_one_time_wins_over_times_and_these_over_offsets() -> None:
    by_partition = '{"a": {"0": 5}}'
    given = {
        **BASE,
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": by_partition,
        "endingOffsetsByTimestamp": by_partition,
    }
    options = source_options(given, streaming=False)
    assert options.start == options.end == Times({TopicPartition("a", 0): 5})
    both = source_options({**given, "startingTimestamp": "7"}, streaming=False)
    assert (both.start, both.end) == (Times(7), options.end)
    assert options.late_start == "error", "as in the Kafka source"


@pytest.mark.parametrize(
    ("text", "ms"), [("250", 250), ("250ms", 250), ("2s", 2_000), ("1 min", 60_000), ("1H", 3.6e6)]
)
def test_durations_are_spelt_as_spark_spells_them(text: str, ms: int) -> None:
    options = source_options({**BASE, "maxTriggerDelay": text}, streaming=True)
    assert options.trigger_delay_ms_max == ms


@pytest.mark.parametrize(("text", "sink"), [("true", ""), ("false", None), ("job", "job")])
def test_transactional_sink_is_a_name_or_the_default_one(text: str, sink: str | None) -> None:
    options = source_options({**BASE, "group": "g", "transactionalSink": text}, streaming=True)
    assert options.transactional_sink == sink


def test_sink_options() -> None:
    options = sink_options(
        {"bootstrap": "x:1", "inputGroups": "g,h,g", "wait": "Prepared"}, streaming=True
    )
    assert (options.input_groups, options.wait) == (("g", "h"), "prepared")
    with pytest.raises(OptionError, match="visible or prepared"):
        sink_options({"bootstrap": "x:1", "wait": "never"}, streaming=True)
    with pytest.raises(OptionError, match="did you mean `sinkName`"):
        sink_options({"bootstrap": "x:1", "sinkNames": "a"}, streaming=True)


def test_options_of_spark_itself_pass() -> None:
    given = {"bootstrap": "x:1", "checkpointLocation": "/c", "queryName": "q"}
    sink_options(given, streaming=True)
    with pytest.raises(OptionError, match="belongs to a stream's sink"):
        sink_options(given, streaming=False)


@pytest.mark.parametrize(
    ("extra", "advice"),
    [
        ({"group": "g"}, "belongs to the source: here `inputGroups`"),
        ({"transactionalSink": "true"}, "belongs to the source: here `producer`"),
        ({"startingOffsets": "earliest"}, "belongs to the source"),
        ({"kafka.transactional.id": "x"}, "use `producer`"),
        ({"kafka.acks": "0"}, "what is acknowledged is synced"),
    ],
)
def test_a_wrong_sink_option_is_refused_with_advice(extra: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        sink_options({"bootstrap": "x:1", **extra}, streaming=True)


def test_a_view_is_read_and_written_with_one_set_of_options() -> None:
    view = {**BASE, "topic": "b", "startingOffsets": "earliest", "wait": "prepared"}
    assert source_options(view, streaming=False).topics == ("a", "b")
    assert sink_options(view, streaming=False).topic == "b"
    with pytest.raises(OptionError, match="here `inputGroups`"):
        sink_options({**view, "group": "g"}, streaming=False)


def test_what_asks_for_safety_is_refused_first_and_no_secret_is_repeated() -> None:
    given = {
        **BASE,
        "aFirst": "1",
        "kafka.acks": "all",
        "kafka.sasl.jaas.config": "password=hunter2",
        "kafka.security.protocol": "SASL_SSL",
    }
    with pytest.raises(OptionError) as refused:
        source_options(given, streaming=True)
    said = str(refused.value)
    places = [said.index(f"`{name}`") for name in ("kafka.sasl.jaas.config", "kafka.acks")]
    assert places[0] < said.index("`kafka.security.protocol`") < said.index("`afirst`") < places[1]
    assert "hunter2" not in said


# ---------------------------------------------------------------------------------------------- TLS


def test_without_a_word_of_tls_there_is_none() -> None:
    assert source_options(BASE, streaming=True).cluster == ClusterAddress("localhost:7400")


@pytest.mark.parametrize(
    ("given", "tls"),
    [
        ({"oncelog.tls.ca": "/ca.pem"}, TlsFiles(ca="/ca.pem")),
        ({"oncelog.tls.ca": "system"}, TlsFiles(ca=None)),
        ({"oncelog.tls.server.name": "log"}, TlsFiles(ca=None, server_name="log")),
        (
            {
                "ONCELOG.TLS.CA": "/ca.pem",
                "oncelog.tls.certificate": "/me.pem",
                "oncelog.tls.key": "/me.key",
            },
            TlsFiles(ca="/ca.pem", certificate="/me.pem", key="/me.key"),
        ),
    ],
)
def test_one_word_of_tls_is_tls(given: dict[str, str], tls: TlsFiles) -> None:
    wanted = ClusterAddress("localhost:7400", tls)
    assert source_options({**BASE, **given}, streaming=True).cluster == wanted
    bootstrap = {"bootstrap": "localhost:7400"}
    assert sink_options({**bootstrap, **given}, streaming=False).cluster == wanted


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"oncelog.tls.ca": ""}, "`oncelog.tls.ca` is empty"),
        ({"oncelog.tls.ca": "/ca.pem", "oncelog.tls.certificate": " "}, "certificate` is empty"),
        ({"oncelog.tls.certificate": "/me.pem"}, "both"),
        ({"oncelog.tls.ca": "/ca.pem", "oncelog.tls.key": "/me.key"}, "both"),
    ],
)
def test_half_a_word_of_tls_is_refused(given: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        source_options({**BASE, **given}, streaming=True)
    with pytest.raises(OptionError, match=advice):
        sink_options({"bootstrap": "x:1", **given}, streaming=True)

"""Options: defaults, and what is refused with which advice."""

from __future__ import annotations

import pytest

from oncelog_spark.offsets import Edge, TopicPartition
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
        ({"subscribePattern": "x.*"}, "name the topics"),
        ({"kafka.bootstrap.servers": "x"}, "use `oncelog.bootstrap.servers`"),
        ({"assign": '{"a": [0]}'}, "not both"),
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
        ({"bootstrap": "x:1"}, "either `subscribe`"),
        ({"bootstrap": "x:1", "assign": '{"a": [0, 0]}'}, "once"),
        ({"bootstrap": "x:1", "assign": "a"}, "JSON like"),
        ({**BASE, "group": "g"}, "belong to streams"),
        ({**BASE, "endingOffsets": "earliest"}, "nothing would be read"),
    ],
)
def test_a_wrong_batch_option_is_refused_with_advice(given: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        source_options(given, streaming=False)


@pytest.mark.parametrize(("text", "sink"), [("true", ""), ("false", None), ("job", "job")])
def test_transactional_sink_is_a_name_or_the_default_one(text: str, sink: str | None) -> None:
    options = source_options({**BASE, "group": "g", "transactionalSink": text}, streaming=True)
    assert options.transactional_sink == sink


def test_sink_options() -> None:
    options = sink_options({"bootstrap": "x:1", "inputGroups": "g,h,g", "wait": "Prepared"})
    assert (options.input_groups, options.wait) == (("g", "h"), "prepared")
    with pytest.raises(OptionError, match="visible or prepared"):
        sink_options({"bootstrap": "x:1", "wait": "never"})
    with pytest.raises(OptionError, match="did you mean `sinkName`"):
        sink_options({"bootstrap": "x:1", "sinkNames": "a"})


def test_options_of_spark_itself_pass() -> None:
    sink_options({"bootstrap": "x:1", "checkpointLocation": "/c", "queryName": "q", "path": "/p"})

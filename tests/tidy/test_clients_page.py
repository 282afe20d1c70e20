"""What docs/clients.md shows to be copied is right: messages, hashes, names and links."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import EnumDescriptorProto

from oncelog._core.partitioners import murmur2_hashes
from oncelogpb import records, rpcs
from oncelogpb.doubt import FACTS, RIGHTS
from oncelogpb.errors import BY_REASON
from tests.tidy.proto_files import ROOT, fields, messages, ours
from tests.tidy.wire_tables import PAGE

TEXT = PAGE.read_text()
# Before the tables, which are made from the protos themselves.
PROSE = TEXT.partition("<!-- reasons")[0]
OF_GRPC = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "JS_STRING"}
# With underscores, and no fields of ours: options of gRPC and of generators, limits, metadata.
OTHER_WORDS = {
    "held_by",
    "max_receive_message_length",
    "keepalive_time",
    "source_relative",
    "message_bytes_max",
    "max_batch_bytes",
    "leader_host",
    "leader_node",
    "leader_port",
    "retry_after_ms",
}
EXAMPLES = re.findall(r"<!-- (\w+) -->\n```json\n(.*?)```", TEXT, re.DOTALL)
VECTOR = re.compile(r"^\| (?:`(.+)`|\(empty\)) \| (\d+) \| (\d) \| (\d+) \| (\d) \|$", re.MULTILINE)


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_a_message_that_is_shown_is_one(name: str, text: str) -> None:
    found = [
        service.methods_by_name[rpc].input_type
        for service in rpcs.ALL.values()
        for rpc in service.methods_by_name
    ]
    (descriptor,) = {one.full_name: one for one in found if one.name == name}.values()
    message = json_format.Parse(text, rpcs.message_class(descriptor)())
    for topic in message.manifest.topics:
        assert len(topic.topic_id) == 16
        assert len(topic.partition) == len(topic.writer) == len(topic.record_count)


def test_the_hashes_that_are_shown_are_those_of_the_client() -> None:
    vectors = VECTOR.findall(TEXT)
    assert len(vectors) == 5
    for key, crc, by_crc, murmur, by_murmur in vectors:
        encoded = key.encode()
        assert zlib.crc32(encoded) == int(crc)
        assert int(crc) % 6 == int(by_crc)
        assert int(murmur2_hashes([encoded])[0]) == int(murmur)
        assert int(murmur) % 6 == int(by_murmur)
    assert f"`{records.checksum(b'123456789'):08x}`" in TEXT


def test_what_is_a_fact_after_a_lost_answer_is_what_the_client_takes_for_one() -> None:
    told = dict(
        re.findall(r"^\| `(\w+)` \| ([A-Z_, ]+|all that are not retriable) \|$", PROSE, re.M)
    )
    final = {reason for reason, kind in BY_REASON.items() if not kind.rule.retriable}
    facts = {
        method.partition(".")[2]: set(known.reasons)
        for method, known in FACTS.items()
        if known.reasons and not method.startswith("participant.")
    }
    assert {rpcs.snake(rpc) for rpc in told} == set(facts)
    for rpc, text in told.items():
        named = set(text.split(", ")) if text.isupper() else final - RIGHTS
        assert named == facts[rpcs.snake(rpc)], rpc


def test_all_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, anchor = target.partition("#")
        if file:
            assert (ROOT / "docs" / file).exists(), target
        else:
            assert anchor in headings, target


def test_what_is_written_in_capitals_is_a_reason_or_a_value() -> None:
    """A reason that is renamed must not live on here."""
    values = {value.name for enum in _enums() for value in enum.value}
    # Wait.WAIT_VISIBLE is also said as VISIBLE.
    known = values | {value.partition("_")[2] for value in values} | set(BY_REASON) | OF_GRPC
    for word in re.findall(r"\b[A-Z]+(?:_[A-Z0-9]+)+\b", PROSE):
        assert word in known, word


def test_fields_that_are_named_are_there() -> None:
    named = {name for file in ours() for name, _ in fields(file)}
    for name in re.findall(r"`([A-Z]\w+\.[a-z_0-9]+)`", PROSE):
        assert name in named
    known = {name.rpartition(".")[2] for name in named} | OTHER_WORDS
    for field in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", PROSE):
        assert field in known, f"no field is called {field}; OTHER_WORDS holds what else there is"


def _enums() -> Iterator[EnumDescriptorProto]:
    for file in ours():
        yield from file.enum_type
        for _, message in messages(file):
            yield from message.enum_type

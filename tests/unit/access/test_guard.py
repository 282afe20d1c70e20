"""The guard, in its three modes, and what it writes down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.core.access import Need, Pattern, ResourceKind, Verb
from oncelog_server.core.needs import Entry, TopicNames, always, operating, serving
from oncelog_server.runtime.access.audit import REFUSALS_PER_MINUTE, FileSink
from oncelog_server.runtime.access.config import AuthorizationConfig, Mode
from oncelog_server.runtime.access.guard import Gate, Guard
from oncelog_server.runtime.rpc.handling import CallContext
from oncelogpb.errors import (
    InvalidArgument,
    NotLeader,
    OncelogError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.access.world import rule_of
from tests.unit.access.test_quotas import ManualClock
from tests.unit.rpc.harness import Recorder, outcome_of

READ_T = Need(Verb.READ, ResourceKind.TOPIC, "t")
READ_U = Need(Verb.READ, ResourceKind.TOPIC, "u")


class Bench:
    """One guard, one RPC with the entry of a test, and what was written."""

    def __init__(
        self, entry: Entry | None, mode: Mode = Mode.ON, sink: Any = None, *lines: str
    ) -> None:
        self.reporter = Recorder()
        self.clock = ManualClock()
        self.guard = Guard(
            mode,
            clock=self.clock,
            reporter=self.reporter,
            operators=[Pattern("root")],
            sink=sink,
        )
        self.guard.know_self("oncelog")
        self.guard.serve({} if entry is None else {"PartitionLeader": {"delete_topic": entry}})
        self.rule(*lines)
        gate = self.guard.gate("PartitionLeader", "delete_topic")
        assert gate is not None
        self.gate: Gate = gate
        self.handled: list[Mapping[int, OncelogError]] = []

    def rule(self, *lines: str) -> None:
        self.guard.learn([rule for line in lines for rule in rule_of(line)], ())

    async def call(self, who: str, request: Any = None, during: Any = None) -> Any:
        async def handle(request: Any, call: Any) -> Any:
            self.handled.append(dict(call.refused))
            if during is not None:
                during()
            return pb.ListTopicsReply(
                topics=[pb.TopicDescription(name=name) for name in ("t", "u")]
            )

        call = CallContext(1_000, who, peer="ipv4:10.0.0.7:5")
        return await outcome_of(self.gate.through(handle, request, call))

    def calls(self, *whos: str) -> list[Any]:
        async def story() -> list[Any]:
            return [await self.call(who, pb.DeleteTopicRequest(name="t")) for who in whos]

        return asyncio.run(story())

    @property
    def written(self) -> list[dict[str, object]]:
        return [fields for event, fields in self.reporter.events if event == "audit"]

    def counted(self, name: str) -> int:
        return sum(1 for counted, _ in self.reporter.counts if counted == name)


def needing(*needs: Need, **more: Any) -> Entry:
    return Entry(lambda request, call: needs, **more)


# --------------------------------------------------------------------------------------- refusals


def test_a_refusal_names_who_what_and_which_and_what_would_help() -> None:
    bench = Bench(needing(READ_T))
    (refused,) = bench.calls("alice")
    assert isinstance(refused, PermissionDenied)
    assert refused.metadata == {"identity": "alice", "verb": "read", "kind": "topic", "name": "t"}
    assert "oncelog acl add alice read topic:t" in refused.message
    assert bench.handled == []


def test_a_refusal_by_a_rule_names_the_rule() -> None:
    bench = Bench(needing(READ_T), Mode.ON, None, "alice read topic:*", "deny alice read topic:t")
    (refused,) = bench.calls("alice")
    assert "`deny alice read topic:t`" in refused.message


def test_a_name_that_is_longer_than_any_can_be_is_cut_where_it_is_said_and_written() -> None:
    bench = Bench(needing(Need(Verb.READ, ResourceKind.TOPIC, "t" * 100_000)))
    (refused,) = bench.calls("alice")
    assert len(refused.message) < 2_000
    assert refused.metadata["name"] == "t" * 255 + "…"
    assert [line["name"] for line in bench.written] == ["t" * 255 + "…"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [(serving("x"), "authorization.services"), (operating("x"), "authorization.operators")],
)
def test_what_no_rule_gives_says_who_is_named_where(entry: Entry, said: str) -> None:
    (refused,) = Bench(entry).calls("alice")
    assert said in refused.message


def test_without_an_identity_the_refusal_says_what_was_expected() -> None:
    (refused,) = Bench(Entry()).calls("")
    assert isinstance(refused, Unauthenticated)
    assert "SPIFFE id, a common name" in refused.message


def test_an_rpc_that_no_table_names_is_refused_whoever_asks() -> None:
    bench = Bench(None)
    assert all(isinstance(one, PermissionDenied) for one in bench.calls("alice", "root"))


def test_an_error_in_a_table_lets_nobody_in() -> None:
    def broken(request: Any, call: Any) -> Any:
        raise KeyError("no such field")

    (outcome,) = Bench(Entry(broken)).calls("root")
    assert isinstance(outcome, KeyError), "which the edge makes INTERNAL"


def test_what_a_table_cannot_tell_is_said_as_its_handler_would() -> None:
    def elsewhere(request: Any, call: Any) -> Any:
        raise NotLeader("another process leads it")

    (outcome,) = Bench(Entry(elsewhere)).calls("alice")
    assert isinstance(outcome, NotLeader)


# ------------------------------------------------------------------------------------------- items


def test_items_are_refused_one_by_one() -> None:
    bench = Bench(
        Entry(items=lambda request, call: [READ_T, READ_U, None, NotLeader("there"), READ_U]),
        Mode.ON,
        None,
        "alice read topic:t",
    )
    bench.calls("alice")
    (refused,) = bench.handled
    assert {place: error.reason for place, error in refused.items()} == {
        1: "PERMISSION_DENIED",
        3: "NOT_LEADER",
        4: "PERMISSION_DENIED",
    }
    assert len(bench.written) == 1, "each need once"


def test_a_list_shows_what_its_caller_may_see() -> None:
    def shown(reply: Any, sees: Any) -> None:
        kept = [t for t in reply.topics if sees(Need(Verb.READ, ResourceKind.TOPIC, t.name))]
        del reply.topics[:]
        reply.topics.extend(kept)

    bench = Bench(Entry(shown=shown), Mode.ON, None, "alice read topic:u")
    (alice, root) = bench.calls("alice", "root")
    assert [topic.name for topic in alice.topics] == ["u"]
    assert [topic.name for topic in root.topics] == ["t", "u"]


# -------------------------------------------------------------------------- rules that change


def test_data_that_was_long_in_coming_is_judged_again() -> None:
    async def story() -> None:
        bench = Bench(needing(READ_T, gives_data=True), Mode.ON, None, "alice read topic:t")
        assert isinstance(await bench.call("alice"), pb.ListTopicsReply)
        assert isinstance(await bench.call("alice", during=bench.rule), PermissionDenied)

    asyncio.run(story())


def test_an_item_that_is_no_longer_allowed_ends_a_call_under_way() -> None:
    async def story() -> None:
        entry = Entry(items=lambda request, call: [READ_T, READ_U], gives_data=True)
        bench = Bench(entry, Mode.ON, None, "alice read topic:t")
        same = await bench.call("alice", during=lambda: bench.rule("alice read topic:*"))
        assert isinstance(same, pb.ListTopicsReply)
        bench.rule("alice read topic:t")
        refused = await bench.call("alice", during=lambda: bench.rule("alice read topic:u"))
        assert refused.metadata["name"] == "t"

    asyncio.run(story())


def test_a_service_is_known_by_the_certificate_of_this_process() -> None:
    bench = Bench(serving("x"))
    assert isinstance(bench.calls("oncelog")[0], pb.ListTopicsReply)
    bench.guard.know_self("oncelog-2027")
    assert isinstance(bench.calls("oncelog")[0], PermissionDenied)
    assert isinstance(bench.calls("oncelog-2027")[0], pb.ListTopicsReply)


# -------------------------------------------------------------------- topics that nobody knows yet


class Etcd:
    """The ClusterMetadata port, as far as it is asked."""

    def __init__(self, known: dict[bytes, str], gone: set[bytes]) -> None:
        self.known, self.gone, self.asked = known, gone, 0

    def topic_by_id(self, topic_id: Any) -> Any:
        name = self.known.get(topic_id)
        return None if name is None else type("Topic", (), {"name": name})

    async def is_gone(self, topic_id: Any) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        return topic_id in self.gone


KNOWN, GONE, COMING = (letter * 16 for letter in (b"k", b"g", b"c"))


@pytest.mark.parametrize(
    ("ids", "outcome"),
    [
        ([KNOWN], PermissionDenied),
        ([GONE], pb.ListTopicsReply),
        ([GONE, KNOWN], PermissionDenied),
        ([b"short"], pb.ListTopicsReply),
    ],
)
def test_a_topic_is_judged_by_name_and_one_that_is_gone_not_at_all(
    ids: list[bytes], outcome: type
) -> None:
    etcd: Any = Etcd({KNOWN: "t"}, {GONE})
    topics = TopicNames(etcd)
    bench = Bench(Entry(lambda request, call: topics.needs(Verb.WRITE, ids)))
    assert isinstance(bench.calls("alice")[0], outcome)


def test_a_topic_that_is_not_heard_of_yet_does_not_slip_through() -> None:
    etcd: Any = Etcd({}, {GONE})
    topics = TopicNames(etcd)
    bench = Bench(Entry(lambda request, call: topics.needs(Verb.WRITE, [GONE, COMING])))
    outcomes = bench.calls("alice", "root")
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes), outcomes


def test_that_a_topic_is_gone_is_asked_once() -> None:
    etcd: Any = Etcd({}, {GONE})
    topics = TopicNames(etcd)
    bench = Bench(Entry(lambda request, call: topics.needs(Verb.WRITE, [GONE])))
    bench.calls("alice", "alice", "bob")
    assert etcd.asked == 1


# ------------------------------------------------------------------------------------------- modes


def test_warning_lets_everything_through_and_writes_it_down() -> None:
    bench = Bench(needing(READ_T), Mode.WARN)
    assert all(isinstance(one, pb.ListTopicsReply) for one in bench.calls("alice", ""))
    assert [line["outcome"] for line in bench.written] == [
        "would be PERMISSION_DENIED",
        "would be UNAUTHENTICATED",
    ]
    assert bench.counted("would_be_refusals") == 2
    assert bench.counted("refusals") == 0


def test_warning_refuses_no_item_and_hides_nothing() -> None:
    entry = Entry(
        items=lambda request, call: [READ_T, NotLeader("there")],
        shown=lambda reply, sees: reply.ClearField("topics"),
    )
    bench = Bench(entry, Mode.WARN)
    (reply,) = bench.calls("alice")
    assert bench.handled == [{}]
    assert len(reply.topics) == 2


def test_off_nobody_looks() -> None:
    guard = Guard(Mode.OFF, clock=ManualClock(), reporter=Recorder())
    assert guard.gate("PartitionLeader", "delete_topic") is None


@pytest.mark.parametrize(
    ("mode", "tls", "holds"),
    [
        ("auto", True, Mode.ON),
        ("auto", False, Mode.OFF),
        ("off", True, Mode.OFF),
        ("warn", True, Mode.WARN),
        ("on", True, Mode.ON),
        ("on", False, None),
        ("warn", False, None),
    ],
)
def test_rules_need_certificates(mode: Any, tls: bool, holds: Mode | None) -> None:
    config = AuthorizationConfig(mode=mode)
    if holds is not None:
        assert config.mode_of(tls=tls) is holds
        return
    with pytest.raises(ValueError, match=r"no TLS.*node\.tls_ca"):
        config.mode_of(tls=tls)


@pytest.mark.parametrize("who", ["", "*"])
def test_nobody_makes_everybody_an_operator(who: str) -> None:
    with pytest.raises(ValueError, match="everybody"):
        AuthorizationConfig(operators=(who,)).validate()


# --------------------------------------------------------------------------------------- the audit


def test_an_admin_call_is_written_however_it_ends() -> None:
    bench = Bench(needing(READ_T, audited=always), Mode.ON, None, "alice read topic:t")
    bench.calls("alice", "bob")
    assert bench.written == [
        {
            "who": "alice",
            "from": "ipv4:10.0.0.7:5",
            "what": "PartitionLeader.delete_topic",
            "outcome": "ok",
            "request": '{"name": "t"}',
            "level": "info",
        },
        {
            "who": "bob",
            "from": "ipv4:10.0.0.7:5",
            "what": "PartitionLeader.delete_topic",
            "verb": "read",
            "kind": "topic",
            "name": "t",
            "outcome": "PERMISSION_DENIED",
            "level": "warning",
        },
    ], "one line each"


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [(InvalidArgument("no"), "INVALID_ARGUMENT"), (KeyError("bug"), "INTERNAL")],
)
def test_an_admin_call_that_fails_is_written_with_its_reason(
    failure: Exception, outcome: str
) -> None:
    def fail() -> None:
        raise failure

    async def story() -> None:
        bench = Bench(operating("delete_topic"))
        await bench.call("root", pb.DeleteTopicRequest(), during=fail)
        assert [line["outcome"] for line in bench.written] == [outcome]

    asyncio.run(story())


def test_a_flood_of_refusals_is_counted_and_not_written() -> None:
    bench = Bench(needing(READ_T))
    bench.calls(*["mallory"] * (REFUSALS_PER_MINUTE + 40), "alice")
    assert len(bench.written) == REFUSALS_PER_MINUTE + 1, "others are still heard"
    assert bench.counted("audit_suppressed") == 40
    assert bench.counted("refusals") == REFUSALS_PER_MINUTE + 41
    bench.clock.now_ms += 60_000
    bench.calls("mallory", "mallory")
    assert [line.get("suppressed") for line in bench.written[-2:]] == [40, None]


def test_the_audit_file_is_json_lines_and_may_be_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def story() -> None:
        reporter = Recorder()
        sink = FileSink(str(path), reporter, ManualClock())
        bench = Bench(operating("delete_topic"), Mode.OFF, sink)
        await bench.call("root", pb.DeleteTopicRequest(name="first\n{"))
        while not path.read_text():
            await asyncio.sleep(0.01)
        path.rename(tmp_path / "audit.log.1")
        await bench.call("root", pb.DeleteTopicRequest(name="second"))
        bench.guard.audit.close()

    asyncio.run(story())
    for name, topic in (("audit.log.1", "first\\n{"), ("audit.log", "second")):
        (line,) = (tmp_path / name).read_text().splitlines()
        assert json.loads(line) == {
            "time": "1970-01-01T00:00:00.000Z",
            "event": "audit",
            "who": "root",
            "from": "ipv4:10.0.0.7:5",
            "what": "PartitionLeader.delete_topic",
            "outcome": "ok",
            "request": f'{{"name": "{topic}"}}',
        }


def test_an_audit_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(OSError, match=r"No such file"):
            FileSink(str(tmp_path / "absent" / "audit.log"), Recorder(), ManualClock())

    asyncio.run(story())


def test_a_line_that_the_file_does_not_take_goes_to_the_log(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "audit.log"
    path.parent.mkdir()

    async def story() -> None:
        reporter = Recorder()
        sink = FileSink(str(path), reporter, ManualClock())
        path.unlink()
        path.parent.rmdir()
        sink.write({"who": "root", "outcome": "ok"})
        while len(reporter.events) < 2:
            await asyncio.sleep(0.01)
        sink.close()
        (failed, _), (said, fields) = reporter.events
        assert (failed, said) == ("audit log not written", "audit")
        assert fields["who"] == "root"

    asyncio.run(story())

"""What stands around the rules: the three modes, and what is written down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.cli.compose import InProcessCluster
from oncelog_server.runtime.config import ConfigError
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, partition_leader_pb2
from tests.access.stage import set_up
from tests.access.world import OPERATOR, refusal_of, running


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_with_warn_nothing_is_refused_and_everything_is_written(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"

    async def story() -> None:
        async with running(
            tmp_path, "authorization.mode=warn", f"authorization.audit_log={audit}"
        ) as world:
            stage = await set_up(world)
            stranger = world.caller("stranger")
            reply = await stranger.call("PartitionLeader", "produce", stage.plain("a", "b"))
            assert not any(result.HasField("error") for result in reply.results)
            listed = await stranger.call(
                "PartitionLeader", "list_topics", partition_leader_pb2.ListTopicsRequest()
            )
            assert len(listed.topics) == 4, "nothing is hidden"
            await stranger.call("Cluster", "get_config", cluster_pb2.GetConfigRequest())

    asyncio.run(story())
    told = [
        (line["what"], line["outcome"], line.get("verb"), line.get("name"))
        for line in lines_of(audit)
        if line["who"] == "stranger"
    ]
    # Each process writes its own lines in their order.
    assert sorted(told, key=lambda line: line[0], reverse=True) == [
        ("PartitionLeader.produce", "would be PERMISSION_DENIED", "write", "a"),
        ("PartitionLeader.produce", "would be PERMISSION_DENIED", "write", "b"),
        ("Cluster.get_config", "would be PERMISSION_DENIED", "operate", "get_config"),
        ("Cluster.get_config", "ok", None, None),
    ]


def test_the_audit_log_tells_who_changed_what_and_who_was_refused(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"

    async def story() -> None:
        async with running(tmp_path, f"authorization.audit_log={audit}") as world:
            await world.allow("alice create topic:mine")
            alice = world.caller("alice")
            for name in ("mine", "theirs"):
                request = partition_leader_pb2.CreateTopicRequest(name=name, partitions=1)
                await refusal_of(alice.call("PartitionLeader", "create_topic", request))
                await refusal_of(alice.call("PartitionLeader", "create_topic", request))

    asyncio.run(story())
    told = [line for line in lines_of(audit) if line["what"] != "Cluster.list_rules"]
    assert [(line["who"], line["what"], line["outcome"]) for line in told] == [
        (OPERATOR, "Cluster.add_rules", "ok"),
        ("alice", "PartitionLeader.create_topic", "ok"),
        ("alice", "PartitionLeader.create_topic", "TOPIC_EXISTS"),
        ("alice", "PartitionLeader.create_topic", "PERMISSION_DENIED"),
        ("alice", "PartitionLeader.create_topic", "PERMISSION_DENIED"),
    ]
    assert json.loads(told[0]["request"])["rules"][0]["identity"] == {"text": "alice"}
    assert all(line["from"].startswith("ipv4:127.0.0.1:") for line in told)
    assert all(line["time"].endswith("Z") for line in told)


def test_off_with_tls_everybody_with_a_certificate_may_everything(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, "authorization.mode=off") as world:
            stranger = world.caller("stranger")
            reply = await stranger.call("Cluster", "get_config", cluster_pb2.GetConfigRequest())
            values = {value.name: value.value for value in reply.values}
            assert values["authorization.mode"] == "off"
            test = cluster_pb2.TestAccessRequest(
                identity="x",
                verb=cluster_pb2.ACCESS_VERB_READ,
                kind=cluster_pb2.ACCESS_KIND_TOPIC,
                name="t",
            )
            verdict = await stranger.call("Cluster", "test_access", test)
            assert (verdict.allowed, verdict.mode) == (False, "off"), "as it would be judged"

    asyncio.run(story())


@pytest.mark.parametrize("mode", ["on", "warn"])
def test_rules_without_certificates_are_refused_at_the_start(tmp_path: Path, mode: str) -> None:
    async def story() -> None:
        with pytest.raises(ConfigError, match="there is no TLS"):
            await InProcessCluster.start(tmp_path, pairs=[f"authorization.mode={mode}"])

    asyncio.run(story())


def test_the_client_tells_what_it_may_not(tmp_path: Path) -> None:
    """Through batching, prefetching and retries, the words of the refusal stay."""

    async def story() -> None:
        async with running(tmp_path) as world:
            await set_up(world)
            await world.allow("alice describe topic:a", "alice read topic:b", "alice read group:g")
            log = world.caller("alice").log()
            producer = await log.producer()
            with pytest.raises(errors.PermissionDenied, match="alice may not write topic 'a'"):
                await producer.send("a", b"x")
                await producer.flush()
            with pytest.raises(errors.PermissionDenied, match="alice may not write producer 'p'"):
                await log.transactional_producer("p")
            consumer = await log.consumer(["a"], start="earliest")
            with pytest.raises(errors.PermissionDenied, match="alice may not read topic 'a'"):
                await consumer.poll(10.0)
            with pytest.raises(errors.PermissionDenied, match="alice may not read group 'other'"):
                other = await log.consumer(["b"], group="other")
                await other.poll(10.0)
            with pytest.raises(errors.PermissionDenied, match=r"authorization\.operators"):
                await log.admin.access.rules()
            await log.close()

    asyncio.run(story())

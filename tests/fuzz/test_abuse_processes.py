"""Very many producers, and manifests that are far too large, at real processes. They lose no
leadership over it, a client beside them notices nothing, and the memory that is left is what
docs/operating.md says.

20,000 producers of each kind; with ONCELOG_FAULTS=all (`make faults`) 100,000.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from oncelog_server.core.ids import PLAIN_PRODUCER_BIT, compose_generation, compose_tx_id
from oncelog_server.runtime.loopback_ports import free_ports
from oncelogpb import calls
from oncelogpb.errors import LimitExceeded, Loading, OncelogError, TooLarge, from_status
from oncelogpb.v1 import coordinator_pb2 as tx_pb
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.hand import rows
from tests.fuzz.witness import Witness, name_in
from tests.integration.cluster import COORDINATOR, PARTITION_LEADER, Cluster, running

pytestmark = pytest.mark.integration

PRODUCERS: Final = 100_000 if os.environ.get("ONCELOG_FAULTS", "").startswith("all") else 20_000
LOADING_TRIES = 100
KIB: Final = 1024
MIB: Final = 1024 * KIB
# What docs/operating.md says of each, and what comes and goes with so many calls in flight.
COORDINATOR_PRODUCER_BYTES: Final = 1 * KIB
PLAIN_PRODUCER_BYTES: Final = 2 * KIB
OPEN_TRANSACTION_BYTES: Final = 1 * KIB
SLACK_BYTES: Final = 128 * MIB
# How they come: through so many connections, so many in flight on each.
CONNECTIONS: Final = 4
IN_FLIGHT: Final = 2_000
CALL_MS: Final = 60_000
# The control partition of those that are many; not the witness's.
CONTROL_PARTITION: Final = 3
MANIFEST_PARTS: Final = 1_000_000
PATIENCE_S: Final = 60.0
GENERATION: Final = compose_generation(1, 1)

SETTINGS: Final = (
    # Some snapshots on the way, of a state that grows.
    "node.snapshot_every_bytes=1048576",
    # A busy machine is not what is tested.
    "node.lease_ms=15000",
    f"coordinator.producers_max={PRODUCERS}",
    f"partition_leader.producers_max={PRODUCERS}",
    f"partition_leader.open_transactions_max={PRODUCERS}",
)


class Crowd:
    """Many callers at the processes of a cluster, over raw streams."""

    def __init__(self, cluster: Cluster, metrics: Mapping[str, str]) -> None:
        self.cluster = cluster
        # Addresses by role.
        self.metrics = metrics

    async def ask(
        self, role: str, method: str, requests: Iterator[Any]
    ) -> list[Any | OncelogError]:
        """The answers, in no order."""
        return [
            answer
            for answers in await asyncio.gather(
                *(self._ask_on_one(role, method, requests) for _ in range(CONNECTIONS))
            )
            for answer in answers
        ]

    async def _ask_on_one(self, role: str, method: str, requests: Iterator[Any]) -> list[Any]:
        channel: Any = grpc.aio.insecure_channel(
            self.cluster.address(role), options=calls.CHANNEL_OPTIONS
        )
        stream = calls.CallStream(channel, role)
        answers: list[Any] = []
        while some := list(itertools.islice(requests, IN_FLIGHT)):
            begun = (stream.begin(method, request, CALL_MS) for request in some)
            answers += await asyncio.gather(*begun, return_exceptions=True)
        await stream.close()
        await channel.close(None)
        return answers

    async def unary(self, role: str, method: str, request: Any) -> Any:
        channel: Any = grpc.aio.insecure_channel(
            self.cluster.address(role), options=calls.CHANNEL_OPTIONS
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        return await calls.unary(channel, role, method, request, CALL_MS)
                    except Loading:
                        # It leads, and does not know yet what was acknowledged before.
                        await asyncio.sleep(0.05)
        finally:
            await channel.close(None)

    def resident_bytes(self, role: str) -> int:
        status = Path(f"/proc/{self.cluster.pid(role)}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * KIB

    def gauge(self, role: str, name: str) -> int:
        """Of the fullest partition."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.metrics[role]}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        values = [float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line)]
        return int(max(values))

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await asyncio.to_thread(holds):
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"it never came to be that {what}") from None

    async def nothing_is_held(self, role: str) -> None:
        for name in ("inflight_bytes", "calls"):
            await self.until(
                functools.partial(self._is_zero, role, f"oncelog_node_{name}"),
                f"no {name} are held",
            )

    def _is_zero(self, role: str, name: str) -> bool:
        return self.gauge(role, name) == 0


def story(folder: Path, tell: Callable[[Crowd], Coroutine[Any, Any, None]]) -> None:
    """Beside a client that must notice nothing, and processes that must lose nothing."""
    watched = (COORDINATOR, PARTITION_LEADER)
    ports = free_ports(len(watched))
    metrics = {role: f"127.0.0.1:{port}" for role, port in zip(watched, ports, strict=True)}
    of_role = {role: [f"node.metrics_listen={address}"] for role, address in metrics.items()}
    with running(folder, *SETTINGS, of_role=of_role) as cluster:
        crowd = Crowd(cluster, metrics)

        async def main() -> None:
            witness = Witness(cluster.bootstrap)
            await witness.start()
            await tell(crowd)
            assert await witness.finish() > 0

        asyncio.run(main())
        for role in watched:
            assert not cluster.events(role, "lease lost")


def granted(answers: list[Any], expected: int) -> list[Any]:
    """Those that were no refusal. The others met the one limit that there is."""
    refused = [answer for answer in answers if isinstance(answer, LimitExceeded)]
    assert {error.metadata["limit"] for error in refused} == {"producers_max"}
    taken = [answer for answer in answers if not isinstance(answer, LimitExceeded)]
    assert not [answer for answer in taken if isinstance(answer, BaseException)][:1]
    assert len(taken) == expected
    return taken


def placed(answers: list[Any]) -> tuple[int, set[str]]:
    """How many batches were written, and the limits that the others met."""
    limits = set()
    written = 0
    for answer in answers:
        (result,) = answer.results
        if result.HasField("error"):
            error = from_status(result.error)
            assert isinstance(error, LimitExceeded), error
            limits.add(error.metadata["limit"])
        else:
            written += 1
    return written, limits


def test_as_many_producers_as_a_partition_may_have(tmp_path: Path) -> None:
    """Named ones at a coordinator, plain ones and ones with an open transaction at a leader."""

    async def tell(crowd: Crowd) -> None:
        group = name_in(CONTROL_PARTITION, "many")
        generation = await _register(crowd, group)
        topic = await _topic(crowd)
        where = pb.Partition(topic_id=topic.topic_id, number=0)
        await _write_plainly(crowd, where)
        await _write_in_transactions(crowd, pb.Partition(topic_id=topic.topic_id, number=1))
        # Both processes come back with what they remember.
        await asyncio.to_thread(crowd.cluster.restart, COORDINATOR, PARTITION_LEADER)
        await asyncio.to_thread(crowd.cluster.wait_ready)
        request = _init(group, 7)
        again = await crowd.unary(COORDINATOR, "init_producer", request)
        assert again.producer.generation == generation, "it is the same instance"
        # Who is ready may still answer that it loads.
        for _ in range(LOADING_TRIES):
            repeat = await crowd.unary(PARTITION_LEADER, "produce", _plain(where, 7))
            if not repeat.results[0].HasField("error"):
                break
            await asyncio.sleep(0.2)
        assert repeat.results[0].duplicate

    story(tmp_path, tell)


def _init(group: str, number: int) -> tx_pb.InitProducerRequest:
    return tx_pb.InitProducerRequest(
        name=f"many-{number}", group=group, instance_id=number.to_bytes(16, "big")
    )


async def _register(crowd: Crowd, group: str) -> int:
    """The generation that each of them got."""
    before = crowd.resident_bytes(COORDINATOR)
    requests = (_init(group, number) for number in range(PRODUCERS + 10))
    replies = granted(await crowd.ask(COORDINATOR, "init_producer", requests), PRODUCERS)
    assert len({reply.producer.producer_id for reply in replies}) == PRODUCERS
    await crowd.nothing_is_held(COORDINATOR)
    await crowd.until(
        lambda: crowd.gauge(COORDINATOR, "oncelog_coordinator_producers") == PRODUCERS,
        "the metric says how full it is",
    )
    grown = crowd.resident_bytes(COORDINATOR) - before
    assert grown < PRODUCERS * COORDINATOR_PRODUCER_BYTES + SLACK_BYTES
    (generation,) = {int(reply.producer.generation) for reply in replies}
    return generation


async def _topic(crowd: Crowd) -> log_pb.TopicDescription:
    request = log_pb.CreateTopicRequest(name="many", partitions=2)
    reply = await crowd.unary(PARTITION_LEADER, "create_topic", request)
    await asyncio.to_thread(crowd.cluster.wait_ready)
    await crowd.until(functools.partial(_is_led, crowd.cluster), "the topic is led")
    topic: log_pb.TopicDescription = reply.topic
    return topic


def _is_led(cluster: Cluster) -> bool:
    with cluster.connect() as log:
        topic = log.admin.describe_topic("many")
    return all(partition.leader for partition in topic.partitions)


def _plain(where: pb.Partition, number: int) -> log_pb.ProduceRequest:
    producer = pb.Producer(producer_id=PLAIN_PRODUCER_BIT | (number + 1))
    return log_pb.ProduceRequest(producer=producer, batches=[rows(where, b"x")])


async def _write_plainly(crowd: Crowd, where: pb.Partition) -> None:
    before = crowd.resident_bytes(PARTITION_LEADER)
    requests = (_plain(where, number) for number in range(PRODUCERS + 10))
    answers = await crowd.ask(PARTITION_LEADER, "produce", requests)
    assert placed(answers) == (PRODUCERS, {"producers_max"})
    await crowd.nothing_is_held(PARTITION_LEADER)
    grown = crowd.resident_bytes(PARTITION_LEADER) - before
    assert grown < PRODUCERS * PLAIN_PRODUCER_BYTES + SLACK_BYTES


async def _write_in_transactions(crowd: Crowd, where: pb.Partition) -> None:
    """Under TxIds that never were, so that the coordinator answers each question by NEVER: nothing
    of them stays open."""
    before = crowd.resident_bytes(PARTITION_LEADER)

    def request(number: int) -> log_pb.ProduceRequest:
        return log_pb.ProduceRequest(
            tx_id=compose_tx_id(CONTROL_PARTITION, number),
            producer=pb.Producer(
                producer_id=compose_tx_id(CONTROL_PARTITION, number), generation=GENERATION
            ),
            batches=[rows(where, b"x")],
        )

    requests = (request(number) for number in range(1, PRODUCERS + 1))
    answers = await crowd.ask(PARTITION_LEADER, "produce", requests)
    assert placed(answers) == (PRODUCERS, set())
    await crowd.until(
        lambda: crowd.gauge(PARTITION_LEADER, "oncelog_partition_leader_open_transactions") == 0,
        "every question is answered",
    )
    one_more = placed([await crowd.unary(PARTITION_LEADER, "produce", request(PRODUCERS + 1))])
    assert one_more == (0, {"producers_max"}), "who wrote here is remembered for a while"
    await crowd.nothing_is_held(PARTITION_LEADER)
    grown = crowd.resident_bytes(PARTITION_LEADER) - before
    assert grown < PRODUCERS * OPEN_TRANSACTION_BYTES + SLACK_BYTES


def test_manifests_of_a_million_parts_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    async def tell(crowd: Crowd) -> None:
        topic = await _topic(crowd)
        reply = await crowd.unary(COORDINATOR, "init_producer", _init("", 1))
        begin = tx_pb.BeginTransactionRequest(producer=reply.producer, request_id=1)
        begun = await crowd.unary(COORDINATOR, "begin_transaction", begin)
        manifest = pb.Manifest()
        column = manifest.topics.add(topic_id=topic.topic_id)
        column.partition.extend(number % 2 for number in range(MANIFEST_PARTS))
        column.writer.extend(range(MANIFEST_PARTS))
        column.record_count.extend(itertools.repeat(1, MANIFEST_PARTS))
        request = tx_pb.CommitTransactionRequest(
            tx_id=begun.tx_id, producer=reply.producer, manifest=manifest
        )

        async def refuse(times: int) -> None:
            for _ in range(times):
                await _refused(crowd.unary(COORDINATOR, "commit_transaction", request))

        # The first ones also find out how much the process keeps for such messages.
        await refuse(4)
        before = crowd.resident_bytes(COORDINATOR)
        await refuse(12)
        await crowd.nothing_is_held(COORDINATOR)
        # Each is 10 MB on the wire: what were left of one in four would show.
        assert crowd.resident_bytes(COORDINATOR) - before < 32 * MIB
        abort = tx_pb.AbortTransactionRequest(tx_id=begun.tx_id, producer=reply.producer)
        await crowd.unary(COORDINATOR, "abort_transaction", abort)

    story(tmp_path, tell)


async def _refused(call: Awaitable[Any]) -> None:
    with pytest.raises(TooLarge) as refused:
        await call
    assert refused.value.metadata["limit"] == "manifest_parts_max"
    assert "100000" in refused.value.message.replace(",", "")

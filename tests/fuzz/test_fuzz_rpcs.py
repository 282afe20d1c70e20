"""Every RPC of every service, with requests that its descriptor allows and nobody should send.

Each answer is a reply or an error with a name, never INTERNAL, nor UNKNOWN_OUTCOME before a
deadline; the machines stay sound, nobody loses a leadership, and a client beside it notices
nothing. One seed is one run: on a failure the request is printed.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    journal_partition_of,
)
from oncelogpb import rpcs
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, partition_leader_pb2
from tests.fuzz.messages import Maker, Pool
from tests.fuzz.target import ROLE_OF, Target, running
from tests.fuzz.verdicts import judge_failure, judge_reply
from tests.fuzz.witness import CONTROL_PARTITION, Witness

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
SEEDS = [1, 2, 3]
# Requests of each RPC, and how many are under way at once.
ROUNDS = 80
AT_ONCE = 16
TIMEOUT_S = 1.0
# Nothing is damaged and nobody is dead here, and every log begins at 0: before it is nothing
# that a replica could fetch.
NEVER_DONE = {
    "Cluster.unclean_elect",
    "PartitionLeader.resolve_transaction",
    "Replication.fetch_snapshot",
}
STREAM_MESSAGES = 60
CALLS_PER_MESSAGE_MAX = 12

UNARY = [
    (service.name, name)
    for service in rpcs.ALL.values()
    for name, method in rpcs.methods(service).items()
    if not (method.server_streaming or method.client_streaming)
]


@pytest.mark.parametrize("seed", SEEDS)
def test_i31_every_unary_call_is_answered_by_name(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        async with running(tmp_path) as target:
            witness = Witness(target.cluster.bootstrap)
            await witness.start()
            chance = random.Random(seed)
            pool = await known_ids(target)
            maker = Maker(chance, pool)
            for number in range(ROUNDS):
                calls = [_one(target, maker, pool, *rpc) for rpc in UNARY]
                chance.shuffle(calls)
                for start in range(0, len(calls), AT_ONCE):
                    await asyncio.gather(*calls[start : start + AT_ONCE])
                if number % 10 == 0:
                    target.check()
            assert await witness.finish() > 0
            _require_depth(target)

    asyncio.run(story())


async def _one(target: Target, maker: Maker, pool: Pool, service: str, method: str) -> None:
    descriptor = rpcs.methods(rpcs.find(service))[method]
    request = maker.request(descriptor.input_type)
    data = maker.spoiled(request.SerializeToString())
    if touches_the_witness(request):
        return
    try:
        reply = await target.ask(service, method, data, TIMEOUT_S)
    except AssertionError as error:
        error.add_note(f"asked {service}.{method}: {str(request)[:2_000]}")
        target.failures.append(error)
        return
    if reply is not None:
        pool.learn(request, reply)


def _require_depth(target: Target) -> None:
    """A fuzzer that is always turned away at the door tests the door."""
    answered = {name for (name, reason) in target.reasons if reason == "ok"}
    shallow = {f"{service}.{method}" for service, method in UNARY} - answered - NEVER_DONE
    assert len(shallow) <= 3, f"only refused: {shallow}"
    reasons = {reason for _, reason in target.reasons}
    assert len(reasons) >= 15, f"only {sorted(reasons)}"


@pytest.mark.parametrize(
    "service", [name for name, service in rpcs.ALL.items() if rpcs.stream_fields(service)]
)
def test_i31_every_call_of_a_stream_is_answered_once_by_name(tmp_path: Path, service: str) -> None:
    async def story() -> None:
        async with running(tmp_path) as target:
            witness = Witness(target.cluster.bootstrap)
            await witness.start()
            chance = random.Random(service)
            pool = await known_ids(target)
            maker = Maker(chance, pool)
            answered = 0
            for _ in range(STREAM_MESSAGES):
                answered += await _stream(target, service, chance, maker, pool)
            assert answered > STREAM_MESSAGES
            assert await witness.finish() > 0

    asyncio.run(story())


async def _stream(
    target: Target, service: str, chance: random.Random, maker: Maker, pool: Pool
) -> int:
    """One stream with some messages of calls, the last of which may be no message."""
    descriptor = rpcs.find(service)
    packed = descriptor.methods_by_name["Stream"]
    answers_class = rpcs.message_class(packed.output_type)
    channel: Any = target.channels[ROLE_OF[service]]
    stream = channel.stream_stream(f"/{descriptor.full_name}/Stream")()
    await stream.initial_metadata()
    expected: Counter[int] = Counter()
    spoiled = False
    for _ in range(3):
        message = _calls(packed.input_type, chance, maker)
        data = message.SerializeToString()
        sent = maker.spoiled(data)
        spoiled = sent != data
        await stream.write(sent)
        expected.update(call.number for call in message.calls)
        if spoiled:
            break
    seen: Counter[int] = Counter()
    failure: grpc.aio.AioRpcError | None = None
    try:
        await stream.done_writing()
        while (data := await stream.read()) is not EOF:
            for answer in answers_class.FromString(data).answers:
                seen[answer.number] += 1
                judge_reply(answer, waited_share=1.0)
    except grpc.aio.AioRpcError as error:
        failure = error
    if failure is not None and not spoiled:
        raise failure
    if failure is not None:
        assert judge_failure(failure, waited_share=0) == "INVALID_ARGUMENT"
    assert spoiled or seen == expected
    return seen.total()


def _calls(packed: Descriptor, chance: random.Random, maker: Maker) -> Any:
    message = rpcs.message_class(packed)()
    for _ in range(chance.randrange(CALLS_PER_MESSAGE_MAX)):
        call = message.calls.add()
        made = maker.request(call.DESCRIPTOR)
        if not touches_the_witness(made):
            call.CopyFrom(made)
        call.timeout_ms = int(TIMEOUT_S * 1000)
    return message


def touches_the_witness(request: Any) -> bool:
    """Without mTLS everybody may end everybody's transactions: that is no fault."""
    for field, value in request.ListFields():
        is_list = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        for one in value if is_list else (value,):
            if hasattr(one, "ListFields"):
                touched = touches_the_witness(one)
            elif field.name in ("tx_id", "producer_id"):
                touched = journal_partition_of(one) == CONTROL_PARTITION
            else:
                touched = field.name == "journal_partition" and one == CONTROL_PARTITION
            if touched:
                return True
    return False


async def known_ids(target: Target) -> Pool:
    """What a client of this cluster knows: topics, a producer, names."""
    pool = Pool()
    # "fuzzed" is the one topic that is never deleted.
    pool.names = ["alpha", "beta", "gamma"]
    pool.uuids = [uuid.UUID(int=number + 1).bytes for number in range(3)]
    created = partition_leader_pb2.CreateTopicRequest(name="fuzzed", partitions=2)
    reply = await target.ask("PartitionLeader", "create_topic", created.SerializeToString(), 10)
    pool.topic_ids = [reply.topic.topic_id] * 6
    pool.topic_ids += [CONSUMER_OFFSETS_ID, TRANSACTION_CONTROL_ID, bytes(16)]
    for name in pool.names:
        init = coordinator_pb2.InitProducerRequest(name=name, instance_id=pool.uuids[0])
        granted = await target.ask("Coordinator", "init_producer", init.SerializeToString(), 10)
        begin = coordinator_pb2.BeginTransactionRequest(producer=granted.producer, request_id=1)
        begun = await target.ask("Coordinator", "begin_transaction", begin.SerializeToString(), 10)
        pool.transactions.append((granted.producer, begun.tx_id))
    asked = cluster_pb2.GetMetadataRequest().SerializeToString()
    metadata = await target.ask("Cluster", "get_metadata", asked, 10)
    pool.cluster_id = metadata.cluster_id
    [pool.boot_id] = [node.boot_id for node in metadata.nodes if "partition_leader" in node.roles]
    return pool

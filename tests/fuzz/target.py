"""A cluster in this loop, raw gRPC channels to its processes, and a look at its machines."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from oncelog_server.cli.compose import InProcessCluster
from oncelogpb import rpcs
from oncelogpb.calls import CHANNEL_OPTIONS
from tests.fuzz.verdicts import judge_failure, judge_reply

# Which process serves a service; the others answer UNIMPLEMENTED.
ROLE_OF: Final = {
    "Cluster": "coordinator",
    "Coordinator": "coordinator",
    "PartitionLeader": "partition_leader",
    "OffsetManager": "offset_manager",
    "Participant": "partition_leader",
    "Replication": "partition_leader",
}
# Few partitions: each one costs elections and files.
# A lease that a slow machine keeps: ten thousand of something hold the loop up for seconds there.
SETTINGS: Final = ("partition_leader.topic_partitions_max=4", "node.lease_ms=15000")
# A client that says what it wants, however large.
UNBOUNDED: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    *(option for option in CHANNEL_OPTIONS if "message_length" not in option[0]),
)


class Target:
    """What is abused."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.addresses = dict(
            zip(
                ("coordinator", "partition_leader", "offset_manager"),
                cluster.bootstrap.split(","),
                strict=True,
            )
        )
        self.channels: dict[str, Any] = {
            role: grpc.aio.insecure_channel(address, options=UNBOUNDED)
            for role, address in self.addresses.items()
        }
        # Reasons that were given, by RPC; "ok" for a reply.
        self.reasons: Counter[tuple[str, str]] = Counter()
        # Answers that no client may get, each with its request, and tasks that died.
        self.failures: list[Exception] = []
        asyncio.get_running_loop().set_exception_handler(self._died)

    async def ask(self, service: str, method: str, data: bytes, timeout_s: float) -> Any:
        """The reply to these bytes, as a message; None for an error, which has its name."""
        return await self.ask_role(ROLE_OF[service], service, method, data, timeout_s)

    async def ask_role(
        self, role: str, service: str, method: str, data: bytes, timeout_s: float
    ) -> Any:
        """The same of another process than the usual one."""
        descriptor = rpcs.methods(rpcs.find(service))[method]
        call = self.channels[role].unary_unary(
            f"/{descriptor.containing_service.full_name}/{descriptor.name}"
        )
        name = f"{service}.{method}"
        begun = time.monotonic()
        try:
            answer = await call(data, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            share = (time.monotonic() - begun) / timeout_s
            self.reasons[name, judge_failure(failure, waited_share=share)] += 1
            return None
        share = (time.monotonic() - begun) / timeout_s
        reply = rpcs.message_class(descriptor.output_type).FromString(answer)
        self.reasons[name, "ok"] += 1
        for reason in judge_reply(reply, waited_share=share):
            self.reasons[name, reason] += 1
        return reply

    def _died(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task or callback of the services ended with an exception that nobody took."""
        error = context.get("exception")
        self.failures.append(error if isinstance(error, Exception) else RuntimeError(context))

    def require_named(self) -> None:
        """Raises all that went wrong, at once."""
        gc.collect()
        if self.failures:
            raise ExceptionGroup("answers that no client may get", self.failures)

    def held(self, role: str) -> dict[str, int]:
        """What a process holds for its callers now, as its metrics say."""
        return self.cluster.held(role)

    def check(self) -> None:
        """Every machine that answers keeps its invariants."""
        for machine in self.cluster.led_machines():
            machine.check()

    def all_lead(self) -> bool:
        """Nobody lost a leadership over it."""
        return self.cluster.is_settled()


@asynccontextmanager
async def running(data_dir: Path, *settings: str) -> AsyncIterator[Target]:
    """A cluster of three processes in this loop. At the end it leads everything, and its machines
    are sound."""
    cluster = await InProcessCluster.start(data_dir, pairs=[*SETTINGS, *settings])
    target = Target(cluster)
    try:
        yield target
        target.require_named()
        target.check()
        async with asyncio.timeout(30):
            while not target.all_lead():
                await asyncio.sleep(0.05)
    finally:
        for channel in target.channels.values():
            await channel.close(None)
        await cluster.stop()

"""A cluster over real mTLS, and callers with every kind of certificate.

    async with running(tmp_path) as world:
        alice = world.caller("alice")
        await world.allow("alice read,write topic:payments")
        await alice.call("PartitionLeader", "list_topics", pb.ListTopicsRequest())

Three processes in this loop, each with the certificate "oncelog"; "root" is the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from oncelog import aio
from oncelog.options import Tls
from oncelog_server.cli.compose import InProcessCluster
from oncelog_server.core.access import Effect, Pattern, ResourceKind, Rule, Verb, pattern_of
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.rpc.tls import TlsFiles
from oncelogpb import calls, errors, rpcs
from oncelogpb.v1 import cluster_pb2 as pb
from tests.unit.rpc.authority import Authority

OPERATOR: Final = "root"
SERVICE: Final = "oncelog"
# Which process serves a service.
ROLE_OF: Final = {
    "Cluster": "coordinator",
    "Coordinator": "coordinator",
    "PartitionLeader": "partition_leader",
    "OffsetManager": "offset_manager",
    "Participant": "partition_leader",
    "Replication": "partition_leader",
}
# Ends a test that hangs; nothing is asserted about it.
HANG_S: Final = 20.0


def rule_of(text: str) -> list[Rule]:
    """`alice read,write topic:payments*`, with `deny` before it or not."""
    words = text.split()
    effect = Effect.ALLOW
    if words[0] in tuple(Effect):
        effect = Effect(words.pop(0))
    identity, verbs, place = words
    kind, _, name = place.partition(":")
    return [
        Rule(effect, pattern_of(identity), Verb(verb), ResourceKind(kind), pattern_of(name))
        for verb in verbs.split(",")
    ]


def message_of(rule: Rule) -> pb.AccessRule:
    return pb.AccessRule(
        effect=pb.AccessEffect.Value(f"ACCESS_EFFECT_{rule.effect.name}"),
        identity=_pattern(rule.identity),
        verb=pb.AccessVerb.Value(f"ACCESS_VERB_{rule.verb.name}"),
        kind=pb.AccessKind.Value(f"ACCESS_KIND_{rule.kind.name}"),
        name=_pattern(rule.name),
    )


def _pattern(pattern: Pattern) -> pb.AccessPattern:
    return pb.AccessPattern(text=pattern.text, prefixed=pattern.prefixed)


class Caller:
    """One certificate, and a connection to each process."""

    def __init__(self, world: World, files: TlsFiles) -> None:
        self._world = world
        self.files = files
        credentials = grpc.ssl_channel_credentials(
            *(Path(path).read_bytes() for path in (files.ca, files.key, files.certificate))
        )
        self.channels: dict[str, Any] = {
            role: grpc.aio.secure_channel(address, credentials, options=calls.CHANNEL_OPTIONS)
            for role, address in world.addresses.items()
        }
        self._streams: dict[str, calls.CallStream] = {}

    async def call(self, service: str, method: str, request: Any, role: str = "") -> Any:
        """The reply of the unary form. Raises OncelogError."""
        channel = self.channels[role or ROLE_OF[service]]
        return await calls.unary(channel, service, method, request, int(HANG_S * 1000))

    async def call_on_stream(self, service: str, method: str, request: Any) -> Any:
        """The same call over the service's stream."""
        stream = self._streams.get(service)
        if stream is None:
            stream = calls.CallStream(self.channels[ROLE_OF[service]], service)
            self._streams[service] = stream
        return await stream.call(method, request, int(HANG_S * 1000))

    async def first_of(self, service: str, method: str, request: Any) -> Any:
        """The first reply of a server-streaming call; None where none came in a while."""
        replies = calls.server_stream(self.channels[ROLE_OF[service]], service, method, request)
        async with contextlib.aclosing(replies):
            try:
                async with asyncio.timeout(0.5):
                    return await anext(replies)
            except TimeoutError:
                return None

    def log(self) -> aio.Log:
        """The client that users have. Close it."""
        return aio.connect(self._world.bootstrap, timeout_ms=int(HANG_S * 1000), tls=self.tls)

    @property
    def tls(self) -> Tls:
        return Tls(self.files.ca, self.files.certificate, self.files.key)

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.close()
        for channel in self.channels.values():
            await channel.close(None)


class World:
    """See the module."""

    def __init__(self, cluster: InProcessCluster, authority: Authority) -> None:
        self.cluster = cluster
        self.authority = authority
        self.bootstrap = cluster.bootstrap
        self.addresses = dict(zip(ROLES, self.bootstrap.split(","), strict=True))
        self._callers: dict[str, Caller] = {}

    def caller(self, identity: str) -> Caller:
        """With a certificate of that common name, always the same one."""
        if identity not in self._callers:
            self._callers[identity] = Caller(self, self.authority.issue(identity))
        return self._callers[identity]

    def caller_with(self, name: str, files: TlsFiles) -> Caller:
        caller = self._callers[name] = Caller(self, files)
        return caller

    @property
    def operator(self) -> Caller:
        return self.caller(OPERATOR)

    async def allow(self, *lines: str) -> None:
        """Returns when every process obeys."""
        await self.add([rule for line in lines for rule in rule_of(line)])

    async def add(self, rules: Iterable[Rule]) -> None:
        rules = list(rules)
        for first in range(0, len(rules), 100):
            request = pb.AddRulesRequest(
                rules=[message_of(rule) for rule in rules[first : first + 100]]
            )
            await self.operator.call("Cluster", "add_rules", request)
        await self._until(lambda listed: set(rules) <= listed)

    async def withdraw(self, *lines: str) -> None:
        """Returns when every process obeys."""
        rules = [rule for line in lines for rule in rule_of(line)]
        request = pb.RemoveRulesRequest(rules=[message_of(rule) for rule in rules])
        await self.operator.call("Cluster", "remove_rules", request)
        await self._until(lambda listed: not set(rules) & listed)

    async def _until(self, obeyed: Any) -> None:
        async with asyncio.timeout(HANG_S):
            for role in ROLES:
                while True:
                    reply = await self.operator.call(
                        "Cluster", "list_rules", pb.ListRulesRequest(), role
                    )
                    if obeyed({_rule(message) for message in reply.rules}):
                        break
                    await asyncio.sleep(0.01)

    async def close(self) -> None:
        for caller in self._callers.values():
            await caller.close()


def _rule(message: pb.AccessRule) -> Rule:
    return Rule(
        Effect[pb.AccessEffect.Name(message.effect).removeprefix("ACCESS_EFFECT_")],
        Pattern(message.identity.text, message.identity.prefixed),
        Verb[pb.AccessVerb.Name(message.verb).removeprefix("ACCESS_VERB_")],
        ResourceKind[pb.AccessKind.Name(message.kind).removeprefix("ACCESS_KIND_")],
        Pattern(message.name.text, message.name.prefixed),
    )


@asynccontextmanager
async def running(directory: Path, *settings: str) -> AsyncIterator[World]:
    """With rules that hold, unless the settings say otherwise."""
    authority = Authority(directory / "authority")
    files = authority.issue(SERVICE)
    cluster = await InProcessCluster.start(
        directory / "data",
        pairs=[
            f"node.tls_ca={files.ca}",
            f"node.tls_certificate={files.certificate}",
            f"node.tls_key={files.key}",
            f"authorization.operators={OPERATOR}",
            "node.log_level=error",
            *settings,
        ],
    )
    world = World(cluster, authority)
    try:
        yield world
    finally:
        await world.close()
        await cluster.stop()


async def refusal_of(call: Any) -> errors.OncelogError | None:
    """The error; None where it was answered."""
    try:
        await call
    except errors.OncelogError as error:
        return error
    return None


def every_rpc() -> list[tuple[str, str]]:
    """(service, RPC) of every service there is."""
    return [
        (name, method) for name, service in rpcs.ALL.items() for method in rpcs.methods(service)
    ]

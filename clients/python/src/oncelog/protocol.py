"""The low-level face: one call at a time, in the words of the protos. For connectors and tools;
users want `oncelog.connect`.

    from oncelog.protocol import Protocol

    protocol = Protocol("localhost:7400")
    reply = protocol.call("offset_manager.fetch_offsets", FetchOffsetsRequest(group="g"))
    protocol.close()

A call is routed by its content (`_core.routing`), redirected, retried after errors that promise
that nothing happened, and repeated after a lost answer where it is idempotent by design. It ends
at its deadline at the latest (I31): with the last error, or with UnknownOutcome where something
may have happened.

Calls that are split by partition leader (produce, fetch, list_offsets) are merged in order; an item
that failed for good carries its error in the reply, and does not fail the others.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from oncelog._core import retries, routing
from oncelog._core.retries import Action
from oncelog._core.routing import Endpoint, Key, Kind, PartitionKey
from oncelog._loop import LoopThread
from oncelog._transport import GrpcTransport, Transport
from oncelog.errors import Closed
from oncelog.options import ConnectOptions, make_options, require
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2

# One process has this long to answer a question about metadata before the next one is asked.
METADATA_ATTEMPT_MS: Final = 3_000
# A topic that no process knows is asked for again this long: one that was just created spreads.
TOPIC_GRACE_MS: Final = 500
# A long poll is waited for this much longer than the server may take, milliseconds.
POLL_MARGIN_MS: Final = 5_000


class AsyncProtocol:
    """For one event loop; make it there. `transport`, `chance`, `entropy` and `wall_ns` are its
    ports to the outside: tests and the simulator give others."""

    def __init__(
        self,
        bootstrap: str,
        options: ConnectOptions | None = None,
        *,
        transport: Transport | None = None,
        chance: Callable[[], float] = random.random,
        entropy: Callable[[int], bytes] = os.urandom,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.options = options or ConnectOptions()
        self.options.validate()
        self.directory = routing.Directory()
        self.transport: Transport = transport or GrpcTransport(self.options.tls)
        self._bootstrap = routing.parse_bootstrap(bootstrap)
        # A number in [0, 1), for back-off and for choices that should differ.
        self.chance = chance
        # Bytes nobody can guess: ids of producers and of their runs.
        self.entropy = entropy
        # Nanoseconds since the Unix epoch, for the timestamps of records.
        self.wall_ns = wall_ns
        self._turn = 0
        self._closed = False
        self._wanted_keys: set[Key] = set()
        self._wanted_topics: set[str] = set()
        self._wanted_ids: set[bytes] = set()
        self._refreshing: asyncio.Task[None] | None = None
        # True: the question of the refresh under way has gone; who comes now goes with the next.
        self._asked = False

    # ------------------------------------------------------------------------------------ calls

    async def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        """The reply. `method` is "service.rpc_in_snake_case". Raises OncelogError."""
        if self._closed:
            raise Closed("the connection is closed: connect again")
        deadline = self.deadline(timeout_ms)
        kind = routing.method_of(method).kind
        if kind is Kind.PARTITIONS:
            return await self._call_partitions(method, request, deadline)
        if kind is Kind.ROLE_ALL:
            return await self._call_all(method, request, deadline)
        if kind in (Kind.ANYONE, Kind.ROLE_ANY):
            return await self._repeat(
                method, request, deadline, lambda: self._any_process(method, deadline), None
            )
        key = routing.key_of(method, request)
        return await self._repeat(
            method, request, deadline, lambda: self.locate(key, deadline), key
        )

    async def topic(self, name: str) -> partition_leader_pb2.TopicDescription:
        """The topic, from the cache or asked for. Raises UnknownTopic."""
        topic = self.directory.topic(name)
        give_up = self.now_ms() + TOPIC_GRACE_MS
        attempt = 0
        while topic is None:
            await self.refresh(topics=[name])
            topic = self.directory.topic(name)
            if topic is None:
                if self.now_ms() >= give_up:
                    raise errors.UnknownTopic(
                        f"no topic {name!r}; create it with admin.create_topic", topic=name
                    )
                await self.back_off(attempt)
                attempt += 1
        return topic

    async def close(self) -> None:
        """Ends every call that is under way. Safe to repeat."""
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self.transport.close()

    # ------------------------------------------------------------------------------------- time

    def now_ms(self) -> float:
        """The loop's clock: monotonic milliseconds."""
        return asyncio.get_running_loop().time() * 1000

    def deadline(self, timeout_ms: int | None = None) -> float:
        """On the loop's clock. Raises InvalidArgument."""
        if timeout_ms is None:
            timeout_ms = self.options.timeout_ms
        require("timeout_ms", timeout_ms, 1, 24 * 3_600_000)
        return self.now_ms() + timeout_ms

    def remaining_ms(self, deadline: float) -> int:
        """What is left, at least 1."""
        return max(1, int(deadline - self.now_ms()))

    async def back_off(self, attempt: int, error: errors.OncelogError | None = None) -> None:
        """Waits as the policy says before the next attempt."""
        chance = self.chance()
        wait = (
            retries.backoff_ms(attempt, chance)
            if error is None
            else retries.wait_ms(error, attempt, chance)
        )
        await asyncio.sleep(wait / 1000)

    # ---------------------------------------------------------------------------------- routing

    async def locate(self, key: Key | PartitionKey, deadline: float) -> Endpoint:
        """Who leads it. Raises Unavailable where nobody does now, UnknownTopic."""
        found = self._known(key)
        if found is not None:
            return found
        if isinstance(key, PartitionKey):
            await self.refresh(topic_ids=[key.topic_id], deadline=deadline)
        else:
            await self.refresh(keys=[key], deadline=deadline)
        found = self._known(key)
        if found is not None:
            return found
        if isinstance(key, PartitionKey):
            topic = self.directory.topic_by_id(key.topic_id)
            if topic is None:
                raise errors.UnknownTopic(f"no topic of id {key.topic_id.hex()}")
            if key.number >= len(topic.partitions):
                raise errors.UnknownPartition(
                    f"topic {topic.name!r} has {len(topic.partitions)} partitions, no {key.number}",
                    topic=topic.name,
                )
        raise errors.Unavailable(f"nobody leads {key} now")

    async def refresh(
        self,
        *,
        keys: Iterable[Key] = (),
        topics: Iterable[str] = (),
        topic_ids: Iterable[bytes] = (),
        deadline: float | None = None,
    ) -> None:
        """Asks for metadata; questions of one loop turn travel together. Raises Unavailable."""
        self._wanted_keys.update(keys)
        self._wanted_topics.update(topics)
        self._wanted_ids.update(topic_ids)
        while self._refreshing is not None and not self._refreshing.done() and self._asked:
            # Its question is on the way: ours goes with the next one.
            await self._wait_for(self._refreshing, deadline, swallow=True)
        if self._refreshing is None or self._refreshing.done():
            self._asked = False
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        await self._wait_for(self._refreshing, deadline)

    def learn_failure(self, key: Key | PartitionKey, error: errors.OncelogError) -> bool:
        """Corrects the directory after an error. True: it now names another leader, which may be
        tried at once."""
        action = retries.action_for(error)
        if isinstance(error, errors.NotLeader):
            return self.directory.redirect(key, error)
        if action in (Action.REDIRECT, Action.ASK):
            self.directory.forget(key)
        return False

    def _known(self, key: Key | PartitionKey) -> Endpoint | None:
        if isinstance(key, PartitionKey):
            return self.directory.leader(key)
        return self.directory.route(key)

    def _processes(self, role: str | None = None) -> list[Endpoint]:
        """Whom to ask, each once: those we know, then those we were told at first."""
        known = [
            Endpoint(node.endpoint.host, node.endpoint.port)
            for node in self.directory.nodes
            if role is None or role in node.roles
        ]
        if role is not None:
            return sorted(set(known))
        return list(dict.fromkeys([*sorted(known), *self._bootstrap]))

    async def _any_process(self, method: str, deadline: float) -> Endpoint:
        """The next one in turn: a retry asks another."""
        role = method.partition(".")[0]
        processes = self._processes(None if role == "cluster" else role)
        if not processes:
            await self.refresh(deadline=deadline)
            processes = self._processes(role)
        if not processes:
            raise errors.Unavailable(f"no {role} process is alive")
        self._turn += 1
        return processes[self._turn % len(processes)]

    async def _refresh(self) -> None:
        # A turn of the loop, so that everybody who asks now asks in one message.
        await asyncio.sleep(0)
        request = routing.metadata_request(
            keys=self._wanted_keys, topics=self._wanted_topics, topic_ids=self._wanted_ids
        )
        self._wanted_keys, self._wanted_topics, self._wanted_ids = set(), set(), set()
        self._asked = True
        processes = self._processes()
        failures: list[str] = []
        for step in range(len(processes)):
            endpoint = processes[(self._turn + step) % len(processes)]
            try:
                reply = await self.transport.call(
                    endpoint, "cluster.get_metadata", request, METADATA_ATTEMPT_MS
                )
            except errors.OncelogError as error:
                failures.append(f"{endpoint}: {error}")
                continue
            self._turn = processes.index(endpoint)
            self.directory.learn(request, reply)
            return
        self._turn += 1
        raise errors.Unavailable("no process answers: " + "; ".join(failures))

    async def _wait_for(
        self, task: asyncio.Task[None], deadline: float | None, *, swallow: bool = False
    ) -> None:
        """Waits for a task that others wait for as well: nobody's end cancels it."""
        seconds = None if deadline is None else self.remaining_ms(deadline) / 1000
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise errors.Unavailable("no metadata within the deadline")
        if swallow:
            return
        if task.cancelled():
            raise Closed("the connection is closed: connect again")
        failure = task.exception()
        if failure is not None:
            raise failure

    # ------------------------------------------------------------------------------ one process

    async def _repeat(
        self,
        method: str,
        request: Any,
        deadline: float,
        locate: Callable[[], Awaitable[Endpoint]],
        key: Key | PartitionKey | None,
    ) -> Any:
        """Until it succeeds, fails for good, or the deadline comes."""
        idempotent = routing.method_of(method).idempotent
        attempt = 0
        in_doubt = False
        while True:
            try:
                endpoint = await locate()
                return await self.transport.call(
                    endpoint, method, request, self.remaining_ms(deadline)
                )
            except errors.OncelogError as error:
                action = retries.action_for(error)
                if not retries.is_repeatable(action, idempotent=idempotent):
                    raise
                in_doubt |= error.may_have_applied
                moved = key is not None and self.learn_failure(key, error)
                if not moved or attempt % 2:
                    await self._back_off_before(deadline, attempt, error, method, in_doubt)
                attempt += 1

    async def _back_off_before(
        self,
        deadline: float,
        attempt: int,
        error: errors.OncelogError,
        method: str,
        in_doubt: bool,
    ) -> None:
        """Waits, or raises how the call ended where the deadline leaves no time."""
        wait = retries.wait_ms(error, attempt, self.chance())
        if self.now_ms() + wait >= deadline:
            if in_doubt and not error.may_have_applied:
                raise errors.UnknownOutcome(
                    f"{method}: an answer was lost, and then: {error}"
                ) from error
            raise error
        await asyncio.sleep(wait / 1000)

    # --------------------------------------------------------------------------- many processes

    async def _call_all(self, method: str, request: Any, deadline: float) -> Any:
        """Asks every process of the role, merges what they list."""
        await self.refresh(deadline=deadline)
        processes = self._processes(method.partition(".")[0])
        replies = await asyncio.gather(
            *(
                self._repeat(method, request, deadline, _constant(endpoint), None)
                for endpoint in processes
            )
        )
        merged = type(replies[0])() if replies else None
        if merged is None:
            raise errors.Unavailable(f"no {method.partition('.')[0]} process is alive")
        field = routing.method_of(method).results
        items = [item for reply in replies for item in getattr(reply, field)]
        items.sort(key=_listing_order)
        getattr(merged, field).extend(items)
        if hasattr(merged, "more"):
            merged.more = any(reply.more for reply in replies)
        return merged

    async def _call_partitions(self, method: str, request: Any, deadline: float) -> Any:
        rule = routing.method_of(method)
        partitions = routing.items_of(method, request)
        if not rule.items:
            key = partitions[0]
            return await self._repeat(
                method, request, deadline, lambda: self.locate(key, deadline), key
            )
        results: list[Any] = [None] * len(partitions)
        reply_type: Any = None
        open_items = list(range(len(partitions)))
        attempt = 0
        while open_items:
            groups, refused = await self._by_leader(partitions, open_items, deadline)
            outcomes = await asyncio.gather(
                *(
                    self._one_leader(method, request, endpoint, chosen, deadline)
                    for endpoint, chosen in groups.items()
                )
            )
            failed: dict[int, errors.OncelogError] = dict(refused)
            for chosen, outcome in zip(groups.values(), outcomes, strict=True):
                if isinstance(outcome, errors.OncelogError):
                    failed.update(dict.fromkeys(chosen, outcome))
                    continue
                reply_type = type(outcome)
                for index, item in zip(chosen, getattr(outcome, rule.results), strict=True):
                    results[index] = item
                    if item.HasField("error"):
                        failed[index] = errors.from_status(item.error)
            again = self._again(partitions, failed)
            for index, error in failed.items():
                results[index] = _refusal(method, partitions[index], error)
            if not again:
                break
            wait = max(retries.wait_ms(failed[index], attempt, self.chance()) for index in again)
            if self.now_ms() + wait >= deadline:
                break
            await asyncio.sleep(wait / 1000)
            open_items = again
            attempt += 1
        reply = (reply_type or _REPLIES[method])()
        getattr(reply, rule.results).extend(results)
        return reply

    async def _by_leader(
        self, partitions: Sequence[PartitionKey], chosen: Sequence[int], deadline: float
    ) -> tuple[dict[Endpoint, list[int]], dict[int, errors.OncelogError]]:
        """Items by leader, and those that have none."""
        groups: dict[Endpoint, list[int]] = defaultdict(list)
        refused: dict[int, errors.OncelogError] = {}
        missing = {
            partitions[index].topic_id for index in chosen if not self._led(partitions, index)
        }
        if missing:
            try:
                await self.refresh(topic_ids=missing, deadline=deadline)
            except errors.OncelogError as error:
                refused = {
                    index: error for index in chosen if partitions[index].topic_id in missing
                }
        for index in chosen:
            if index in refused:
                continue
            leader = self.directory.leader(partitions[index])
            if leader is not None:
                groups[leader].append(index)
                continue
            refused[index] = self._why_nobody(partitions[index])
        return groups, refused

    def _led(self, partitions: Sequence[PartitionKey], index: int) -> bool:
        return self.directory.leader(partitions[index]) is not None

    def _why_nobody(self, partition: PartitionKey) -> errors.OncelogError:
        topic = self.directory.topic_by_id(partition.topic_id)
        if topic is None:
            return errors.UnknownTopic(f"no topic of id {partition.topic_id.hex()}")
        if partition.number >= len(topic.partitions):
            return errors.UnknownPartition(
                f"topic {topic.name!r} has {len(topic.partitions)} partitions, "
                f"no {partition.number}",
                topic=topic.name,
            )
        return errors.Unavailable(
            f"nobody leads partition {partition.number} of {topic.name!r} now"
        )

    async def _one_leader(
        self, method: str, request: Any, endpoint: Endpoint, chosen: Sequence[int], deadline: float
    ) -> Any:
        """The reply, or the error that all of its items share."""
        part = routing.part_of(method, request, chosen)
        timeout_ms = self.remaining_ms(deadline)
        if method == "partition_leader.fetch":
            timeout_ms = min(timeout_ms, request.max_wait_ms + POLL_MARGIN_MS)
        try:
            return await self.transport.call(endpoint, method, part, timeout_ms)
        except errors.OncelogError as error:
            return error

    def _again(
        self, partitions: Sequence[PartitionKey], failed: dict[int, errors.OncelogError]
    ) -> list[int]:
        """Items to repeat: what is retriable, and what failed only because an earlier batch of its
        partition did."""
        again: list[int] = []
        broken: set[PartitionKey] = set()
        for index in sorted(failed):
            error, partition = failed[index], partitions[index]
            echo = partition in broken and isinstance(
                error, errors.OutOfOrderSequence | errors.UnknownProducer
            )
            if echo or retries.is_repeatable(retries.action_for(error), idempotent=True):
                self.learn_failure(partition, error)
                again.append(index)
                broken.add(partition)
        return again


class Protocol:
    """The blocking form: usable from many threads, with an event loop in a thread of its own."""

    def __init__(self, bootstrap: str, **options: Any) -> None:
        """Options: see `ConnectOptions`. Connects at the first call. Raises InvalidArgument."""
        settings = make_options(ConnectOptions, options)
        routing.parse_bootstrap(bootstrap)
        self._loop = LoopThread("oncelog protocol")
        self._async = self._loop.run(_make(bootstrap, settings))

    def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        """As AsyncProtocol.call."""
        return self._loop.run(self._async.call(method, request, timeout_ms))

    def topic(self, name: str) -> partition_leader_pb2.TopicDescription:
        """The topic, from the cache or asked for. Raises UnknownTopic."""
        return self._loop.run(self._async.topic(name))

    def forget_topic(self, name: str) -> None:
        """The next `topic` asks again: for who waits for a change."""
        self._loop.post(self._async.directory.forget_topic, name)

    def close(self) -> None:
        """Safe to repeat."""
        try:
            self._loop.run(self._async.close())
        except Closed:
            pass
        self._loop.close()

    def __enter__(self) -> Protocol:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_REPLIES: Final[dict[str, Any]] = {
    "partition_leader.produce": partition_leader_pb2.ProduceReply,
    "partition_leader.fetch": partition_leader_pb2.FetchReply,
    "partition_leader.list_offsets": partition_leader_pb2.ListOffsetsReply,
}
_ITEMS: Final[dict[str, Any]] = {
    "partition_leader.produce": partition_leader_pb2.BatchResult,
    "partition_leader.fetch": partition_leader_pb2.FetchedPartition,
    "partition_leader.list_offsets": partition_leader_pb2.ListedOffset,
}


def _refusal(method: str, partition: PartitionKey, error: errors.OncelogError) -> Any:
    return _ITEMS[method](partition=partition.wire(), error=errors.to_status(error))


def _constant(endpoint: Endpoint) -> Callable[[], Awaitable[Endpoint]]:
    async def located() -> Endpoint:
        return endpoint

    return located


def _listing_order(item: Any) -> Any:
    """Transactions by TxId, groups by name, journals by partition."""
    if hasattr(item, "tx_id"):
        return item.tx_id
    if hasattr(item, "partition"):
        return (item.partition.topic_id, item.partition.number)
    return item.group


def _retrieve(task: asyncio.Task[None]) -> None:
    """A refresh that nobody waits for any more must not complain."""
    if not task.cancelled():
        task.exception()


async def _make(bootstrap: str, settings: ConnectOptions) -> AsyncProtocol:
    return AsyncProtocol(bootstrap, settings)


__all__ = ["AsyncProtocol", "Protocol"]

"""Calls that more than one process answers: split by partition leader, or asked of all processes of
a role, and merged in order.

An item that failed for good carries its error in the reply and does not fail the others; one that
may succeed later is repeated, with those behind it in its partition, until the deadline.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from oncelog._core import paging, retries, routing
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog._repeating import Repeating
from oncelog.errors import CannotConnect, Closed
from oncelogpb import errors
from oncelogpb.doubt import Doubt
from oncelogpb.v1 import partition_leader_pb2

# A long poll is waited for this much longer than the server may take, milliseconds.
POLL_MARGIN_MS: Final = 5_000


class FanOut:
    """Beside one Repeating, which repeats what goes to one process."""

    def __init__(self, protocol: Repeating) -> None:
        self._protocol = protocol

    async def call_all(self, method: str, request: Any, deadline: float) -> Any:
        """Asks every process of the role, merges what they list. Who they are is looked up before
        each attempt: one that did not answer may run elsewhere now."""
        answered: dict[Endpoint, Any] = {}
        doubt = Doubt(method)
        began_ms = self._protocol.now_ms()
        attempt = 0
        while True:
            try:
                self._protocol.require_open()
                end = self._protocol.until(method, began_ms, deadline)
                processes = await self._ask_rest(method, request, answered, end)
            except errors.OncelogError as error:
                if not _is_repeatable(error):
                    doubt.give_up(error)
                until = self._protocol.until(method, began_ms, deadline)
                await self._protocol.back_off_before(until, attempt, error, doubt, method)
                doubt.as_reported(error)
                attempt += 1
            else:
                return _merged(method, [answered[process] for process in processes])

    async def _ask_rest(
        self, method: str, request: Any, answered: dict[Endpoint, Any], deadline: float
    ) -> Sequence[Endpoint]:
        """Asks those that have not answered; all processes, once they have. Raises what one of them
        met, what is final first."""
        await self._protocol.refresh(deadline=deadline)
        role = routing.role_of(method)
        processes = self._protocol.processes(role)
        if not processes:
            raise errors.Unavailable(f"no {role} process is alive")
        rest = [process for process in processes if process not in answered]
        timeout_ms = self._protocol.remaining_ms(deadline)
        outcomes = await asyncio.gather(
            *(self._ask_one(process, method, request, timeout_ms) for process in rest)
        )
        failures: list[errors.OncelogError] = []
        for process, outcome in zip(rest, outcomes, strict=True):
            if isinstance(outcome, errors.OncelogError):
                failures.append(outcome)
            else:
                answered[process] = outcome
        if failures:
            raise min(failures, key=_is_repeatable)
        return processes

    async def _ask_one(self, process: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        """The reply, or the error."""
        try:
            reply = await self._protocol.transport.call(process, method, request, timeout_ms)
        except errors.OncelogError as error:
            self._protocol.met(method, error)
            self._protocol.suspect(process, error)
            return error
        self._protocol.met(method)
        return reply

    async def call_partitions(self, method: str, request: Any, deadline: float) -> Any:
        rule = routing.method_of(method)
        partitions = routing.items_of(method, request)
        if not rule.items:
            key = partitions[0]
            return await self._protocol.repeat(
                method, request, deadline, lambda: self._protocol.locate(key, deadline), key
            )
        results: list[Any] = [None] * len(partitions)
        reply_type: Any = None
        open_items = list(range(len(partitions)))
        began_ms = self._protocol.now_ms()
        attempt = 0
        # Of the items that failed: each batch is a request of its own.
        doubts: dict[int, Doubt] = {}
        while open_items:
            self._require_open(method, doubts.values())
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
                told = doubts.setdefault(index, Doubt(method, request)).as_reported(error)
                results[index] = _refusal(method, partitions[index], told)
            if not again:
                break
            wait = max(
                retries.wait_ms(failed[index], attempt, self._protocol.chance()) for index in again
            )
            until = self._protocol.until(method, began_ms, deadline)
            if self._protocol.now_ms() + wait >= until:
                # What was sent before stays in doubt, whoever is away now.
                if not any(doubt.lost for doubt in doubts.values()):
                    why = self._protocol.explained(failed[again[0]], method)
                    if isinstance(why, CannotConnect):
                        raise why
                break
            await asyncio.sleep(wait / 1000)
            open_items = again
            attempt += 1
        reply = (reply_type or _REPLIES[method])()
        getattr(reply, rule.results).extend(results)
        return reply

    def _require_open(self, method: str, doubts: Iterable[Doubt]) -> None:
        """Raises Closed; UnknownOutcome where an answer was lost."""
        try:
            self._protocol.require_open()
        except Closed as closed:
            lost = (doubt for doubt in doubts if doubt.lost)
            next(lost, Doubt(method)).give_up(closed)

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
                await self._protocol.refresh(topic_ids=missing, deadline=deadline)
            except errors.OncelogError as error:
                refused = {
                    index: error for index in chosen if partitions[index].topic_id in missing
                }
        for index in chosen:
            if index in refused:
                continue
            leader = self._protocol.directory.leader(partitions[index])
            if leader is not None:
                groups[leader].append(index)
                continue
            refused[index] = self._why_nobody(partitions[index])
        return groups, refused

    def _led(self, partitions: Sequence[PartitionKey], index: int) -> bool:
        return self._protocol.directory.leader(partitions[index]) is not None

    def _why_nobody(self, partition: PartitionKey) -> errors.OncelogError:
        refusal = self._protocol.directory.refusal(partition.topic_id)
        if refusal is not None:
            return refusal
        topic = self._protocol.directory.topic_by_id(partition.topic_id)
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
        timeout_ms = self._protocol.remaining_ms(deadline)
        if method == "partition_leader.fetch":
            timeout_ms = min(timeout_ms, request.max_wait_ms + POLL_MARGIN_MS)
        return await self._ask_one(endpoint, method, part, timeout_ms)

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
            self._protocol.learn_failure(partition, error)
            if echo or _is_repeatable(error):
                again.append(index)
                broken.add(partition)
        return again


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


def _is_repeatable(error: errors.OncelogError) -> bool:
    return retries.is_repeatable(retries.action_for(error), idempotent=True)


def _merged(method: str, replies: Sequence[Any]) -> Any:
    """All that they list, in order, up to where each of them has listed all. What two list, for it
    moved in between, once."""
    field = routing.method_of(method).results
    items = {_listing_order(item): item for reply in replies for item in getattr(reply, field)}
    merged = type(replies[0])()
    in_order = [items[key] for key in sorted(items)]
    getattr(merged, field).extend(paging.cut(in_order, replies, field, _listing_order))
    if hasattr(merged, "more"):
        merged.more = any(reply.more for reply in replies)
    return merged


def _listing_order(item: Any) -> Any:
    """Transactions by TxId, groups by name, journals by partition."""
    if hasattr(item, "tx_id"):
        return item.tx_id
    if hasattr(item, "partition"):
        return (item.partition.topic_id, item.partition.number)
    return item.group

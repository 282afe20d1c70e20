"""Who leads what, as asked of the cluster: the metadata cache and its questions, and the client's
clock.

Questions that come in one turn of the loop travel together; while one is on its way, the next ones
wait for the following. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from oncelog._core import retries, routing
from oncelog._core.retries import Action
from oncelog._core.routing import Endpoint, Key, PartitionKey
from oncelog._first_answer import first_answer
from oncelog._probe import Problem
from oncelog._transport import Diagnosing, GrpcTransport, Transport
from oncelog.errors import CannotConnect, Closed
from oncelog.options import ConnectOptions, require
from oncelogpb import errors
from oncelogpb.doubt import READS
from oncelogpb.v1 import partition_leader_pb2

# One process has this long to answer a question about metadata; the next ones are asked meanwhile.
METADATA_ATTEMPT_MS: Final = 3_000
# A first contact asks, looks what is wrong, and asks again: each may take this part of its time.
CONTACT_ROUNDS: Final = 3
# What each process has to answer a first contact, at least.
CONTACT_ATTEMPT_MS_MIN: Final = 200
# A topic that no process knows is asked for again this long: one that was just created spreads.
TOPIC_GRACE_MS: Final = 500
# How often we look whether a process that did not answer is a member still, and for how long.
SUSPECT_LOOK_MS: Final = 500
SUSPECT_MS: Final = 15_000
# Who waits for elections looks at least this often: at the back-off of this attempt.
LED_ATTEMPT_MAX: Final = 3
# The service that every process has, whatever its roles.
CLUSTER: Final = "cluster"
# What a leader says of a topic that was deleted, perhaps to be made again under another id.
_GONE: Final = (errors.UnknownTopic, errors.UnknownPartition)


def _of_grpc(endpoint: Endpoint, error: errors.OncelogError) -> Problem:
    """Where nothing is wrong below gRPC."""
    if isinstance(error, errors.Unsupported):
        return Problem(
            "not_oncelog",
            f"{endpoint} speaks gRPC, and is no Oncelog process (etcd, perhaps?)",
            error.message,
            passes=False,
        )
    return Problem("silent", f"{endpoint}: {error.message}", "", passes=True)


class Metadata:
    """For one event loop; make it there. `transport`, `chance`, `entropy` and `wall_ns` are the
    ports to the outside: tests and the simulator give others."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
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
        # Roles of which some process has answered once, if only to refuse; and the service that
        # every process has, for a contact with the cluster is looked after by itself.
        self._met = {CLUSTER}
        # Some process has answered once. Before, what keeps us from it is looked for and told soon.
        self._reached = False
        # When the first contact began that is under way; None: none is.
        self._trying_since_ms: float | None = None
        # What the last round of a first contact met.
        self._trouble: CannotConnect | None = None
        # Where nobody reaches etcd: nobody can lead, whatever the reason that they give.
        self._etcd_lost = False
        # A process did not answer as it should: what we know of them may be old.
        self._doubted = False
        # Processes that did not answer, and when: they may be gone.
        self._suspects: dict[Endpoint, float] = {}
        self._watching: asyncio.Task[None] | None = None
        # True: the question of the refresh under way has gone; who comes now goes with the next.
        self._asked = False
        # When the topics in use were asked about last, and who asks now.
        self._looked_ms = -math.inf
        self._looking: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------ topics

    async def topic(self, name: str) -> partition_leader_pb2.TopicDescription:
        """The topic, from the cache (which is looked after beside this) or asked for. Raises
        UnknownTopic."""
        self.look_again()
        topic = self.directory.topic(name)
        give_up = self.now_ms() + TOPIC_GRACE_MS
        attempt = 0
        while topic is None:
            await self.refresh(topics=[name])
            topic = self.directory.topic(name)
            self._require_right(name)
            if topic is None:
                if self.now_ms() >= give_up:
                    raise errors.UnknownTopic(
                        f"no topic {name!r}; create it with admin.create_topic", topic=name
                    )
                await self.back_off(attempt)
                attempt += 1
        return topic

    async def led_topic(
        self, created: partition_leader_pb2.TopicDescription, deadline: float
    ) -> partition_leader_pb2.TopicDescription:
        """A topic that was just created, or got partitions, once a leader of each partition can be
        named: elections follow, and who sends at once should not meet them. At the deadline, as it
        is known then. Does not raise: the topic is there."""
        self.directory.learn_topic(created)
        topic, attempt = created, 0
        while not all(partition.HasField("leader") for partition in topic.partitions):
            if self.now_ms() + retries.backoff_ms(LED_ATTEMPT_MAX, 0.0) >= deadline:
                break
            await self.back_off(min(attempt, LED_ATTEMPT_MAX))
            attempt += 1
            with contextlib.suppress(errors.TryAgain):
                await self.refresh(topics=[created.name], deadline=deadline)
            topic = self.directory.topic(created.name) or topic
        return topic

    def look_again(self) -> None:
        """Called by who uses topics, often: asks about those that are known, beside all else, where
        that was long ago. Partitions may have been added."""
        now = self.now_ms()
        if self._looked_ms == -math.inf:
            self._looked_ms = now
        if now < self._looked_ms + self.options.topic_refresh_ms or self._closed:
            return
        self._looked_ms = now
        self._looking = asyncio.get_running_loop().create_task(
            self.refresh(topics=self.directory.known_topics(), deadline=self.deadline())
        )
        # What fails now is asked again the next time.
        self._looking.add_done_callback(_retrieve)

    # ----------------------------------------------------------------------------------- leaders

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
            self._require_right(key.topic_id)
            topic = self.directory.topic_by_id(key.topic_id)
            if topic is None:
                raise errors.UnknownTopic(f"no topic of id {key.topic_id.hex()}")
            if key.number >= len(topic.partitions):
                raise errors.UnknownPartition(
                    f"topic {topic.name!r} has {len(topic.partitions)} partitions, no {key.number}",
                    topic=topic.name,
                )
        raise errors.Unavailable(f"nobody leads {self.directory.shown(key)} now")

    async def refresh(
        self,
        *,
        keys: Iterable[Key] = (),
        topics: Iterable[str] = (),
        topic_ids: Iterable[bytes] = (),
        deadline: float | None = None,
    ) -> None:
        """Asks for metadata; questions of one loop turn travel together. Raises Unavailable."""
        self.require_open()
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

    def require_open(self) -> None:
        """Raises Closed."""
        if self._closed:
            raise Closed("the connection is closed: connect again")

    def learn_failure(self, key: Key | PartitionKey, error: errors.OncelogError) -> bool:
        """Corrects the directory after an error. True: it now names another leader, which may be
        tried at once."""
        action = retries.action_for(error)
        if isinstance(error, errors.NotLeader):
            return self.directory.redirect(key, error)
        if isinstance(key, PartitionKey) and isinstance(error, _GONE):
            self.directory.forget_topic_id(key.topic_id)
        if action in (Action.REDIRECT, Action.ASK):
            self.directory.forget(key)
        return False

    def suspect(self, endpoint: Endpoint, error: errors.OncelogError) -> None:
        """How a call to a process failed, not one of its items. Where it may not have answered: who
        uses anything else that it leads asks first who leads that now."""
        if self._closed or not isinstance(error, errors.Unavailable | errors.UnknownOutcome):
            return
        self.directory.forget_processes([endpoint])
        self._suspects[endpoint] = self.now_ms()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch_suspects())

    async def _watch_suspects(self) -> None:
        """Looks whether they are members of the cluster still. What waits for one that is not ends
        at once: its machine may be gone, and then nothing else would end it for seconds."""
        while self._suspects:
            await asyncio.sleep(SUSPECT_LOOK_MS / 1000)
            with contextlib.suppress(errors.OncelogError):
                await self.refresh(deadline=self.deadline(METADATA_ATTEMPT_MS))
            over_ms = self.now_ms() - SUSPECT_MS
            self._suspects = {who: at for who, at in self._suspects.items() if at > over_ms}

    def _abandon_gone(self) -> None:
        """After an answer: who is no member any more leads nothing, and answers nothing."""
        self.directory.forget_strangers()
        for gone in self._suspects.keys() - self.directory.members():
            del self._suspects[gone]
            self.transport.abandon(gone)

    def _require_right(self, topic: str | bytes) -> None:
        """Raises PermissionDenied."""
        refusal = self.directory.refusal(topic)
        if refusal is not None:
            raise refusal

    def until(self, method: str, began_ms: float, deadline: float) -> float:
        """When a call that began then is given up: at its deadline; soon where no process of its
        role has ever answered us. Later on, one that is away is waited for: it restarts."""
        if routing.role_of(method) in self._met:
            return deadline
        return min(deadline, began_ms + self.options.connect_timeout_ms)

    def met(self, method: str, error: errors.OncelogError | None = None) -> None:
        """How a call ended: with a reply, or refused. Of an error that may be the network's, or of
        our own making, nothing is learnt."""
        if not isinstance(error, errors.Unavailable | errors.UnknownOutcome | CannotConnect):
            self._met.add(routing.role_of(method))

    def explained(self, error: errors.OncelogError, method: str) -> errors.OncelogError:
        """As it is told to the user at a deadline: what keeps us from a first contact, with the
        cluster or with a role; and that without etcd nobody leads, which no reason of a service
        says."""
        if not self._reached and self._trouble is not None and isinstance(error, errors.TryAgain):
            return self._trouble
        if not self._etcd_lost or not isinstance(error, errors.NotLeader | errors.Unavailable):
            return self._without_role(error, method)
        told = errors.Unavailable(
            f"the services do not reach etcd, so none of them may lead: {error.message}",
            etcd="unreachable",
        )
        told.__cause__ = error
        return told

    def _without_role(self, error: errors.OncelogError, method: str) -> errors.OncelogError:
        """Where no process of the method's role has ever answered: that."""
        role = routing.role_of(method)
        nothing_happened = method in READS or not error.may_have_applied
        is_silence = isinstance(error, errors.Unavailable | errors.UnknownOutcome)
        if role in self._met or not (is_silence and nothing_happened):
            return error
        alive = ", ".join(map(str, self.processes(role)))
        told = CannotConnect(
            f"no {role} process answers, of {alive}: {error.message}"
            if alive
            else f"no {role} process is alive: start one; the cluster itself answers",
            problem="role_silent" if alive else "role_stopped",
            role=role,
        )
        told.__cause__ = error
        return told

    def doubt_processes(self, error: errors.OncelogError) -> None:
        """After an error of a call that any process of a role may take: it may run elsewhere now,
        so the next such call asks first."""
        self._doubted |= retries.action_for(error) in (Action.REDIRECT, Action.ASK)

    def _known(self, key: Key | PartitionKey) -> Endpoint | None:
        if isinstance(key, PartitionKey):
            return self.directory.leader(key)
        return self.directory.route(key)

    def processes(self, role: str | None = None) -> list[Endpoint]:
        """Whom to ask, each once: those we know, then those we were told at first."""
        known = sorted(self.directory.members(role))
        if role is not None:
            return known
        return list(dict.fromkeys([*known, *self._bootstrap]))

    async def any_process(self, method: str, deadline: float) -> Endpoint:
        """The next one in turn: a retry asks another."""
        role = routing.role_of(method)
        if not self._reached:
            await self.refresh(deadline=deadline)
        processes = self.processes(None if role == CLUSTER else role)
        if role != CLUSTER and (self._doubted or not processes):
            await self.refresh(deadline=deadline)
            self._doubted = False
            processes = self.processes(role)
        if not processes:
            raise errors.Unavailable(f"no {role} process is alive")
        self._turn += 1
        return processes[self._turn % len(processes)]

    async def node_process(self, node_id: str, deadline: float) -> Endpoint:
        """Where the process of that node listens now. Raises Unavailable where it is not alive."""
        await self.refresh(deadline=deadline)
        for node in self.directory.nodes:
            if node.node_id == node_id:
                return Endpoint(node.endpoint.host, node.endpoint.port)
        raise errors.Unavailable(f"the process of node {node_id} is not alive: start it")

    async def _refresh(self) -> None:
        # A turn of the loop, so that everybody who asks now asks in one message.
        await asyncio.sleep(0)
        request = routing.metadata_request(
            keys=self._wanted_keys, topics=self._wanted_topics, topic_ids=self._wanted_ids
        )
        self._wanted_keys, self._wanted_topics, self._wanted_ids = set(), set(), set()
        self._asked = True
        processes = self.processes()
        attempt_ms = self._attempt_ms(len(processes))
        if not self._reached and self._trying_since_ms is None:
            self._trying_since_ms = self.now_ms()
        answers = await first_answer(
            [*processes[self._turn % len(processes) :], *processes[: self._turn % len(processes)]],
            lambda to: self.transport.call(to, "cluster.get_metadata", request, attempt_ms),
            # What it says else may be of long ago, and stays so; it counts where nobody knows more.
            lambda reply: bool(reply.etcd_reachable),
        )
        if answers.good is not None or answers.poor is not None:
            self._reached, self._trying_since_ms, self._trouble = True, None, None
        if answers.good is not None:
            endpoint, reply = answers.good
            self._etcd_lost = False
            self._turn = processes.index(endpoint)
            self.directory.learn(request, reply)
            self.transport.retain(self.processes())
            self._abandon_gone()
            return
        self._turn += 1
        if answers.poor is not None:
            self._etcd_lost = True
            self.directory.learn(request, answers.poor)
            return
        failures = answers.failures
        if not self._reached:
            raise await self._why_nobody(failures)
        said = (f"{endpoint}: {error}" for endpoint, error in failures.items())
        raise errors.Unavailable("no process answers: " + "; ".join(said))

    @property
    def _round_ms(self) -> float:
        """Of a first contact: to ask, or to look what is wrong."""
        return min(self.options.connect_timeout_ms, self.options.timeout_ms) / CONTACT_ROUNDS

    def _attempt_ms(self, processes: int) -> int:
        """How long one process has to answer. A first contact asks all of them soon."""
        if self._reached:
            return METADATA_ATTEMPT_MS
        share_ms = int(self._round_ms) // max(1, processes)
        return min(METADATA_ATTEMPT_MS, max(share_ms, CONTACT_ATTEMPT_MS_MIN))

    async def _why_nobody(
        self, failures: Mapping[Endpoint, errors.OncelogError]
    ) -> errors.OncelogError:
        """After a first contact that failed: what is wrong with each address. Unavailable where it
        may pass by itself, and there is time left for another round."""
        assert self._trying_since_ms is not None, "it began"
        seconds = self._round_ms / 1000
        found = await asyncio.gather(*(self._diagnose(endpoint, seconds) for endpoint in failures))
        problems = [
            problem or _of_grpc(endpoint, error)
            for problem, (endpoint, error) in zip(found, failures.items(), strict=True)
        ]
        for error in failures.values():
            if isinstance(error, errors.NotAllowed):
                self._trying_since_ms = None
                return error
        text = "; ".join(dict.fromkeys(problem.text for problem in problems))
        facts = "; ".join(dict.fromkeys(problem.fact for problem in problems))
        self._trouble = CannotConnect(
            text, found=facts, problem=problems[0].kind, address=next(iter(failures))
        )
        passes = any(problem.passes for problem in problems)
        spent_ms = self.now_ms() - self._trying_since_ms
        if passes and spent_ms < self._round_ms * (CONTACT_ROUNDS - 1):
            return errors.Unavailable(text)
        self._trying_since_ms = None
        return self._trouble

    async def _diagnose(self, endpoint: Endpoint, seconds: float) -> Problem | None:
        if not isinstance(self.transport, Diagnosing):
            return None
        return await self.transport.diagnose(endpoint, seconds)

    async def _wait_for(
        self, task: asyncio.Task[None], deadline: float | None, *, swallow: bool = False
    ) -> None:
        """Waits for a task that others wait for as well: nobody's end cancels it."""
        seconds = None if deadline is None else self.remaining_ms(deadline) / 1000
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            late = errors.Unavailable("no metadata within the deadline")
            raise self.explained(late, "cluster.get_metadata")
        if swallow:
            return
        if task.cancelled():
            raise Closed("the connection is closed: connect again")
        failure = task.exception()
        if failure is not None:
            raise failure

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


def _retrieve(task: asyncio.Task[None]) -> None:
    """A refresh that nobody waits for any more must not complain."""
    if not task.cancelled():
        task.exception()

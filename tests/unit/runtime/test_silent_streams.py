"""Streams between followers and their leader on which nothing is to be said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, cast

import pytest

from oncelog_server.core.ids import (
    BootId,
    Incarnation,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    TopicId,
)
from oncelog_server.core.ports import Address
from oncelog_server.runtime.replica.dialog import Dialog, Said, Told
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.following import Acknowledge, Ask
from oncelog_server.runtime.replication.links import SIGN_OF_LIFE_MS, Links
from oncelog_server.runtime.replication.serving import STREAM_SILENT_MS, ReplicationService
from oncelog_server.runtime.replication.wire import follower_message
from oncelog_server.runtime.target import Follow
from oncelogpb.errors import Unavailable
from oncelogpb.v1 import replication_pb2 as pb
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.etcd.world import Log, LoopClock

CLUSTER, BOOT = b"c" * 16, BootId(b"b" * 16)
PARTITION = PartitionId(TopicId(b"t" * 16), 0)
LEADER = Follow(Address("n1", BOOT, "host", 1, 3))


async def lives(node: str, boot_id: BootId) -> bool:
    return True


def service() -> ReplicationService:
    return ReplicationService(
        lambda partition: None, lives, tuple, LoopClock(), cluster_id=CLUSTER, boot_id=BOOT
    )


def fatal(error: BaseException) -> None:
    raise error


class Uncalled:
    """Streams, and no calls."""

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        raise Unavailable("nobody is called")


class Direct(Uncalled):
    """The streams of a process that is next door."""

    def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        return service().follow(requests, None)  # type: ignore[arg-type]


class Ears:
    """A follower that has nothing to say."""

    def __init__(self) -> None:
        self.streams = 0

    def begun(self) -> None:
        self.streams += 1

    def told(self, told: Told) -> None:
        raise AssertionError("nobody says anything")


def test_a_follower_that_says_nothing_is_dropped_by_its_leader() -> None:
    loop = VirtualTimeLoop()

    async def silent() -> AsyncGenerator[pb.FollowRequest, None]:
        yield pb.FollowRequest(cluster_id=CLUSTER, leader_boot_id=BOOT)
        await asyncio.Event().wait()

    async def main() -> float:
        with pytest.raises(Unavailable, match="says nothing"):
            async for _ in service().follow(silent(), None):  # type: ignore[arg-type]
                pass
        return loop.time() * 1000

    began_ms = loop.time() * 1000
    assert run(main(), loop) - began_ms == pytest.approx(STREAM_SILENT_MS)


def test_a_follower_with_nothing_to_say_gives_signs_of_life() -> None:
    async def main() -> int:
        links = Links(
            Direct(),
            cluster_id=CLUSTER,
            node_id="n2",
            boot_id=BootId(b"f" * 16),
            reporter=Log(),
            fatal=fatal,
        )
        ears = Ears()
        links.follow(PARTITION, LEADER, Incarnation(b"i" * 16), ears)
        await asyncio.sleep(20 * STREAM_SILENT_MS / 1000)
        await links.stop()
        return ears.streams

    assert run(main(), VirtualTimeLoop()) == 1


class Lingering(Uncalled):
    """The first stream breaks; what it was to send is asked for once more, as gRPC does."""

    def __init__(self) -> None:
        self.sent: list[list[pb.FollowRequest]] = []
        self.sending: list[asyncio.Task[None]] = []

    async def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        sent: list[pb.FollowRequest] = []
        self.sent.append(sent)

        async def send() -> None:
            async for request in requests:
                sent.append(request)

        self.sending.append(asyncio.create_task(send()))
        await asyncio.sleep(1.7 * SIGN_OF_LIFE_MS / 1000)
        if len(self.sent) == 1:
            raise Unavailable("the connection broke")
        await asyncio.Event().wait()
        yield


class Asking(Ears):
    """A follower that begins."""

    dialog: Dialog

    def begun(self) -> None:
        super().begun()
        self.dialog.say(Ask(LeaderEpoch(3), LeaderEpoch(0), JournalOffset(0)))


def test_i29_what_is_said_on_a_stream_is_not_lost_to_one_that_broke() -> None:
    async def main() -> list[int]:
        streams = Lingering()
        links = Links(
            streams,
            cluster_id=CLUSTER,
            node_id="n2",
            boot_id=BootId(b"f" * 16),
            reporter=Log(),
            fatal=fatal,
        )
        ears = Asking()
        ears.dialog = links.follow(PARTITION, LEADER, Incarnation(b"i" * 16), ears)
        await asyncio.sleep(10 * SIGN_OF_LIFE_MS / 1000)
        await links.stop()
        for sending in streams.sending:
            sending.cancel()
        return [sum(len(request.messages) for request in sent) for sent in streams.sent]

    assert run(main(), VirtualTimeLoop()) == [1, 1], "the question was sent on each stream"


class Late(Uncalled):
    """A leader that says again what it said last, once it hears the next word."""

    def __init__(self) -> None:
        self.said: list[pb.LeaderMessage] = []

    async def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        async for request in requests:
            for message in request.messages:
                if message.WhichOneof("said") == "log_end":
                    self.said.append(
                        pb.LeaderMessage(
                            partition=message.partition,
                            incarnation=message.incarnation,
                            epoch=3,
                            high_watermark=len(self.said),
                            dialog=message.dialog,
                        )
                    )
                    yield pb.FollowReply(
                        cluster_id=CLUSTER, leader_boot_id=BOOT, messages=self.said
                    )


class Listening(Asking):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def told(self, told: Told) -> None:
        self.heard.append(told.high_watermark)


def test_i18_what_was_said_in_one_dialog_is_not_heard_in_the_next_one() -> None:
    """An empty replica keeps its name when its log begins with a snapshot."""

    async def main() -> list[list[int]]:
        links = Links(
            Late(),
            cluster_id=CLUSTER,
            node_id="n2",
            boot_id=BootId(b"f" * 16),
            reporter=Log(),
            fatal=fatal,
        )
        links.follow(PartitionId(TopicId(b"o" * 16), 0), LEADER, Incarnation(b"o" * 16), Ears())
        heard = []
        for _ in range(3):
            ears = Listening()
            ears.dialog = links.follow(PARTITION, LEADER, Incarnation(b"i" * 16), ears)
            await asyncio.sleep(1)
            ears.dialog.close()
            heard.append(ears.heard)
        await links.stop()
        return heard

    assert run(main(), VirtualTimeLoop()) == [[0], [1], [2]], "a word of an earlier dialog"


class Supplied:
    """A leader's replica, and what it supplies one follower with."""

    is_over = False
    log_start = 0

    def __init__(self) -> None:
        # Under which name it was asked, and what was said to it.
        self.incarnation = Incarnation(b"")
        self.heard: list[tuple[Incarnation, Said]] = []

    def supply(
        self, incarnation: Incarnation, *, tell: Callable[[Told], None], **more: object
    ) -> Supplied:
        self.incarnation, self.tell, self.is_over = incarnation, tell, False
        return self

    def said(self, said: Said) -> None:
        self.heard.append((self.incarnation, said))
        self.tell(Told(said.epoch, 0))

    def end(self) -> None:
        self.is_over = True


def supplying(replica: Supplied) -> ReplicationService:
    return ReplicationService(
        lambda partition: cast("Driver", replica),
        lives,
        tuple,
        LoopClock(),
        cluster_id=CLUSTER,
        boot_id=BOOT,
    )


def said_of(name: bytes, said: Said | None) -> pb.FollowerMessage:
    return follower_message(PARTITION, Incarnation(name * 16), 3, said, dialog=7)


THREE = LeaderEpoch(3)
ASK = Ask(THREE, LeaderEpoch(0), JournalOffset(0))
ACKNOWLEDGE = Acknowledge(THREE, JournalOffset(0), JournalOffset(0))


def test_i29_a_follower_that_reads_nothing_is_told_one_high_watermark_however_long() -> None:
    async def asks_and_lives() -> AsyncGenerator[pb.FollowRequest, None]:
        asked = [said_of(b"i", ASK)]
        while True:
            yield pb.FollowRequest(cluster_id=CLUSTER, leader_boot_id=BOOT, messages=asked)
            asked = []
            await asyncio.sleep(SIGN_OF_LIFE_MS / 1000)

    async def main() -> list[tuple[int, bytes]]:
        replica = Supplied()
        replies = supplying(replica).follow(asks_and_lives(), None)  # type: ignore[arg-type]
        assert [it.dialog for it in (await anext(replies)).messages] == [7], "as it was asked"
        for high_watermark in range(1, 1_000):
            replica.tell(Told(THREE, high_watermark))
            if high_watermark == 500:
                replica.tell(Told(THREE, 500, b"frames"))
        found = [(it.high_watermark, it.frames) for it in (await anext(replies)).messages]
        replica.tell(Told(THREE, 1_000))
        found += [(it.high_watermark, it.frames) for it in (await anext(replies)).messages]
        await replies.aclose()
        return found

    told = run(main(), VirtualTimeLoop())
    assert told == [(999, b""), (500, b"frames"), (1_000, b"")], "the queue grows"


def test_i5_what_a_replica_was_before_says_nothing_for_what_it_is_now() -> None:
    async def says(*messages: pb.FollowerMessage) -> AsyncGenerator[pb.FollowRequest, None]:
        yield pb.FollowRequest(cluster_id=CLUSTER, leader_boot_id=BOOT, messages=messages)
        await asyncio.Event().wait()

    async def main() -> Supplied:
        replica = Supplied()
        messages = (
            said_of(b"a", ASK),
            said_of(b"b", ASK),
            said_of(b"a", ACKNOWLEDGE),
            said_of(b"a", None),
            said_of(b"b", ACKNOWLEDGE),
        )
        replies = supplying(replica).follow(says(*messages), None)  # type: ignore[arg-type]
        await anext(replies)
        assert not replica.is_over, "its older name ended the newer one's dialog"
        await replies.aclose()
        return replica

    older, newer = Incarnation(b"a" * 16), Incarnation(b"b" * 16)
    heard = run(main(), VirtualTimeLoop()).heard
    assert heard == [(older, ASK), (newer, ASK), (newer, ACKNOWLEDGE)]


def test_i29_a_follower_that_neither_says_nor_takes_anything_is_dropped() -> None:
    """Its machine is dead, with frames on their way: the transport takes no more of them."""

    async def asks_once() -> AsyncGenerator[pb.FollowRequest, None]:
        asked = follower_message(
            PARTITION,
            Incarnation(b"i" * 16),
            3,
            Ask(LeaderEpoch(3), LeaderEpoch(0), JournalOffset(0)),
            dialog=7,
        )
        yield pb.FollowRequest(cluster_id=CLUSTER, leader_boot_id=BOOT, messages=[asked])
        await asyncio.Event().wait()

    async def main() -> bool:
        replica = Supplied()
        replies = supplying(replica).follow(asks_once(), None)  # type: ignore[arg-type]
        await anext(replies)
        assert not replica.is_over
        await asyncio.sleep(2 * STREAM_SILENT_MS / 1000)
        was_over = replica.is_over
        await replies.aclose()
        return was_over

    assert run(main(), VirtualTimeLoop()), "its leader waits for it"

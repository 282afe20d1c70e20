"""The client of a real etcd, as far as no etcd is needed (tests/integration has one)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pyetcd.etcdrpc import rpc_pb2 as rpc

from oncelog_server.runtime.etcd.client import REVISIONS_AT_ONCE, EtcdClient
from oncelog_server.runtime.etcd.port import EtcdCompacted
from oncelog_server.runtime.etcd.refusal import EtcdRefused


class Pages:
    """Answers ranges, page by page."""

    def __init__(self, *pages: rpc.RangeResponse | Exception) -> None:
        self.pages = list(pages)
        self.asked: list[int] = []

    async def Range(self, request: rpc.RangeRequest, timeout: float) -> rpc.RangeResponse:
        self.asked.append(request.revision)
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page


def page(revision: int, *keys: str, more: bool) -> rpc.RangeResponse:
    kvs = [{"key": f"/oncelog/{key}".encode(), "mod_revision": 1} for key in keys]
    return rpc.RangeResponse(header={"revision": revision}, kvs=kvs, more=more)


def error(
    details: str, code: grpc.StatusCode = grpc.StatusCode.OUT_OF_RANGE
) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=details, debug_error_string=None)


class Watch:
    """One stream, with these replies; then an error."""

    def __init__(self, *replies: rpc.WatchResponse, end: Exception) -> None:
        self.replies, self.end = list(replies), end

    def Watch(self, metadata: object) -> Watch:
        return self

    async def write(self, request: rpc.WatchRequest) -> None: ...

    async def read(self) -> rpc.WatchResponse:
        if not self.replies:
            raise self.end
        return self.replies.pop(0)

    def cancel(self) -> None: ...


def with_client(etcd: Pages | Watch, story: Callable[[EtcdClient], Awaitable[Any]]) -> None:
    async def tell() -> None:
        client = EtcdClient(["localhost:1"])
        connection = client._connections[0]

        async def ready(within_ms: float) -> bool:
            return True

        stub: Any = SimpleNamespace(kv=etcd, watches=etcd, ready=ready, close=connection.close)
        client._connections[0] = stub
        try:
            await story(client)
        finally:
            await client.close()

    asyncio.run(tell())


def test_i25_an_etcd_that_goes_back_between_two_pages_is_refused() -> None:
    """It said "a future revision", by an error that nobody knows outside of the client."""
    pages = Pages(
        page(70, "a", more=True),
        error("etcdserver: mvcc: required revision is a future revision"),
    )

    async def story(client: EtcdClient) -> None:
        with pytest.raises(Exception, match="come back without revision 70") as raised:
            await client.range("")
        assert isinstance(raised.value, EtcdRefused), "whoever runs the node is not told what to do"

    with_client(pages, story)
    assert pages.asked == [0, 70]


def test_a_list_that_was_compacted_between_two_pages_begins_anew() -> None:
    pages = Pages(
        page(70, "a", more=True),
        error("etcdserver: mvcc: required revision has been compacted"),
        page(80, "a", more=True),
        page(81, "b", more=False),
    )

    async def story(client: EtcdClient) -> None:
        listed, revision = await client.range("")
        assert ([kv.key for kv in listed], revision) == (["a", "b"], 80)

    with_client(pages, story)
    assert pages.asked == [0, 70, 0, 80]


TOO_LARGE = error("Received message larger than max", grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_i29_a_reply_that_is_too_large_for_a_message_is_replaced_by_a_list() -> None:
    """The watch began anew at the same revision, and got the same reply, for ever."""

    async def story(client: EtcdClient) -> None:
        with pytest.raises(Exception, match=r"larger than max|^$") as raised:
            async with asyncio.timeout(2):
                await anext(aiter(client.watch("", 7)))
        assert isinstance(raised.value, EtcdCompacted), "it tries the same again"

    with_client(Watch(end=TOO_LARGE), story)


def test_i29_who_hears_of_much_at_once_lets_others_run_in_between() -> None:
    """A thousand revisions in one reply hold up keep-alives and streams else."""
    revisions = REVISIONS_AT_ONCE * 4
    events = [
        {"kv": {"key": b"/oncelog/x", "mod_revision": 7 + number}} for number in range(revisions)
    ]
    reply = rpc.WatchResponse(header={"revision": 7 + revisions}, events=events)

    async def story(client: EtcdClient) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        heard = 0
        watch = client.watch("", 7)
        async for _ in watch:
            heard += 1
            if heard == 1:
                running = asyncio.create_task(other())
            if heard == revisions:
                break
        running.cancel()
        assert turns >= 3, "nothing else had a turn"
        await watch.aclose()  # type: ignore[attr-defined]

    with_client(Watch(reply, end=TOO_LARGE), story)

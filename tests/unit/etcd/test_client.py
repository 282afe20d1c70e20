"""The client of a real etcd, as far as no etcd is needed (tests/integration has one)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pyetcd.etcdrpc import rpc_pb2 as rpc

from oncelog_server.runtime.etcd.client import EtcdClient
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


def error(details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(
        grpc.StatusCode.OUT_OF_RANGE, nothing, nothing, details=details, debug_error_string=None
    )


def with_client(pages: Pages, story: Callable[[EtcdClient], Awaitable[Any]]) -> None:
    async def tell() -> None:
        client = EtcdClient(["localhost:1"])
        connection = client._connections[0]

        async def ready(within_ms: float) -> bool:
            return True

        stub: Any = SimpleNamespace(kv=pages, ready=ready, close=connection.close)
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

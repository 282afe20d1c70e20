"""Listings that come in pages."""

from __future__ import annotations

from typing import Any

from oncelog._core import paging
from oncelog.protocol import AsyncProtocol


async def all_pages(
    protocol: AsyncProtocol, method: str, request: Any, limit: int = 0
) -> list[Any]:
    """All items, or the first `limit` of them."""
    found: list[Any] = []
    while request is not None and not (limit and len(found) >= limit):
        reply = await protocol.call(method, request)
        found += getattr(reply, paging.LISTINGS[method].items)
        request = paging.following(method, request, reply)
    return found[:limit] if limit else found

"""Listings come in pages: what to ask for behind each. PURE.

The last item of a page says where the next one begins, also where several processes made it up: the
fan-out keeps back what lies behind the end of a page that has more (`cut`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple


class Listed(NamedTuple):
    """How one method lists."""

    # Field of the reply that holds the items, and the item's that orders them.
    items: str
    order: str
    # Field of the request that says where to begin.
    after: str


LISTINGS: Final[dict[str, Listed]] = {
    "coordinator.list_transactions": Listed("transactions", "tx_id", "after_tx_id"),
    "offset_manager.list_groups": Listed("groups", "group", "after"),
}


def following(method: str, request: Any, reply: Any) -> Any | None:
    """The request for what is behind `reply`; None where there is nothing more."""
    listed = LISTINGS[method]
    items = getattr(reply, listed.items)
    if not reply.more or not items:
        return None
    asked = type(request)()
    asked.CopyFrom(request)
    setattr(asked, listed.after, getattr(items[-1], listed.order))
    return asked


def cut(
    items: Iterable[Any], replies: Sequence[Any], field: str, order: Callable[[Any], Any]
) -> list[Any]:
    """Of the merged items of several processes, those up to the end of the shortest page that has
    more: behind it others may lie that nobody was asked for yet."""
    ends = [
        order(getattr(reply, field)[-1])
        for reply in replies
        if getattr(reply, "more", False) and getattr(reply, field)
    ]
    return [item for item in items if not ends or order(item) <= min(ends)]

"""The listener for callers from outside: they are told the addresses at which outsiders reach each
process, in place of those that the processes use among themselves (ADR 42).

    inside  ──► node.listen            told  node.advertise            of each process
    outside ──► node.listen_external   told  node.advertise_external   of each process

Where somebody came in says what he can reach: nobody has to configure it at clients. Addresses are
fields of type Endpoint, wherever they stand in a reply; they are found by the descriptors, so that
an RPC that is added tells them right, too.

Left out: the address in NOT_LEADER, which is that of inside. Clients go by the node that it names
beside it, at the address of which they were told (`oncelog._core.routing`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from oncelog_server.core.ports import NodeInfo
from oncelogpb.v1 import types_pb2

_ENDPOINT = types_pb2.Endpoint.DESCRIPTOR


class External:
    """Where it listens, and what is told there."""

    def __init__(self, listen: str) -> None:
        self.listen = listen
        self._nodes: Callable[[], Iterable[NodeInfo]] = tuple

    def learn(self, nodes: Callable[[], Iterable[NodeInfo]]) -> None:
        """Who is there now. Before anybody can call."""
        self._nodes = nodes

    def retell(self, reply: Any) -> None:
        """In place. A process that has no external address is told with its own: whoever cannot
        reach it sees which one lacks the setting."""
        # One that was encoded by hand is bulk data.
        if not isinstance(reply, Message) or not mentions_endpoint(reply.DESCRIPTOR):
            return
        known = {
            (node.host, node.port): (node.external_host, node.external_port)
            for node in self._nodes()
            if node.external_host
        }
        _retell(reply, known)


def _retell(message: Any, known: dict[tuple[str, int], tuple[str, int]]) -> None:
    if message.DESCRIPTOR is _ENDPOINT:
        told = known.get((message.host, message.port))
        if told is not None:
            message.host, message.port = told
        return
    for field, value in message.ListFields():
        if field.message_type is None or not mentions_endpoint(field.message_type):
            continue
        # One message, or several.
        for inner in (value,) if isinstance(value, Message) else value:
            _retell(inner, known)


@functools.cache
def mentions_endpoint(kind: Descriptor) -> bool:
    """An address of a process may stand somewhere in such a message. No message holds itself."""
    return kind is _ENDPOINT or any(
        field.message_type is not None and mentions_endpoint(field.message_type)
        for field in kind.fields
    )

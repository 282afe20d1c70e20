"""Participant calls for a process with several roles.

Partition leaders and offset managers both take part in transactions. Where both run in one process,
the topic id of a marker group says whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oncelog_server.core.ids import TopicId
from oncelog_server.core.ports import Call
from oncelog_server.core.role import Role
from oncelogpb.v1 import participant_pb2 as pb


class ParticipantHandler(Protocol):
    async def write_markers(
        self, request: pb.WriteMarkersRequest, call: Call
    ) -> pb.WriteMarkersReply: ...


class ParticipantSwitch:
    """Splits a request by role, keeps the order within each partition, joins the answers."""

    def __init__(
        self, by_topic: Mapping[TopicId, ParticipantHandler], otherwise: ParticipantHandler
    ) -> None:
        self._by_topic = by_topic
        self._otherwise = otherwise

    async def write_markers(
        self, request: pb.WriteMarkersRequest, call: Call
    ) -> pb.WriteMarkersReply:
        owners = [self._owner(group) for group in request.groups]
        distinct = list({id(owner): owner for owner in owners}.values())
        if len(distinct) == 1:
            return await distinct[0].write_markers(request, call)
        replies = await asyncio.gather(
            *(
                owner.write_markers(
                    pb.WriteMarkersRequest(
                        groups=[
                            g for g, of in zip(request.groups, owners, strict=True) if of is owner
                        ]
                    ),
                    call,
                )
                for owner in distinct
            )
        )
        answers = {
            id(owner): iter(reply.groups) for owner, reply in zip(distinct, replies, strict=True)
        }
        return pb.WriteMarkersReply(groups=[next(answers[id(owner)]) for owner in owners])

    def _owner(self, group: pb.MarkerGroup) -> ParticipantHandler:
        return self._by_topic.get(TopicId(group.partition.topic_id), self._otherwise)


def handlers_of(
    roles: Sequence[tuple[Role[Any], Mapping[str, object]]],
) -> dict[str, object]:
    """The handlers of all roles of a process, with one Participant for all of them."""
    handlers: dict[str, object] = {}
    participants: list[tuple[Role[Any], Any]] = []
    for role, services in roles:
        for name, handler in services.items():
            if name == "Participant":
                participants.append((role, handler))
            else:
                handlers[name] = handler
    if participants:
        handlers["Participant"] = ParticipantSwitch(
            {role.control_topic: handler for role, handler in participants if role.control_topic},
            otherwise=next(
                (handler for role, handler in participants if role.control_topic is None),
                participants[0][1],
            ),
        )
    return handlers

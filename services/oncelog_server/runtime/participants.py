"""Participant calls for a process with several roles.

Partition leaders and offset managers both take part in transactions. Where both run in one process,
the topic id of a marker group says whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from oncelog_server.core.ids import TopicId
from oncelog_server.core.ports import Call
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

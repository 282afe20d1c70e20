"""TOPIC/NUMBER on the command line: one partition of a topic."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import click

from oncelog_server.cli.session import Session
from oncelog_server.core.numbers import is_number
from oncelogpb.v1 import types_pb2


class Place(NamedTuple):
    """A partition, by its topic's name."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class PlaceType(click.ParamType[Place]):
    name = "TOPIC/PARTITION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        if isinstance(value, Place):
            return value
        topic, slash, number = str(value).rpartition("/")
        if not slash or not topic or not is_number(number):
            self.fail(f"{value!r} is not TOPIC/PARTITION, e.g. payments/0.")
        return Place(topic, int(number))


PLACE: Final = PlaceType()


def find(session: Session, place: Place) -> types_pb2.Partition:
    """With the topic's id. Raises UnknownTopic, UsageError (no such partition)."""
    topic = session.topic(place.topic)
    if place.number >= len(topic.partitions):
        raise click.UsageError(
            f"Topic {place.topic} has {len(topic.partitions)} partitions, no {place.number}."
        )
    return types_pb2.Partition(topic_id=topic.topic_id, number=place.number)

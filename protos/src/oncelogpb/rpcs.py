"""What the services' descriptors say: who has which calls, and what travels on their streams.

Everything that serves or calls our RPCs is built from these, so that an RPC added to a proto needs
no line of code here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import (
    Descriptor,
    FileDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)

from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import (
    cluster_pb2,
    coordinator_pb2,
    offset_manager_pb2,
    participant_pb2,
    partition_leader_pb2,
    replication_pb2,
)

STREAM: Final = "Stream"
_FILES: Final[tuple[FileDescriptor, ...]] = tuple(
    module.DESCRIPTOR
    for module in (
        cluster_pb2,
        coordinator_pb2,
        offset_manager_pb2,
        participant_pb2,
        partition_leader_pb2,
        replication_pb2,
    )
)
ALL: Final[dict[str, ServiceDescriptor]] = {
    name: service for file in _FILES for name, service in file.services_by_name.items()
}


def snake(name: str) -> str:
    """WriteMarkers as write_markers."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@cache
def find(name: str) -> ServiceDescriptor:
    """By "Coordinator", "coordinator" or the full name. Raises InvalidArgument."""
    for service in ALL.values():
        if name in (service.name, snake(service.name), service.full_name):
            return service
    raise InvalidArgument(f"no service {name!r}; there are {', '.join(sorted(ALL))}")


@cache
def methods(service: ServiceDescriptor) -> dict[str, MethodDescriptor]:
    """RPCs by their name in snake case, without the call stream."""
    return {snake(m.name): m for m in service.methods if not is_call_stream(m)}


def is_call_stream(method: MethodDescriptor) -> bool:
    """True for the `Stream` that carries many calls."""
    return bool(method.name == STREAM and method.client_streaming and method.server_streaming)


@cache
def stream_fields(service: ServiceDescriptor) -> dict[str, int]:
    """Calls that travel on the service's stream: name in snake case -> number of their field, the
    same in a call and in an answer. Empty where it has no stream."""
    stream = service.methods_by_name.get(STREAM)
    if stream is None:
        return {}
    requests = _oneof(stream.input_type, "calls", "request")
    assert requests == _oneof(stream.output_type, "answers", "reply"), (
        "a call and its answer differ"
    )
    return requests


def _oneof(packed: Descriptor, items: str, oneof: str) -> dict[str, int]:
    item = packed.fields_by_name[items].message_type
    return {f.name: f.number for f in item.oneofs_by_name[oneof].fields}


@cache
def message_class(descriptor: Descriptor) -> Any:
    """The generated class of a message."""
    return message_factory.GetMessageClass(descriptor)

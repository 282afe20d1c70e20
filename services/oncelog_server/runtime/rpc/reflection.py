"""Server reflection, so that grpcurl, buf and Postman can call us without the protos.

It is served under two names: `grpc.reflection.v1`, for which tools of today ask, and
`grpc.reflection.v1alpha`, for which older ones do, and which is all that grpcio-reflection has. The
two are one protocol: their messages have the same fields under the same numbers.

Left out: nobody's calls are counted or refused here; what it shows is what the protos say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

_V1_ALPHA: Final = "v1alpha"
# Where everybody has it.
V1_FILE: Final = "grpc/reflection/v1/reflection.proto"
_METHOD: Final = "ServerReflectionInfo"
NAMES: Final = (reflection.SERVICE_NAME.replace(_V1_ALPHA, "v1"), reflection.SERVICE_NAME)


def serve_on(server: Any, names: Iterable[str]) -> None:
    """Adds both to a server that serves `names`, before it starts."""
    library: Any = reflection
    servicer = library.aio.ReflectionServicer((*names, *NAMES), pool=_Files())
    for name in NAMES:
        method = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(name, {_METHOD: method})
        server.add_generic_rpc_handlers((handler,))


class _Files:
    """What the servicer asks of a descriptor pool: the process's own, and the file of v1 beside it.
    That one is in a pool by itself, for the process's would clash with whoever else brings it."""

    def __init__(self) -> None:
        pools: Any = descriptor_pool
        self._ours = pools.Default()
        self._v1 = pools.DescriptorPool()
        self._v1.AddSerializedFile(_v1_file().SerializeToString())

    def FindFileByName(self, name: str) -> FileDescriptor:
        return self._find("FindFileByName", name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._find("FindFileContainingSymbol", symbol)
        except KeyError:
            # Pools of Python know messages, fields, enums and services, and no methods, of which
            # `grpcurl describe` asks.
            service, _, method = symbol.rpartition(".")
            file = self._find("FindFileContainingSymbol", service)
            found = file.services_by_name.get(service.removeprefix(f"{file.package}."))
            if found is None or method not in found.methods_by_name:
                raise
            return file

    def __getattr__(self, name: str) -> Any:
        """Extensions: v1 has none."""
        return getattr(self._ours, name)

    def _find(self, finder: str, name: str) -> FileDescriptor:
        """Raises KeyError where nobody has it."""
        found: FileDescriptor
        try:
            found = getattr(self._ours, finder)(name)
        except KeyError:
            found = getattr(self._v1, finder)(name)
        return found


def _v1_file() -> FileDescriptorProto:
    """v1alpha's, under v1's names."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.ClearField("options")
    file.name = V1_FILE
    file.package = _renamed(file.package)
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    for service in file.service:
        for method in service.method:
            method.input_type = _renamed(method.input_type)
            method.output_type = _renamed(method.output_type)
    return file


def _renamed(name: str) -> str:
    return name.replace(_V1_ALPHA, "v1")

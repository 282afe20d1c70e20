"""The files of `protos/` as a compiler reads them: with their options and comments, and from that
folder alone, as who builds stubs for another language does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT: Final = Path(__file__).parents[2]
PROTOS: Final = ROOT / "protos"
OURS: Final = "oncelogpb/"


@cache
def compiled() -> dict[str, FileDescriptorProto]:
    """By name. The folder of the generators is on no include path, only protoc's own files are."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("*/*/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"]
        command += ["--include_source_info", f"--descriptor_set_out={written}", *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = FileDescriptorSet.FromString(written.read_bytes()).file
    return {file.name: file for file in files}


def ours() -> list[FileDescriptorProto]:
    """Those of our own package."""
    return [file for name, file in compiled().items() if name.startswith(OURS)]


def messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """All of them, nested ones too, by their name within the package."""
    yield from _nested("", file.message_type)


def _nested(prefix: str, found: Iterable[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    for message in found:
        yield f"{prefix}{message.name}", message
        yield from _nested(f"{prefix}{message.name}.", message.nested_type)


def fields(file: FileDescriptorProto) -> Iterator[tuple[str, FieldDescriptorProto]]:
    """All of them, as Message.field."""
    for name, message in messages(file):
        for field in message.field:
            yield f"{name}.{field.name}", field

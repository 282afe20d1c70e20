"""What the protos owe to other languages: they build from their folder alone, are called well in
each, and lose no digit of an id.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FieldOptions, FileDescriptorProto
from google.rpc import error_details_pb2, status_pb2

from tests.tidy.proto_files import compiled, fields, messages, ours

# What each file says alike; java_outer_classname is its own.
OPTIONS = {
    "csharp_namespace": "Oncelog.V1",
    "go_package": "oncelogpb/v1;oncelogpb",
    "java_multiple_files": True,
    "java_package": "oncelogpb.v1",
    "objc_class_prefix": "OCL",
    "php_metadata_namespace": "Oncelog\\V1\\Metadata",
    "php_namespace": "Oncelog\\V1",
    "ruby_package": "Oncelog::V1",
}


def test_the_protos_build_from_their_folder_alone() -> None:
    assert {"google/rpc/status.proto", "google/rpc/error_details.proto"} < set(compiled())
    assert len(ours()) == 8


def test_every_file_is_named_for_every_language() -> None:
    for file in ours():
        told = {name: getattr(file.options, name) for name in OPTIONS}
        assert told == OPTIONS, file.name


def test_no_class_of_java_is_called_outer_class() -> None:
    """Java takes the file's name for a class, and adds OuterClass where a message has that name."""
    outer = {file.options.java_outer_classname: file.name for file in ours()}
    assert len(outer) == len(ours())
    taken = {name for file in ours() for name, _ in messages(file)}
    taken |= {kind.name for file in ours() for kind in file.enum_type}
    taken |= {service.name for file in ours() for service in file.service}
    assert not taken & set(outer)
    assert all(name.endswith("Proto") for name in outer)


def test_ids_and_generations_are_strings_in_javascript() -> None:
    """A number of JavaScript holds 53 bits. Plain producer ids and writers use all 64; a generation
    passes 2^53 at the epoch 2,097,152, which two recoveries of a lost etcd go beyond. All ids and
    generations, and nothing else, are fixed64."""
    kept = {
        name: field.options.jstype == FieldOptions.JS_STRING
        for file in ours()
        for name, field in fields(file)
        if field.type == FieldDescriptorProto.TYPE_FIXED64
    }
    assert len(kept) > 20, "the search finds them"
    assert [name for name, string in kept.items() if not string] == []


def test_googles_files_are_what_google_has() -> None:
    """A program that holds both meets one file of each name, not two."""
    status = _bare(compiled()["google/rpc/status.proto"])
    theirs = FileDescriptorProto()
    status_pb2.DESCRIPTOR.CopyToProto(theirs)
    # Only a hint for C++, which newer versions of Google's file have dropped.
    theirs.options.ClearField("cc_enable_arenas")
    assert status == theirs

    details = _bare(compiled()["google/rpc/error_details.proto"])
    error_details_pb2.DESCRIPTOR.CopyToProto(theirs)
    theirs.options.ClearField("cc_enable_arenas")
    assert details.options == theirs.options
    assert (details.name, details.package) == (theirs.name, theirs.package)
    (ours_,) = details.message_type
    assert ours_ == next(one for one in theirs.message_type if one.name == "ErrorInfo")


def _bare(file: FileDescriptorProto) -> FileDescriptorProto:
    """Without comments and the spellings that only a compiler's own output has."""
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")
    for message in [*copy.message_type, *(m for o in copy.message_type for m in o.nested_type)]:
        for field in message.field:
            field.ClearField("json_name")
    return copy

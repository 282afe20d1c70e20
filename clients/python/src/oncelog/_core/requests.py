"""Requests made of what a user gave: a value that a field does not take is an InvalidArgument that
names it, and not what protobuf says, which names nothing."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from oncelogpb import errors

M = TypeVar("M")

PARTITION_MAX: Final = (1 << 32) - 1


def made(kind: type[M], **given: Any) -> M:
    """A message with these fields. Raises InvalidArgument."""
    of_message: Any = kind
    for name, value in given.items():
        field = of_message.DESCRIPTOR.fields_by_name[name]
        try:
            kind(**{name: value})
            fits = not (isinstance(value, bool) and _range(field))
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise errors.InvalidArgument(
                f"{name} is {value!r}; it takes {_wanted(field)}", field=name
            )
    return kind(**given)


def require_partition(number: object) -> None:
    """Raises InvalidArgument."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= PARTITION_MAX:
        raise errors.InvalidArgument(
            f"partition is {number!r}; it takes a whole number from 0 on", field="partition"
        )


def require_text(name: str, value: object) -> None:
    """Raises InvalidArgument."""
    if not isinstance(value, str):
        raise errors.InvalidArgument(f"{name} is {value!r}; it takes a text", field=name)


def _wanted(field: Any) -> str:
    """What a field takes, by its descriptor."""
    if numbers := _range(field):
        return f"a whole number from {numbers[0]} to {numbers[-1]}"
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return "a mapping of texts to texts"
    return "a bool" if field.cpp_type == field.CPPTYPE_BOOL else "a text"


def _range(field: Any) -> range | None:
    """None: it takes no numbers."""
    return {
        field.CPPTYPE_INT32: range(-(1 << 31), 1 << 31),
        field.CPPTYPE_INT64: range(-(1 << 63), 1 << 63),
        field.CPPTYPE_UINT32: range(1 << 32),
        field.CPPTYPE_UINT64: range(1 << 64),
    }.get(field.cpp_type)

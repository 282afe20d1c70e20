"""What errors carry as metadata, read from the source: every call of an error's class that stands
in what the services run, with the names of its keyword arguments. Also a `Refusal` that is made by
hand, to be an error later; and a function that hands its own `**details` on to an error, which
carries what the callers of that function give it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from oncelogpb.errors import BY_REASON
from tests.tidy.proto_files import ROOT

SOURCES: Final = (ROOT / "services", ROOT / "protos" / "src" / "oncelogpb")
# Said of a request by whoever sent it, when it gives up: `tx_id` beside them is raised as well.
ADDED_LATER: Final = frozenset({"producer_id", "generation", "request_number"})
# What a coordinator remembers of a no (coordinator/values): reason, message, details.
REFUSAL: Final = "Refusal"
_REASON_OF: Final = {kind.__name__: reason for reason, kind in BY_REASON.items()}


class Raised(NamedTuple):
    """One place where an error gets metadata."""

    place: str
    reason: str
    key: str


@cache
def raised() -> tuple[Raised, ...]:
    return tuple(found for source in SOURCES for path in _files(source) for found in _in(path))


@cache
def known_keys() -> frozenset[str]:
    """All names that any error carries."""
    return frozenset(found.key for found in raised()) | ADDED_LATER


def _files(source: Path) -> list[Path]:
    return [path for path in sorted(source.rglob("*.py")) if "_pb2" not in path.name]


def _in(path: Path) -> Iterator[Raised]:
    tree = ast.parse(path.read_text())
    handed_on = dict(_handed_on(tree))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            for reason in _reasons_of(call, handed_on):
                for key in _keys_of(call):
                    yield Raised(f"{path.relative_to(ROOT)}:{call.lineno}", reason, key)


def _keys_of(call: ast.Call) -> Iterator[str]:
    yield from (keyword.arg for keyword in call.keywords if keyword.arg is not None)
    if _name_of(call.func) == REFUSAL and isinstance(details := call.args[-1], ast.Dict):
        for key in details.keys:
            assert isinstance(key, ast.Constant), "details are written out"
            yield str(key.value)


def _reasons_of(call: ast.Call, handed_on: dict[str, set[str]]) -> set[str]:
    name = _name_of(call.func)
    if name in _REASON_OF:
        return {_REASON_OF[name]}
    if name == REFUSAL and isinstance(reason := call.args[0], ast.Attribute):
        # TransactionEnded.reason, not the reason of an error that was told already.
        kind = _name_of(reason.value)
        return {_REASON_OF[kind]} if kind in _REASON_OF else set()
    return handed_on.get(name, set())


def _handed_on(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Functions that hand their `**details` to errors: the reasons of those."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.args.kwarg is not None:
            details = function.args.kwarg.arg
            found = {
                _REASON_OF[_name_of(call.func)]
                for call in ast.walk(function)
                if isinstance(call, ast.Call)
                and _name_of(call.func) in _REASON_OF
                and any(k.arg is None and _name_of(k.value) == details for k in call.keywords)
            }
            if found:
                yield function.name, found


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

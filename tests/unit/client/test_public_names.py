"""What users may rely on: the names, and that both faces have the same."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import oncelog
import oncelog.protocol
from oncelog import aio, errors
from oncelogpb import errors as wire_errors

SOURCE = Path(oncelog.__file__).parent


@pytest.mark.parametrize("module", [oncelog, aio, errors, oncelog.protocol])
def test_all_is_sorted_and_every_name_exists(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_reason_can_be_caught_by_its_class() -> None:
    for reason, kind in wire_errors.BY_REASON.items():
        assert getattr(errors, kind.__name__) is kind, reason
        assert kind.__name__ in (errors.__doc__ or ""), "the tree is drawn whole"


@pytest.mark.parametrize(
    "name",
    [
        "Access",
        "Admin",
        "Consumer",
        "Log",
        "Producer",
        "TableView",
        "Transaction",
        "TransactionalProducer",
    ],
)
def test_the_plain_face_has_what_the_asyncio_face_has(name: str) -> None:
    inside = {
        # What the plain face itself uses of its twins.
        "put put_arrow room enter turn_back leave can_enter_at_once closed started start protocol",
        "place identity occupy vacate recorder feeding auto_commit polled_here",
        "sender batch_bytes has_adopted adopt abort_open doubt fence give_up on_closed",
        "make_transaction registration settle unheard",
        "is_member run_until",
        "commit_no_more now require_following is_following",
        "line build_on is_asked_for told_of has_landed was_interrupted was_taken_back was_lost",
    }
    hidden = {word for words in inside for word in words.split()}
    twin = getattr(aio, name)
    attributes = set(re.findall(r"self\.([a-z]\w*)(?::| =)", inspect.getsource(twin.__init__)))
    asyncio_names = names_of(twin) | attributes
    plain_names = names_of(getattr(oncelog, name))
    assert asyncio_names - hidden == plain_names | ({"admin"} if name == "Log" else set())


@pytest.mark.parametrize(
    "name",
    [
        "Access",
        "Admin",
        "Consumer",
        "Producer",
        "TableView",
        "Transaction",
        "TransactionalProducer",
    ],
)
def test_both_faces_take_the_same_arguments(name: str) -> None:
    twins = getattr(aio, name), getattr(oncelog, name)
    for method in names_of(twins[1]):
        first, second = (inspect.getattr_static(twin, method, None) for twin in twins)
        if inspect.isfunction(first) and inspect.isfunction(second):
            arguments = [list(inspect.signature(f).parameters) for f in (first, second)]
            assert arguments[0] == arguments[1], method


def names_of(kind: type) -> set[str]:
    """The public ones, of the parts that it is made of, too."""
    return {name for part in kind.__mro__[:-1] for name in vars(part) if not name.startswith("_")}


def test_the_core_is_pure() -> None:
    """import-linter sees modules; this sees every import, the lazy ones too."""
    forbidden = {"grpc", "asyncio", "time", "random", "os", "threading", "socket"}
    for file in (SOURCE / "_core").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & forbidden, file.name


def test_one_file_knows_grpc() -> None:
    knowing = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Import) and any(a.name.startswith("grpc") for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpc"))
    }
    assert knowing == {"_transport.py"}


def test_everything_public_says_what_it_is_for() -> None:
    silent = [
        f"{kind.__module__}.{kind.__qualname__}.{name}"
        for module in (oncelog, aio)
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__.startswith("oncelog.")
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member) and not member.__doc__
    ]
    allowed = {"occupy", "vacate", "recorder", "sender", "offset_commits", "records"}
    assert not [name for name in silent if name.split(".")[-1] not in allowed]


def test_types_are_shipped() -> None:
    assert (SOURCE / "py.typed").exists()

"""The two tables of docs/clients.md, made from the protos and their comments: what each reason
means, and where each call goes and what makes its repetition safe.

    .venv/bin/python -m tests.tidy.wire_tables      writes them into the page

Of a reason, the comment in errors.proto says what it means, names in backquotes the metadata that
it carries, and ends in a paragraph `Do:`. Of an RPC, the comment ends in `To:` and `Repeated:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from oncelogpb import rpcs
from oncelogpb.errors import BY_REASON
from tests.tidy.error_metadata import known_keys
from tests.tidy.proto_files import ROOT, compiled, ours

PAGE: Final = ROOT / "docs" / "clients.md"
WRITE_IT: Final = "run: .venv/bin/python -m tests.tidy.wire_tables"
CODES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
# Numbers of the fields of descriptors, of which the paths of comments are made.
ENUM, VALUE, SERVICE, RPC = 5, 2, 6, 2


class Reason(NamedTuple):
    """What errors.proto says of one."""

    name: str
    meaning: str
    # What its caller does; "" where the comment does not say.
    do: str

    @property
    def named(self) -> set[str]:
        """In backquotes: its metadata, and other words."""
        return set(re.findall(r"`([a-z_]+)`", self.meaning))


class Rpc(NamedTuple):
    """What its proto says of one."""

    service: str
    name: str
    # Whom it goes to, and what a repetition of it is known by; "" where the comment does not say.
    to: str
    repeated: str


def reasons() -> list[Reason]:
    """All of errors.proto but UNSPECIFIED, in its order."""
    file = compiled()["oncelogpb/v1/errors.proto"]
    comments = _comments(file)
    (number,) = [n for n, enum in enumerate(file.enum_type) if enum.name == "Reason"]
    found = []
    for place, value in enumerate(file.enum_type[number].value):
        meaning, do = _split(comments.get((ENUM, number, VALUE, place), ""), "Do")
        found.append(Reason(value.name.removeprefix("REASON_"), meaning, do))
    return [reason for reason in found if reason.name != "UNSPECIFIED"]


def calls() -> list[Rpc]:
    """All of our services, by service, in their order."""
    found = []
    for file in sorted(ours(), key=lambda file: file.name):
        comments = _comments(file)
        for number, service in enumerate(file.service):
            for place, rpc in enumerate(service.method):
                rest, repeated = _split(comments.get((SERVICE, number, RPC, place), ""), "Repeated")
                _, to = _split(rest, "To")
                found.append(Rpc(service.name, rpc.name, to, repeated))
    return found


def written_into(page: str) -> str:
    """The page with both tables between their marks. Raises ValueError."""
    for name, table in (("reasons", reason_table()), ("calls", call_table())):
        begin, end = (
            f"<!-- {name}: made by tests/tidy/wire_tables.py -->",
            f"<!-- end of {name} -->",
        )
        before, begun, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise ValueError(f"no {begin} ... {end}")
        page = "\n".join([before + begin, "", *table, "", end + after])
    return page


def reason_table() -> list[str]:
    rows = [
        "| reason | gRPC code | again? | may have happened | metadata | what it means; what to do |"
    ]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for reason in reasons():
        rule = BY_REASON[reason.name].rule
        keys = sorted(reason.named & known_keys())
        cells = (
            f"`{reason.name}`",
            CODES[rule.code],
            "yes" if rule.retriable else "–",
            "**maybe**" if rule.may_have_applied else "no",
            ", ".join(f"`{key}`" for key in keys) or "–",
            f"{reason.meaning} *{_capital(reason.do)}*",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def call_table() -> list[str]:
    rows = ["| call | goes to | over | a repetition is known |", "| --- | --- | --- | --- |"]
    for call in calls():
        cells = (f"`{call.service}.{call.name}`", call.to, _forms(call), call.repeated)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _forms(call: Rpc) -> str:
    service = rpcs.find(call.service)
    method = service.methods_by_name[call.name]
    if method.client_streaming:
        return "stream both ways"
    if method.server_streaming:
        return "stream of replies"
    streamed = rpcs.snake(call.name) in rpcs.stream_fields(service)
    return "unary, `Stream`" if streamed else "unary"


@cache
def _by_path(name: str) -> dict[tuple[int, ...], str]:
    locations = compiled()[name].source_code_info.location
    return {tuple(place.path): place.leading_comments for place in locations}


def _comments(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    return _by_path(file.name)


def _split(comment: str, word: str) -> tuple[str, str]:
    """What stands before the paragraph or line `word: ...`, and that, each as one line."""
    before, _, after = comment.partition(f"{word}: ")
    return _one_line(before), _one_line(after).rstrip(".")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def unsaid() -> Iterator[str]:
    """What the protos do not say, and must."""
    yield from (f"{reason.name}: no `Do:`" for reason in reasons() if not reason.do)
    yield from (f"{reason.name}: no meaning" for reason in reasons() if not reason.meaning)
    for call in calls():
        name = f"{call.service}.{call.name}"
        yield from (f"{name}: no `To:`" for _ in range(not call.to))
        yield from (f"{name}: no `Repeated:`" for _ in range(not call.repeated))


if __name__ == "__main__":
    PAGE.write_text(written_into(PAGE.read_text()))

"""Every RPC, with every kind of identity, over real gRPC with mTLS: who is let in, and who is
refused with which words.

Of each case of `cases`, a caller with all that it needs is let in, and one who lacks any single
need of it is refused for that one. The RPCs and the fields come from the descriptors: one that no
case knows fails here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.rpc import status_pb2

from oncelog_server.core.access import IMPLIED_BY, VERBS_OF
from oncelogpb import calls, errors, rpcs
from tests.access.cases import CASES, FREE, NAMING, OPERATORS, SERVICES, UNSERVED, Case
from tests.access.stage import Stage, set_up
from tests.access.world import (
    OPERATOR,
    ROLE_OF,
    SERVICE,
    Caller,
    World,
    every_rpc,
    rule_of,
    running,
)

# A rule that says nothing about anything in the cases.
IRRELEVANT: Final = "read topic:irrelevant"
EVERY_RIGHT: Final = [(str(verb), str(kind)) for kind, verbs in VERBS_OF.items() for verb in verbs]
IMPLIED_BY_WORD: Final = {
    (str(verb), str(kind)): [(str(v), str(k)) for k, v in ways]
    for (kind, verb), ways in IMPLIED_BY.items()
}


def other(verb: str, kind: str) -> str:
    """Who has every right but this one, and those that imply it."""
    return f"all-but-{verb}-{kind}"


SERVED: Final = [rpc for rpc in every_rpc() if rpc not in UNSERVED]


# ---------------------------------------------------------------------------- the table is whole


def test_every_rpc_has_a_case() -> None:
    known = {(case.service, case.method) for case in CASES}
    assert set(SERVED) == known, "say in tests/access/cases.py what it needs"


def test_every_field_that_names_something_stands_in_a_case() -> None:
    """Those of calls that only services or operators make need no more than that."""
    guarded = {case.name for case in CASES if case.needs in (SERVICES, OPERATORS)}
    stage = paper_stage()
    made: dict[str, set[str]] = {}
    for case in CASES:
        made.setdefault(case.name, set()).update(_set_paths(case.make(stage)))
    missing = [
        f"{service}.{method}: {path}"
        for service, method in SERVED
        if f"{service}.{method}" not in guarded
        for path in _naming_paths(rpcs.methods(rpcs.find(service))[method].input_type)
        if path not in made[f"{service}.{method}"]
    ]
    assert sorted(missing) == sorted(FREE), "set it in a case, or say in FREE why it needs nothing"


def paper_stage() -> Stage:
    """Nothing behind it."""
    nobody: Any = None
    stage = Stage(nobody)
    stage.topics = {name: name.encode().ljust(16, b".") for name in ("a", "b", "in", "doomed")}
    for name in ("committing", "aborting", "asking", "idle"):
        stage.transactions[name] = 7
        stage.producers[name] = rpcs.message_class(
            rpcs.methods(rpcs.find("Coordinator"))["begin_transaction"]
            .input_type.fields_by_name["producer"]
            .message_type
        )(producer_id=5, generation=1)
    return stage


def _naming_paths(descriptor: Descriptor, path: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        nested = field.message_type
        if nested is not None and not nested.GetOptions().map_entry:
            yield from _naming_paths(nested, f"{path}{field.name}.")
        elif field.name in NAMING:
            yield f"{path}{field.name}"


def _set_paths(message: Message, path: str = "") -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is None:
            yield f"{path}{field.name}"
        elif not field.message_type.GetOptions().map_entry:
            is_list = not isinstance(value, Message)
            for one in value if is_list else [value]:
                yield from _set_paths(one, f"{path}{field.name}.")


# -------------------------------------------------------------------------------------- the walk


def test_who_has_all_that_a_call_needs_is_let_in_and_who_lacks_one_thing_is_not(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            stage = await set_up(world)
            walk = Walk(world, stage)
            await walk.prepare()
            for number, case in enumerate(CASES):
                await walk.unprivileged(case)
                if case.needs not in (SERVICES, OPERATORS):
                    for lacking in range(len(case.needs)):
                        await walk.lacking_one(number, case, lacking)
                        await walk.with_everything_else(case, case.needs[lacking])
                    await walk.with_all(number, case)
                await walk.privileged(case)
            assert "INTERNAL" not in walk.reasons

    asyncio.run(story())


class Walk:
    """One caller for each case and each thing that he lacks: `c<case>-<lacking>`, `c<case>-all`."""

    def __init__(self, world: World, stage: Stage) -> None:
        self.world = world
        self.stage = stage
        # Of all errors that came.
        self.reasons: set[str] = set()

    async def prepare(self) -> None:
        lines = [f"stranger {IRRELEVANT}"]
        for number, case in enumerate(CASES):
            if case.needs in (SERVICES, OPERATORS):
                continue
            lines += [f"c{number}-all {need}" for need in case.needs]
            lines += [f"c{number}-all {IRRELEVANT}"] if case.any_rule else []
            for lacking, _ in enumerate(case.needs):
                kept = [need for place, need in enumerate(case.needs) if place != lacking]
                lines += [f"c{number}-{lacking} {need}" for need in kept]
        for verb, kind in EVERY_RIGHT:
            ways = {(verb, kind), *IMPLIED_BY_WORD.get((verb, kind), ())}
            lines += [
                f"{other(verb, kind)} {v} {k}:*" for v, k in EVERY_RIGHT if (v, k) not in ways
            ]
        await self.world.add([rule for line in lines for rule in rule_of(line)])

    async def with_everything_else(self, case: Case, need: str) -> None:
        """No other right stands in for it, on whatever: only what implies it would."""
        verb, place = need.split()
        kind = place.partition(":")[0]
        refused = await self._refused(self.world.caller(other(verb, kind)), case)
        ways = {(verb, kind), *IMPLIED_BY_WORD.get((verb, kind), ())}
        lacking = {
            one for one in case.needs if (one.split()[0], one.split()[1].partition(":")[0]) in ways
        }
        assert need in lacking
        assert refused, (case.name, need)
        assert refused <= lacking, (case.name, need, refused)

    async def unprivileged(self, case: Case) -> None:
        """Whoever has no right to it is told so, and of something that it needs."""
        for identity in ("nobody", "stranger", SERVICE):
            refused = await self._refused(self.world.caller(identity), case)
            if case.any_rule and identity != "stranger":
                assert refused == {case.any_rule}, (case.name, identity)
            elif identity == SERVICE and (case.needs == SERVICES or case.services_may):
                assert refused == set(), (case.name, identity)
            elif case.needs in (SERVICES, OPERATORS):
                verb = "serve" if case.needs == SERVICES else "operate"
                assert refused == {f"{verb} cluster:{case.method}"}, (case.name, identity)
            else:
                assert bool(refused) == bool(case.needs), (case.name, identity, refused)
                assert refused <= set(case.needs), (case.name, identity)

    async def lacking_one(self, number: int, case: Case, lacking: int) -> None:
        caller = self.world.caller(f"c{number}-{lacking}")
        refused = await self._refused(caller, case)
        assert refused == {case.needs[lacking]}, (case.name, case.needs[lacking])

    async def with_all(self, number: int, case: Case) -> None:
        caller = self.world.caller(f"c{number}-all")
        assert await self._refused(caller, case) == set(), case.name

    async def privileged(self, case: Case) -> None:
        """An operator may everything but serve."""
        refused = await self._refused(self.world.caller(OPERATOR), case)
        assert bool(refused) == (case.needs == SERVICES), (case.name, refused)

    async def _refused(self, caller: Caller, case: Case) -> set[str]:
        """What it is refused for, the same by every way that the call can come."""
        refused: list[set[str]] = []
        descriptor = rpcs.methods(rpcs.find(case.service))[case.method]
        ways = [caller.first_of if descriptor.server_streaming else caller.call]
        if case.method in rpcs.stream_fields(rpcs.find(case.service)):
            ways.append(caller.call_on_stream)
        for way in ways:
            try:
                reply = await way(case.service, case.method, case.make(self.stage))
            except errors.OncelogError as error:
                self.reasons.add(error.reason)
                refused.append(_needs_in([error]))
            else:
                refused.append(set() if reply is None else _needs_in(_errors_in(reply)))
        assert all(one == refused[0] for one in refused), (case.name, refused)
        return refused[0]


def _errors_in(message: Message) -> Iterator[errors.OncelogError]:
    """Those that items of a reply carry."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if not isinstance(value, Message) else [value]:
            if isinstance(one, status_pb2.Status):
                yield errors.from_status(one)
            else:
                yield from _errors_in(one)


def _needs_in(found: Any) -> set[str]:
    needs = set()
    for error in found:
        if isinstance(error, errors.NotAllowed):
            told = error.metadata
            assert told["identity"], "it names who"
            assert told["identity"] in error.message
            needs.add(f"{told['verb']} {told['kind']}:{told['name']}")
    return needs


# ---------------------------------------------------------------------------- without an identity


@pytest.mark.parametrize("kind", ["no name", "no certificate", "plain"])
def test_without_an_identity_nothing_is_answered(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            if kind == "no name":
                caller = world.caller_with("", world.authority.issue_nameless())
                for service, method in SERVED:
                    error = await _error_of(caller, service, method)
                    assert isinstance(error, errors.Unauthenticated), (service, method, error)
                    assert "SPIFFE" in error.message, "it says what is expected"
                return
            for service, method in SERVED:
                error = await _stranded(world, service, method, plain=kind == "plain")
                assert not isinstance(error, errors.NotAllowed), "the transport itself refuses"

    asyncio.run(story())


async def _error_of(caller: Caller, service: str, method: str) -> errors.OncelogError:
    descriptor = rpcs.methods(rpcs.find(service))[method]
    request = rpcs.message_class(descriptor.input_type)()
    way: Any = caller.first_of if descriptor.server_streaming else caller.call
    try:
        await way(service, method, request)
    except errors.OncelogError as error:
        return error
    raise AssertionError(f"{service}.{method} was answered")


async def _stranded(world: World, service: str, method: str, *, plain: bool) -> errors.OncelogError:
    address = world.addresses[ROLE_OF[service]]
    authority = Path(world.authority.directory, "ca.pem").read_bytes()
    channel: Any = (
        grpc.aio.insecure_channel(address)
        if plain
        else grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority))
    )
    descriptor = rpcs.methods(rpcs.find(service))[method]
    request = rpcs.message_class(descriptor.input_type)()
    try:
        if descriptor.server_streaming:
            await anext(calls.server_stream(channel, service, method, request))
        else:
            await calls.unary(channel, service, method, request, 2_000)
    except errors.OncelogError as error:
        return error
    finally:
        await channel.close(None)
    raise AssertionError(f"{service}.{method} was answered")

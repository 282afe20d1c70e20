"""Claims: whose a source of batches is, from its first batch on."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from oncelog_server.partition_leader import claims as claims_module
from oncelog_server.partition_leader.claims import Claims, Source
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import errors
from oncelogpb.errors import NotEnoughReplicas, OncelogError, PermissionDenied
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import FakeCall, World
from tests.unit.partition_leader.messages import batch, plain, send


@dataclass
class Caller(FakeCall):
    """With a certificate, where rules hold."""

    refused: Mapping[int, OncelogError] = field(default_factory=dict)

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        return None if owner == self.identity else PermissionDenied(f"{producer} is {owner}'s")


ALICE, MALLORY = Caller(identity="alice"), Caller(identity="mallory")


class Session:
    def __init__(self) -> None:
        self.world = World()
        self.service = PartitionLeaderService(self.world.env, self.world.config)

    async def reasons(self, request: pb.ProduceRequest, call: Any) -> list[str]:
        reply = await self.service.produce(request, call)
        return [
            errors.from_status(result.error).reason if result.HasField("error") else "ok"
            for result in reply.results
        ]


@pytest.mark.parametrize(
    "kind", [plain, functools.partial(send, 1 << 48 | 5)], ids=["plain", "transaction"]
)
def test_i6_who_sends_under_the_name_of_another_is_refused(kind: Any) -> None:
    """Else the owner's next batch would be a repeat of what was never his."""

    async def story() -> None:
        session = Session()
        assert await session.reasons(kind(batch([b"0"])), ALICE) == ["ok"]
        forged = kind(batch([b"forged"], sequence=1))
        assert await session.reasons(forged, MALLORY) == ["PERMISSION_DENIED"]
        assert await session.reasons(kind(batch([b"1"], sequence=1)), ALICE) == ["ok"]
        assert await session.reasons(forged, MALLORY) == ["PERMISSION_DENIED"], "nor as a repeat"

    asyncio.run(story())


def test_what_was_never_taken_claims_nothing() -> None:
    async def story() -> None:
        session = Session()
        gap = plain(batch([b"x"], sequence=7))
        assert await session.reasons(gap, MALLORY) == ["UNKNOWN_PRODUCER"]
        assert await session.reasons(plain(batch([b"0"])), ALICE) == ["ok"]

    asyncio.run(story())


def test_what_was_refused_before_it_was_decided_claims_nothing() -> None:
    """A leader that has too few in sync: whoever knows the owner's names would hold them."""

    async def story() -> None:
        session = Session()
        replica = session.world.first
        submit = replica.submit

        def refuses(command: Any) -> Any:
            raise NotEnoughReplicas("too few are in sync")

        replica.submit = refuses  # type: ignore[method-assign]
        assert await session.reasons(plain(batch([b"x"])), MALLORY) == ["NOT_ENOUGH_REPLICAS"]
        replica.submit = submit  # type: ignore[method-assign]
        assert await session.reasons(plain(batch([b"0"])), ALICE) == ["ok"]

    asyncio.run(story())


def test_without_an_identity_nobody_holds_anything() -> None:
    async def story() -> None:
        session = Session()
        assert await session.reasons(plain(batch([b"0"])), FakeCall()) == ["ok"]
        assert await session.reasons(plain(batch([b"1"], sequence=1)), ALICE) == ["ok"]

    asyncio.run(story())


class Machine:
    """As far as claims look into one."""

    def __init__(self) -> None:
        self.open: dict[int, None] = {}
        self.pending = self
        self.plain: dict[int, None] = {}


def test_what_its_machine_has_forgotten_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "PRUNE_ABOVE", 4)
    claims, machine = Claims(), Machine()
    machine.pending.open[1] = None
    machine.plain[2] = None
    for tx_id, producer_id in ((1, 9), (0, 2), (7, 9), (0, 8)):
        claim = claims.hold(machine, Source(tx_id, producer_id, 0), ALICE)
        claims.settle(machine, claim, placed=1)
    claims._held[machine].prune_above = 4
    claims.hold(machine, Source(0, 3, 0), MALLORY)
    held = {source[:2] for source in claims._held[machine].claims}
    assert held == {(1, 9), (0, 2), (0, 3)}


def test_claims_end_with_the_leadership() -> None:
    claims, machine = Claims(), Machine()
    claims.hold(machine, Source(0, 2, 0), ALICE)
    del machine
    gc.collect()
    assert not claims._held

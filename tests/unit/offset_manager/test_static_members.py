"""Processes of one instance id, each started when the one before is dead, on a network that loses,
repeats and delays whatever it likes: the living one is never fenced by what a dead one has sent,
and gets the place in the end (ADR 65). The client's own core against the offset manager's machine.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from oncelog._core.membership import MemberSettings, Membership, State
from oncelog_server.offset_manager import wire
from oncelog_server.offset_manager.commands import Assigned
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import CODEC
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import offset_manager_pb2 as pb
from tests.golden.host import MachineHost

WALKS: Final = 60
STEPS: Final = 200
SETTINGS: Final = MemberSettings("g", instance_id="one", session_timeout_ms=1_000_000)


class _Walk:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.host = MachineHost(lambda: OffsetManagerMachine(OffsetManagerConfig()), CODEC)
        # Whatever any process has sent: it may arrive again at any time.
        self.sent: list[pb.HeartbeatRequest] = []
        self.ids = 0
        self.restarts = 0
        self.now_ms = 0.0
        self.living = self._start()

    def _start(self) -> Membership:
        return Membership(SETTINGS, draw_id=self._draw_id, now_ms=self.now_ms)

    def _draw_id(self) -> str:
        self.ids += 1
        return f"m{self.ids}"

    def step(self) -> None:
        match self.chance.choice(
            ["beat", "beat", "unheard", "copy", "copy", "restart", "failover"]
        ):
            case "beat":
                self.beat(is_heard=True)
            case "unheard":
                self.beat(is_heard=False)
            case "copy" if self.sent:
                self._deliver(self.chance.choice(self.sent))
            case "restart" if not self.chance.randrange(3):
                self.restarts += 1
                self.living = self._start()
            case "failover":
                self.host.failover(lose_tail=False)
                self.host.sync()
        assert self.living.state is not State.FENCED, "a dead process has fenced the living one"

    def beat(self, *, is_heard: bool) -> None:
        """Of the living one: it arrives, or comes later, or never."""
        self.now_ms += 1_000
        request = self.living.request(self.now_ms)
        assert request is not None
        self.sent.append(request)
        if not is_heard and self.chance.randrange(2):
            return
        reply = self._deliver(request)
        if not is_heard:
            return
        if isinstance(reply, OncelogError):
            self.living.refused(request, reply, self.now_ms)
        else:
            self.living.heard(request, reply, sent_ms=self.now_ms)

    def _deliver(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply | OncelogError:
        self.host.submit(wire.heartbeat(request, ""))
        _, reply = self.host.take_parked()
        if isinstance(reply, OncelogError):
            return reply
        assert isinstance(reply, Assigned)
        return wire.heartbeat_reply(reply)


@pytest.mark.parametrize("seed", range(WALKS))
def test_i23_a_late_join_never_fences_who_lives(seed: int) -> None:
    walk = _Walk(random.Random(seed))
    for _ in range(STEPS):
        walk.step()
    assert walk.restarts > 1
    for _ in range(3):
        walk.beat(is_heard=True)
    assert walk.living.state is State.MEMBER
    [member] = walk.host.machine.membership("g").members()  # type: ignore[attr-defined]
    assert member.member_id == walk.living.member_id

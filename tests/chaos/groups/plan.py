"""What happens to the members of a group, and to the services beside them, drawn from a seed. PURE.

The seed decides the order, the victims and the pauses, not what happens when: the same seed is the
same story, not the same run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from oncelog_server.core.roles import ROLES

T = TypeVar("T")


class What(Enum):
    """Of a worker, then of a service."""

    KILL = "kill -9"
    # For longer than its session: what it wakes up to is another one's.
    STOP = "SIGSTOP"
    END = "SIGTERM"
    # Another process takes its instance id while it is stopped (static members).
    REPLACE = "replaced"
    KILL_SERVICE = "kill -9 of"
    # Hands over, ends, and is started again.
    END_SERVICE = "SIGTERM of"
    # For longer than its lease: where there are several, another one leads.
    STOP_SERVICE = "SIGSTOP of"


class Bounce(NamedTuple):
    # After the one before.
    wait_s: float
    what: What
    # Which worker, as a number to be taken modulo those that work.
    victim: int
    # Of a service; "" of a worker.
    role: str
    # How long it is away, over its session or its lease where it is stopped.
    away_s: float

    @property
    def kind(self) -> str:
        return f"{self.what.value} {self.role}".strip()


WORKER_KINDS: Final = (What.KILL, What.STOP, What.END)
STATIC_KINDS: Final = (*WORKER_KINDS, What.REPLACE)
SERVICE_KINDS: Final = (What.KILL_SERVICE, What.END_SERVICE, What.STOP_SERVICE)
# One of so many bounces hits a service.
SERVICE_EVERY: Final = 4
# Between two bounces.
WAIT_S: Final = (2.0, 4.0)
AWAY_S_MAX: Final = 2.0


def bounces(seed: int, *, static: bool) -> Iterator[Bounce]:
    """Without end: each kind once in some order, then again in another one."""
    chance = random.Random(seed)
    of_workers = _rounds(chance, STATIC_KINDS if static else WORKER_KINDS)
    of_services = _rounds(chance, SERVICE_KINDS)
    roles = _rounds(chance, ROLES)
    number = 0
    while True:
        number += 1
        of_service = number % SERVICE_EVERY == 0
        yield Bounce(
            wait_s=chance.uniform(*WAIT_S),
            what=next(of_services) if of_service else next(of_workers),
            victim=chance.randrange(1 << 16),
            role=next(roles) if of_service else "",
            away_s=chance.uniform(0.0, AWAY_S_MAX),
        )


def _rounds(chance: random.Random, kinds: Sequence[T]) -> Iterator[T]:
    while True:
        yield from chance.sample(kinds, len(kinds))

"""What is forgotten by age, on ticks. PURE.

Groups and fences stand in the order of their last change, so a tick looks at the front only. Ages
are of the journal's own clock: a wall clock that jumps must not make the living look silent. Nor
must a time without leader: groups are listened for first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeVar

from oncelog_server.core.age import AgeWatch, TimePassed
from oncelog_server.core.ids import ProducerId
from oncelog_server.core.machine import Decision, Instant
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_claim import end_claims
from oncelog_server.offset_manager.decide_membership import expire
from oncelog_server.offset_manager.liveness import Liveness
from oncelog_server.offset_manager.records import (
    GroupsAlive,
    GroupsForgotten,
    ProducersForgotten,
    Record,
    Why,
)
from oncelog_server.offset_manager.state import State

K = TypeVar("K")
V = TypeVar("V")

# Groups or producers that one Tick forgets at most, so that no turn of the loop is long.
FORGOTTEN_PER_TICK_MAX: Final = 100
# Groups of which one Tick takes silent members out: for each the assignor runs.
EXPIRED_GROUPS_PER_TICK_MAX: Final = 10
# How long a new leader listens for signs of life before it forgets groups, at most.
LISTENS_MS_MAX: Final = 60 * 60 * 1000


def decide_tick(
    state: State,
    config: OffsetManagerConfig,
    *,
    watch: AgeWatch,
    liveness: Liveness,
    claims: Liveness,
    now: Instant,
) -> Decision[Record]:
    silent = liveness.over(EXPIRED_GROUPS_PER_TICK_MAX)
    ended = end_claims(claims.over(EXPIRED_GROUPS_PER_TICK_MAX))
    return Decision([*expire(state, silent), *ended, *_due(state, config, watch, now)])


def _due(
    state: State, config: OffsetManagerConfig, watch: AgeWatch, now: Instant
) -> Iterator[Record]:
    aged_ms = state.age.at(now.wall_ms)
    if watch.wants_record and (state.groups or len(state.fences)):
        yield TimePassed()
    yield from _idle_groups(state, config, watch, now)
    before = aged_ms - config.producer_retention_ms
    producers = list(islice(state.fences.silent_since(before), FORGOTTEN_PER_TICK_MAX))
    busy = {opened.producer_id for opened in state.open.values()} if producers else set()
    gone = tuple(ProducerId(known) for known in producers if known not in busy)
    if gone:
        yield ProducersForgotten(gone)


def _idle_groups(
    state: State, config: OffsetManagerConfig, watch: AgeWatch, now: Instant
) -> Iterator[Record]:
    """While nobody led, the living were not heard: a new leader listens for so long before it
    forgets a group. Consumers give several signs of life in that time."""
    if watch.led_ms(now) < min(config.group_retention_ms // 2, LISTENS_MS_MAX):
        return
    before = state.age.at(now.wall_ms) - config.group_retention_ms
    groups = _until(state.groups, lambda group: group.changed_ms > before)
    alive = tuple(name for name in groups if state.groups[name].is_attended)
    if alive:
        # Else they would stand in front of what is to be forgotten, for ever.
        yield GroupsAlive(alive)
    idle = tuple(
        name
        for name in groups
        if not state.groups[name].pending and not state.groups[name].is_attended
    )
    if idle:
        yield GroupsForgotten(idle, Why.EXPIRED)


def _until(entries: Mapping[K, V], is_young: Callable[[V], bool]) -> list[K]:
    """Keys of the oldest entries, up to the first young one, at most FORGOTTEN_PER_TICK_MAX."""
    keys: list[K] = []
    for key, value in islice(entries.items(), FORGOTTEN_PER_TICK_MAX):
        if is_young(value):
            break
        keys.append(key)
    return keys

"""All applications of the simulated days, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from oncelog.checker.recorder import RecordedLog
from tests.simulation.applications import (
    careless,
    compacting,
    consuming,
    crews,
    gardening,
    keeping,
    pipelining,
    producing,
    resting,
    settling,
    tabling,
    wire,
)
from tests.simulation.day import Day

Live = Callable[[Day, RecordedLog], Awaitable[None]]


class Application(NamedTuple):
    """`lives` of one day: as many instances run at once, and count their successes under one
    name."""

    lives: Callable[[], tuple[Live, ...]]
    # Of the services, that it needs.
    settings: tuple[str, ...] = ()
    # Of its own, with their partitions, beside those that all days have.
    topics: Mapping[str, int] = {}
    configs: Mapping[str, Mapping[str, str]] = {}
    # Applications that are not in the same day.
    not_beside: frozenset[str] = frozenset()


def _lives(*lives: Live) -> Callable[[], tuple[Live, ...]]:
    return lambda: lives


def _job() -> tuple[Live, ...]:
    return (producing.Job().work_off,)


def _garden() -> tuple[Live, ...]:
    garden = gardening.Garden()
    return (garden.plant, garden.visit)


def _settlement() -> tuple[Live, ...]:
    settler = settling.Settler()
    return (
        settler.write,
        settler.write,
        settler.linger,
        settler.read,
        settler.work,
        settler.read_units,
        settler.operate,
    )


def _tables() -> tuple[Live, ...]:
    tabler = tabling.Tabler()
    return (tabler.write, tabler.write, tabler.follow, tabler.follow, tabler.see_own)


def _compaction() -> tuple[Live, ...]:
    compactor = compacting.Compactor()
    return (
        compactor.write,
        compactor.write,
        compactor.linger,
        compactor.scan,
        compactor.scan,
        compactor.look_up,
        compactor.operate,
    )


def _crew() -> tuple[Live, ...]:
    crew = crews.Crew()
    return (crew.feed, *[crew.work] * 3)


APPLICATIONS: Final[Mapping[str, Application]] = {
    "feeder": Application(_lives(producing.feed)),
    "writer": Application(
        _lives(
            partial(producing.write, producer_name="writer-1"),
            partial(producing.write, producer_name="writer-2"),
        )
    ),
    "unnamed writer": Application(_lives(producing.write_unnamed)),
    "chain": Application(_lives(producing.chain, producing.chain)),
    "job": Application(_job),
    "enricher": Application(_lives(consuming.enrich, consuming.enrich)),
    "unnamed enricher": Application(_lives(consuming.enrich_unnamed, consuming.enrich_unnamed)),
    "member": Application(_lives(*[consuming.enrich_together] * 3)),
    "crew": Application(_crew, topics=crews.TOPICS),
    crews.PLAIN: Application(
        _lives(*[crews.work_plainly] * 2, crews.claim_alone), topics=crews.TOPICS
    ),
    "unit crew": Application(_lives(crews.work_by_units), topics=crews.TOPICS),
    "hopper": Application(_lives(consuming.hop)),
    pipelining.NAME: Application(
        _lives(*[pipelining.copy_together] * 2, pipelining.copy_alone, pipelining.write_in_order)
    ),
    "listener": Application(_lives(consuming.listen, consuming.listen)),
    "committed reader": Application(_lives(consuming.read_committed)),
    "buffered reader": Application(_lives(consuming.read_buffered)),
    "uncommitted reader": Application(_lives(consuming.read_uncommitted)),
    "questioner": Application(_lives(consuming.ask)),
    "late writer": Application(_lives(wire.write_late)),
    "volley": Application(_lives(wire.volley)),
    "repeater": Application(_lives(wire.repeat_numbers)),
    "forger": Application(_lives(wire.forge)),
    "sleeper": Application(_lives(resting.sleep_transactional), resting.SLEEPER_SETTINGS),
    "plain sleeper": Application(_lives(resting.sleep_plain), resting.SLEEPER_SETTINGS),
    "quiet": Application(
        _lives(resting.feed_rarely, resting.follow_quiet),
        settings=resting.QUIET_SETTINGS,
        topics={"quiet": 1},
        # Their groups are nobody's between two lives, and may be forgotten.
        not_beside=frozenset(
            {
                *("enricher", "unnamed enricher", "member", "hopper", "listener", "questioner"),
                *("volley", "crew", "plain crew", "unit crew", pipelining.NAME),
                *(keeping.NAME, settling.NAME, compacting.NAME),
            }
        ),
    ),
    "clumsy": Application(_lives(careless.send_badly)),
    "narrow": Application(
        _lives(careless.write_narrow),
        topics={"narrow": 1},
        configs={"narrow": {"max.batch.bytes": str(careless.NARROW_BYTES)}},
    ),
    "operator": Application(_lives(producing.operate)),
    "twins": Application(_lives(careless.take_turns)),
    "gardener": Application(_garden),
    keeping.NAME: Application(
        _lives(
            keeping.write,
            keeping.read,
            keeping.read,
            keeping.work,
            keeping.work,
            keeping.work_alone,
            keeping.operate,
        ),
        settings=keeping.SETTINGS,
        topics=keeping.TOPICS,
        configs=keeping.CONFIGS,
    ),
    settling.NAME: Application(
        _settlement,
        settings=settling.SETTINGS,
        topics=settling.TOPICS,
        configs=settling.CONFIGS,
    ),
    tabling.NAME: Application(
        _tables,
        settings=settling.SETTINGS,
        topics=tabling.TOPICS,
        configs=tabling.CONFIGS,
    ),
    compacting.NAME: Application(
        _compaction,
        settings=compacting.SETTINGS,
        topics=compacting.TOPICS,
        configs=compacting.CONFIGS,
    ),
}

"""What runs reached, as named marks: so that a run of many seeds can say what it never saw.

    fault         a kind of fault struck                                   (`trouble`)
    application   an application of the workload succeeded                 (`applications`)
    passed        a role passed a failpoint                                (`core.failpoints`)
    struck        a process fell in the middle of a step, at a failpoint
    call          a client called that method
    reason        somebody was refused for that reason                     (`oncelogpb.errors`)
    record        a machine remembers a record of that kind                (`<role>.records`)
    event         a process reported that event                            (what logs are made of)
    moment        something happened that tests are after                  (`moments`)
    branch        a block of the code ran                                  (`branches`)

`everything` says what marks of a kind there are to be reached.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from oncelog_server.core.failpoints import TABLE
from oncelogpb import errors
from tests.simulation import branches

SERVICES: Final = Path(__file__).parents[2] / "services" / "oncelog_server"
# `reporter.event("lease lost", ...)`, over one line or two.
EVENT: Final = re.compile(r"\.event\(\s*\"([^\"]+)\"")
RECORD: Final = re.compile(r"^class (\w+)\(msgspec\.Struct", re.MULTILINE)

# By kind.
Reached: TypeAlias = dict[str, set[str]]


class Marks:
    """Of one run."""

    def __init__(self) -> None:
        self.reached: Reached = defaultdict(set)

    def add(self, kind: str, name: str) -> None:
        self.reached[kind].add(name)


def merge(into: Reached, more: Mapping[str, Iterable[str]]) -> None:
    for kind, names in more.items():
        into.setdefault(kind, set()).update(names)


@cache
def everything() -> Mapping[str, frozenset[str]]:
    """All marks that could be reached, of the kinds of which that is known. Ask it when everything
    is imported."""
    from tests.simulation.applications.table import APPLICATIONS
    from tests.simulation.moments import MOMENTS
    from tests.simulation.trouble import FAULTS

    passed = frozenset(f"{role} {point.name}" for point in TABLE for role in point.roles)
    return {
        "fault": frozenset(FAULTS),
        "application": frozenset(APPLICATIONS),
        "passed": passed,
        "moment": frozenset(MOMENTS),
        "struck": frozenset(point.name for point in TABLE),
        "reason": frozenset(errors.BY_REASON),
        "record": _written("*/records.py", RECORD),
        "event": _written("**/*.py", EVENT),
        "branch": branches.everything(),
    }


def _written(pattern: str, what: re.Pattern[str]) -> frozenset[str]:
    return frozenset(
        found for path in sorted(SERVICES.glob(pattern)) for found in what.findall(path.read_text())
    )

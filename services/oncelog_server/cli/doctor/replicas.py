"""Whether partitions can be read and written, and have the replicas that they should: the words of
`cluster status`, with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from oncelog_server.cli.doctor.findings import Finding, fail, ok, warn
from oncelog_server.cli.output import show_few
from oncelog_server.cli.partitions import ListedPartition, what_is_wrong

AREA: Final = "partitions"


def look(found: Sequence[ListedPartition]) -> Iterator[Finding]:
    """At all partitions of a cluster."""
    wrong = what_is_wrong(found)
    if wrong.offline:
        yield fail(
            AREA,
            f"{len(wrong.offline)} of {len(found)} are offline: {_few(wrong.offline)}; the first "
            f"one: {wrong.offline[0].why_offline}",
            "start the processes that hold them; `oncelog cluster partitions --offline` says why "
            "each does not lead (docs/operating.md, A partition that stays offline)",
        )
    if wrong.unwritable:
        yield fail(
            AREA,
            f"{len(wrong.unwritable)} of {len(found)} are unwritable: {_few(wrong.unwritable)}; "
            f"the first one: {wrong.unwritable[0].why_unwritable}",
            "start the processes of the missing replicas, with data (`oncelog cluster status` "
            "names who does not run); `oncelog cluster partitions --unwritable --replicas` says "
            "what each replica does; reads go on unless it loads",
        )
    if wrong.under_replicated:
        yield warn(
            AREA,
            f"{len(wrong.under_replicated)} of {len(found)} are under-replicated: "
            f"{_few(wrong.under_replicated)}",
            "a replica catches up by itself where its process runs; `oncelog cluster partitions "
            "--under-replicated --replicas` says what each does",
        )
    if wrong.not_known:
        yield warn(
            AREA,
            f"of {len(wrong.not_known)} it is not known whether they are writable, for their "
            f"leaders do not say: {_few(wrong.not_known)}",
            "see the lines about connections; only operators are told",
        )
    waits = {str(one.place): why for one in found if (why := _why_settling_waits(one))}
    if waits:
        yield warn(
            AREA,
            f"of {len(waits)} nothing can be settled: {show_few(list(waits))}; the first one: "
            f"{next(iter(waits.values()))}",
            "their journals grow meanwhile; `oncelog cluster partitions --disk` shows each replica "
            "(docs/operating.md, A topic that is settled)",
        )
    damaged = {str(one.place): why for one in found if (why := _what_is_damaged(one))}
    if damaged:
        yield warn(
            AREA,
            f"of {len(damaged)} a replica has damaged records: {show_few(list(damaged))}; the "
            f"first one: {next(iter(damaged.values()))}",
            "they come from another replica by themselves; where they do not, start the processes "
            "of the other replicas, and look at the disk (docs/operating.md, A topic that is "
            "settled)",
        )
    if not any(wrong):
        yield ok(AREA, f"all {len(found)} have leaders that take writes, and all their replicas")


def _why_settling_waits(one: ListedPartition) -> str:
    whys = (f"node {it.node_id}: {it.settling_waits}" for it in one.replicas if it.settling_waits)
    return next(whys, "")


def _what_is_damaged(one: ListedPartition) -> str:
    return next((f"node {it.node_id}: {it.damaged}" for it in one.replicas if it.damaged), "")


def _few(found: Sequence[ListedPartition]) -> str:
    return show_few([str(one.place) for one in found])

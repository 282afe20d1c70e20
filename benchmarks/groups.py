"""`python -m benchmarks.groups`: what a large consumer group costs its offset manager. CPU of one
process without network, disk or etcd, for all of it runs in turns of the loop that serves
everybody and renews leases."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks import group_machine
from benchmarks.ending import end_as_by_ctrl_c
from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.assignors import Assignment, assign
from oncelog_server.offset_manager.commands import GroupTopic

MEMBERS: Final = 1_000
TOPICS: Final = 100
PARTITIONS: Final = 2_000
ROUNDS: Final = 9
# Which ids and which subscriptions is all the same; that they are the same in each run is not.
SEED: Final = 1
COLUMNS: Final = ("group", "what happens", "median ms", "max ms", "partitions that move")

Subscriptions = dict[str, frozenset[TopicId]]
Topics = Mapping[TopicId, int]


class Row(NamedTuple):
    """CPU of one assignment."""

    group: str
    what: str
    median_ms: float
    max_ms: float
    moved: int

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        return (
            self.group,
            self.what,
            f"{self.median_ms:.1f}",
            f"{self.max_ms:.1f}",
            f"{self.moved:,}",
        )


class Group(NamedTuple):
    """A group whose members come and go."""

    label: str
    assignor: str
    topics: Topics
    members: Subscriptions

    def assign(self, members: Subscriptions, before: Assignment) -> Assignment:
        """Shares them out."""
        return assign(self.assignor, members, self.topics, before)


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables for README.md.")
def main(as_markdown: bool) -> None:
    """Measure what a group of 1,000 members and 2,000 partitions costs."""
    _print(COLUMNS, [row for group in groups() for row in assignments(group)], as_markdown)
    every = next(groups())
    crew = group_machine.Crew(
        GroupTopic(f"topic-{number:03}", topic_id, count)
        for number, (topic_id, count) in enumerate(every.topics.items())
    )
    _print(group_machine.COLUMNS, list(crew.rows(list(every.members))), as_markdown)
    print(crew.stored())


def _print(
    columns: Sequence[str], rows: Sequence[Row | group_machine.Row], as_markdown: bool
) -> None:
    if as_markdown:
        print("|", " | ".join(columns), "|")
        print("|", " | ".join("---" for _ in columns), "|")
        for row in rows:
            print("|", " | ".join(row.cells()), "|")
        print()
    else:
        table = Table(*columns)
        for row in rows:
            table.add_row(*row.cells())
        Console().print(table)


def groups() -> Iterator[Group]:
    """Of as many members and partitions, that subscribe in other ways."""
    chance = random.Random(SEED)
    member_ids = [f"{chance.getrandbits(128):032x}" for _ in range(MEMBERS)]
    topics = {TopicId(chance.randbytes(16)): PARTITIONS // TOPICS for _ in range(TOPICS)}
    single = {TopicId(chance.randbytes(16)): 1 for _ in range(PARTITIONS)}
    everything = frozenset(topics)
    kinds = [frozenset(list(topics)[number::3]) for number in range(3)]
    equal = dict.fromkeys(member_ids, everything)
    yield Group("equal", "uniform", topics, equal)
    yield Group("equal, range", "range", topics, equal)
    yield Group(
        "equal, 2,000 topics", "uniform", single, dict.fromkeys(member_ids, frozenset(single))
    )
    three = {
        member_id: everything - kinds[number % 3] for number, member_id in enumerate(member_ids)
    }
    yield Group("3 subscriptions", "uniform", topics, three)
    different = {
        member_id: frozenset(chance.sample(sorted(topics), chance.randint(1, 50)))
        for member_id in member_ids
    }
    yield Group("each another subscription", "uniform", topics, different)


def assignments(group: Group) -> Iterator[Row]:
    """What each change of the members costs."""
    *fewer, _ = group.members
    left = {member: group.members[member] for member in fewer}
    full, part = group.assign(group.members, {}), group.assign(left, {})
    yield _measured(group, "all are new", group.members, {})
    yield _measured(group, "one joins", group.members, part)
    yield _measured(group, "one leaves", left, full)
    scattered = _scattered(group)
    yield _measured(group, "nothing is where it should be", group.members, scattered)
    yield _joining(group)


def _scattered(group: Group) -> Assignment:
    """Each partition with any member that may have it."""
    chance = random.Random(SEED)
    subscribers = {
        topic: [member for member, some in group.members.items() if topic in some]
        for topic in group.topics
    }
    return {
        PartitionId(topic, number): chance.choice(subscribers[topic])
        for topic, count in group.topics.items()
        for number in range(count)
        if subscribers[topic]
    }


def _measured(group: Group, what: str, members: Subscriptions, before: Assignment) -> Row:
    took = [_timed(partial(group.assign, members, before))[0] for _ in range(ROUNDS)]
    moved = _moved(before, group.assign(members, before))
    return Row(group.label, what, statistics.median(took), max(took), moved)


def _joining(group: Group) -> Row:
    """All, one after the other; an assignment for each."""
    members: Subscriptions = {}
    assignment: Assignment = {}
    took, moved = [], 0
    for member_id, topic_ids in group.members.items():
        members[member_id] = topic_ids
        before = assignment
        ms, assignment = _timed(partial(group.assign, members, before))
        took.append(ms)
        moved += _moved(before, assignment)
    return Row(group.label, "all join, one by one", statistics.median(took), max(took), moved)


def _moved(before: Assignment, after: Assignment) -> int:
    return sum(before.get(partition, member) != member for partition, member in after.items())


def _timed(assigned: Callable[[], Assignment]) -> tuple[float, Assignment]:
    start = time.process_time()
    assignment = assigned()
    return (time.process_time() - start) * 1000, assignment


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()

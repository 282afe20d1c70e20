"""When data is refused for lack of room, and how often the disk is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from oncelog_server.runtime.free_space import LOOKS_PER_FLOOR, FreeSpace
from oncelog_server.runtime.storage.commit import GroupCommit
from tests.unit.partition_leader.fakes import FakeReporter

FLOOR = 1_600


class Story:
    """A disk, what waits to be written to it, and what operators hear."""

    def __init__(self, *, floor_bytes: int = FLOOR) -> None:
        self.free_bytes = 10_000
        self.looks = 0
        self.reporter = FakeReporter()
        disk: Any = SimpleNamespace(free_bytes=self._look)
        self.commit = SimpleNamespace(unwritten_bytes=0)
        self.space = FreeSpace(disk, self.reporter, floor_bytes=floor_bytes)
        self.space.watch(cast(GroupCommit, self.commit))

    def _look(self) -> int:
        self.looks += 1
        return self.free_bytes

    def write(self, size: int) -> None:
        self.free_bytes -= size
        self.space.wrote(size)


def test_i28_a_burst_may_not_take_the_reserve() -> None:
    story = Story()
    story.commit.unwritten_bytes = 8_400
    assert story.space.has_room()
    story.commit.unwritten_bytes = 8_401
    assert not story.space.has_room()


def test_the_disk_is_looked_at_again_after_a_part_of_the_floor() -> None:
    story = Story()
    part = FLOOR // LOOKS_PER_FLOOR
    story.write(part)
    assert story.looks == 1
    story.write(1)
    assert story.looks == 2


def test_operators_hear_when_it_fills_and_when_it_has_room_again() -> None:
    story = Story()
    story.write(9_000)
    assert not story.space.has_room()
    story.free_bytes = 10_000
    story.space.look()
    assert story.space.has_room()
    assert story.reporter.events == ["disk full, data is refused", "disk has room again"]


def test_what_is_settled_may_take_half_of_the_reserve() -> None:
    story = Story()
    story.commit.unwritten_bytes = 10_000 - FLOOR // 2
    assert story.space.may_settle()
    assert not story.space.has_room()
    story.commit.unwritten_bytes += 1
    assert not story.space.may_settle()


def test_without_a_floor_there_is_always_room() -> None:
    story = Story(floor_bytes=0)
    story.write(10_000)
    assert story.space.has_room()
    assert story.space.may_settle()
    assert story.looks == 1

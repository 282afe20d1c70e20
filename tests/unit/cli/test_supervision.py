"""A child of `oncelog up` that dies is started again, and not for ever."""

from __future__ import annotations

import pytest

from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.supervision import (
    RESTART_WINDOW_SECONDS,
    RESTARTS_MAX,
    Restarts,
    Watch,
)


class Scripted:
    """A child that dies when it is told to."""

    name = "coordinator"

    def __init__(self) -> None:
        self.how: str | None = None
        self.starts = 0

    def end(self) -> str | None:
        return self.how

    def last_words(self) -> str:
        return "its last words"

    def start_again(self) -> None:
        self.starts += 1
        self.how = None


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.child, self.other = Scripted(), Scripted()
        self.other.name = "etcd"
        self.said: list[tuple[str, str, int, float]] = []
        self.watch = Watch(
            [self.other, self.child], lambda *said: self.said.append(said), now=lambda: self.now
        )

    def die(self) -> None:
        self.child.how = "SIGKILL"
        self.watch.look()


def test_the_first_restart_comes_at_once_and_later_ones_wait_longer_and_longer() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_after(float(second)) for second in range(RESTARTS_MAX + 2)]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, None, None]


def test_who_lived_long_enough_starts_anew() -> None:
    restarts = Restarts()
    for second in range(RESTARTS_MAX):
        restarts.pause_after(float(second))
    assert restarts.pause_after(RESTART_WINDOW_SECONDS - 0.5) is None
    # The deaths at 0 and 1 are forgotten.
    assert restarts.pause_after(RESTART_WINDOW_SECONDS + 1.5) == 4.0


def test_a_death_is_told_once_and_the_child_started_again() -> None:
    scene = Scene()
    scene.watch.look()
    assert (scene.said, scene.child.starts) == ([], 0)
    scene.die()
    assert scene.said == [("coordinator", "SIGKILL", 1, 0.0)]
    assert (scene.child.starts, scene.other.starts) == (1, 0)
    scene.die()
    scene.watch.look()
    assert scene.said[1:] == [("coordinator", "SIGKILL", 2, 1.0)]
    assert scene.child.starts == 1, "it waits"
    scene.now += 1
    scene.watch.look()
    assert scene.child.starts == 2


def test_who_dies_again_and_again_is_given_up_with_its_last_words() -> None:
    scene = Scene()
    for _ in range(RESTARTS_MAX):
        scene.die()
        scene.now += 9
        scene.watch.look()
        assert scene.child.how is None
    with pytest.raises(CommandFailed, match=r"restarts_max \(5\) in 60 s") as failed:
        scene.die()
    assert "its last words" in str(failed.value)
    assert scene.child.starts == RESTARTS_MAX

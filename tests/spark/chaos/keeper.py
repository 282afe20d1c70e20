"""Whoever runs the job: starts another driver where one has died, as a scheduler would."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.spark.chaos.driver import STARTS_S, Driver
from tests.spark.too_busy import is_too_busy

LOCAL: Final = "local[2,4]"
# Two executors with a core each; a task may fail three times, as above.
LOCAL_CLUSTER: Final = "local-cluster[2,1,512]"
# What an error calls itself, in a traceback of Python or of the JVM.
_NAMED: Final = re.compile(r"^(?:Caused by: )?[\w.$]*?(\w+): ", re.MULTILINE)
_CODE: Final = re.compile(r"^\[(\w+)", re.MULTILINE)


class Keeper:
    """One job: one checkpoint, one name, one driver after the other."""

    def __init__(self, bootstrap: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.checkpoint = folder / "checkpoint"
        self._bootstrap = bootstrap
        self._folder = folder
        self._environment = environment
        self._all: list[Driver] = []
        self.master = LOCAL
        # A fault may want a dead driver to stay dead for a moment.
        self.tends = True

    @property
    def driver(self) -> Driver:
        """The newest."""
        return self._all[-1]

    @property
    def drivers(self) -> int:
        return len(self._all)

    def start(self, master: str | None = None) -> Driver:
        """Another driver, beside those that run."""
        self.master = master or self.master
        number = len(self._all)
        local = self._folder / "spark" / str(number)
        local.mkdir(parents=True)
        made = Driver(
            [self._bootstrap, str(self.checkpoint), self.master, str(local)],
            self._folder / f"driver-{number}.log",
            self._environment,
            self.master,
        )
        self._all.append(made)
        return made

    def tend(self) -> None:
        if self.tends and not self.driver.is_running:
            self.driver.end()
            self.start()

    def end_older(self) -> None:
        """Only the newest goes on."""
        for driver in self._all[:-1]:
            driver.end()

    def end_newest(self) -> None:
        """The one before it goes on, where it lives."""
        if len(self._all) > 1 and self._all[-2].is_running:
            newest = self._all.pop()
            newest.end()
            self._all.insert(0, newest)

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def finish(self) -> None:
        """As its owner ends a job, with nothing left over."""
        self.end_older()
        self.driver.tell("end")
        assert self.driver.wait(STARTS_S), "the driver does not end"
        self.driver.end()

    def kill_all(self) -> None:
        for driver in self._all:
            driver.end()

    def too_busy(self) -> int:
        """How many queries failed of a machine that is too busy for Spark."""
        return sum(is_too_busy(text) for driver in self._all for text in driver.failures())

    def failures(self) -> Counter[str]:
        """What queries failed of, by the innermost name in what Spark said."""
        return Counter(reason(text) for driver in self._all for text in driver.failures())


def reason(text: str) -> str:
    if is_too_busy(text):
        return "a busy machine"
    named = [name for name in _NAMED.findall(text) if name not in ("Traceback", "JVM")]
    codes = _CODE.findall(text)
    return named[-1] if named else codes[-1] if codes else text[:60]

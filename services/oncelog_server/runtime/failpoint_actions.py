"""What happens at a failpoint of a real process, by the environment variable ONCELOG_FAILPOINTS:

    ONCELOG_FAILPOINTS='driver.append.after=kill@3 etcd.txn.before=stop@1'

`kill` is SIGKILL and `stop` SIGSTOP, to this process, at the n-th passing (from 1; default 1).
`lose` tells the caller that the reply was lost (only at `serve...after`), `repeat` lets a request
come twice and `late` once more, later (only at `serve...before`). What happens is said on stderr
first. For tests: unset, nothing of this is composed in.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from oncelog_server.core import failpoints
from oncelog_server.core.failpoints import NAMES, Repeat
from oncelogpb.errors import UnknownOutcome

VARIABLE: Final = "ONCELOG_FAILPOINTS"
_SETTING: Final = re.compile(r"(?P<name>[\w.]+)=(?P<action>\w+)(@(?P<passing>[1-9]\d*))?")


class Armed(NamedTuple):
    """`passing` counts from 1."""

    action: str
    passing: int


def arm_from_environment(environment: Mapping[str, str] = os.environ) -> bool:
    """True where failpoints are set. Raises ValueError naming the setting that is wrong."""
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return False
    failpoints.arm(_Hook(parse(text)))
    return True


def parse(text: str) -> dict[str, Armed]:
    """Raises ValueError."""
    armed: dict[str, Armed] = {}
    for setting in text.split():
        found = _SETTING.fullmatch(setting)
        if found is None:
            raise ValueError(f"{VARIABLE}: {setting!r} is not <failpoint>=<action>@<passing>")
        name, action = found["name"], found["action"]
        if name not in NAMES:
            raise ValueError(f"{VARIABLE}: no failpoint {name!r}; see core/failpoints.py")
        if action not in _ACTIONS or not _stands_at(action, name):
            raise ValueError(f"{VARIABLE}: {action!r} cannot happen at {name}")
        armed[name] = Armed(action, int(found["passing"] or 1))
    return armed


class _Hook:
    """Counts passings, from whichever thread they come."""

    def __init__(self, armed: Mapping[str, Armed]) -> None:
        self._armed = armed
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> Repeat | None:
        armed = self._armed.get(name)
        if armed is None:
            return None
        with self._lock:
            self._passed[name] += 1
            due = self._passed[name] == armed.passing
        if not due:
            return None
        print(said(name, armed.action), file=sys.stderr, flush=True)
        return _ACTIONS[armed.action]()


def said(name: str, action: str) -> str:
    """The line on stderr by which a test sees that it came to that."""
    return f"failpoint {name}: {action}"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _lose() -> None:
    raise UnknownOutcome("a failpoint lost the reply")


_ACTIONS: Final[Mapping[str, Callable[[], Repeat | None]]] = {
    "kill": _kill,
    "stop": _stop,
    "lose": _lose,
    "repeat": lambda: Repeat.AT_ONCE,
    "late": lambda: Repeat.LATE,
}
_ONLY_AT: Final = {
    "lose": re.compile(r"serve\..*\.after"),
    "repeat": re.compile(r"serve\..*\.before"),
    "late": re.compile(r"serve\..*\.before"),
}


def _stands_at(action: str, name: str) -> bool:
    return action not in _ONLY_AT or _ONLY_AT[action].fullmatch(name) is not None

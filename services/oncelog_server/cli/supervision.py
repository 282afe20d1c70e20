"""What `oncelog up` does when a child of its dies: says so and starts it again, after a pause that
doubles; and where it dies again and again, gives up, for then somebody has to look.

    died ──► the first time within the window: again at once
         ──► later ones: after 1, 2, 4, 8 seconds
         ──► above RESTARTS_MAX within the window: the end, with its last words

Left out: children that live and do nothing; before all was ready once, a death is the end, for then
it is a setting or a port that is wrong.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from oncelog_server.cli.failures import ETCD_REFUSED, CommandFailed
from oncelog_server.cli.processes import Service, show_exit
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, EtcdFailed

# Restarts of one child within the window; one more death is the end.
RESTARTS_MAX: Final = 5
RESTART_WINDOW_SECONDS: Final = 60.0
FIRST_PAUSE_SECONDS: Final = 1.0


class Restarts:
    """Of one child: PURE, times are arguments."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    @property
    def count(self) -> int:
        """Within the window."""
        return len(self._deaths)

    def pause_after(self, died_at: float) -> float | None:
        """Seconds to wait before it is started again; None: it died too often."""
        while self._deaths and self._deaths[0] <= died_at - RESTART_WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) >= RESTARTS_MAX:
            return None
        self._deaths.append(died_at)
        return FIRST_PAUSE_SECONDS * 2 ** (self.count - 2) if self.count > 1 else 0.0


class Child(Protocol):
    """What is watched."""

    @property
    def name(self) -> str: ...

    def end(self) -> str | None:
        """How it ended; None while it runs. Raises CommandFailed where a restart cannot help."""
        ...

    def last_words(self) -> str: ...

    def start_again(self) -> None:
        """Raises CommandFailed."""
        ...


class ServiceChild:
    """One service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.name = service.name

    def end(self) -> str | None:
        service = self._service
        if service.exit_code == ETCD_REFUSED:
            raise CommandFailed(
                f"{service.name} does not work with the etcd of this folder:\n{service.tail()}\n"
                "If etcd's data was removed or restored, `oncelog up --recover` rebuilds it from "
                "the data of the services, which is untouched."
            )
        return None if service.exit_code is None else show_exit(service.exit_code)

    def last_words(self) -> str:
        return f"The end of its log, {self._service.log}:\n{self._service.tail()}"

    def start_again(self) -> None:
        self._service.start()


class EtcdChild:
    """etcd. The services know it by its address, so it must come back there."""

    name = "etcd"

    def __init__(self, etcd: EmbeddedEtcd) -> None:
        self._etcd = etcd

    def end(self) -> str | None:
        return None if self._etcd.alive() else "it ended by itself"

    def last_words(self) -> str:
        return f"See its log, {self._etcd.log_path}"

    def start_again(self) -> None:
        before = self._etcd.endpoint
        try:
            self._etcd.start()
        except EtcdFailed as error:
            raise CommandFailed(str(error)) from error
        if self._etcd.endpoint != before:
            raise CommandFailed(
                f"etcd ended, and its address {before} was taken meanwhile; start `oncelog up` "
                "again: it gives the services the new one"
            )


class Watch:
    """Of all children. `say(name, how, restarts, pause_seconds)` is told of each death."""

    def __init__(
        self,
        children: Sequence[Child],
        say: Callable[[str, str, int, float], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = children
        self._say = say
        self._now = now
        self._restarts = {child.name: Restarts() for child in children}
        # When those that are dead are started again.
        self._due: dict[str, float] = {}

    def look(self) -> None:
        """Several times a second. Raises CommandFailed where a child cannot be kept alive."""
        for child in self._children:
            how = child.end()
            if how is None:
                continue
            if child.name not in self._due:
                self._due[child.name] = self._now() + self._pause_after(child, how)
            if self._now() >= self._due[child.name]:
                del self._due[child.name]
                child.start_again()

    def _pause_after(self, child: Child, how: str) -> float:
        restarts = self._restarts[child.name]
        pause = restarts.pause_after(self._now())
        if pause is None:
            raise CommandFailed(
                f"{child.name} ended by itself again ({how}): that is more than restarts_max "
                f"({RESTARTS_MAX}) in {RESTART_WINDOW_SECONDS:.0f} s. {child.last_words()}"
            )
        self._say(child.name, how, restarts.count, pause)
        return pause

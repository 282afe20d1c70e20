"""What a Python worker of Spark has imported is not searched for garbage after each task.

Spark's workers collect garbage after every task. Ours have imported Arrow, gRPC and the client by
then, some 70,000 objects that live as long as the worker: each search of them takes 36 ms of a core
(measured), in each of the four workers that a micro-batch meets. So they are frozen once, when all
of them are there: the collector passes them over from then on.

Invariant: nothing is frozen in a program of the user's, only in a process that Spark's daemon has
forked; and a few times in its life at most, for what is frozen is never collected.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

# Processes of this module fork workers, and these collect after each task.
DAEMON: Final = "pyspark.daemon"
# Of one process: modules are imported when they are needed, the last of them with the first rows.
FREEZES_MAX: Final = 3

_frozen_with_modules: list[int] = []


def freeze_imports() -> None:
    """Freezes what is alive, where modules have come since the last time. Cheap to repeat."""
    if not _collects_after_each_task() or len(_frozen_with_modules) >= FREEZES_MAX:
        return
    modules = len(sys.modules)
    if _frozen_with_modules and _frozen_with_modules[-1] >= modules:
        return
    _frozen_with_modules.append(modules)
    # Else what is garbage by now would stay for ever.
    gc.collect()
    gc.freeze()


def _collects_after_each_task() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == DAEMON

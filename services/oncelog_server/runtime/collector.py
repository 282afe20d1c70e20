"""How Python's garbage collector behaves in a service.

A machine's state is many small objects that live long and are hardly ever part of a cycle. With
Python's thresholds the collector walks over all of them again and again, the more often the more
there are. What cycles there are (exceptions, tasks) is little, and may wait.
"""

from __future__ import annotations

import gc
from typing import Final

# Allocations until the young are looked at, and looks until the next older ones are looked at too.
THRESHOLDS: Final = (50_000, 20, 20)


def calm_collector() -> None:
    """For the rest of this process. What is there already (modules, classes) is not looked at."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)

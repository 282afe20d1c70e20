"""How long each kind of fault kept the service from committing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

# What the project aims at, for any one machine's death.
AIM_S = 10.0


def table(times: Mapping[str, Sequence[float]]) -> str:
    """One line for each kind; seconds from the fault until *every* prober has committed a
    transaction that it began after it."""
    lines = [f"{'fault':34} {'times':>5} {'min':>6} {'median':>6} {'max':>6}  seconds to commits"]
    for kind, seconds in times.items():
        if seconds:
            slow = f"  above {AIM_S:g} s" if max(seconds) > AIM_S else ""
            lines.append(
                f"{kind:34} {len(seconds):5} {min(seconds):6.2f} "
                f"{statistics.median(seconds):6.2f} {max(seconds):6.2f}{slow}"
            )
    return "\n".join(lines)

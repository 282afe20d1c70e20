"""`python -m tests.simulation`: many seeds, as `sim` says.

Branches are watched before anything else is imported."""

from __future__ import annotations

import sys

from tests.simulation import branches

branches.watch()

from tests.simulation.sim import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())

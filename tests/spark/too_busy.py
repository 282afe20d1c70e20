"""What Spark says where a machine is too busy for it: it gives a Python worker of a source ten
seconds to start, whatever is set. No test is about that: whoever starts a query starts it again."""

from __future__ import annotations

from typing import Final

# So often, at most.
STARTS_MAX: Final = 20
_SAYS: Final = "Python worker failed to connect back"


def is_too_busy(said: object) -> bool:
    """Whether a query failed of that, from its exception or a log."""
    return _SAYS in str(said)

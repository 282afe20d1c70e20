"""`oncelog`, `python -m services.cli`, and what each role's `python -m services.<role>` calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services.cli.app import oncelog


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0 done, 1 refused, 2 wrong usage, 3 nobody answers."""
    oncelog.main(args=None if arguments is None else list(arguments), prog_name="oncelog")


def serve_role(role: str) -> None:
    """`oncelog serve ROLE` with this process's arguments."""
    main(["serve", role, *sys.argv[1:]])


if __name__ == "__main__":
    main()

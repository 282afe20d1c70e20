"""`oncelog`, also as `python -m oncelog_server.cli`, and what each role's `__main__` calls."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from oncelog_server.cli import interrupts

# Before what takes long to import.
interrupts.end_at_once()

from oncelog_server.cli.app import oncelog  # noqa: E402

# Set, a fault of ours ends with its traceback.
TRACEBACK_VARIABLE: Final = "ONCELOG_TRACEBACK"
# Why a write to stdout fails, other than a pipe that nobody reads, which ends a command silently.
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


# gRPC writes a line for every handshake that fails, in words for who knows its source. We say it
# ourselves, and whoever tries ports of a service would fill its log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0 done, 1 refused, 2 wrong usage, 3 nobody answers."""
    _open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        oncelog.main(args=words, prog_name="oncelog")
    except Exception as error:
        # A service's output is its log, where a fault wants its traceback.
        if words[:1] == ["serve"] or os.environ.get(TRACEBACK_VARIABLE):
            raise
        _end(_told(error))


def _told(error: Exception) -> str:
    """What went wrong, in words for whoever typed the command."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
        # An error of a file that a command opened names it; that of a stream does not. What is
        # still buffered is tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return f"cannot write what there is to print: {error.strerror}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return (
        f"{text}. This should not happen: please report it, with what "
        f"{TRACEBACK_VARIABLE}=1 shows before the same command"
    )


def _end(message: str) -> NoReturn:
    # Imported here: it takes as long as all else.
    from oncelog_server.cli.failures import CommandFailed

    failure = CommandFailed(message)
    failure.show()
    sys.exit(failure.exit_code)


def _open_streams() -> None:
    """Opens what the caller closed: the next file or socket would get its number, and with it what
    is printed, also by libraries."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest number that is free.
            opened = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(opened, "w" if number else "r"))


def serve_role(role: str) -> None:
    """`oncelog serve ROLE` with this process's arguments."""
    main(["serve", role, *sys.argv[1:]])


if __name__ == "__main__":
    main()

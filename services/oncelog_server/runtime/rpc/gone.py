"""Callers that have gone when their answer goes out: they gave up, or their connection broke. That
is no fault of anybody here, and there is nobody left to tell.

gRPC says so by an ExecuteBatchError out of whatever was being sent. Where it sends itself (the
reply of a unary call, the status at the end of any), it logs the error with a traceback, unless it
has heard already that the caller is gone: at the deadline both happen at once.
"""

from __future__ import annotations

import logging
from typing import Final

# What the paths of our services begin with.
OURS: Final = "/oncelogpb.v1."
# Who logs it, and under what name of an exception: it is not exported.
_LOGGER: Final = "grpc._cython.cygrpc"
_ERROR: Final = "ExecuteBatchError"


def is_gone(error: BaseException) -> bool:
    """What was sent to a caller could not be, because it is not there any more."""
    return type(error).__name__ == _ERROR


class _NobodyLeft(logging.Filter):
    """Lets pass everything but that, said of a call of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not is_gone(error) or OURS not in record.getMessage()


_FILTER: Final = _NobodyLeft()


def keep_quiet() -> None:
    """For this process, from now on. Calling it again changes nothing."""
    logging.getLogger(_LOGGER).addFilter(_FILTER)

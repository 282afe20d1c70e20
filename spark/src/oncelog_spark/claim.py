"""A query's claim on its group: while it holds, nobody joins, and the query commits alone.

The offset manager decides claims and joins one after the other, so that either members are there
and the query is refused, or the query is there and members are, with an error that names it. A
claim lasts for some seconds; a thread of the reader's process renews it while batches run. One that
was lost (the process stood still) is made again with the next batch, or refused where members have
come; what the query commits in between, they being there, is refused as well.

Released where the query stops. Spark ends the reader's process by SIGTERM then, which would end it
without a word: so it is made to unwind, and Spark's own `finally` calls `stop` of the reader. The
claim of a process that died is over by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import uuid
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Final

from oncelog_spark.living_members import require_no_members
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# Renewed three times while it lasts (10 s, what the offset manager gives): two may be lost.
RENEWED_EVERY_S: Final = 3.0
RENEWAL_TIMEOUT_MS: Final = 3_000
# At the beginning of a query, or of a batch.
CLAIM_TIMEOUT_MS: Final = 60_000
# Of who is named to members that are refused, in bytes.
HOLDER_BYTES_MAX: Final = 255


class Claim:
    """Of one query's run, in the process of its reader."""

    def __init__(self, protocol: Protocol, group: str, what: str) -> None:
        """`what`: the query, in words. Nobody is kept out before `hold`."""
        self._protocol = protocol
        self._group = group
        self._id = uuid.uuid4().hex
        holder = f"{what} ({socket.gethostname()}, process {os.getpid()})"
        self._holder = holder.encode()[:HOLDER_BYTES_MAX].decode(errors="ignore")
        self._over = threading.Event()
        self._renewing: threading.Thread | None = None

    def hold(self) -> None:
        """From now on, or on. Raises GroupHasMembers, OncelogError."""
        try:
            self._ask(CLAIM_TIMEOUT_MS)
        except errors.UnknownMember:
            # By name; where they have left meanwhile, the claim is there for the taking.
            require_no_members(self._protocol, self._group)
            self._ask(CLAIM_TIMEOUT_MS)
        if self._renewing is None:
            _unwind_at_sigterm()
            self._renewing = threading.Thread(
                target=_renew, args=(weakref.ref(self), self._over), name="claim", daemon=True
            )
            self._renewing.start()

    def release(self) -> None:
        """Members may join at once. Where that is not heard, in some seconds."""
        self._over.set()
        if self._renewing is not None:
            # Else what it sends last might come after this.
            self._renewing.join(RENEWAL_TIMEOUT_MS / 1000)
            with contextlib.suppress(errors.OncelogError):
                self._ask(RENEWAL_TIMEOUT_MS, release=True)

    def renew(self) -> None:
        """Who joined meanwhile is told of at the next batch."""
        with contextlib.suppress(errors.OncelogError):
            self._ask(RENEWAL_TIMEOUT_MS)

    def _ask(self, timeout_ms: int, *, release: bool = False) -> None:
        request = offset_manager_pb2.ClaimGroupRequest(
            group=self._group, claim_id=self._id, holder=self._holder, release=release
        )
        self._protocol.call("offset_manager.claim_group", request, timeout_ms=timeout_ms)


def _unwind_at_sigterm() -> None:
    """In a process that does nothing of its own about it."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _unwind)


def _unwind(number: int, frame: FrameType | None) -> None:
    # Spark sends it twice, and the second one would end what the first one has begun.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _renew(held: weakref.ref[Claim], over: threading.Event) -> None:
    while not over.wait(RENEWED_EVERY_S):
        claim = held()
        if claim is None:
            return
        claim.renew()
        del claim

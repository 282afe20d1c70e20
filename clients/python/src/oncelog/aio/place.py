"""Where the one transaction of a producer stands, and what each of them is made with."""

from __future__ import annotations

import asyncio
from typing import Protocol

from oncelog.aio.line import Line
from oncelog.aio.producer import OnDelivery
from oncelog.aio.recorder import Sticky
from oncelog.aio.registration import Registration
from oncelog.options import ProducerOptions
from oncelogpb import errors


class Occupant(Protocol):
    """A transaction, as its place sees it."""

    @property
    def ended(self) -> bool: ...

    async def give_up(self, why: errors.OncelogError) -> None: ...

    def build_on(self, refused: errors.OncelogError) -> bool: ...


class Place:
    """Where a producer's one transaction stands that is being filled, the line of those whose
    commits are on their way, and what each of its transactions is made with."""

    def __init__(
        self,
        registration: Registration,
        options: ProducerOptions,
        sticky: Sticky,
        on_delivery: OnDelivery | None,
    ) -> None:
        self.registration = registration
        self.options = options
        self.sticky = sticky
        self.on_delivery = on_delivery
        self.loop = asyncio.get_running_loop()
        self._current: Occupant | None = None
        self.line = Line(
            registration.protocol, registration, options.in_flight, on_trouble=self._tell_current
        )
        # The shortest session of members whose offsets came by send_offsets, milliseconds; 0: none
        # did. The next ones may come when their transaction is open already.
        self._session_ms = 0

    def timeout_ms_for(self, session_ms: int) -> int:
        """Of a transaction for which nobody chose one: what a member consumed is another one's
        after its session. 0: no member feeds it, the coordinator's default."""
        return min(filter(None, (session_ms, self._session_ms)), default=0)

    def timeout_within(self, session_ms: int, timeout_ms: int, *, has_begun: bool) -> int:
        """Of a transaction with that timeout, once a member with that session has sent offsets.
        Raises InvalidTimeout where it has begun with more; this producer's next ones will not."""
        self._session_ms = self.timeout_ms_for(session_ms)
        if session_ms and has_begun and timeout_ms > session_ms:
            raise errors.InvalidTimeout(
                f"this transaction began, by large sends or flush, with a timeout of {timeout_ms} "
                f"ms, and the session of the member whose offsets it is sent is {session_ms} ms: "
                f"abort it; give `transaction` a timeout_ms={session_ms}, or call send_offsets "
                "before large sends"
            )
        return min(timeout_ms, session_ms or timeout_ms)

    def occupy(self, transaction: Occupant) -> None:
        """Raises InvalidArgument where another transaction is under way; Closed, ProducerFenced;
        why one in flight was not committed, where nobody was told."""
        self.line.require_no_trouble()
        self.registration.require_usable()
        # One that has ended may not have been left: an interrupt came before its block.
        if self._current is not None and not self._current.ended:
            raise errors.InvalidArgument(
                "this producer has a transaction under way: abort it, or use another producer"
            )
        self._current = transaction

    def vacate(self, transaction: Occupant) -> None:
        if self._current is transaction:
            self._current = None

    async def give_up(self, why: errors.OncelogError) -> None:
        """Ends the transaction that stands here: see its `give_up`."""
        if self._current is not None:
            await self._current.give_up(why)
        await self.line.empty()

    def _tell_current(self, refused: errors.OncelogError) -> bool:
        """True where there is one that is told."""
        return self._current is not None and self._current.build_on(refused)

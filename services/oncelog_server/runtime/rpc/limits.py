"""What one process accepts over gRPC. Each limit has a name, and its error says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oncelogpb.errors import InvalidArgument, Throttled, TooLarge

# When a throttled caller should come back, milliseconds.
RETRY_AFTER_MS: Final = 50


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """Limits of one RpcServer."""

    # Largest message of a request or a reply, bytes: TOO_LARGE above. What is more than twice as
    # large is refused by the transport, which names no limit.
    message_bytes_max: int = 32 * 1024 * 1024
    # Fields of a request, those of the messages in it included: TOO_LARGE above. Two bytes of a
    # request can become a hundred in memory. Markers are exempt.
    message_fields_max: int = 500_000
    # Requests whose handlers run, over all callers, bytes: THROTTLED above. A request that comes
    # alone is always taken. Markers, replication and metadata are exempt.
    inflight_bytes_max: int = 256 * 1024 * 1024
    # Calls of one stream that are not answered yet: THROTTLED above.
    stream_calls_max: int = 8_192
    # Bytes of answers on one stream that its caller has not read yet: above, it is not read either,
    # and what it asked before is answered later. A caller that reads none costs no more than this,
    # and what its calls under way are answered: for fetches, connection_unread_bytes_max.
    stream_answer_bytes_max: int = 64 * 1024 * 1024
    # Bytes of fetched records that one connection has not read yet: above, its further fetches
    # wait, and are THROTTLED where their time ends first. One that comes alone is always taken. Its
    # subscriptions get smaller replies from half of it on, down to 64 KiB or one batch.
    connection_unread_bytes_max: int = 64 * 1024 * 1024
    # The same of all connections: above, each may have one fetch at a time.
    unread_bytes_max: int = 256 * 1024 * 1024
    # Calls under way at once, over all callers and their streams: THROTTLED above. Danger: some KiB
    # of memory each. On streams, markers and metadata are exempt.
    calls_max: int = 65_536
    # Streams open at once, over all callers: THROTTLED above. Those of followers are counted apart.
    streams_max: int = 4_096
    # Connections open at once, over all callers: the next ones are closed as they come, and their
    # callers are told UNAVAILABLE by the transport, which names no limit. Danger: each takes an
    # open file, and a leader that gets no file loses its leadership.
    connections_max: int = 8_192
    # Calls at once on one connection; HTTP/2 makes a client wait above.
    connection_calls_max: int = 1_024
    # How long a call may take whose caller gives no timeout, milliseconds.
    default_timeout_ms: int = 30_000
    # The longest timeout there is, milliseconds.
    timeout_ms_max: int = 600_000

    def __post_init__(self) -> None:
        assert self.default_timeout_ms <= self.timeout_ms_max
        for name in self.__slots__:
            assert getattr(self, name) > 0, f"{name} must be positive"

    def timeout_ms(self, asked_ms: int) -> int:
        """How long a call may take that asked for so much; 0 is the default."""
        return min(asked_ms or self.default_timeout_ms, self.timeout_ms_max)


# Above this, the transport closes its ears. Between, a caller is told the limit by name.
TRANSPORT_BYTES_FACTOR: Final = 2


class Inflight:
    """The calls whose handlers run, and the bytes of their requests. Invariant: never below 0."""

    __slots__ = ("_limits", "bytes", "calls")

    def __init__(self, limits: RpcLimits) -> None:
        self.bytes = 0
        self.calls = 0
        self._limits = limits

    def refusal(self, size: int) -> Throttled | None:
        """Why one more of that size may not be added now. Size 0 is of one that is exempt."""
        if self.calls >= self._limits.calls_max:
            return throttled("calls_max", self._limits.calls_max)
        if size and self.bytes and self.bytes + size > self._limits.inflight_bytes_max:
            return throttled("inflight_bytes_max", self._limits.inflight_bytes_max)
        return None

    def add(self, size: int) -> None:
        self.bytes += size
        self.calls += 1

    def remove(self, size: int) -> None:
        self.bytes -= size
        self.calls -= 1
        assert self.bytes >= 0, "more was given back than taken"
        assert self.calls >= 0, "more ended than began"


def message_too_large(what: str, size: int, maximum: int) -> TooLarge:
    """The refusal of a message that will never do."""
    return TooLarge(
        f"{what} of {size} bytes is above message_bytes_max = {maximum}; ask for less at once",
        limit="message_bytes_max",
        maximum=maximum,
    )


def throttled(limit: str, maximum: int) -> Throttled:
    """The refusal at a limit that passes by itself."""
    return Throttled(
        f"{limit} = {maximum} is reached; come back in {RETRY_AFTER_MS} ms",
        limit=limit,
        maximum=maximum,
        retry_after_ms=RETRY_AFTER_MS,
    )


def undecodable(what: str, cause: Exception) -> InvalidArgument:
    """The refusal of bytes that are not the message they should be."""
    return InvalidArgument(f"not a {what} message: {cause}")


# Between services: a marker may name a million writers.
EXEMPT_FROM_FIELDS: Final = frozenset({"Participant", "Replication"})
# Who is not heard for a while loses what he holds, so these are charged to a quota that is used up,
# and let in.
SIGNS_OF_LIFE: Final = frozenset({("OffsetManager", "heartbeat"), ("OffsetManager", "claim_group")})
EXEMPT_FROM_INFLIGHT: Final = frozenset({"Participant", "Replication", "Cluster"})

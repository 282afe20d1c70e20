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
    # wait, and are THROTTLED where their time ends first. One that comes alone is always taken.
    connection_unread_bytes_max: int = 64 * 1024 * 1024
    # Unary calls under way at once, over all callers: THROTTLED above.
    calls_max: int = 65_536
    # Streams open at once, over all callers: THROTTLED above.
    streams_max: int = 4_096
    # Calls at once on one connection; HTTP/2 makes a client wait above.
    connection_calls_max: int = 1_024
    # What a caller that gives no timeout gets, and the longest there is, milliseconds.
    default_timeout_ms: int = 30_000
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
    """Bytes of the requests whose handlers run. Invariant: never below 0."""

    __slots__ = ("_bytes", "_maximum")

    def __init__(self, maximum: int) -> None:
        self._bytes = 0
        self._maximum = maximum

    @property
    def bytes(self) -> int:
        return self._bytes

    def has_room(self, size: int) -> bool:
        return self._bytes == 0 or self._bytes + size <= self._maximum

    def add(self, size: int) -> None:
        self._bytes += size

    def remove(self, size: int) -> None:
        self._bytes -= size
        assert self._bytes >= 0, "more was given back than taken"


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
EXEMPT_FROM_INFLIGHT: Final = frozenset({"Participant", "Replication", "Cluster"})

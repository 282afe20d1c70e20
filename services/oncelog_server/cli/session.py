"""What every command that talks to a cluster has: where it is (`connection`), how long to wait, how
to print.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from oncelog_server.cli import interrupts, output
from oncelog_server.cli.connection import Connection, connection_options
from oncelog_server.cli.direct import Direct
from oncelog_server.cli.failures import ETCD_AWAY, UNREACHABLE_REASONS, Refused
from oncelog_server.core.printable import printable_lines

# The client takes half a second to import: who asks for help does not wait for it.
if TYPE_CHECKING:
    import oncelog
    from oncelog.aio.admin_groups import GroupAdmin
    from oncelog.options import Tls
    from oncelog.protocol import Protocol
    from oncelogpb.errors import OncelogError
    from oncelogpb.v1 import partition_leader_pb2

# How long the search for the cause of an error may take.
CAUSE_TIMEOUT_MS: Final = 1_000

P = ParamSpec("P")
R = TypeVar("R")


class Session:
    """One command's connection, made at its first use."""

    def __init__(self, connection: Connection, *, as_json: bool) -> None:
        self.as_json = as_json
        self.timeout_ms = connection.timeout_ms
        self.bootstrap = connection.bootstrap
        self.tls = connection.tls
        self._connection = connection
        self._protocol: Protocol | None = None

    @property
    def protocol(self) -> Protocol:
        if self._protocol is None:
            self._protocol = open_protocol(self.bootstrap, timeout_ms=self.timeout_ms, tls=self.tls)
        return self._protocol

    def call(self, method: str, request: Any) -> Any:
        """Raises OncelogError."""
        return self.protocol.call(method, request)

    def of_groups(self, work: Callable[[GroupAdmin], Coroutine[Any, Any, R]]) -> R:
        """What users get from `log.admin`. Raises OncelogError."""
        with interrupts.importing():
            from oncelog.aio.admin_groups import GroupAdmin

        return self.protocol.run(lambda protocol: work(GroupAdmin(protocol)))

    def direct(self) -> Direct:
        """For calls to one process each. A context."""
        return Direct(self._connection)

    def listed(self, method: str, request: Any, *, limit: int = 0) -> tuple[list[Any], bool]:
        """All items of a listing, page by page, or the first `limit` of them; and whether there are
        more. Raises OncelogError."""
        from oncelog._core import paging

        items: list[Any] = []
        while request is not None and not (limit and len(items) >= limit):
            reply = self.call(method, request)
            items += getattr(reply, paging.LISTINGS[method].items)
            request = paging.following(method, request, reply)
        if not limit:
            return items, False
        return items[:limit], request is not None or len(items) > limit

    def topic(self, name: str) -> partition_leader_pb2.TopicDescription:
        """As the cluster says now. Raises UnknownTopic."""
        from oncelogpb.v1 import partition_leader_pb2

        request = partition_leader_pb2.DescribeTopicsRequest(names=[name])
        described: partition_leader_pb2.DescribeTopicsReply = self.call(
            "partition_leader.describe_topics", request
        )
        return described.topics[0]

    def topic_names(self) -> Mapping[bytes, str]:
        """Names by topic id, control topics included."""
        from oncelogpb.v1 import partition_leader_pb2

        request = partition_leader_pb2.ListTopicsRequest(internal=True, names_only=True)
        listed: partition_leader_pb2.ListTopicsReply = self.call(
            "partition_leader.list_topics", request
        )
        return {topic.topic_id: topic.name for topic in listed.topics}

    def connect(self) -> oncelog.Log:
        """The client that users have."""
        with interrupts.importing():
            import oncelog

        return oncelog.connect(self.bootstrap, timeout_ms=self.timeout_ms, tls=self.tls)

    def say(self, text: str) -> None:
        """A remark for people; nothing with --json."""
        if not self.as_json:
            output.error_console().print(printable_lines(text), markup=False)

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


def open_protocol(bootstrap: str, *, timeout_ms: int, tls: Tls | None) -> Protocol:
    """A connection for calls one at a time. Raises InvalidArgument."""
    with interrupts.importing():
        from oncelog.protocol import Protocol
    return Protocol(bootstrap, timeout_ms=timeout_ms, tls=tls)


def _cause(session: Session, error: OncelogError) -> str | None:
    """Why nobody answers, where a process of the cluster knows."""
    if error.reason not in UNREACHABLE_REASONS:
        return None
    from oncelogpb.errors import OncelogError
    from oncelogpb.v1 import cluster_pb2

    try:
        metadata = session.protocol.call(
            "cluster.get_metadata", cluster_pb2.GetMetadataRequest(), CAUSE_TIMEOUT_MS
        )
    except OncelogError:
        return None
    return None if metadata.etcd_reachable else ETCD_AWAY


def require_bootstrap(bootstrap: str) -> None:
    """Raises UsageError where it is no list of addresses."""
    with interrupts.importing():
        from oncelog._core.routing import parse_bootstrap
        from oncelogpb.errors import InvalidArgument
    try:
        parse_bootstrap(bootstrap)
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None


def connected(command: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    """Gives a command the flags of `connection` and --json, and a Session as its first argument."""

    @_json_option
    @connection_options
    @functools.wraps(command)
    def wrapped(connection: Connection, as_json: bool, *args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in kwargs.items():
            if isinstance(value, str) and name not in _BYTES:
                _require_text(name, value)
        session = Session(connection, as_json=as_json)
        with interrupts.importing():
            from oncelogpb.errors import OncelogError
        try:
            return command(session, *args, **kwargs)
        except OncelogError as error:
            cause = _cause(session, error)
            raise Refused(error, as_json=as_json, cause=cause) from error
        finally:
            session.close()

    return wrapped


# What is taken as it was typed, in whatever encoding.
_BYTES: Final = frozenset({"delimiter", "form", "key", "key_separator"})
_json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of tables."
)
json_option: Final = _json_option


def _require_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        shown = value.encode(errors="backslashreplace").decode()
        raise click.UsageError(f"{name.replace('_', ' ')} '{shown}' is not UTF-8") from None

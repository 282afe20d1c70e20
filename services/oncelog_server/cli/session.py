"""What every command that talks to a cluster has: where it is, how long to wait, how to print.

The cluster is named by --bootstrap, else ONCELOG_BOOTSTRAP, else by the `oncelog up` that runs over
./.oncelog, else it is on this machine's usual ports.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from oncelog_server.cli import interrupts, output
from oncelog_server.cli.failures import Refused
from oncelog_server.cli.running import DEFAULT_FOLDER, running_bootstrap

# The client takes half a second to import: who asks for help does not wait for it.
if TYPE_CHECKING:
    import oncelog
    from oncelog.options import Tls
    from oncelog.protocol import Protocol
    from oncelogpb.v1 import partition_leader_pb2

DEFAULT_BOOTSTRAP: Final = "localhost:7400,localhost:7401,localhost:7402"
DEFAULT_TIMEOUT_SECONDS: Final = 15.0

P = ParamSpec("P")
R = TypeVar("R")


class Session:
    """One command's connection, made at its first use."""

    def __init__(
        self, *, bootstrap: str | None, timeout_ms: int, tls: Tls | None, as_json: bool
    ) -> None:
        self.as_json = as_json
        self.timeout_ms = timeout_ms
        self.bootstrap = bootstrap or running_bootstrap(Path(DEFAULT_FOLDER)) or DEFAULT_BOOTSTRAP
        self.tls = tls
        self._protocol: Protocol | None = None

    @property
    def protocol(self) -> Protocol:
        if self._protocol is None:
            self._protocol = open_protocol(self.bootstrap, timeout_ms=self.timeout_ms, tls=self.tls)
        return self._protocol

    def call(self, method: str, request: Any) -> Any:
        """Raises OncelogError."""
        return self.protocol.call(method, request)

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

        request = partition_leader_pb2.ListTopicsRequest(internal=True)
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
            output.error_console().print(text, markup=False)

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


def open_protocol(bootstrap: str, *, timeout_ms: int, tls: Tls | None) -> Protocol:
    """A connection for calls one at a time. Raises InvalidArgument."""
    with interrupts.importing():
        from oncelog.protocol import Protocol
    return Protocol(bootstrap, timeout_ms=timeout_ms, tls=tls)


def connected(command: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    """Gives a command the options below, and a Session as its first argument."""

    @_json_option
    @click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        envvar="ONCELOG_BOOTSTRAP",
        help="Any processes of the cluster. Default: the `oncelog up` over ./.oncelog, else "
        f"{DEFAULT_BOOTSTRAP}.",
    )
    @click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(0.1, 600),
        default=DEFAULT_TIMEOUT_SECONDS,
        show_default=True,
        help="How long each call may take, seconds.",
    )
    @click.option("--tls-ca", type=click.Path(exists=True), help="PEM file of the authority.")
    @click.option("--tls-cert", type=click.Path(exists=True), help="PEM file of your certificate.")
    @click.option("--tls-key", type=click.Path(exists=True), help="PEM file of its key.")
    @functools.wraps(command)
    def wrapped(
        bootstrap: str | None,
        timeout_seconds: float,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        as_json: bool,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        for name, value in kwargs.items():
            if isinstance(value, str) and name != "key_separator":
                _require_text(name, value)
        session = Session(
            bootstrap=bootstrap,
            timeout_ms=int(timeout_seconds * 1000),
            tls=_tls(tls_ca, tls_cert, tls_key),
            as_json=as_json,
        )
        with interrupts.importing():
            from oncelogpb.errors import OncelogError
        try:
            return command(session, *args, **kwargs)
        except OncelogError as error:
            raise Refused(error, as_json=as_json) from error
        finally:
            session.close()

    return wrapped  # type: ignore[return-value]


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


def _tls(ca: str | None, certificate: str | None, key: str | None) -> Tls | None:
    if ca is None and certificate is None and key is None:
        return None
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together.")
    with interrupts.importing():
        from oncelog.options import Tls
    return Tls(ca_file=ca, certificate_file=certificate, key_file=key)

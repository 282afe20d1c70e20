"""How the command says no: reason, message, what to do, and an exit code that scripts can test.

0  done
1  refused: by a service, or by this command (nothing happened, unless the message says otherwise)
2  wrong usage: click says which option
3  nobody answers: no service is reachable, or none answered in time
4  `serve` only: etcd is not the one that the data belongs to; see `oncelog cluster recover`
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog_server.cli.output import error_console
from oncelog_server.core.printable import printable, printable_lines

# A command's help needs nothing of them.
if TYPE_CHECKING:
    from oncelogpb import errors

REFUSED: Final = 1
UNREACHABLE: Final = 3
ETCD_REFUSED: Final = 4

UNREACHABLE_REASONS: Final = frozenset({"UNAVAILABLE", "NOT_LEADER", "LOADING", "UNKNOWN_OUTCOME"})

# Of the client: no process was ever reached, so there is nobody to ask for a deeper cause.
CANNOT_CONNECT: Final = "CANNOT_CONNECT"

# Where a process says that etcd does not answer it: nobody may lead, whatever the error says.
ETCD_AWAY: Final = (
    "etcd does not answer the cluster's processes: nobody may lead until it does. Start it, or "
    "look at the network to it; `oncelog doctor` says more. What is stored can still be read."
)

# Where the cluster answers, and none of the processes of a role.
ROLE_AWAY: Final = (
    "Start it, or let it go on where it was stopped (`oncelog up` starts all roles, `oncelog serve "
    "ROLE` one); `oncelog doctor` says how each process is."
)

# By reason; `_general_advice` answers for the rest.
ADVICE: Final[dict[str, str]] = {
    "UNKNOWN_TOPIC": "See `oncelog topic list`; create it with `oncelog topic create NAME`.",
    "UNKNOWN_PARTITION": "See `oncelog topic describe TOPIC`.",
    "TOPIC_EXISTS": "Choose another name, or `oncelog topic delete` it first.",
    "OFFSET_OUT_OF_RANGE": "Start from `earliest` or `latest`, or an offset between start and end.",
    "NOT_FOUND": "See `oncelog group list` for groups, `oncelog tx list` for transactions.",
    "UNSUPPORTED": "The message says whether a later version has it, or another process serves it.",
    CANNOT_CONNECT: "Start it with `oncelog up`, or name the right address with --bootstrap; "
    "`oncelog profile show` says what is taken from where.",
    "UNAVAILABLE": "Start it with `oncelog up`, name it with --bootstrap, or try again later.",
    "NOT_LEADER": "Its leader is changing; try again in a few seconds.",
    "LOADING": "It is starting; try again in a few seconds.",
    "DISK_FULL": "Free some disk space where the services keep their data; reads go on meanwhile.",
    "NOT_ENOUGH_REPLICAS": "Start the missing nodes; see `oncelog topic describe`.",
    "PENDING_TRANSACTION": "A transaction holds this; see `oncelog tx list`, wait or abort it.",
    "CONCURRENT_TRANSACTION": "End the open one first; see `oncelog tx list`.",
    "PRODUCER_FENCED": "Another instance of this producer runs; stop one of them.",
    "TRANSACTION_ENDED": "It has its outcome for ever; see `oncelog tx describe TXID`.",
    "UNKNOWN_TRANSACTION": "Its outcome is no longer kept, or the id is wrong.",
    "UNKNOWN_MEMBER": "A group that has members is moved by them alone: stop its members first.",
    "STALE_POSITION": "The group has moved on; see `oncelog group describe GROUP`.",
    "UNKNOWN_OUTCOME": "It may have happened. Look before you repeat it.",
    "CORRUPT_LOG": "See docs/operating.md, `damaged files`; the other partitions go on.",
    "UNAUTHENTICATED": "Give a certificate: --tls-ca, --tls-cert and --tls-key.",
    "PERMISSION_DENIED": "Show another certificate, or have an operator allow it to this identity.",
    "INTERNAL": "Please report it, with the service's log.",
}

# Of CANNOT_CONNECT, by its problem, where the address is not what is wrong.
CONNECTING: Final[dict[str, str]] = {
    "tls_wanted": "Turn TLS on: --tls-ca names its authority, --tls takes the system's. "
    "`oncelog profile add` keeps either.",
    "tls_not_spoken": "Connect without TLS: --no-tls, and nothing of --tls-ca etc.; "
    "`oncelog profile show` says what turned it on.",
    "certificate": "Name the authority that signed it with --tls-ca, a name that it carries with "
    "--tls-server-name. One that is out of date is renewed.",
    "client_certificate": "Show one of today with --tls-cert and --tls-key, signed by an "
    "authority that the services trust; a profile can keep both.",
    "not_oncelog": "Another program listens there: name the right address with --bootstrap.",
}


class Refused(click.ClickException):
    """An OncelogError, told to a user."""

    exit_code = REFUSED

    def __init__(
        self, error: errors.OncelogError, *, as_json: bool = False, cause: str | None = None
    ) -> None:
        """`cause`: a deeper reason that was found; advice that takes the place of the usual."""
        super().__init__(message(error))
        self.error = error
        self.as_json = as_json
        self.cause = cause
        if error.reason in (*UNREACHABLE_REASONS, CANNOT_CONNECT):
            # click reads it from the instance.
            vars(self)["exit_code"] = UNREACHABLE

    def show(self, file: Any = None) -> None:
        if self.as_json:
            told = describe(self.error)
            if self.cause is not None:
                told["advice"] = self.cause
            click.echo(json.dumps({"error": told}), err=True)
            return
        from rich.markup import escape

        console = error_console()
        said = escape(printable_lines(self.message))
        console.print(f"[bold red]{self.error.reason}[/] {said}", highlight=False)
        for name, value in sorted(self.error.metadata.items()):
            console.print(f"  {name}: {escape(printable(value))}", highlight=False)
        console.print(self.cause or advice(self.error), highlight=False, markup=False)


class CommandFailed(click.ClickException):
    """This command itself could not do it: a folder in use, a child that died."""

    exit_code = REFUSED

    def show(self, file: Any = None) -> None:
        from rich.markup import escape

        error_console().print(f"[bold red]failed[/] {escape(self.message)}", highlight=False)


class RefusedEtcd(CommandFailed):
    """`serve` met an etcd that is not its own. The message says what to do."""

    exit_code = ETCD_REFUSED


def message(error: errors.OncelogError) -> str:
    """What happened. Of a first contact, without the client's advice: it names keywords of Python
    where a command has flags."""
    from oncelog.errors import CannotConnect

    return error.found if isinstance(error, CannotConnect) else error.message


def advice(error: errors.OncelogError) -> str:
    """What to do about it."""
    if error.metadata.get("etcd") == "unreachable":
        return ETCD_AWAY
    if "role" in error.metadata and error.reason == CANNOT_CONNECT:
        return ROLE_AWAY
    if error.reason == CANNOT_CONNECT and error.metadata.get("problem") in CONNECTING:
        return CONNECTING[error.metadata["problem"]]
    return ADVICE.get(error.reason) or _general_advice(error)


def describe(error: errors.OncelogError) -> dict[str, Any]:
    """For --json."""
    return {
        "reason": error.reason,
        "message": message(error),
        "retriable": error.retriable,
        "may_have_applied": error.may_have_applied,
        "metadata": dict(error.metadata),
        "advice": advice(error),
    }


def _general_advice(error: errors.OncelogError) -> str:
    if error.may_have_applied:
        return "Something may have happened. Look before you repeat it."
    if error.retriable:
        return "Nothing happened. Try again in a few seconds."
    return "Nothing happened. Change what you asked for."

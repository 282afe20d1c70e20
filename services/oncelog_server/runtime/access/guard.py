"""The one place that asks whether a call may be made. Every way a call can come passes a `Gate`
(`runtime/rpc/handling`, `server`), before its handler runs.

Invariants:
  * A call is judged in the turn of the loop in which its handler begins, by the rules of that
    moment. Where the rules change while data is on its way, it is judged again before it is given.
  * An RPC that no table names is refused.
  * What cannot be judged is not let in: an error in a table is an INTERNAL error of the call.
  * In mode WARN nothing is refused, and what would be is written down.

Rules come from the view of etcd (`learn`). Where etcd is away, the last that were heard hold.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf import json_format

from oncelog_server.core.access import (
    RULE_NAME_BYTES_MAX,
    Need,
    Pattern,
    ResourceKind,
    Rights,
    Rule,
    Verb,
)
from oncelog_server.core.needs import Entry, Tables, UnheardTopics
from oncelog_server.core.ports import Clock, Reporter
from oncelog_server.core.quotas import Quota
from oncelog_server.runtime.access.audit import Audit, Fields, LogSink, Sink
from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.access.quotas import Meter, Quotas
from oncelogpb.errors import (
    NotAllowed,
    OncelogError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

# How often a call asks etcd about topics that this process does not know.
HEARINGS_MAX: Final = 3
# A request of an admin call as it stands in the audit log, characters.
REQUEST_CHARACTERS_MAX: Final = 2_000
EXPECTED: Final = (
    "a certificate with a SPIFFE id, a common name or an alternative name, shown by the client "
    "(mTLS)"
)


class Guard:
    """One per process. Made before its listener, fed by the node: tables once, rules and quotas
    whenever they change."""

    def __init__(
        self,
        mode: Mode,
        *,
        clock: Clock,
        reporter: Reporter,
        services: Iterable[Pattern] = (),
        operators: Iterable[Pattern] = (),
        sink: Sink | None = None,
    ) -> None:
        """`services` beside the process itself, which `know_self` names. Without a sink the audit
        lines go to the process's log, and with mode OFF nowhere."""
        self.mode: Final = mode
        self.revision = 0
        self.quotas = Quotas(clock, reporter)
        self.audit = Audit(sink or LogSink(reporter), clock, reporter)
        self.is_auditing: Final = sink is not None or mode is not Mode.OFF
        self.reporter: Final = reporter
        self._services = tuple(services)
        self._operators = tuple(operators)
        self._self: Pattern | None = None
        self._rules: tuple[Rule, ...] = ()
        self._tables: Tables = {}
        self.rights = Rights()
        self._rebuild()

    # -------------------------------------------------------------------------- what it is told

    def serve(self, tables: Tables) -> None:
        """What the RPCs of this process need, by service."""
        self._tables = tables

    def know_self(self, identity: str) -> None:
        """This process's own certificate: whoever shows the same one is a service."""
        own = Pattern(identity) if identity else None
        if own != self._self:
            self._self = own
            self._rebuild()

    def learn(self, rules: Iterable[Rule], quotas: Iterable[Quota]) -> None:
        """These hold from now on."""
        self.quotas.learn(quotas)
        fresh = tuple(sorted(rules))
        if fresh != self._rules:
            self._rules = fresh
            self._rebuild()

    def _rebuild(self) -> None:
        own = () if self._self is None else (self._self,)
        self.rights = Rights(
            self._rules, services=(*own, *self._services), operators=self._operators
        )
        self.revision += 1

    # ------------------------------------------------------------------------- what it is asked

    @property
    def has_operators(self) -> bool:
        return bool(self._operators)

    def gate(self, service: str, method: str) -> Gate | None:
        """The door of one RPC. None: it stands open, and nobody looks."""
        if not self.is_auditing:
            return None
        entry = self._tables.get(service, {}).get(method)
        return Gate(self, service, method, entry)

    def meter(self, identity: str) -> Meter | None:
        """None where nothing limits this identity."""
        return self.quotas.meter(identity, self.rights.is_service)


class Gate:
    """The door of one RPC."""

    __slots__ = ("_entry", "_guard", "_what")

    def __init__(self, guard: Guard, service: str, method: str, entry: Entry | None) -> None:
        self._guard = guard
        self._what = f"{service}.{method}"
        # An RPC that no table names needs what nobody has.
        self._entry = entry or Entry(lambda request, call: (_UNLISTED,))

    async def through(
        self, handle: Callable[[Any, Any], Awaitable[Any]], request: Any, call: Any
    ) -> Any:
        """What the handler replies, as far as its caller may see it. Raises OncelogError."""
        entry = self._entry
        if entry.audited is not None and entry.audited(request):
            return await self._written_down(handle, request, call)
        # Not by `admit`: most calls pass here, and are judged at once.
        try:
            self._judge(request, call)
        except UnheardTopics:
            await self.admit(request, call)
        reply = await handle(request, call)
        if entry.gives_data:
            self.require_still(request, call)
        if entry.shown is not None and self._guard.mode is Mode.ON:
            rights, identity = self._guard.rights, call.identity
            entry.shown(reply, lambda need: rights.may(identity, need))
        return reply

    async def _written_down(
        self, handle: Callable[[Any, Any], Awaitable[Any]], request: Any, call: Any
    ) -> Any:
        """An admin call: it changes something, and its reply hides nothing."""
        outcome: str | None = "INTERNAL"
        try:
            await self.admit(request, call)
            reply = await handle(request, call)
            outcome = "ok"
            return reply
        except asyncio.CancelledError:
            outcome = "CANCELLED"
            raise
        except NotAllowed:
            # Written when it was refused.
            outcome = None
            raise
        except OncelogError as error:
            outcome = error.reason
            raise
        finally:
            if outcome is not None:
                self._guard.audit.called(self._called(request, call, outcome))

    async def admit(self, request: Any, call: Any) -> None:
        """Returns where the call may be made, in the turn of the loop in which that was judged,
        with the places of refused items in `call.refused`. Raises OncelogError."""
        for _ in range(HEARINGS_MAX):
            try:
                self._judge(request, call)
                return
            except UnheardTopics as unheard:
                topics = unheard.topics
                await asyncio.gather(*(topics.hear((id_,)) for id_ in unheard.topic_ids))
        raise Unavailable("topics that this call names come and go; try again")

    def require_still(self, request: Any, call: Any) -> None:
        """What was let in is still let in, whole: asked before data is given that was long in
        coming. Raises OncelogError."""
        if call.judged_at == self._guard.revision:
            return
        before = set(call.refused)
        self._judge(request, call)
        for place, error in call.refused.items():
            if place not in before:
                raise error

    def sees(self, call: Any, need: Need) -> bool:
        """In mode WARN everybody sees all."""
        guard = self._guard
        return guard.mode is not Mode.ON or guard.rights.may(call.identity, need)

    def not_yours(self, call: Any, producer: str) -> NotAllowed | None:
        """The caller would write under a producer's id that another identity uses. None: in mode
        WARN he may."""
        error = PermissionDenied(
            f"{call.identity} may not write as producer {producer}: another identity does",
            identity=call.identity,
            verb=Verb.WRITE,
            kind=ResourceKind.PRODUCER,
            name=producer,
        )
        self._write_down(call, error)
        return error if self._guard.mode is Mode.ON else None

    # --------------------------------------------------------------------------------- judgement

    def _judge(self, request: Any, call: Any) -> None:
        guard, entry = self._guard, self._entry
        if guard.mode is Mode.OFF:
            return
        identity = call.identity
        if not identity:
            self._refuse(call, Unauthenticated(f"who are you? expected: {EXPECTED}"))
            return
        rights = guard.rights
        call.came_through(self, guard.revision)
        if entry.services_may and rights.may(identity, _SERVICE):
            return
        try:
            for need in entry.needs(request, call):
                if not rights.may(identity, need):
                    self._refuse(call, denied(rights, identity, need))
            if entry.items is not None:
                self._judge_items(entry.items(request, call), rights, call)
        except UnheardTopics:
            if guard.mode is Mode.ON:
                raise
        except OncelogError:
            # In mode WARN the handler says what there is to say.
            if guard.mode is Mode.ON:
                raise

    def _judge_items(self, needs: Iterable[Any], rights: Rights, call: Any) -> None:
        refused: dict[int, OncelogError] = {}
        told: dict[Need, OncelogError] = {}
        identity = call.identity
        known = rights.known(identity)
        for place, need in enumerate(needs):
            # By far most are known, and allowed.
            if need is None or known.get(need) is True:
                continue
            if isinstance(need, OncelogError):
                refused[place] = need
            elif not rights.may(identity, need):
                error = told.get(need)
                if error is None:
                    error = told[need] = denied(rights, identity, need)
                    self._write_down(call, error)
                refused[place] = error
        if refused and self._guard.mode is Mode.ON:
            call.refused = refused

    def _refuse(self, call: Any, error: NotAllowed) -> None:
        self._write_down(call, error)
        if self._guard.mode is Mode.ON:
            raise error

    # ----------------------------------------------------------------------------- what is written

    def _write_down(self, call: Any, error: NotAllowed) -> None:
        refuses = self._guard.mode is Mode.ON
        self._guard.reporter.count("refusals" if refuses else "would_be_refusals")
        asked: Fields = {key: error.metadata[key] for key in _ASKED if key in error.metadata}
        outcome = error.reason if refuses else f"would be {error.reason}"
        self._guard.audit.refused(
            call.identity, lambda: {**self._who(call), **asked, "outcome": outcome}
        )

    def _called(self, request: Any, call: Any, outcome: str) -> Fields:
        said = json_format.MessageToJson(
            request, indent=None, preserving_proto_field_name=True, ensure_ascii=False
        )
        return {**self._who(call), "outcome": outcome, "request": said[:REQUEST_CHARACTERS_MAX]}

    def _who(self, call: Any) -> Fields:
        return {"who": call.identity, "from": call.peer, "what": self._what}


_UNLISTED: Final = Need(Verb.SERVE, ResourceKind.CLUSTER, "an RPC that no table names")
_SERVICE: Final = Need(Verb.SERVE, ResourceKind.CLUSTER, "")
_ASKED: Final = ("verb", "kind", "name")


def denied(rights: Rights, identity: str, need: Need) -> PermissionDenied:
    """The refusal, in words that say what would help. A name that is longer than any can be is cut:
    no rule tells it from one that begins so."""
    if len(need.name) > RULE_NAME_BYTES_MAX:
        need = need._replace(name=f"{need.name[:RULE_NAME_BYTES_MAX]}…")
    return PermissionDenied(
        f"{identity} may not {_asked(need)}: {_why(rights, identity, need)}",
        identity=identity,
        verb=need.verb,
        kind=need.kind,
        name=need.name,
    )


def _asked(need: Need) -> str:
    if need.verb in (Verb.SERVE, Verb.OPERATE):
        return f"call {need.name}"
    if need.name:
        return f"{need.verb} {need.kind} {need.name!r}"
    return f"{need.verb} {_UNNAMED.get(need.kind, need.kind)}"


_UNNAMED: Final[Mapping[ResourceKind, str]] = {
    ResourceKind.PRODUCER: "as an unnamed producer",
    ResourceKind.TRANSACTION: "transactions of unnamed producers of others",
}


def _why(rights: Rights, identity: str, need: Need) -> str:
    if need.verb is Verb.SERVE:
        return "it is for Oncelog's own processes (authorization.services)"
    if need.verb is Verb.OPERATE:
        return "it is for operators (authorization.operators)"
    ruling = rights.ruling(identity, need)
    if ruling.rule is not None:
        return f"the rule `{ruling.rule}` says so"
    if not need.name:
        return ruling.because
    return f"{ruling.because}; an operator can: oncelog acl add {_command(identity, need)}"


def _command(identity: str, need: Need) -> str:
    return f"{shlex.quote(identity)} {need.verb} {shlex.quote(f'{need.kind}:{need.name}')}"

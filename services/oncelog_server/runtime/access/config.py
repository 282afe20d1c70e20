"""Settings of who may do what: the section [authorization]. Rules and quotas are not here: they
stand in etcd, the same for all processes (`oncelog acl`, `oncelog quota`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from oncelog_server.core.access import Pattern, pattern_of


class Mode(StrEnum):
    """What becomes of a call that no rule allows."""

    # Nobody asks.
    OFF = "off"
    # It goes through, and is written down.
    WARN = "warn"
    ON = "on"


@dataclass(frozen=True, slots=True)
class AuthorizationConfig:
    """Each field: meaning, unit, danger."""

    # Whether rules hold: on; off; or warn, which lets everything through and logs what would be
    # refused. auto: on with TLS, off without. on and warn need TLS, for identities come from
    # certificates alone. Danger: off lets whoever reaches this process do everything.
    mode: Literal["auto", "off", "warn", "on"] = "auto"
    # Identities of Oncelog's own processes, beside the one in this process's own certificate; a `*`
    # at the end stands for every continuation. Danger: they may decide transactions of others.
    services: tuple[str, ...] = ()
    # Identities that may do everything that users may, and administer the cluster and its rules; a
    # `*` at the end stands for every continuation. Danger: without one nobody can add a rule.
    operators: tuple[str, ...] = ()
    # File that the audit log is appended to, one JSON object per line; it may be moved away under
    # a running process. Empty: the process's own log, and nothing where the mode is off.
    audit_log: str = ""

    def validate(self) -> None:
        """Raises ValueError naming the field."""
        for name in ("services", "operators"):
            for identity in getattr(self, name):
                if not identity.strip("*"):
                    raise ValueError(
                        f"authorization.{name}: {identity!r} would be everybody; name them"
                    )

    def mode_of(self, *, tls: bool) -> Mode:
        """What holds. Raises ValueError where there can be no identities."""
        if self.mode == "auto":
            return Mode.ON if tls else Mode.OFF
        mode = Mode(self.mode)
        if mode is not Mode.OFF and not tls:
            raise ValueError(
                f"authorization.mode is {mode}, and there is no TLS: who calls is told by "
                "certificates alone; give node.tls_ca, node.tls_certificate and node.tls_key"
            )
        return mode

    @property
    def service_patterns(self) -> tuple[Pattern, ...]:
        return tuple(map(pattern_of, self.services))

    @property
    def operator_patterns(self) -> tuple[Pattern, ...]:
        return tuple(map(pattern_of, self.operators))

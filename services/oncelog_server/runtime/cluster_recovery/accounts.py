"""Who recovered a cluster, and what he was told may be lost. No process runs meanwhile that could
write an audit log, so the account is left in each data directory (`recovered.json`), and the next
process that starts there writes it into its own log and its audit log.

Invariant: an account is told at least once, and is there until it was told. It may be told twice,
by a process that died in between.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.storage.port import Disk

FILE: Final = "recovered.json"
# Eight times what one account takes at most, in whatever script it is written.
FILE_BYTES_MAX: Final = 1 << 20
# Accounts that wait in one directory, the newest; and what one of them was told, in lines.
ACCOUNTS_MAX: Final = 100
TOLD_MAX: Final = 20
TOLD_CHARACTERS_MAX: Final = 1_000


class Account(msgspec.Struct, frozen=True):
    """One run of `oncelog cluster recover`, or of `oncelog up --recover`."""

    at_ms: int
    # User and machine: it is not known to any certificate.
    who: str
    where: str
    recovery: int
    # Whether etcd was wiped first, and whether loss was accepted.
    replace: str
    loss: str
    # What may be lost, in words, as it was said.
    told: tuple[str, ...] = ()


_DECODER: Final = msgspec.json.Decoder(tuple[Account, ...])


def account(
    *,
    at_ms: int,
    who: str,
    where: str,
    recovery: int,
    replace: str,
    loss: str,
    told: Sequence[str],
) -> Account:
    """With as much of what was told as an account keeps."""
    kept = [line[:TOLD_CHARACTERS_MAX] for line in told[:TOLD_MAX]]
    if len(told) > TOLD_MAX:
        kept.append(f"and {len(told) - TOLD_MAX} more")
    return Account(at_ms, who, where, recovery, replace, loss, tuple(kept))


def leave(disk: Disk, left: Account) -> None:
    """Durable at return, beside those that were left before; the oldest go where they would make
    the file larger than what is read of it. Raises OSError."""
    accounts = (*waiting(disk), left)[-ACCOUNTS_MAX:]
    while len(written := _written(accounts)) > FILE_BYTES_MAX:
        accounts = accounts[1:]
    disk.replace_file(FILE, written)


def _written(accounts: Sequence[Account]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(accounts), indent=2)


def waiting(disk: Disk) -> tuple[Account, ...]:
    """Those that were not told yet; a file that cannot be understood holds up nobody, and is
    written anew."""
    if not disk.exists(FILE):
        return ()
    file = disk.open(FILE)
    try:
        return _DECODER.decode(file.read(0, FILE_BYTES_MAX))
    except msgspec.DecodeError:
        return ()
    finally:
        file.close()


def tell(disk: Disk, guard: Guard, reporter: Reporter) -> None:
    """At the start of a process, once. Raises OSError."""
    for one in waiting(disk):
        fields = {
            "who": one.who,
            "from": one.where,
            "what": "oncelog cluster recover",
            "outcome": "ok",
            "request": json.dumps(
                {
                    "at_ms": one.at_ms,
                    "recovery": one.recovery,
                    "replace": one.replace,
                    "loss": one.loss,
                    "told": one.told,
                }
            ),
        }
        reporter.event("cluster recovered, by an operator", level="warning", **fields)
        if guard.is_auditing:
            guard.audit.called(fields)
    if disk.exists(FILE):
        disk.remove(FILE)

"""A recovery leaves word of who did it, and the next process tells it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.cluster_recovery import accounts
from oncelog_server.runtime.cluster_recovery.accounts import Account, account
from oncelog_server.runtime.cluster_recovery.inventory import RecoveryRefused
from oncelog_server.runtime.cluster_recovery.perform import Loss, perform, plan_of
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.identity import load_remembered
from tests.simulation.disk import FakeDisk
from tests.unit.access.test_quotas import ManualClock
from tests.unit.cluster_recovery.test_perform import CONTROL, Etcd, Meddled, directory
from tests.unit.cluster_recovery.test_plan import replica
from tests.unit.etcd.world import Log


class Kept:
    """A sink."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, fields: dict[str, Any]) -> None:
        self.lines.append(fields)

    def close(self) -> None: ...


def made(recovery: int = 1, told: tuple[str, ...] = ("all of it",)) -> Account:
    return account(
        at_ms=5, who="root", where="a", recovery=recovery, replace="nothing", loss="accepted",
        told=told,
    )  # fmt: skip


def told_at(disk: FakeDisk, *, audited: bool = True) -> tuple[list[dict[str, Any]], Log]:
    kept, log = Kept(), Log()
    sink = kept if audited else None
    accounts.tell(disk, Guard(Mode.OFF, clock=ManualClock(), reporter=log, sink=sink), log)
    return kept.lines, log


def test_who_recovered_and_what_he_was_told_stands_in_the_audit_log_once() -> None:
    disk = FakeDisk()
    for recovery in (1, 2):
        accounts.leave(disk, made(recovery))
    lines, log = told_at(disk)
    assert [(line["who"], line["from"], line["what"]) for line in lines] == [
        ("root", "a", "oncelog cluster recover")
    ] * 2, "nobody knows who gave records up"
    first, second = (json.loads(line["request"]) for line in lines)
    assert (first["recovery"], second["recovery"], first["told"]) == (1, 2, ["all of it"])
    assert log.names() == ["cluster recovered, by an operator"] * 2
    lines, log = told_at(disk)
    assert (lines, log.names()) == ([], [])


def test_where_calls_are_not_audited_it_stands_in_the_log_of_the_process() -> None:
    disk = FakeDisk()
    accounts.leave(disk, made())
    lines, log = told_at(disk, audited=False)
    assert (lines, log.names()) == ([], ["cluster recovered, by an operator"])


def test_an_account_is_bounded_and_a_damaged_one_holds_up_nobody() -> None:
    kept = made(told=("x" * 5_000,) * 50)
    assert max(map(len, kept.told)) == accounts.TOLD_CHARACTERS_MAX
    assert (len(kept.told), kept.told[-1]) == (accounts.TOLD_MAX + 1, "and 30 more")
    disk = FakeDisk()
    disk.replace_file(accounts.FILE, b"{")
    accounts.leave(disk, kept)
    assert accounts.waiting(disk) == (kept,)


def test_accounts_that_do_not_fit_into_the_file_make_the_oldest_go() -> None:
    disk = FakeDisk()
    for recovery in range(1, accounts.ACCOUNTS_MAX + 3):
        accounts.leave(disk, made(recovery, told=("x" * 5_000,) * 50))
        assert accounts.waiting(disk), f"all are lost with account {recovery}"
    kept = [one.recovery for one in accounts.waiting(disk)]
    newest = accounts.ACCOUNTS_MAX + 2
    assert kept == list(range(newest - len(kept) + 1, newest + 1))
    assert len(kept) > 40, "as many as there is room for"
    assert len(told_at(disk)[0]) == len(kept)


def test_no_process_starts_on_a_directory_before_the_account_is_left_there() -> None:
    etcd = Etcd()
    found = directory(etcd, replica())
    surveyed = etcd.survey(found)
    seen: list[int] = []

    def leave() -> None:
        seen.append(load_remembered(found.disk).recovery)
        assert etcd.server.get(keys.partition_key(CONTROL)) is not None, "etcd has it"

    asyncio.run(perform(surveyed, plan_of(surveyed, Loss.REFUSED), etcd.etcd, leave))
    assert seen == [0], "a process may have started that tells of nothing"
    assert load_remembered(found.disk).recovery == 1


def test_a_recovery_that_changed_nothing_leaves_no_account() -> None:
    etcd = Etcd()
    etcd.etcd = meddled = Meddled(etcd.server)
    meddled.key = keys.CLUSTER
    surveyed = etcd.survey(directory(etcd, replica()))

    def leave() -> None:
        raise AssertionError("nothing was done")

    with pytest.raises(RecoveryRefused):
        asyncio.run(perform(surveyed, plan_of(surveyed, Loss.REFUSED), meddled, leave))

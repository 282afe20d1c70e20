"""What `oncelog cluster recover` and `oncelog up --recover` do: rebuild what stood in etcd from
data directories of stopped services. It holds the lock of each directory meanwhile, so no service
can run on one of them.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.folder import CLUSTER_FILE, Folder
from oncelog_server.cli.output import error_console, print_fields, print_table
from oncelog_server.runtime.cluster_recovery.accounts import Account, account, leave
from oncelog_server.runtime.cluster_recovery.choosing import Doubt
from oncelog_server.runtime.cluster_recovery.inventory import (
    DataDirectory,
    FoundReplica,
    RecoveryRefused,
    look,
    take,
)
from oncelog_server.runtime.cluster_recovery.perform import (
    Loss,
    Mode,
    Replace,
    Survey,
    perform,
    plan_of,
    survey,
)
from oncelog_server.runtime.cluster_recovery.plan import Plan
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from oncelog_server.runtime.storage.disk import RealDisk


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found, and what was done about it."""

    surveyed: Survey
    plan: Plan
    directories: Sequence[DataDirectory]


def expand(paths: Sequence[Path]) -> list[Path]:
    """A folder of `oncelog up` stands for the data of its processes."""
    found: list[Path] = []
    for path in paths:
        if not (path / CLUSTER_FILE).exists():
            found.append(path)
            continue
        folder = Folder.take(path)
        try:
            layout = folder.layout()
            assert layout is not None, "its file is there"
            data = (folder.data_of(process.name) for process in layout.known())
            found += [path for path in data if path.is_dir()]
        finally:
            folder.close()
    return list(dict.fromkeys(path.resolve() for path in found))


def run(
    paths: Sequence[Path],
    connect: Callable[[], EtcdClient],
    replace: Replace,
    loss: Loss,
    *,
    dry_run: bool = False,
) -> Recovered:
    """Raises CommandFailed."""
    with ExitStack() as stack:
        try:
            directories = []
            for path in paths:
                disk = RealDisk(path)
                stack.callback(disk.close)
                directories.append(take(str(path), disk))
            for directory in directories:
                look(directory, _progress(directory))
            return asyncio.run(_recover(directories, connect, replace, loss, dry_run=dry_run))
        except RecoveryRefused as refused:
            raise CommandFailed(str(refused)) from None
        except EtcdUnavailable as error:
            raise CommandFailed(f"{error}. Run the command again: it goes on") from error
        except OSError as error:
            raise CommandFailed(str(error)) from error


async def _recover(
    directories: Sequence[DataDirectory],
    connect: Callable[[], EtcdClient],
    replace: Replace,
    loss: Loss,
    *,
    dry_run: bool,
) -> Recovered:
    client = connect()
    try:
        surveyed = await survey(directories, client, replace)
        plan = plan_of(surveyed, loss)
        if not dry_run and surveyed.mode is not Mode.DONE:
            left = _account(surveyed, plan, replace, loss)
            await perform(surveyed, plan, client, lambda: _leave(directories, left))
        return Recovered(surveyed, plan, directories)
    finally:
        await client.close()


def _account(surveyed: Survey, plan: Plan, replace: Replace, loss: Loss) -> Account:
    """Who does it, and what he is told may be lost."""
    told = [f"{_name(doubt.replica)} in {doubt.replica.path}: {doubt.why}" for doubt in plan.doubts]
    told += [f"without a replica: {partition}" for partition in plan.vacant]
    return account(
        at_ms=int(time.time() * 1000),
        who=_user(),
        where=socket.gethostname(),
        recovery=surveyed.cluster.recovery,
        replace=replace.value,
        loss=loss.value,
        told=told,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container whose user has no name.
        return f"user {os.getuid()}"


def _leave(directories: Sequence[DataDirectory], left: Account) -> None:
    """In all of them: also those of an earlier run may lose something by this one."""
    for directory in directories:
        leave(directory.disk, left)


def _progress(directory: DataDirectory) -> Any:
    def say(partition: object) -> None:
        if error_console().is_terminal:
            error_console().print(f"{directory.path}: {partition}", end="\r", markup=False)

    return say


# ----------------------------------------------------------------------------------------- showing


def show(recovered: Recovered, *, dry_run: bool = False) -> None:
    """For people."""
    surveyed, plan = recovered.surveyed, recovered.plan
    print_table(
        ["PARTITION", "NODE", "LAST EPOCH", "SYNCED END", "INCARNATION", "NOW"],
        [
            [_name(replica), replica.node_id, replica.last_epoch, replica.synced_end,
             replica.incarnation[:8], _standing_of(replica, recovered)]
            for directory in recovered.directories
            for replica in directory.replicas
        ],
        empty="no replicas in these directories",
    )  # fmt: skip
    print_fields(
        [
            ("cluster", surveyed.cluster.cluster_id),
            ("recovery", str(surveyed.cluster.recovery)),
            ("topics written", ", ".join(sorted(plan.topics)) or "none"),
            ("without a replica", ", ".join(map(str, plan.vacant)) or "none"),
        ]
    )
    for doubt in plan.doubts:
        click.echo(f"in doubt: {_name(doubt.replica)} in {doubt.replica.path}: {doubt.why}")
    for aside in plan.aside:
        click.echo(f"in orphans/: {_name(aside.replica)} in {aside.replica.path}: {aside.why}")
    for partition, (intact, needed) in sorted(plan.waiting.items()):
        click.echo(f"{partition} waits: {intact} intact replicas found, of {needed} needed")
    if plan.waiting:
        click.echo(
            "partitions that wait are led once enough of their replicas were found: run this on "
            "the other machines, with the same etcd. Where those are gone for good, --accept-loss "
            "goes on with what was found"
        )
    if plan.vacant:
        click.echo("partitions without a replica here come with the directories that hold them")
    if surveyed.mode is Mode.DONE:
        click.echo(
            "nothing was done: this etcd is the one that the directories know, and services start "
            "with it. If it was restored from a backup all the same, add --replace."
        )
    elif dry_run:
        click.echo("nothing was written (--dry-run)")
    else:
        click.echo("done: start the services")


def described(recovered: Recovered, *, dry_run: bool) -> dict[str, Any]:
    """For --json."""
    surveyed, plan = recovered.surveyed, recovered.plan
    return {
        "mode": "dry-run" if dry_run else surveyed.mode.value,
        "cluster_id": surveyed.cluster.cluster_id,
        "recovery": surveyed.cluster.recovery,
        "replicas": [
            {
                "partition": str(replica.partition),
                "topic": _topic(replica),
                "node_id": replica.node_id,
                "data": replica.path,
                "last_epoch": replica.last_epoch,
                "synced_end": replica.synced_end,
                "incarnation": replica.incarnation,
                "standing": _standing_of(replica, recovered),
            }
            for directory in recovered.directories
            for replica in directory.replicas
        ],
        "topics": sorted(plan.topics),
        "vacant": [str(partition) for partition in plan.vacant],
        "waiting": {
            str(partition): {"intact": intact, "needed": needed}
            for partition, (intact, needed) in sorted(plan.waiting.items())
        },
        "doubts": _doubts(plan.doubts),
        "aside": _doubts(plan.aside),
    }


def _doubts(doubts: Sequence[Doubt]) -> list[dict[str, str]]:
    return [
        {
            "partition": str(doubt.replica.partition),
            "data": doubt.replica.path,
            "why": doubt.why,
        }
        for doubt in doubts
    ]


def _topic(replica: FoundReplica) -> str | None:
    record = replica.record
    return None if record is None or record.topic is None else record.topic.name


def _name(replica: FoundReplica) -> str:
    topic = _topic(replica)
    return str(replica.partition) if topic is None else f"{topic}/{replica.partition.number}"


def _standing_of(replica: FoundReplica, recovered: Recovered) -> str:
    if replica in recovered.plan.left_out:
        return "left out"
    state = recovered.plan.partitions.get(replica.partition)
    if state is None or replica.node_id not in state.replicas:
        return "as it was"
    if state.found:
        return "waits for others"
    if replica.damage:
        return "offline: damaged"
    if replica.incarnation not in state.isr:
        return f"follows from epoch {state.epoch + 1}"
    return f"may lead from epoch {state.epoch + 1}"

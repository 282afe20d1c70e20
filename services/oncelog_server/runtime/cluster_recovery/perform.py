"""Carries a recovery out: in which etcd, in which order.

    etcd holds                                          these directories    what happens
    ----------------------------------------------------+--------------------+--------------------
    nothing                                             | any                | FOUND
    this cluster, recovered more often than they were   | some or all        | JOIN
    this cluster, just as they know it                  | all                | DONE, or as below
    this cluster otherwise, another one, or other keys  | all                | --replace: FOUND

    FOUND   one transaction: the old keys go, the cluster's record stands, recovery + 1
    then    partition keys, topic keys, and last each directory's own memory (`etcd.json`)

Invariants:
  * until its memory is written, no process starts on a directory: `etcd.json` and the cluster's
    record name different recoveries. So a run that dies anywhere is simply run again, as a JOIN;
  * a directory joins a recovery once, and only a later one than it has seen;
  * replicas of a directory that etcd knows to be an older state of itself (`directory_mark`) take
    part under new incarnations: none of them is intact.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from oncelog_server.core.ids import CONTROL_PARTITIONS
from oncelog_server.runtime.cluster_recovery.choosing import Missing
from oncelog_server.runtime.cluster_recovery.inventory import DataDirectory, RecoveryRefused
from oncelog_server.runtime.cluster_recovery.plan import InEtcd, Plan, make_plan
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.directory_mark import was_put_back
from oncelog_server.runtime.etcd.identity import (
    ClusterSettings,
    Remembered,
    has_history_of,
    save_remembered,
)
from oncelog_server.runtime.etcd.keys import TXN_KEYS_MAX, ClusterValue
from oncelog_server.runtime.etcd.port import Compare, DeletePrefix, Etcd, KeyValue, Put
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.identity import fresh_incarnation, save_incarnation

# Processes of before hold their keys until their leases end; etcd extends those at a restore.
BOOTS_GONE_LEASES: Final = 3
LOOK_EVERY_MS: Final = 200
# Keys that a refusal names.
KEYS_SHOWN: Final = 5
OURS: Final = (
    keys.BOOTS,
    keys.PARTITIONS,
    keys.TOPICS,
    keys.CREATING,
    keys.HINTS,
    keys.DIRECTORIES,
)


class Mode(Enum):
    """See the module's table."""

    FOUND = "found"
    JOIN = "join"
    # A process would work with this etcd as it is.
    DONE = "done"


class Replace(Enum):
    """What may happen to what etcd holds."""

    NOTHING = "nothing"
    # Unless a process would work with it as it is.
    WHAT_IS_REFUSED = "what is refused"
    EVERYTHING = "everything"


class Loss(Enum):
    """What may happen to what is in doubt."""

    REFUSED = "refused"
    # It is said; nothing is done.
    SHOWN = "shown"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Survey:
    """etcd as it was found, and what is to be done about it."""

    mode: Mode
    cluster: ClusterValue
    # Compared with when the cluster's record is written: of the record, 0 where there is none.
    mod_revision: int
    standing: InEtcd
    # Those that take part; the others need not.
    directories: Sequence[DataDirectory]
    # Of these, the node ids of those that are an older state of themselves: their replicas stand
    # here under the incarnations that they shall have.
    older: frozenset[str] = frozenset()


async def survey(directories: Sequence[DataDirectory], etcd: Etcd, replace: Replace) -> Survey:
    """Changes nothing. Raises RecoveryRefused, EtcdUnavailable."""
    listed, revision = await etcd.range("")
    older = frozenset(d.node_id for d in directories if _is_older(d, listed))
    directories = [_renamed(d) if d.node_id in older else d for d in directories]
    cluster_id = _require_one_cluster(directories)
    etcd_id = f"{await etcd.etcd_cluster_id():x}"
    record = next((kv for kv in listed if kv.key == keys.CLUSTER), None)
    found = None if record is None else keys.cluster_value(record.value)
    highest = max(directory.remembered.recovery for directory in directories)
    if found is not None and found.cluster_id == cluster_id:
        joining = [d for d in directories if d.remembered.recovery < found.recovery]
        standing = _standing(listed, found.min_insync_replicas)
        if joining and found.recovery >= highest:
            return Survey(Mode.JOIN, found, 0, standing, joining, older)
        if found.recovery == highest and any(state.found for state in standing.partitions.values()):
            # Not over: nothing is left to find here, but what is missing may be given up.
            return Survey(Mode.JOIN, found, 0, standing, ())
        known = found.recovery == highest
        for directory in directories:
            known = known and _is_as_known(directory, etcd_id, revision, standing)
            known = known and await has_history_of(etcd, directory.remembered)
        if known and replace is not Replace.EVERYTHING:
            return Survey(Mode.DONE, found, 0, standing, ())
        highest = max(highest, found.recovery)
    if listed and replace is Replace.NOTHING:
        raise RecoveryRefused(_what_stands(found, cluster_id, [kv.key for kv in listed]))
    cluster = _cluster_of(directories, cluster_id, highest + 1)
    mod_revision = 0 if record is None else record.mod_revision
    nothing = InEtcd(min_insync_replicas=cluster.min_insync_replicas)
    return Survey(Mode.FOUND, cluster, mod_revision, nothing, directories, older)


def plan_of(surveyed: Survey, loss: Loss) -> Plan:
    """Raises RecoveryRefused: contradictions, and doubts unless their loss is accepted."""
    replicas = [replica for directory in surveyed.directories for replica in directory.replicas]
    missing = Missing.GIVEN_UP if loss is Loss.ACCEPTED else Missing.AWAITED
    aside = [replica for directory in surveyed.directories for replica in directory.set_aside]
    plan = make_plan(replicas, surveyed.standing, missing, set_aside=aside)
    if plan.doubts and loss is Loss.REFUSED:
        named = "\n".join(
            f"  {doubt.replica.partition} in {doubt.replica.path}: {doubt.why}"
            for doubt in plan.doubts
        )
        raise RecoveryRefused(
            f"nothing was changed in etcd; these replicas are in doubt:\n{named}\nName the "
            "directories of all machines in one run, bring better copies of these, or repeat the "
            "command with --accept-loss"
        )
    return plan


async def perform(
    surveyed: Survey, plan: Plan, etcd: Etcd, leave_account: Callable[[], None]
) -> None:
    """`leave_account` leaves word of it in the directories, once etcd has it and before any process
    can start. Raises RecoveryRefused, EtcdUnavailable (run it again), OSError."""
    etcd_id = f"{await etcd.etcd_cluster_id():x}"
    for directory in surveyed.directories:
        if directory.node_id in surveyed.older:
            # First: what tells that it is older goes with the next step.
            _rename(directory)
    if surveyed.mode is Mode.FOUND:
        await _wait_for_the_end_of_others(surveyed, etcd)
        compare = Compare(keys.CLUSTER, surveyed.mod_revision)
        gone = [DeletePrefix(prefix) for prefix in OURS]
        await _write(etcd, [compare], [*gone, Put(keys.CLUSTER, keys.encode(surveyed.cluster))])
    listed, _ = await etcd.range(keys.PARTITIONS)
    revisions = {kv.key: kv.mod_revision for kv in listed}
    puts = [
        Put(keys.partition_key(partition), keys.encode(state))
        for partition, state in sorted(plan.partitions.items())
    ]
    for first in range(0, len(puts), TXN_KEYS_MAX):
        batch = puts[first : first + TXN_KEYS_MAX]
        await _write(etcd, [Compare(put.key, revisions.get(put.key, 0)) for put in batch], batch)
    await _write_topics(etcd, plan)
    _, revision = await etcd.get(keys.CLUSTER)
    leave_account()
    for directory in surveyed.directories:
        save_remembered(directory.disk, _memory(directory, surveyed.cluster, etcd_id, revision))


async def _write_topics(etcd: Etcd, plan: Plan) -> None:
    """Last, as at their creation: where a topic's key stands, all of it does."""
    listed, _ = await etcd.range(keys.TOPICS)
    revisions = {kv.key: kv.mod_revision for kv in listed}
    for name, value in sorted(plan.topics.items()):
        key = keys.topic_key(name)
        await _write(etcd, [Compare(key, revisions.get(key, 0))], [Put(key, keys.encode(value))])


async def _write(
    etcd: Etcd, compares: Sequence[Compare], then: Sequence[Put | DeletePrefix]
) -> None:
    result = await etcd.txn(compares, then)
    if not result.succeeded:
        raise RecoveryRefused(
            "etcd was changed by somebody else meanwhile; see that no other recovery runs, then "
            "run this one again"
        )


async def _wait_for_the_end_of_others(surveyed: Survey, etcd: Etcd) -> None:
    """No process may live by what is about to go. Ours are dead: we hold their directories."""
    own = {directory.node_id for directory in surveyed.directories}
    patience_ms = BOOTS_GONE_LEASES * surveyed.cluster.lease_ms
    for waited_ms in range(0, patience_ms + LOOK_EVERY_MS, LOOK_EVERY_MS):
        listed, _ = await etcd.range(keys.BOOTS)
        boots = [keys.boot_value(kv.value) for kv in listed]
        living = [boot for boot in boots if boot.node_id not in own]
        if not living:
            return
        if waited_ms < patience_ms:
            await asyncio.sleep(LOOK_EVERY_MS / 1000)
    named = ", ".join(f"{boot.host}:{boot.port} (node {boot.node_id})" for boot in living)
    raise RecoveryRefused(f"processes still work with this etcd: {named}. Stop them first")


# ------------------------------------------------------------------------------------------- facts


def _is_older(directory: DataDirectory, listed: Sequence[KeyValue]) -> bool:
    """By what etcd still knows of it."""
    key = keys.directory_key(directory.node_id)
    marks = (keys.directory_value(kv.value) for kv in listed if kv.key == key)
    return any(was_put_back(mark, directory.remembered.noted) for mark in marks)


def _renamed(directory: DataDirectory) -> DataDirectory:
    """No replica of it is what was in sync, so none is intact."""
    replicas = [
        dataclasses.replace(replica, incarnation=fresh_incarnation(os.urandom).hex())
        if replica.incarnation
        else replica
        for replica in directory.replicas
    ]
    return dataclasses.replace(directory, replicas=replicas)


def _rename(directory: DataDirectory) -> None:
    """On its disk. Raises OSError."""
    for replica in directory.replicas:
        if replica.incarnation:
            path = directory_of(replica.partition)
            save_incarnation(directory.disk, path, bytes.fromhex(replica.incarnation))


def _require_one_cluster(directories: Sequence[DataDirectory]) -> str:
    by_cluster = {d.remembered.cluster_id: d.path for d in directories}
    if len(by_cluster) > 1:
        named = ", ".join(f"{path} (cluster {cluster})" for cluster, path in by_cluster.items())
        raise RecoveryRefused(f"the directories belong to different clusters: {named}")
    by_node: dict[str, str] = {}
    for directory in directories:
        other = by_node.setdefault(directory.node_id, directory.path)
        if other != directory.path:
            raise RecoveryRefused(
                f"{other} and {directory.path} are of one node ({directory.node_id}): one of them "
                "is a copy; leave the older one out"
            )
    return next(iter(by_cluster))


def _is_as_known(directory: DataDirectory, etcd_id: str, revision: int, standing: InEtcd) -> bool:
    """A process would work with this etcd (see `identity`, `standing`)."""
    known = directory.remembered
    return (
        known.etcd_cluster_id == etcd_id
        and known.revision <= revision
        and all(
            replica.last_epoch <= state.epoch
            for replica in directory.replicas
            if (state := standing.partitions.get(replica.partition)) is not None
        )
    )


def _what_stands(found: ClusterValue | None, cluster_id: str, listed: Sequence[str]) -> str:
    if found is None:
        more = f" and {len(listed) - KEYS_SHOWN} more" if len(listed) > KEYS_SHOWN else ""
        named = ", ".join(listed[:KEYS_SHOWN])
        what = f"etcd holds keys under this prefix ({named}{more}), and no cluster's record"
    elif found.cluster_id != cluster_id:
        what = f"etcd belongs to cluster {found.cluster_id}, the directories to {cluster_id}"
    else:
        what = "etcd holds this cluster's record; was it restored from a backup?"
    return (
        f"{what}. Nothing was changed. With --replace all of it is removed and rebuilt from the "
        "directories"
    )


def _standing(listed: Sequence[KeyValue], min_insync_replicas: int) -> InEtcd:
    return InEtcd(
        {
            keys.partition_of_key(kv.key): keys.decode_partition(kv.value)
            for kv in listed
            if kv.key.startswith(keys.PARTITIONS)
        },
        {
            kv.key.removeprefix(keys.TOPICS): keys.topic_value(kv.value)
            for kv in listed
            if kv.key.startswith(keys.TOPICS)
        },
        min_insync_replicas,
    )


def _cluster_of(
    directories: Sequence[DataDirectory], cluster_id: str, recovery: int
) -> ClusterValue:
    """As the directories remember it; they are all told the same."""
    settings = ClusterSettings()
    known = max(directories, key=lambda directory: directory.remembered.recovery).remembered
    return ClusterValue(
        cluster_id=cluster_id,
        transaction_partitions=CONTROL_PARTITIONS,
        offset_partitions=CONTROL_PARTITIONS,
        min_insync_replicas=known.min_insync_replicas or settings.min_insync_replicas,
        lease_ms=known.lease_ms or settings.lease_ms,
        recovery=recovery,
    )


def _memory(
    directory: DataDirectory, cluster: ClusterValue, etcd_id: str, revision: int
) -> Remembered:
    return msgspec.structs.replace(
        directory.remembered,
        etcd_cluster_id=etcd_id,
        revision=revision,
        recovery=cluster.recovery,
        witness=None,
        min_insync_replicas=cluster.min_insync_replicas,
        lease_ms=cluster.lease_ms,
    )

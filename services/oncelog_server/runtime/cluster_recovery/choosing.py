"""PURE. Of the replicas of one partition that were found: who leads first, and whether anything
that was acknowledged may be lost.

    intact replicas found                     who leads
    ------------------------------------------+-------------------------------------------------
    enough                                    | the largest (last epoch, synced end), alone in sync
    too few, and others may come (AWAITED)    | nobody: what was found is kept in etcd
    too few, and nobody else comes            | a doubt; the largest of those that were found

A replica is *intact* that has the incarnation under which it was last in sync: it was neither
emptied nor damaged since. Every record that was acknowledged is on `min_insync_replicas` of the
replicas. So of any (replicas - that + 1) of them one has it, and whoever has the largest pair has
what that one has (docs/leadership.md, "When etcd is lost").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.ids import COUNTER_MASK, PartitionId
from oncelog_server.runtime.cluster_recovery.inventory import FoundReplica, RecoveryRefused
from oncelog_server.runtime.etcd.keys import FoundValue, PartitionState
from oncelog_server.runtime.leadership.last_resort import rank
from oncelog_server.runtime.replica.record import ReplicaRecord

# Epochs may exist that nobody here logged.
RECOVERY_EPOCHS: Final = 1 << 20
# Generations carry an epoch in 32 bits.
EPOCH_MAX: Final = COUNTER_MASK


class Missing(Enum):
    """What becomes of replicas that were not found."""

    # Another run, over other directories, may find them.
    AWAITED = "awaited"
    GIVEN_UP = "given up"


class Doubt(NamedTuple):
    """Why somebody has to say --accept-loss."""

    replica: FoundReplica
    why: str


@dataclass(slots=True)
class Choice:
    """What a partition's key shall say."""

    state: PartitionState
    doubts: list[Doubt] = field(default_factory=list)
    # Found here, of nodes that have no replica any more.
    left_out: list[FoundReplica] = field(default_factory=list)
    # How many intact replicas were found, and how many are needed; None: it can be led.
    waits: tuple[int, int] | None = None


def choose(
    partition: PartitionId,
    here: Sequence[FoundReplica],
    before: PartitionState,
    *,
    min_insync_replicas: int,
    missing: Missing,
) -> Choice:
    """`here`: by this run; `before`: what etcd holds, with what earlier runs found. Raises
    RecoveryRefused."""
    newest = max(
        (replica.record for replica in here if replica.record is not None),
        key=lambda record: (record.epoch, record.revision),
        default=None,
    )
    replicas = _replicas(here, before, newest)
    members = [replica for replica in here if replica.node_id in replicas]
    answers = {found.node_id: found for found in before.found}
    answers |= {replica.node_id: _found(replica) for replica in members}
    choice = Choice(PartitionState(replicas=replicas, epoch=_epoch(partition, here, before)))
    choice.left_out = [replica for replica in here if replica not in members]
    adding = () if newest is None else newest.adding
    least = min(min_insync_replicas, max(1, len(replicas) - len(adding)))
    needed = len(replicas) - least + 1
    intact = sum(found.is_intact for found in answers.values())
    sound = [found for found in answers.values() if found.incarnation]
    if intact < needed and missing is Missing.AWAITED and set(replicas) - answers.keys():
        choice.waits = (intact, needed)
        choice.state = msgspec.structs.replace(choice.state, found=tuple(answers.values()))
        return choice
    best = max(sound, key=rank, default=None)
    if best is not None:
        choice.state = msgspec.structs.replace(choice.state, isr=(best.incarnation,))
    if intact >= needed:
        return choice
    if best is not None:
        choice.state = msgspec.structs.replace(choice.state, unclean_epoch=choice.state.epoch)
    elif newest is not None:
        # A better copy of that directory may be brought.
        choice.state = msgspec.structs.replace(choice.state, isr=(newest.incarnation,))
    choice.doubts = _doubts(
        partition, members, best, intact=intact, needed=needed, of=len(replicas)
    )
    return choice


def _replicas(
    here: Sequence[FoundReplica], before: PartitionState, newest: ReplicaRecord | None
) -> tuple[str, ...]:
    """The nodes that have one, as the newest of the replicas found knew; the first should lead."""
    if newest is not None and newest.replicas and not before.found:
        return newest.replicas
    known = newest.replicas if newest is not None else ()
    named = before.replicas or known or tuple(replica.node_id for replica in here)
    if before.found and known and set(known) != set(before.replicas):
        # The newer of the two is not known by the key: whoever either names is waited for.
        return tuple(dict.fromkeys((*before.replicas, *known)))
    return named


def _found(replica: FoundReplica) -> FoundValue:
    record = replica.record
    is_intact = (
        not replica.damage and record is not None and record.incarnation == replica.incarnation
    )
    return FoundValue(
        replica.node_id, replica.incarnation, replica.last_epoch, replica.synced_end, is_intact
    )


def _epoch(partition: PartitionId, here: Sequence[FoundReplica], before: PartitionState) -> int:
    noted = [replica.record.epoch for replica in here if replica.record is not None]
    logged = [replica.last_epoch for replica in here]
    epoch = max(*noted, *logged, before.epoch - RECOVERY_EPOCHS, 0) + RECOVERY_EPOCHS
    if epoch > EPOCH_MAX:
        raise RecoveryRefused(f"{partition} is at epoch {epoch}; the last is {EPOCH_MAX}")
    return epoch


def _doubts(
    partition: PartitionId,
    members: Sequence[FoundReplica],
    best: FoundValue | None,
    *,
    intact: int,
    needed: int,
    of: int,
) -> list[Doubt]:
    """One for each replica here that is in doubt, else one for the partition."""
    doubts = [
        Doubt(replica, why)
        for replica in members
        if (why := _why(replica, is_alone=of == 1)) is not None
    ]
    if of == 1 or best is None:
        return doubts
    here = [replica for replica in members if replica.node_id == best.node_id]
    chosen = here[0] if here else _elsewhere(partition, best)
    why = (
        f"{intact} intact replicas of {of} were found, and {needed} are needed to be sure. The "
        f"best one is at node {best.node_id}, of epoch {best.last_epoch}: acknowledged records "
        f"above {best.synced_end} may be lost"
    )
    return [*doubts, Doubt(chosen, why)]


def _why(replica: FoundReplica, *, is_alone: bool) -> str | None:
    record = replica.record
    if replica.damage:
        rest = " It stays offline; the others are not hindered" if is_alone else ""
        return f"damaged: {replica.damage}.{rest}"
    if record is None:
        why = "it never noted to be in sync (replica.json): perhaps its directory was emptied"
    elif record.incarnation != replica.incarnation:
        why = "its log was damaged, emptied or put back from a backup since it last led"
    else:
        return None
    if not is_alone:
        return why
    return f"{why}. Acknowledged records above {replica.synced_end} may be lost"


def _elsewhere(partition: PartitionId, found: FoundValue) -> FoundReplica:
    """Of an earlier run."""
    return FoundReplica(
        "an earlier run",
        found.node_id,
        partition,
        None,
        found.incarnation,
        found.last_epoch,
        found.synced_end,
    )

"""PURE. What each replica of a partition is, for people: put together from what etcd shows (who has
one, who is in sync, who runs) and from what each process says of its own replicas, and a leader of
those that follow it (`asking`).

    etcd shows no process                 not running
    its process does not answer           unreachable
    it can neither lead nor follow        unfit, and why
    it leads                              leads; loading, until it answers
    its log is being opened               loading
    its leader hears nothing of it        silent
    its leader waits for it               lagging, in sync or not
    the rest, by its incarnation          in sync, not in sync

In sync is said beside it, for one that is silent, lagging, or does not run may still be counted:
those in sync are never fewer than `min_insync_replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from oncelog_server.cli.asking import Key, Told
from oncelog_server.cli.output import show_age
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import replication_pb2 as pb


class State(StrEnum):
    """See the module."""

    LEADS = "leads"
    IN_SYNC = "in sync"
    NOT_IN_SYNC = "not in sync"
    LAGGING = "lagging"
    SILENT = "silent"
    LOADING = "loading"
    UNFIT = "unfit"
    UNREACHABLE = "unreachable"
    NOT_RUNNING = "not running"
    # To operators only.
    NOT_TOLD = "not told"


class Living(NamedTuple):
    """A node that runs, as etcd shows it."""

    address: str
    rack: str


class ShownReplica(NamedTuple):
    """One replica. None, of a figure: nobody tells it."""

    node_id: str
    rack: str
    state: State
    # In words; "": nothing is to be said.
    why: str
    is_in_sync: bool | None
    last_epoch: int | None = None
    log_end: int | None = None
    synced_end: int | None = None
    # Journal offsets that the leader has, and that are not synced here.
    lag: int | None = None
    # Why nothing of its committed log is settled now; "": nothing is in the way.
    settling_waits: str = ""
    # What of it is damaged, and what is done about that; "": nothing is.
    damaged: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "node_id": self.node_id,
            "rack": self.rack or None,
            "state": self.state.value,
            "why": self.why or None,
            "in_sync": self.is_in_sync,
            "last_epoch": self.last_epoch,
            "log_end": self.log_end,
            "synced_end": self.synced_end,
            "lag": self.lag,
            "settling_waits": self.settling_waits or None,
            "damaged": self.damaged or None,
        }


def show_replicas(
    key: Key,
    partition: leader_pb.PartitionDescription,
    living: Mapping[str, Living],
    told: Told,
) -> tuple[ShownReplica, ...]:
    """In the order of the list of replicas: the first one should lead."""
    own = {
        node: description
        for node in partition.replicas
        if (description := told.replicas.get(node, {}).get(key)) is not None
    }
    seen = _Seen(partition, living, told, own)
    return tuple(seen.replica(node) for node in partition.replicas)


class _Seen:
    """What is known of one partition."""

    def __init__(
        self,
        partition: leader_pb.PartitionDescription,
        living: Mapping[str, Living],
        told: Told,
        own: Mapping[str, pb.ReplicaDescription],
    ) -> None:
        self._partition = partition
        self._living = living
        self._told = told
        self._own = own
        self._leader = own.get(partition.leader.node_id)
        self._followers = {} if self._leader is None else _by_node(self._leader, own)

    def replica(self, node: str) -> ShownReplica:
        state, why = self._state(node)
        own, follower = self._own.get(node), self._followers.get(node)
        shown = ShownReplica(
            node_id=node,
            rack=self._living[node].rack if node in self._living else "",
            state=state,
            why=why,
            is_in_sync=self._is_in_sync(node),
            settling_waits="" if own is None else own.settled.waits,
            damaged="" if own is None else show_damage(own.settled),
        )
        if own is not None and own.incarnation:
            shown = shown._replace(
                last_epoch=own.last_epoch, log_end=own.log_end, synced_end=own.synced_end
            )
        elif follower is not None:
            shown = shown._replace(synced_end=follower.synced_end)
        if self._leader is None or shown.synced_end is None or node == self._leader_node:
            return shown
        return shown._replace(lag=max(0, self._leader.log_end - shown.synced_end))

    @property
    def _leader_node(self) -> str:
        return self._partition.leader.node_id

    def _state(self, node: str) -> tuple[State, str]:
        own = self._own.get(node)
        if node not in self._living:
            return State.NOT_RUNNING, ""
        if own is None:
            if node in self._told.replicas:
                return State.LOADING, "its process has not heard of it yet"
            unanswered = self._told.unanswered.get(node)
            if unanswered is None or unanswered.is_refused:
                return State.NOT_TOLD, ""
            return State.UNREACHABLE, unanswered.why
        if own.unfit:
            return State.UNFIT, own.unfit
        if node == self._leader_node:
            return _leading(own)
        if own.stage in (pb.REPLICA_STAGE_UNSPECIFIED, pb.REPLICA_STAGE_CLOSED):
            return State.LOADING, "its log is being opened"
        if self._leader is None:
            return self._by_incarnation(own)
        return self._following(node, own)

    def _following(self, node: str, own: pb.ReplicaDescription) -> tuple[State, str]:
        """As its leader says."""
        follower = self._followers.get(node)
        if follower is None:
            return State.SILENT, "its leader has not heard of it in this epoch"
        if not follower.has_dialog:
            return State.SILENT, f"its leader has not heard of it for {_ago(follower.heard_ms_ago)}"
        if not follower.keeps_up:
            return State.LAGGING, f"had everything {_ago(follower.caught_up_ms_ago)} ago"
        if not follower.in_sync:
            return State.LAGGING, "copies what it lacks, then it joins those in sync"
        return self._by_incarnation(own)

    def _by_incarnation(self, own: pb.ReplicaDescription) -> tuple[State, str]:
        if own.incarnation.hex() in self._partition.isr:
            return State.IN_SYNC, ""
        return State.NOT_IN_SYNC, "it may lack records"

    def _is_in_sync(self, node: str) -> bool | None:
        """etcd names incarnations; on which node one is, only processes say."""
        own = self._own.get(node)
        if own is not None and own.incarnation:
            return own.incarnation.hex() in self._partition.isr
        follower = self._followers.get(node)
        if follower is not None:
            return follower.incarnation.hex() in self._partition.isr
        if not self._partition.isr:
            return False
        known = {one.incarnation.hex() for one in self._own.values()}
        known |= {one.incarnation.hex() for one in self._followers.values()}
        return None if set(self._partition.isr) - known else False


def show_damage(settled: pb.SettledDescription) -> str:
    """What of a data log is damaged, and what is done about it; "": nothing is."""
    if not settled.damaged:
        return ""
    first, *more = settled.damaged
    others = f" and {len(more)} more" if more else ""
    return (
        f"offsets {first.first_offset} to {first.end_offset} ({first.file}, byte "
        f"{first.position}){others}: {settled.healing or 'its turn comes'}"
    )


def _leading(own: pb.ReplicaDescription) -> tuple[State, str]:
    if own.stage == pb.REPLICA_STAGE_READY:
        return State.LEADS, ""
    if own.stage != pb.REPLICA_STAGE_LOADING:
        return State.LOADING, "it was just elected, or leads no more"
    if not own.min_insync_replicas:
        return State.LOADING, "it loads its log"
    return State.LOADING, (
        f"it waits until {own.min_insync_replicas} replicas (min_insync_replicas), and all that "
        "are in sync, have what it has"
    )


def _by_node(
    leader: pb.ReplicaDescription, own: Mapping[str, pb.ReplicaDescription]
) -> dict[str, pb.FollowerDescription]:
    """Of a node that came back under another incarnation, what it is now."""
    found: dict[str, pb.FollowerDescription] = {}
    for follower in leader.followers:
        node = follower.node_id
        is_now = node in own and own[node].incarnation == follower.incarnation
        if node not in found or is_now:
            found[node] = follower
    return found


def _ago(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else show_age(ms)


def why_offline(
    partition: leader_pb.PartitionDescription,
    replicas: Sequence[ShownReplica],
    living: Mapping[str, Living],
) -> str:
    """Empty: it has a leader."""
    if partition.HasField("leader"):
        return ""
    if not partition.replicas:
        return "nothing is known of it yet"
    here = [one for one in replicas if one.node_id in living]
    gone = ", ".join(one.node_id for one in replicas if one.node_id not in living)
    if not here:
        return f"no living replica: start the process of node {gone}, with its data"
    if not partition.epoch:
        names = ", ".join(_named(one, living) for one in here)
        return f"never led so far: its first election is due on {names}"
    whys = [f"{_named(one, living)} {_why_not_leading(one)}" for one in here]
    if gone and not any(one.is_in_sync for one in here):
        whys.append(f"start the process of node {gone}, with its data")
    return "; ".join(whys)


def _named(one: ShownReplica, living: Mapping[str, Living]) -> str:
    return f"{one.node_id} ({living[one.node_id].address})"


def _why_not_leading(one: ShownReplica) -> str:
    match one.state:
        case State.UNFIT | State.UNREACHABLE | State.NOT_IN_SYNC:
            return f"is {one.state.value}: {one.why}"
        case State.LOADING:
            return "is loading: its election comes after that"
        case State.IN_SYNC:
            return "is in sync: its election is due"
        case _:
            return (
                "runs and does not lead it: it starts, or its replica is damaged or not in sync; "
                "look for `replica cannot be opened` and `partition offline` in its log"
            )


def why_unwritable(key: Key, partition: leader_pb.PartitionDescription, told: Told) -> str | None:
    """As its leader says; "": it takes writes. None: there is no leader, or it does not tell."""
    leader = told.replicas.get(partition.leader.node_id, {}).get(key)
    if not partition.HasField("leader") or leader is None:
        return None
    if leader.stage == pb.REPLICA_STAGE_LOADING:
        return f"loading: {_leading(leader)[1]}"
    if leader.stage != pb.REPLICA_STAGE_READY:
        return None
    if leader.takes_writes:
        return ""
    return f"fewer than {leader.min_insync_replicas} replicas in sync keep up (min_insync_replicas)"

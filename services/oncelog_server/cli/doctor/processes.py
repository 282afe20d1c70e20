"""What the processes of a cluster say: who is there, of which version, by which clock, and whether
every partition has a leader.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from oncelog_server.cli.asking import address_of, ask_replicas
from oncelog_server.cli.connection import Connection
from oncelog_server.cli.direct import Direct
from oncelog_server.cli.doctor import replicas
from oncelog_server.cli.doctor.findings import Finding, fail, ok, skip, warn
from oncelog_server.cli.doctor.reaching import Answer, reach, reached
from oncelog_server.cli.output import FEW, show_age, show_few
from oncelog_server.cli.partitions import list_partitions
from oncelog_server.core.roles import COORDINATOR, PARTITION_LEADER, ROLES

if TYPE_CHECKING:
    from oncelogpb.v1 import cluster_pb2

CALL_SECONDS: Final = 5.0
# Addresses that are looked at side by side.
AT_ONCE_MAX: Final = 8
# Above it, times of records and the order of what expires surprise; leases do not mind.
SKEW_WARN_MS: Final = 1_000
SKEW_FAIL_MS: Final = 60_000


class Processes:
    """Everybody who answered: by address, the bootstrap list and all that it led to."""

    def __init__(self, chosen: Connection, direct: Direct) -> None:
        self._chosen = chosen
        self._direct = direct
        self.answers: dict[str, Answer] = {}
        # Address -> its node, of every process that another one named.
        self.nodes: dict[str, cluster_pb2.Node] = {}

    def find(self) -> Iterator[Finding]:
        """Reaches the bootstrap list, then all that it names."""
        given = self._chosen.settings["bootstrap"]
        bootstrap = [one.strip() for one in given.value.split(",") if one.strip()]
        found = self._reach(bootstrap)
        for answer in self.answers.values():
            self.nodes |= {address_of(node): node for node in answer.metadata.nodes}
        if self.answers or given.source != "default":
            yield from self._told(found)
        yield from self._told(self._reach(sorted(self.nodes.keys() - set(bootstrap))))
        if not self.answers:
            if given.source == "default":
                yield skip("connection", f"nobody was named, and nobody is at {given.value}")
            yield skip(
                "cluster",
                "not looked at: versions, clocks, leadership, transactions, damage",
                "start a cluster (`oncelog up`), or name one with --bootstrap or --profile",
            )

    def look(self, *, old_transaction_s: int) -> Iterator[Finding]:
        """At those that answered."""
        yield _one_cluster(self.answers.values(), len(self.answering()))
        yield from _roles(self.nodes.values())
        yield _versions(self.nodes.values())
        yield _clocks(self.answers.values())
        yield _etcd_seen(self.answers.values())
        if not self._chosen.uses_tls:
            yield from _open_doors(self.answering())
        yield from self._partitions()
        yield from self._journals()
        yield from self._transactions(old_transaction_s)

    def answering(self) -> list[str]:
        """Addresses of the processes, each once: the bootstrap list may name them otherwise."""
        return [address for address in sorted(self.nodes) if address in self.answers]

    def config_of(self, address: str) -> Mapping[str, str] | None:
        """Its settings; None where it does not tell."""
        from oncelogpb.v1 import cluster_pb2 as pb

        reply = self._ask(address, "Cluster/GetConfig", pb.GetConfigRequest(), pb.GetConfigReply)
        return None if reply is None else {value.name: value.value for value in reply.values}

    # ---------------------------------------------------------------------------------- reaching

    def _reach(self, addresses: Sequence[str]) -> dict[str, Finding]:
        """By address; those that answer are kept."""
        if not addresses:
            return {}
        with ThreadPoolExecutor(AT_ONCE_MAX) as pool:
            found = list(pool.map(lambda one: reach(one, self._chosen, self._direct), addresses))
        told: dict[str, Finding] = {}
        for address, answer in zip(addresses, found, strict=True):
            if isinstance(answer, Answer):
                self.answers[address] = answer
                told[address] = reached(answer, self._chosen)
            else:
                told[address] = answer
        return told

    def _told(self, found: Mapping[str, Finding]) -> Iterator[Finding]:
        """What is wrong with an address weighs more where clients are sent there."""
        for address, finding in found.items():
            if address in self.answers or address not in self.nodes:
                yield finding
                continue
            roles = ", ".join(self.nodes[address].roles)
            yield finding._replace(
                what=f"{finding.what} (advertised by {roles})",
                do=f"{finding.do}; or correct its --advertise: clients go there",
            )

    def _ask(self, address: str, method: str, request: Any, reply: Any) -> Any:
        """None where it does not answer."""
        import grpc

        try:
            return self._direct.ask(address, method, request, reply, timeout_s=CALL_SECONDS)
        except grpc.RpcError:
            return None

    def _of_role(self, role: str) -> list[str]:
        return [address for address in self.answering() if role in self.nodes[address].roles]

    def _answers_of(self, role: str, method: str, request: Any, reply: Any) -> list[Any]:
        asked = [self._ask(address, method, request, reply) for address in self._of_role(role)]
        return [one for one in asked if one is not None]

    # ----------------------------------------------------------------------------------- looking

    def _partitions(self) -> Iterator[Finding]:
        from oncelogpb.v1 import partition_leader_pb2 as pb

        listed = self._answers_of(
            PARTITION_LEADER,
            "PartitionLeader/ListTopics",
            pb.ListTopicsRequest(internal=True),
            pb.ListTopicsReply,
        )
        if not listed:
            yield skip("partitions", "no partition leader process tells the topics")
            return
        cluster_id = next(iter(self.answers.values())).metadata.cluster_id
        told = ask_replicas(self._direct, cluster_id, self.nodes.values())
        yield from replicas.look(list_partitions(listed[0].topics, self.nodes.values(), told))

    def _journals(self) -> Iterator[Finding]:
        from oncelogpb.ids import show_id
        from oncelogpb.v1 import partition_leader_pb2 as pb

        described = self._answers_of(
            PARTITION_LEADER,
            "PartitionLeader/DescribeJournals",
            pb.DescribeJournalsRequest(),
            pb.DescribeJournalsReply,
        )
        damaged = sorted(
            {show_id(tx_id) for one in described for j in one.journals for tx_id in j.damaged}
        )
        if damaged:
            yield fail(
                "damage",
                f"{len(damaged)} committed transactions have a damaged part: {show_few(damaged)}",
                "`oncelog topic describe` names the partitions, `oncelog tx resolve` ends it",
            )
        elif described:
            yield ok("damage", "no part of a transaction is damaged")

    def _transactions(self, old_s: int) -> Iterator[Finding]:
        from oncelogpb.ids import show_id
        from oncelogpb.v1 import coordinator_pb2 as pb
        from oncelogpb.v1 import types_pb2

        request = pb.ListTransactionsRequest(
            states=[types_pb2.TRANSACTION_STATE_ONGOING],
            min_age_ms=old_s * 1000,
            limit=FEW + 1,
        )
        listed = self._answers_of(
            COORDINATOR, "Coordinator/ListTransactions", request, pb.ListTransactionsReply
        )
        if not listed:
            yield skip("transactions", "no coordinator tells them")
            return
        old = [described for one in listed for described in one.transactions]
        if not old:
            yield ok("transactions", f"none is open for {old_s} s or longer")
            return
        now_ms = int(time.time() * 1000)
        told = [
            f"{show_id(one.tx_id)} of {one.name or 'an unnamed producer'} "
            f"({show_age(now_ms - one.begin_time_ms)})"
            for one in old
        ]
        yield warn(
            "transactions",
            f"open for long: {show_few(told)}",
            "`oncelog tx describe TXID` says more; `oncelog tx abort TXID` ends it",
        )


def _one_cluster(answers: Iterable[Answer], answering: int) -> Finding:
    ids: dict[str, list[str]] = {}
    for answer in answers:
        ids.setdefault(answer.metadata.cluster_id.hex(), []).append(answer.address)
    if len(ids) == 1:
        return ok("cluster", f"{next(iter(ids))}, {answering} processes answer")
    told = "; ".join(f"{name}: {', '.join(places)}" for name, places in sorted(ids.items()))
    return fail(
        "cluster", f"the addresses are of {len(ids)} clusters: {told}", "name those of one cluster"
    )


def _roles(nodes: Iterable[cluster_pb2.Node]) -> Iterator[Finding]:
    running = {role for node in nodes for role in node.roles}
    for role in ROLES:
        if role not in running:
            yield fail("cluster", f"no {role} process runs", f"start one: `oncelog serve {role}`")


def _versions(nodes: Iterable[cluster_pb2.Node]) -> Finding:
    from importlib import metadata

    own = metadata.version("oncelog-server")
    by_version: dict[str, list[str]] = {}
    for node in nodes:
        by_version.setdefault(node.version, []).append(address_of(node))
    told = "; ".join(f"{name}: {', '.join(places)}" for name, places in sorted(by_version.items()))
    if len(by_version) > 1:
        return warn(
            "versions",
            f"processes of several versions: {told}",
            "finish the update: run one version everywhere",
        )
    if own not in by_version:
        return warn(
            "versions",
            f"this command is {own}, the processes are {', '.join(by_version)}",
            "use the command of the processes' version",
        )
    return ok("versions", f"all processes and this command are {own}")


def _clocks(answers: Iterable[Answer]) -> Finding:
    ahead = {one.address: one.ahead_ms for one in answers if one.ahead_ms is not None}
    unsure_ms = max((one.took_ms for one in answers), default=0.0) / 2
    if not ahead:
        return skip("clocks", "the processes do not tell their time")
    # This machine's is one of them.
    values = {**ahead, "this machine": 0.0}
    first, last = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    apart_ms = max(0.0, values[last] - values[first] - unsure_ms)
    told = f"{last} is {apart_ms / 1000:.1f} s ahead of {first}"
    do = "let NTP (chrony, systemd-timesyncd) set the clocks of all machines"
    if apart_ms >= SKEW_FAIL_MS:
        return fail("clocks", f"{told}: times of records, and what expires, go wrong", do)
    if apart_ms >= SKEW_WARN_MS:
        return warn("clocks", told, do)
    return ok("clocks", f"all within {apart_ms + unsure_ms:.0f} ms, this machine's too")


def _open_doors(addresses: Iterable[str]) -> Iterator[Finding]:
    """Who speaks without TLS, and not to this machine alone."""
    found = [one for one in addresses if not _is_loopback(one.rpartition(":")[0].strip("[]"))]
    if found:
        yield warn(
            "tls",
            f"whoever reaches {show_few(found)} may do everything: they speak without TLS",
            "node.tls_ca, node.tls_certificate and node.tls_key turn it on",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _etcd_seen(answers: Iterable[Answer]) -> Finding:
    away = [one.address for one in answers if not one.metadata.etcd_reachable]
    if away:
        return fail(
            "etcd",
            f"not reached by {show_few(away)}: past its lease nobody may lead there",
            "start etcd, or look at the network from there to it",
        )
    newest = max(one.metadata.etcd_revision for one in answers)
    return ok("etcd", f"every process reaches it (revision {newest})")

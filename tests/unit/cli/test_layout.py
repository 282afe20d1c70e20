"""Which processes an embedded cluster has, and where: the same over restarts, with any number of
nodes."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from oncelog_server.cli import readiness
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.folder import Folder
from oncelog_server.cli.layout import ONE_PROCESS, Layout, Ports, choose
from oncelog_server.cli.recovering import expand
from oncelog_server.core.ids import CONSUMER_OFFSETS, TRANSACTION_CONTROL, partition_of_name
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.loopback_ports import HOST, is_free
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import types_pb2


def laid_out(path: Path, **options: Any) -> Layout:
    """As one run of `up` does."""
    given = {"nodes": None, "ports_from": None, "free": False, "one_process": False} | options
    folder = Folder.take(path)
    try:
        layout = choose(folder.layout(), str(path), **given)
        folder.keep_layout(layout)
        return layout
    finally:
        folder.close()


def ports_of(layout: Layout) -> dict[str, int]:
    return {process.name: process.port for process in layout.known()}


def test_ports_stay_over_restarts(tmp_path: Path) -> None:
    first = laid_out(tmp_path, free=True)
    assert len({first.ports.of(role) for role in ROLES}) == 3
    assert laid_out(tmp_path) == first
    assert laid_out(tmp_path, free=True) == first


def free_base(nodes: int) -> int:
    """First of ports that are free for so many nodes."""
    for _ in range(100):
        first = Ports.free().coordinator
        wanted = [
            port for node in range(nodes) for port in Ports.consecutive(first, node + 1).all()
        ]
        if all(map(is_free, wanted)):
            return first
    raise AssertionError("no free ports beside each other")


def test_ports_can_be_moved(tmp_path: Path) -> None:
    laid_out(tmp_path, free=True)
    base = free_base(1)
    moved = laid_out(tmp_path, ports_from=base)
    assert moved.ports == Ports(base, base + 1, base + 2)
    assert laid_out(tmp_path) == moved


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind((HOST, 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(CommandFailed, match=f"port {port} is in use"):
            laid_out(tmp_path, ports_from=port)


def test_data_of_three_processes_is_not_run_as_one(tmp_path: Path) -> None:
    laid_out(tmp_path, free=True)
    with pytest.raises(CommandFailed, match="without --one-process"):
        laid_out(tmp_path, one_process=True)
    other = tmp_path / "one"
    layout = laid_out(other, free=True, one_process=True)
    assert layout.processes == (ONE_PROCESS,)
    with pytest.raises(CommandFailed, match="with --one-process"):
        laid_out(other)


def test_a_broken_layout_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(CommandFailed, match=r"cluster\.json"):
        laid_out(tmp_path)
    assert (tmp_path / "cluster.json").read_text() == "{"


# -------------------------------------------------------------------------------- several nodes


def test_each_node_has_processes_data_and_ports_of_its_own(tmp_path: Path) -> None:
    base = free_base(3)
    layout = laid_out(tmp_path, nodes=3, ports_from=base)
    assert ports_of(layout) == {
        "coordinator": base,
        "partition_leader": base + 1,
        "offset_manager": base + 2,
        "coordinator-2": base + 10,
        "partition_leader-2": base + 11,
        "offset_manager-2": base + 12,
        "coordinator-3": base + 20,
        "partition_leader-3": base + 21,
        "offset_manager-3": base + 22,
    }
    assert [process.name for process in layout.started()] == list(ports_of(layout))


def test_a_folder_of_one_node_grows_and_shrinks_and_keeps_what_it_knew(tmp_path: Path) -> None:
    """Also one that an earlier version wrote, which knew nothing of nodes."""
    base = free_base(3)
    ports = dict(zip(ROLES, Ports.consecutive(base).all(), strict=True))
    (tmp_path / "cluster.json").write_text(json.dumps({"ports": ports, "processes": ROLES}))
    assert len(laid_out(tmp_path).started()) == 3
    grown = laid_out(tmp_path, nodes=3)
    assert grown.further == (Ports.consecutive(base, 2), Ports.consecutive(base, 3))
    assert len(laid_out(tmp_path).started()) == 9, "as many as in the last run"
    shrunk = laid_out(tmp_path, nodes=1)
    assert [process.name for process in shrunk.started()] == list(ROLES)
    assert {process.node for process in shrunk.away()} == {2, 3}
    assert ports_of(shrunk) == ports_of(grown)
    assert ports_of(laid_out(tmp_path, nodes=2)) == ports_of(grown)


def test_nodes_that_are_away_move_along_when_ports_are_moved(tmp_path: Path) -> None:
    laid_out(tmp_path, nodes=2, free=True)
    base = free_base(2)
    moved = laid_out(tmp_path, nodes=1, ports_from=base)
    assert {process.node for process in moved.away()} == {2}
    assert moved.further == (Ports.consecutive(base, 2),)


def test_free_ports_of_further_nodes_are_not_those_of_one_that_is_away(tmp_path: Path) -> None:
    laid_out(tmp_path, nodes=2, free=True)
    layout = laid_out(tmp_path, nodes=5)
    assert len(set(ports_of(layout).values())) == 15


def test_several_nodes_of_one_process_each(tmp_path: Path) -> None:
    layout = laid_out(tmp_path, nodes=2, free=True, one_process=True)
    assert [(process.name, tuple(process.roles)) for process in layout.started()] == [
        ("services", ROLES),
        ("services-2", ROLES),
    ]


def test_ports_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="node 2 would end at 65545"):
        laid_out(tmp_path, nodes=2, ports_from=65_533)


def test_a_recovery_looks_at_the_data_of_nodes_that_are_away_too(tmp_path: Path) -> None:
    layout = laid_out(tmp_path, nodes=2, free=True)
    laid_out(tmp_path, nodes=1)
    for process in layout.known():
        (tmp_path / process.name).mkdir()
    assert {path.name for path in expand([tmp_path])} == {p.name for p in layout.known()}


# ------------------------------------------------------------------------------------- readiness


def test_readiness_asks_for_every_partition_of_offsets() -> None:
    assert len(set(map(partition_of_name, readiness.group_per_partition()))) == 16


def metadata(led: int, replicas_of_others: str = "n2", *, told: bool = True) -> Any:
    """Of each control topic `led` partitions have a leader, on n1."""
    routes = [
        pb.Route(leader=types_pb2.Leader(node_id="n1") if number < led else None)
        for number in range(16)
    ]
    topics = [
        leader_pb.TopicDescription(
            name=name,
            partitions=[
                leader_pb.PartitionDescription(
                    number=number, replicas=["n1" if number < led else replicas_of_others]
                )
                for number in range(16)
            ],
        )
        for name in (TRANSACTION_CONTROL, CONSUMER_OFFSETS)
    ]
    return pb.GetMetadataReply(
        journal_partitions=routes, consumer_groups=routes, topics=topics if told else []
    )


@pytest.mark.parametrize(
    ("reply", "away", "said"),
    [
        (metadata(16), (), ""),
        (metadata(10, told=False), (), f"10 of 16 partitions of {TRANSACTION_CONTROL}"),
        (metadata(10), ("n2",), ""),
        (metadata(10, "n3"), ("n2",), f"10 of 16 partitions of {TRANSACTION_CONTROL}"),
        # Where rules hold, the processes' own certificate is not told the replicas.
        (metadata(10, told=False), ("n2",), ""),
    ],
)
def test_ready_is_when_all_is_led_but_what_lies_on_nodes_that_are_away(
    reply: Any, away: tuple[str, ...], said: str
) -> None:
    assert readiness.missing(reply, away).startswith(said)
    assert bool(readiness.missing(reply, away)) == bool(said)

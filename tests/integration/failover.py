"""Three processes of each role (`oncelog up --nodes 3`), one of which is frozen for so long that
another one leads."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import oncelog
from oncelog_server.core.ids import partition_of_name
from oncelog_server.core.roles import COORDINATOR, OFFSET_MANAGER, PARTITION_LEADER
from tests.integration.cluster import until
from tests.integration.up import Up, children_of

NODES: int = 3
CONTROL_TOPICS = {COORDINATOR: "__transaction_control", OFFSET_MANAGER: "__consumer_offsets"}


def leader(log: oncelog.Log, topic: str, number: int) -> str | None:
    """Its address."""
    for known in log.admin.topics(internal=True):
        if known.name == topic:
            return known.partitions[number].leader
    return None


def all_in_sync(log: oncelog.Log) -> bool:
    return all(
        partition.leader is not None and len(partition.isr) == NODES
        for topic in log.admin.topics(internal=True)
        for partition in topic.partitions
    )


def led_by(role: str, *, topic: str, group: str) -> tuple[str, int]:
    """A partition that who uses this topic and this group (of producers, of consumers) needs."""
    if role == PARTITION_LEADER:
        return topic, 0
    return CONTROL_TOPICS[role], partition_of_name(group)


@contextlib.contextmanager
def frozen_leader(up: Up, folder: Path, log: oncelog.Log, topic: str, number: int) -> Iterator[str]:
    """SIGSTOP of the process that leads it; in the body another one does. Its address."""
    before = leader(log, topic, number)
    names = {said["address"]: said["service"] for said in up.said if "address" in said}
    assert before is not None, f"{topic}/{number} has a leader"
    (pid,) = children_of(up.pid, f"--data={folder / names[before]}\0")
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: leader(log, topic, number) not in (None, before), "another one leads")
        yield before
    finally:
        os.kill(pid, signal.SIGCONT)

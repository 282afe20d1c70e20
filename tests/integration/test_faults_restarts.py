"""A service goes away in the middle of a transaction and comes back: the transaction is decided
once, and the client gets there or is told the truth."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

import oncelog
from oncelog import errors
from tests.integration.by_hand import ByHand
from tests.integration.cluster import (
    COORDINATOR,
    OFFSET_MANAGER,
    PARTITION_LEADER,
    ROLES,
    Cluster,
    until,
)
from tests.integration.reading import next_values, values

pytestmark = pytest.mark.integration

# How a service ends. After SIGTERM it hands over and leaves a snapshot; after kill -9 nothing.
ENDS: dict[str, Callable[..., None]] = {"killed": Cluster.kill, "stopped": Cluster.stop}
COUNT = 20

_names = itertools.count()


@pytest.fixture
def name(log: oncelog.Log) -> str:
    """Of a story: its topics are `name`-in with 20 records, and `name`-out."""
    chosen = f"story-{next(_names)}"
    log.admin.create_topic(f"{chosen}-in", partitions=1)
    log.admin.create_topic(f"{chosen}-out", partitions=2)
    with log.producer() as plain:
        for number in range(COUNT):
            plain.send(f"{chosen}-in", b"%d" % number)
    return chosen


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("role", ROLES)
def test_i21_a_service_goes_after_produce_before_commit(
    cluster: Cluster, log: oncelog.Log, name: str, role: str, end: Callable[..., None]
) -> None:
    consumer = log.consumer([f"{name}-in"], group=name)
    producer = log.transactional_producer(name)
    attempts = 0
    while True:
        sent = next_values(consumer, COUNT)
        attempts += 1
        try:
            with producer.transaction(consumer, wait="visible") as tx:
                for value in sent[:10]:
                    tx.send(f"{name}-out", value)
                tx.flush()
                if attempts == 1:
                    end(cluster, role)
                    cluster.start(role)
                for value in sent[10:]:
                    tx.send(f"{name}-out", value)
            break
        except errors.TransactionEnded:
            # The truth: it was aborted. The consumer is back at the start.
            assert attempts == 1, "nothing was in the way"
    assert log.admin.describe_transaction(tx.tx_id).state == "committed"
    assert sorted(values(log, f"{name}-out"), key=int) == [b"%d" % n for n in range(COUNT)]
    assert [place.offset for place in log.admin.group_offsets(name)] == [COUNT]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("role", ROLES)
def test_i4_a_service_goes_after_commit_before_visible(
    cluster: Cluster, log: oncelog.Log, name: str, role: str, end: Callable[..., None]
) -> None:
    with ByHand(cluster.bootstrap, name) as hand:
        tx = hand.begin()
        tx.produce(f"{name}-out", 0, b"a", b"b")
        tx.produce(f"{name}-out", 1, b"c")
        tx.send_offset(name, f"{name}-in", 0, since=None, to=COUNT)
        # Nobody takes the markers, or nobody sends them: it is committed and cannot be seen.
        if role == COORDINATOR:
            with cluster.paused(PARTITION_LEADER, OFFSET_MANAGER):
                assert not tx.commit().visible
                end(cluster, role)
        else:
            end(cluster, role)
            assert not tx.commit().visible
        cluster.start(role)
        until(tx.is_visible, "the markers arrive")
        # Repeated, as after a lost answer.
        tx.commit()
    assert values(log, f"{name}-out") == [b"a", b"b", b"c"]
    assert [place.offset for place in log.admin.group_offsets(name)] == [COUNT]


def test_i4_all_services_go_between_commit_and_visible(
    cluster: Cluster, log: oncelog.Log, name: str
) -> None:
    with ByHand(cluster.bootstrap, name) as hand:
        tx = hand.begin()
        tx.produce(f"{name}-out", 0, b"a")
        tx.send_offset(name, f"{name}-in", 0, since=None, to=COUNT)
        cluster.kill(PARTITION_LEADER, OFFSET_MANAGER)
        tx.commit()
        cluster.kill(COORDINATOR)
        cluster.start(*ROLES)
        until(tx.is_visible, "the markers arrive")
    assert values(log, f"{name}-out") == [b"a"]
    assert [place.offset for place in log.admin.group_offsets(name)] == [COUNT]


def test_i1_an_abort_outlives_the_coordinator(
    cluster: Cluster, log: oncelog.Log, name: str
) -> None:
    with ByHand(cluster.bootstrap, name) as hand:
        tx = hand.begin()
        tx.produce(f"{name}-out", 0, b"never")
        tx.send_offset(name, f"{name}-in", 0, since=None, to=COUNT)
        with cluster.paused(PARTITION_LEADER, OFFSET_MANAGER):
            tx.abort()
            cluster.kill(COORDINATOR)
        cluster.start(COORDINATOR)
        with pytest.raises(errors.TransactionEnded):
            tx.commit()
        after = hand.begin()
        after.produce(f"{name}-out", 0, b"after")
        after.send_offset(name, f"{name}-in", 0, since=None, to=1)
        after.commit()
        until(after.is_visible, "the next transaction takes the same offsets")
    assert values(log, f"{name}-out") == [b"after"]
    assert [place.offset for place in log.admin.group_offsets(name)] == [1]


@pytest.mark.parametrize("role", ROLES)
def test_i21_a_transaction_that_was_ended_by_others_rewinds_the_consumer(
    cluster: Cluster, log: oncelog.Log, name: str, role: str
) -> None:
    consumer = log.consumer([f"{name}-in"], group=name)
    producer = log.transactional_producer(name)
    first = next_values(consumer, COUNT)
    with pytest.raises(errors.TransactionEnded), producer.transaction(consumer) as tx:
        tx.send(f"{name}-out", b"never")
        tx.flush()
        log.admin.abort_transaction(tx.tx_id)
        cluster.restart(role)
    assert tx.state == "aborted"
    assert log.admin.describe_transaction(tx.tx_id).cause == "operator"
    assert next_values(consumer, COUNT) == first
    with producer.transaction(consumer, wait="visible") as tx:
        tx.send(f"{name}-out", b"once")
        tx.flush()
    assert values(log, f"{name}-out") == [b"once"]
    assert [place.offset for place in log.admin.group_offsets(name)] == [COUNT]


def test_a_session_goes_on_over_the_restart_of_its_coordinator(
    cluster: Cluster, log: oncelog.Log, name: str
) -> None:
    producer = log.transactional_producer(name)
    with producer.transaction(wait="visible") as tx:
        tx.send(f"{name}-out", b"before", partition=0)
        tx.flush()
        for _ in range(2):
            cluster.restart(COORDINATOR)
            cluster.wait_ready()
            assert log.admin.describe_transaction(tx.tx_id).state == "ongoing"
        tx.send(f"{name}-out", b"after", partition=0)
    assert values(log, f"{name}-out") == [b"before", b"after"]


# A user's program that is killed in the middle of a transaction.
PROGRAM = """
import sys, time, oncelog
bootstrap, name = sys.argv[1:]
with oncelog.connect(bootstrap) as log:
    with log.transactional_producer(name).transaction() as tx:
        tx.send(f"{name}-out", b"never", partition=0)
        tx.flush()
        print(tx.tx_id, flush=True)
        time.sleep(600)
"""


def test_i30_what_a_killed_program_left_open_ends_with_its_session(
    cluster: Cluster, log: oncelog.Log, name: str
) -> None:
    set_session_grace(cluster, 500)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.bootstrap, name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "false"},
    )
    assert program.stdout is not None
    with program.stdout as said:
        tx_id = int(said.readline())
        assert log.admin.describe_transaction(tx_id).state == "ongoing"
        program.send_signal(signal.SIGKILL)
    program.wait()
    until(lambda: log.admin.describe_transaction(tx_id).state == "aborted", "it is aborted")
    assert log.admin.describe_transaction(tx_id).cause == "session"
    with log.transactional_producer(name).transaction(wait="visible") as tx:
        tx.send(f"{name}-out", b"next", partition=0)
    assert values(log, f"{name}-out") == [b"next"]
    set_session_grace(cluster, None)


def set_session_grace(cluster: Cluster, grace_ms: int | None) -> None:
    """None: back to the default."""
    changed = [] if grace_ms is None else [f"coordinator.session_grace_ms={grace_ms}"]
    cluster.of_role[COORDINATOR] = changed
    cluster.restart(COORDINATOR)
    cluster.wait_ready()

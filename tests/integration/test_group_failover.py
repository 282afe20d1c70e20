"""KIP-447's five-step zombie, where another node leads its group meanwhile (I21, I23):

1  a member reads, begins its transaction, and is stopped before it commits
2  who leads its group is frozen, and another node leads
3  the session is over; another process gets the partitions, reads the same and commits it
4  the zombie wakes up, and commits
5  it is refused, and nothing is there twice
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog_server.core.roles import OFFSET_MANAGER
from oncelogpb.errors import UnknownMember
from oncelogpb.v1 import offset_manager_pb2 as pb
from tests.integration.by_hand import ByHand
from tests.integration.cluster import until
from tests.integration.failover import NODES, all_in_sync, frozen_leader, led_by
from tests.integration.group_job import SESSION_MS, Job
from tests.integration.up import Up, up_over

pytestmark = pytest.mark.integration

FED = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with up_over(folder, f"--nodes={NODES}") as made:
        yield made


@pytest.fixture
def log(up: Up) -> Iterator[oncelog.Log]:
    with oncelog.connect(up.bootstrap, timeout_ms=60_000) as made:
        yield made


def job_of(up: Up, log: oncelog.Log, name: str, directory: Path, partitions: int) -> Job:
    job = Job(log, up.bootstrap, name, directory, partitions=partitions, replicas=NODES)
    until(lambda: all_in_sync(log), "all replicas are in sync")
    return job


@pytest.mark.parametrize("old_leader", ["away", "back"])
def test_i23_who_slept_over_a_failover_of_its_group_commits_nothing(
    up: Up, folder: Path, log: oncelog.Log, tmp_path: Path, old_leader: str
) -> None:
    """`back`: the leader that knew it as a member is there again when it wakes up."""
    job = job_of(up, log, f"zombie-{old_leader}", tmp_path, 3)
    place = led_by(OFFSET_MANAGER, topic="", group=job.name)
    with job.working("tells") as (zombie,):
        job.feed(FED)
        until(lambda: zombie.has_said("step"), "it has polled")
        zombie.process.send_signal(signal.SIGSTOP)
        with frozen_leader(up, folder, log, *place), job.working("works") as (successor,):
            job.all_is_copied_once()
            assert successor.has_said("step")
            if old_leader == "away":
                zombie.process.send_signal(signal.SIGCONT)
                zombie.go_on()
                until(lambda: zombie.has_said("refused"), "its commit is refused")
                job.all_is_copied_once()
        if old_leader == "back":
            zombie.process.send_signal(signal.SIGCONT)
            zombie.go_on()
            until(lambda: zombie.has_said("refused"), "its commit is refused")
        assert not zombie.has_said("committed")
        until(lambda: zombie.has_said("lost"), "it hears that all is lost")
        job.feed(FED)
        for _ in range(20):
            # It is a member again, and works.
            zombie.go_on()
        job.all_is_copied_once()
        until(lambda: zombie.has_said("committed"), "and commits")


def test_i23_the_new_leader_refuses_a_zombie_that_does_not_know_that_it_is_one(
    up: Up, folder: Path, log: oncelog.Log, tmp_path: Path
) -> None:
    """The client above stops by its own clock. This one has none: the fence is the group's."""
    job = job_of(up, log, "naive", tmp_path, 1)
    place = led_by(OFFSET_MANAGER, topic="", group=job.name)
    with ByHand(up.bootstrap, "naive-producer") as zombie:
        joining = pb.HeartbeatRequest(
            group=job.name,
            member=pb.GroupMember(member_id="zombie"),
            subscribed_topics=[f"{job.name}-in"],
            session_timeout_ms=SESSION_MS,
        )
        joined = zombie.protocol.call("offset_manager.heartbeat", joining)
        assert [partition.number for partition in joined.assignment] == [0]
        job.feed(FED)
        transaction = zombie.begin()
        transaction.produce(f"{job.name}-out", 0, *(b"%d" % n for n in range(FED)))
        with frozen_leader(up, folder, log, *place), job.working("works") as (successor,):
            job.all_is_copied_once()
            assert successor.has_said("step")
            with pytest.raises(UnknownMember, match="was silent for its session"):
                transaction.send_offset(
                    job.name, f"{job.name}-in", 0, since=None, to=FED, member=joined.member
                )
            transaction.abort()
            job.all_is_copied_once()

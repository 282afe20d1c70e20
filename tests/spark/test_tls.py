"""Source and sink of a cluster that speaks TLS alone, only with whom its authority signed, and lets
them do what rules allow. These are the rules that spark/README.md names, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

import oncelog
from oncelog_server.cli.processes import Service
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, find_or_build
from oncelog_server.runtime.loopback_ports import free_ports
from tests.integration.cluster import ROLES, until
from tests.spark.conftest import Lab, numbers
from tests.unit.rpc.authority import Authority

pytestmark = pytest.mark.spark

# Who the job is, and what it may.
RULES = (
    ("read", "topic:in"),
    ("write", "topic:in"),
    ("read", "topic:out"),
    ("write", "topic:out"),
    ("read", "group:g"),
    ("write", "producer:job"),
)


@dataclass(frozen=True)
class Secured:
    """A cluster, as Spark and as an operator reach it."""

    options: Mapping[str, str]
    operator: oncelog.Tls

    def log(self) -> oncelog.Log:
        return oncelog.connect(self.options["oncelog.bootstrap.servers"], tls=self.operator)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One process of all roles, with two topics."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "authority")
    theirs, ours, admin = map(authority.issue, ("server", "spark", "admin"))
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    etcd = EmbeddedEtcd(folder / "etcd", find_or_build(print))
    etcd.start()
    service = Service(
        "all",
        [
            *("serve", *ROLES, f"--data={folder / 'data'}", f"--listen={address}"),
            *(f"--etcd={etcd.endpoint}", f"--tls-ca={theirs.ca}"),
            *(f"--tls-cert={theirs.certificate}", f"--tls-key={theirs.key}"),
            *("--set=node.disk_free_floor_bytes=0", "--set=authorization.operators=admin"),
        ],
        address=address,
        log=folder / "log",
    )
    try:
        service.start()
        until(lambda: "node started" in (folder / "log").read_text(), "the node starts")
        options = {
            "oncelog.bootstrap.servers": address,
            "oncelog.tls.ca": theirs.ca,
            "oncelog.tls.certificate": ours.certificate,
            "oncelog.tls.key": ours.key,
            "oncelog.tls.server.name": "localhost",
        }
        made = Secured(options, oncelog.Tls(admin.ca, admin.certificate, admin.key))
        with made.log() as log:
            for topic in ("in", "out"):
                log.admin.create_topic(topic, partitions=2)
            for verb, what in RULES:
                log.admin.access.allow("spark", verb, what)
        yield made
    finally:
        service.stop()
        etcd.stop()


def test_batch_jobs_and_queries_speak_tls(lab: Lab, secured: Secured) -> None:
    rows = lab.spark.range(0, 200, numPartitions=2).selectExpr("cast(id as string) as value")
    rows.write.format("oncelog").mode("append").options(**secured.options).option(
        "topic", "in"
    ).save()
    stream = (
        lab.spark.readStream.format("oncelog")
        .options(**secured.options)
        .options(subscribe="in", startingOffsets="earliest", group="g", transactionalSink="job")
        .load()
    )
    query = (
        stream.select("value")
        .writeStream.format("oncelog")
        .options(**secured.options)
        .options(topic="out", producer="job", inputGroups="g")
        .option("checkpointLocation", str(lab.checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    read = (
        lab.spark.read.format("oncelog")
        .options(**secured.options)
        .option("subscribe", "out")
        .load()
    )
    found = [bytes(row.value).decode() for row in read.select("value").collect()]
    assert sorted(found) == numbers(200)


def test_a_file_that_is_not_there_is_named(lab: Lab, secured: Secured) -> None:
    wrong = {**secured.options, "oncelog.tls.ca": "/there/is/none.pem"}
    read = lab.spark.read.format("oncelog").options(**wrong).option("subscribe", "in").load()
    with pytest.raises(Exception, match=r"TLS file cannot be read.*/there/is/none\.pem"):
        read.count()


def test_an_option_that_asks_for_safety_in_other_words_is_no_plain_text(lab: Lab) -> None:
    read = lab.spark.read.format("oncelog").option("bootstrap", lab.bootstrap)
    asked = read.option("kafka.security.protocol", "SSL").option("subscribe", "any")
    with pytest.raises(Exception, match=r"`kafka\.security\.protocol`: TLS is asked for by"):
        asked.load().count()

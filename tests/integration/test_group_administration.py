"""Groups, as operators and users administer them from Python, against the services in this
process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import oncelog
import oncelog.testing
from oncelog import Shift, errors
from oncelog.batch import TopicPartition

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[oncelog.testing.Cluster]:
    with oncelog.testing.cluster() as made:
        yield made


@pytest.fixture
def log(cluster: oncelog.testing.Cluster) -> Iterator[oncelog.Log]:
    with oncelog.connect(cluster.bootstrap) as made:
        yield made


@pytest.fixture
def topic(log: oncelog.Log) -> str:
    """Ten records in each of two partitions."""
    name = log.admin.create_topic(f"topic-{next(_names)}", partitions=2).name
    with log.producer() as producer:
        for number in range(20):
            producer.send(name, b"%d" % number, partition=number % 2)
    return name


@pytest.fixture
def group() -> str:
    return f"group-{next(_names)}"


def read_all(consumer: oncelog.Consumer) -> None:
    while sum(consumer.lag().values()):
        consumer.poll(1.0)


def test_a_group_is_described_with_its_members_and_where_it_stands(
    log: oncelog.Log, topic: str, group: str
) -> None:
    with log.consumer([topic], group=group, client_id="tester", instance_id="i-1") as consumer:
        read_all(consumer)
        consumer.commit()
        told = log.admin.describe_group(group)
        assert (told.group, told.state, told.assignor, told.lag) == (group, "stable", "uniform", 0)
        assert told.generation > 0
        (member,) = told.members
        assert (member.client_id, member.instance_id) == ("tester", "i-1")
        assert member.subscribed_topics == (topic,)
        assert list(member.assignment) == list(member.target) == consumer.assignment
        assert member.host
        assert member.silent_ms is not None
        assert member.session_timeout_ms == 10_000
        assert {row.owner for row in told.offsets} == {member.member_id}
        (info,) = log.admin.groups(group)
        assert (info.members, info.state) == (1, "stable")
    with pytest.raises(errors.NotFound):
        log.admin.describe_group("nobody-ever")


def test_a_member_is_removed_by_its_id_or_its_instance(
    log: oncelog.Log, topic: str, group: str
) -> None:
    with log.consumer([topic], group=group, instance_id="i-1") as consumer:
        (member,) = log.admin.describe_group(group).members
        with pytest.raises(errors.InvalidArgument):
            log.admin.remove_member(group)
        assert log.admin.remove_member(group, instance_id="i-1") == member.member_id
        with pytest.raises(errors.NotFound):
            log.admin.remove_member(group, member.member_id)
        with pytest.raises(errors.UnknownMember):
            while True:
                consumer.poll(0.1)
                consumer.commit()


def test_offsets_are_reset_when_the_group_is_empty(
    log: oncelog.Log, topic: str, group: str
) -> None:
    with log.consumer([topic], group=group) as consumer:
        read_all(consumer)
        consumer.commit()
        with pytest.raises(errors.UnknownMember):
            log.admin.reset_offsets(group, "earliest")

    def stands() -> list[int | None]:
        return [row.offset for row in log.admin.group_offsets(group)]

    planned = log.admin.reset_offsets(group, "earliest", dry_run=True)
    assert [(row.before, row.after, row.lag_after) for row in planned] == [(10, 0, 10)] * 2
    assert stands() == [10, 10]
    log.admin.reset_offsets(group, "earliest")
    assert stands() == [0, 0]
    log.admin.reset_offsets(group, Shift(+3))
    assert stands() == [3, 3]
    log.admin.reset_offsets(group, {topic: "latest", (topic, 1): 4})
    assert stands() == [10, 4]
    log.admin.reset_offsets(group, {TopicPartition(topic, 1): Shift(-1)})
    assert stands() == [10, 3]
    log.admin.reset_offsets(group, datetime.now(UTC) - timedelta(hours=1))
    assert stands() == [0, 0]
    log.admin.reset_offsets(group, datetime.now(UTC) + timedelta(hours=1))
    assert stands() == [10, 10]
    log.admin.delete_group(group)
    with pytest.raises(errors.NotFound):
        log.admin.reset_offsets(group, "earliest")
    log.admin.reset_offsets(group, {topic: 5})
    assert stands() == [5, 5]


@pytest.mark.parametrize("to", ["soon", -1, 1.5, True, None, datetime(2026, 1, 1), {}])
def test_where_no_group_can_be_put_is_refused(log: oncelog.Log, to: object) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        log.admin.reset_offsets("g", to)  # type: ignore[arg-type]
    assert refused.value.metadata["field"] == "to"


def test_a_place_that_is_not_there_is_refused(log: oncelog.Log, topic: str, group: str) -> None:
    with pytest.raises(errors.UnknownPartition):
        log.admin.reset_offsets(group, {(topic, 2): 0})
    with pytest.raises(errors.UnknownTopic):
        log.admin.reset_offsets(group, {"no-such-topic": 0})


def test_i22_whoever_waited_for_a_commit_finds_its_offsets(
    log: oncelog.Log, topic: str, group: str
) -> None:
    out = log.admin.create_topic(f"{topic}-out").name
    waiter = log.consumer([out], group=f"{group}-behind")
    with log.consumer([topic], group=group) as consumer, log.transactional_producer() as producer:
        done: list[int] = []
        while len(done) < 4:
            batch = consumer.poll(1.0)
            if batch is None:
                log.producer().send(topic, b"more", partition=len(done) % 2)
                log.flush()
                continue
            with producer.transaction(consumer) as tx:
                tx.send(out, b"%d" % len(batch))
            done.append(tx.tx_id)
            waiter.wait_for_commit(group, tx.tx_id)
            found = {row.partition: row for row in log.admin.group_offsets(group)}
            for place, to in batch.next_offsets().items():
                assert found[place.partition].offset == to
                assert found[place.partition].pending_tx_id == 0
        # It has gone further since.
        for tx_id in done:
            log.admin.wait_for_commit(group, tx_id, timeout_s=5)
        (last,) = log.admin.describe_group(group).last_commits
        assert last.tx_id == done[-1]
        with pytest.raises(errors.NotFound):
            log.admin.wait_for_commit(f"{group}-other", done[0])
        with pytest.raises(errors.TransactionEnded), producer.transaction(consumer) as tx:
            tx.send(out, b"dropped")
            tx.flush()
            tx.abort()
            log.admin.wait_for_commit(group, tx.tx_id)
    waiter.close()


def test_i15_what_came_after_a_group_began_at_the_end_is_read_by_whoever_comes_next(
    log: oncelog.Log, topic: str, group: str
) -> None:
    with log.consumer([topic], group=group, start="latest") as first:
        assert first.position(topic, 0) == 10
    with log.producer() as producer:
        producer.send(topic, b"meanwhile", partition=0)
    with log.consumer([topic], group=group, start="latest") as second:
        batch = second.poll(30.0)
        assert batch is not None
        assert [record.value for record in batch] == [b"meanwhile"]


def test_positions_come_as_rows_and_as_arrow(log: oncelog.Log, topic: str, group: str) -> None:
    with log.consumer([topic], group=group) as consumer:
        read_all(consumer)
        assert [row.committed for row in consumer.positions()] == [None, None]
        consumer.commit()
        table = consumer.positions().to_arrow()
    assert table.column_names == [
        "topic",
        "partition",
        "position",
        "committed",
        "end_offset",
        "lag",
    ]
    assert table.to_pylist()[1] == {
        "topic": topic,
        "partition": 1,
        "position": 10,
        "committed": 10,
        "end_offset": 10,
        "lag": 0,
    }
    of_group = log.admin.group_offsets(group).to_arrow()
    assert of_group.schema.field("offset").type == pa.int64()
    assert of_group.column("lag").to_pylist() == [0, 0]
    assert of_group.column("topic").to_pylist() == [topic, topic]
    resets = log.admin.reset_offsets(group, "earliest", dry_run=True).to_arrow()
    assert resets.column("after").to_pylist() == [0, 0]
    assert log.admin.group_offsets("nobody-ever").to_arrow().num_rows == 0


def test_the_asyncio_face_has_it_too(
    cluster: oncelog.testing.Cluster, topic: str, group: str
) -> None:
    async def work() -> None:
        async with oncelog.aio.connect(cluster.bootstrap) as log:
            await log.admin.reset_offsets(group, {topic: "latest"})
            told = await log.admin.describe_group(group)
            assert (told.state, told.members, told.lag) == ("empty", (), 0)
            consumer = await log.consumer([topic], group=group)
            assert [row.position for row in await consumer.positions()] == [10, 10]
            await consumer.close()

    asyncio.run(work())

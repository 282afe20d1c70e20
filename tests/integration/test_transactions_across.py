"""`consumer.transactions(across=True)`: each transaction whole, over the partitions of two topics,
and once, whatever dies."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import errors
from tests.integration.cluster import Cluster, until

pytestmark = pytest.mark.integration

Places = list[tuple[str, int]]

# Writers rest while so many transactions wait for their reader, so that the last one, which reads
# all that is left, is soon done however slow the machine.
MOST_AHEAD = 300


@pytest.fixture
def topics(log: oncelog.Log, topic: str) -> tuple[str, str]:
    """With two partitions and one."""
    return topic, log.admin.create_topic(f"{topic}-other", partitions=1).name


@pytest.fixture(params=["leader", "buffered"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {
        "delivery": request.param,
        "buffer_dir": tmp_path / "buffers",
    }


def write(
    log: oncelog.Log, places: Places, chance: random.Random, group: str, count: int
) -> dict[int, list[tuple[str, int, str]]]:
    """(topic, partition, value) by TxId: small ones, of one message, and ones that were begun."""
    written: dict[int, list[tuple[str, int, str]]] = {}
    producer = log.transactional_producer(group, group)
    for number in range(count):
        mine = []
        is_long = chance.random() < 0.3
        with producer.transaction() as tx:
            for topic, partition in chance.sample(places, chance.randint(1, len(places))):
                for n in range(chance.randint(1, 3)):
                    value = f"{group}-{number}-{n}"
                    tx.send(topic, f"{value} {'x' * 500}".encode(), partition=partition)
                    mine.append((topic, partition, value))
                    if is_long:
                        tx.flush()
            if is_long and chance.random() < 0.2:
                tx.abort()
        if tx.state == "committed":
            written[tx.tx_id] = mine
    return written


@pytest.mark.parametrize("memory_bytes", [64 * 1024, 64 * 1024 * 1024])
def test_i3_i11_each_transaction_comes_whole_and_in_the_order_of_its_group(
    log: oncelog.Log,
    topics: tuple[str, str],
    options: dict[str, Any],
    memory_bytes: int,
) -> None:
    """Also where partitions that are ahead are held back all the time."""
    options["buffer_memory_bytes"] = memory_bytes
    one, two = topics
    places = [(one, 0), (one, 1), (two, 0)]
    written: dict[str, dict[int, list[tuple[str, int, str]]]] = {}

    def writing(number: int) -> None:
        group = f"writer-{number}"
        written[group] = write(log, places, random.Random(number), group, 60)

    writers = [threading.Thread(target=writing, args=[number]) for number in range(3)]
    for writer in writers:
        writer.start()
    # Of the other topic's partitions, a reader of one topic waits for nothing.
    consumers = [log.consumer([one, two], **options), log.consumer([one], **options)]
    readers = [consumer.transactions(across=True) for consumer in consumers]
    found: list[dict[int, list[tuple[str, int, str]]]] = [{}, {}]
    orders: list[list[int]] = [[], []]
    for writer in writers:
        writer.join()
    for reader, told, order, read in zip(readers, found, orders, [topics, (one,)], strict=True):
        wanted = {
            tx_id: sorted(part for part in parts if part[0] in read)
            for by_group in written.values()
            for tx_id, parts in by_group.items()
        }
        wanted = {tx_id: parts for tx_id, parts in wanted.items() if parts}
        while len(told) < len(wanted):
            given = reader.poll(20.0)
            assert given is not None
            assert given.tx_id not in told
            records = list(given.read())
            assert len(records) == given.record_count
            told[given.tx_id] = sorted(
                (r.topic, r.partition, (r.value or b"").split(b" ")[0].decode()) for r in records
            )
            order.append(given.tx_id)
        assert told == wanted
        for by_group in written.values():
            for place in [place for place in places if place[0] in read]:
                mine = [tx_id for tx_id, parts in by_group.items() if is_in(place, parts)]
                mine = [tx_id for tx_id in mine if tx_id in told]
                assert [tx_id for tx_id in order if tx_id in mine] == mine
        assert reader.poll(0.5) is None
    for consumer in consumers:
        consumer.close()


def is_in(place: tuple[str, int], parts: list[tuple[str, int, str]]) -> bool:
    return any(part[:2] == place for part in parts)


@pytest.mark.parametrize("delivery", ["leader", "buffered"])
def test_i21_each_transaction_is_processed_whole_and_once_though_its_reader_is_killed(
    cluster: Cluster, log: oncelog.Log, topics: tuple[str, str], tmp_path: Path, delivery: str
) -> None:
    one, two = topics
    places = [(one, 0), (one, 1), (two, 0)]
    out = log.admin.create_topic(f"{one}-out", partitions=1).name
    written: dict[int, list[tuple[str, int, str]]] = {}
    killed, ended = threading.Event(), threading.Event()
    said_at = tmp_path / "said"
    said_at.touch()

    def writing(number: int) -> None:
        """Until the last kill, so that each reader finds something to process."""
        chance = random.Random(number)
        for turn in itertools.count():
            written.update(write(log, places, chance, f"{one}-{number}-{turn}", 30))
            if killed.wait(0.5):
                break
            while len(written) - times_done(said_at) > MOST_AHEAD and not killed.wait(0.5):
                pass

    writers = [threading.Thread(target=writing, args=[number]) for number in range(3)]
    arguments = [cluster.bootstrap, f"of {one}", delivery, str(tmp_path / "buffers"), out, one, two]
    chance, kills = random.Random(delivery), 0
    for writer in writers:
        writer.start()
    with said_at.open("a") as said:
        while not ended.is_set():
            reader = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.across_reader", *arguments],
                stdout=said,
                stderr=said,
            )
            try:
                if kills < 5:
                    goes_on_from(said_at)
                    time.sleep(chance.random())
                    kills += 1
                else:
                    killed.set()
                    for writer in writers:
                        writer.join()
                    until(lambda: len(processed(log, out)) >= len(written), "all are processed")
                    ended.set()
            finally:
                reader.kill()
                reader.wait()
    found = processed(log, out)
    assert Counter(one["tx_id"] for one in found) == Counter(list(written))
    for told in found:
        parts = written[told["tx_id"]]
        assert sorted(told["values"]) == sorted(value for _, _, value in parts)
        assert sorted(told["parts"]) == sorted({f"{name}/{number}" for name, number, _ in parts})


def goes_on_from(said: Path) -> None:
    """Until something more is processed."""
    before = times_done(said)
    until(lambda: times_done(said) > before, "it has processed something")


def times_done(said: Path) -> int:
    return said.read_text().count("done")


def processed(log: oncelog.Log, out: str) -> list[dict[str, Any]]:
    (end,) = log.admin.offsets(out)
    found: list[dict[str, Any]] = []
    with log.consumer([out]) as consumer:
        while len(found) < end:
            found += [json.loads(record.value or b"") for record in consumer.poll(10.0) or ()]
    return found


def test_who_shares_partitions_gets_of_each_transaction_what_is_in_his_own(
    log: oncelog.Log, topics: tuple[str, str]
) -> None:
    """Parts of other members are not waited for."""
    one, two = topics
    with log.consumer([one, two], group=f"of {one}") as consumer:
        transactions = consumer.transactions(across=True)
        with log.transactional_producer().transaction() as tx:
            for topic, partition in [(one, 0), (one, 1), (two, 0)]:
                tx.send(topic, b"all", partition=partition)
        whole = transactions.poll(20.0)
        assert whole is not None
        assert len(whole.parts) == 3
        consumer.commit()
        with log.consumer([one, two], group=f"of {one}") as second:
            both = [transactions, second.transactions(across=True)]
            until(lambda: share([consumer, second], both), "they share")
            with log.transactional_producer().transaction() as tx:
                for topic, partition in [(one, 0), (one, 1), (two, 0)]:
                    tx.send(topic, b"all", partition=partition)
            parts: list[tuple[str, int]] = []
            while len(parts) < 3:
                for member in both:
                    given = member.poll(0.2)
                    if given is not None:
                        assert given.tx_id == tx.tx_id
                        parts += [(part.topic, part.partition) for part in given.parts]
            assert sorted(parts) == [(one, 0), (one, 1), (two, 0)]


def share(members: list[oncelog.Consumer], polled: list[oncelog.TransactionsAcross]) -> bool:
    for transactions in polled:
        assert transactions.poll(0.05) is None
    shares = [len(member.assignment) for member in members]
    return sum(shares) == 3 and all(shares)


@pytest.mark.parametrize("as_one", [True, False], ids=["with its offsets", "plain"])
def test_i21_two_that_stand_alone_process_what_lies_beyond_once(
    log: oncelog.Log, topics: tuple[str, str], as_one: bool
) -> None:
    """Both read across, and give a transaction behind one that waits: no position moves."""
    (one, two), group = topics, f"alone of {topics[0]}"
    first = [(one, 0), (one, 1)]
    written_by(log, "before", first)
    with log.consumer([one], group=group, partitions=first) as consumer:
        assert consumer.transactions(across=True).poll(20.0) is not None
        consumer.commit()
    waiting = written_by(log, "waiting", first)
    behind = next(
        tx_id
        for number in range(64)
        if (tx_id := written_by(log, f"behind-{number}", first[:1])) >> 48 != waiting >> 48
    )
    made = [log.consumer([one], group=group, partitions=first) for _ in range(2)]
    outcomes = []
    for consumer in made:
        transactions = consumer.transactions(across=True)
        consumer.pause(oncelog.TopicPartition(one, 1))
        given = None
        while given is None or given.tx_id != behind:
            given = transactions.poll(20.0)
            assert given is not None
    for consumer in made:
        try:
            if as_one:
                with log.transactional_producer().transaction(consumer) as tx:
                    tx.send(two, b"made of it", partition=0)
            else:
                consumer.commit()
            outcomes.append("committed")
        except errors.StalePosition as error:
            outcomes.append(f"refused, {error.metadata['committed']}")
    # A plain commit of the same by who stands alone counts as a repeat: it is done at least once.
    assert outcomes == ["committed", "refused, 1" if as_one else "committed"]
    # Who goes on is given the rest, and nothing twice.
    for consumer in made:
        consumer.resume(oncelog.TopicPartition(one, 1))
    given = made[1].transactions(across=True).poll(20.0)
    assert given is not None
    assert given.tx_id == waiting
    made[1].commit()
    for consumer in made:
        consumer.close()


def written_by(log: oncelog.Log, group: str, places: Places) -> int:
    """The TxId of a transaction of that group, in all these places."""
    with (
        log.transactional_producer(group=group) as producer,
        producer.transaction(wait="visible") as tx,
    ):
        for topic, partition in places:
            tx.send(topic, b"written", partition=partition)
    return tx.tx_id

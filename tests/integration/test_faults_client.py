"""What happens to programs: they are interrupted, fork, lose a thread, forget to close, and talk to
services that answer nobody. Each time they are told, and what was open ends once (I3, I21, I30)."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import oncelog
from oncelog import errors
from tests.integration.cluster import COORDINATOR, PATIENCE_S, ROLES, Cluster, running, until
from tests.integration.reading import values

pytestmark = pytest.mark.integration

INTERRUPTS = 12
# Between two interrupts: a transaction of PROGRAM takes a few milliseconds.
PAUSES_S = (0.01, 0.08)
CALL_MS = 1_500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a short grace for sessions that broke."""
    grace = {COORDINATOR: ("coordinator.session_grace_ms=300",)}
    with running(tmp_path_factory.mktemp("cluster"), of_role=grace) as made:
        yield made


@contextmanager
def program(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A user's program, killed where it does not end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        # As users have it, who do not say; our tests do (tests/conftest.py).
        env={name: v for name, v in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# Copies "in" to "out", one record a transaction; every third is too large for one message. Ctrl-C
# ends a transaction wherever it is; the same producer goes on, and the same consumer where the
# transaction says how it ended. A batch that was on its way to us, or to its transaction, is read
# again by another consumer.
COPY = """
import json, signal, sys, oncelog
bootstrap, name, interrupts = sys.argv[1], sys.argv[2], int(sys.argv[3])
INTERRUPT = {signal.SIGINT}
# A shell that starts the tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
told = 0
with oncelog.connect(bootstrap) as log:
    consumer = None
    producer = log.transactional_producer(name)
    print("ready", flush=True)
    while told < interrupts:
        tx = None
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
            if consumer is None:
                consumer = log.consumer([f"{name}-in"], group=name, batch_records_max=1)
            batch = consumer.poll(5.0)
            assert batch is not None, "the input has come to its end too early"
            tx = producer.transaction(consumer, wait="visible")
            with tx:
                for record in batch:
                    for number in range(3 if int(record.value) % 3 == 0 else 1):
                        padding = b" " * 100_000 if int(record.value) % 3 == 0 else b""
                        tx.send(f"{name}-out", b"%d.%d" % (int(record.value), number) + padding)
        except oncelog.errors.StalePosition:
            # A commit in doubt was still on its way when the group was asked. Asked again now.
            continue
        except KeyboardInterrupt:
            # The next one waits until we are back in the block.
            signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
            state, position = "none", None
            if tx is None:
                consumer = None
            else:
                # For one whose block was not reached.
                tx.abort()
                state, position = tx.state, consumer.position(f"{name}-in", 0)
            told += 1
            print(json.dumps([state, position]), flush=True)
"""


def test_i21_ctrl_c_in_the_middle_of_commits_loses_nothing_and_repeats_nothing(
    cluster: Cluster, log: oncelog.Log
) -> None:
    log.admin.create_topic("copy-in", partitions=1)
    log.admin.create_topic("copy-out", partitions=1)
    with log.producer() as plain:
        for number in range(5_000):
            plain.send("copy-in", b"%d" % number)
    chance = random.Random(4)
    reader = log.consumer(["copy-in"], group="copy")
    with program(COPY, cluster.bootstrap, "copy", str(INTERRUPTS)) as copying:
        assert copying.stdout is not None
        assert copying.stdout.readline() == "ready\n"
        for _ in range(INTERRUPTS):
            time.sleep(chance.uniform(*PAUSES_S))
            copying.send_signal(signal.SIGINT)
            said = copying.stdout.readline()
            assert said, "the program ended"
            state, position = json.loads(said)
            assert state in ("none", "committed", "aborted", "in doubt")
            if position is not None:
                stands = reader.committed("copy-in", 0) or 0
                # Behind it where a commit in doubt came through meanwhile: then it is told so.
                assert position <= stands, f"{state}: input would be left out"
        assert copying.wait(PATIENCE_S) == 0
    copied = [value.strip() for value in values(log, "copy-out")]
    stands = reader.committed("copy-in", 0) or 0
    assert copied == [
        b"%d.%d" % (record, number)
        for record in range(stands)
        for number in range(3 if record % 3 == 0 else 1)
    ]


# A child that was forked with the connection open.
FORKS = """
import os, sys, oncelog
from oncelog import errors
bootstrap, topic = sys.argv[1:]

def refused(call):
    try:
        call()
    except errors.Forked as error:
        assert "'spawn' or 'forkserver'" in str(error), error
        return
    raise AssertionError("nobody was told")

def child():
    refused(lambda: producer.send(topic, b"never"))
    refused(producer.flush)
    refused(lambda: open_one.send(topic, b"never"))
    refused(open_one.commit)
    refused(transactional.transaction)
    refused(consumer.poll)
    refused(log.admin.topics)
    # gRPC would wait, or crash.
    refused(lambda: oncelog.connect(bootstrap))

with oncelog.connect(bootstrap) as log:
    producer = log.producer()
    producer.send(topic, b"before", partition=0)
    producer.flush()
    transactional = log.transactional_producer()
    consumer = log.consumer([topic])
    with transactional.transaction(wait="visible") as open_one:
        open_one.send(topic, b"of the parent", partition=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child()
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"
"""


def test_a_forked_child_is_told_what_to_do_instead_and_its_parent_goes_on(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    with program(FORKS, cluster.bootstrap, topic) as forking:
        assert forking.wait(PATIENCE_S) == 0
    assert values(log, topic) == [b"before", b"of the parent"]


def test_i30_a_thread_that_dies_in_a_transaction_leaves_a_producer_for_others(
    log: oncelog.Log, topic: str
) -> None:
    producer = log.transactional_producer("threads")
    died: list[int] = []

    def die() -> None:
        with suppress(ZeroDivisionError), producer.transaction() as tx:
            tx.send(topic, b"never")
            tx.flush()
            died.append(tx.tx_id)
            raise ZeroDivisionError

    def vanish() -> None:
        """As a thread that is never scheduled again: the block is not left."""
        tx = producer.transaction()
        tx.__enter__()
        tx.send(topic, b"never")
        tx.flush()
        died.append(tx.tx_id)

    for end in (die, vanish):
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
    assert log.admin.describe_transaction(died[0]).state == "aborted"
    with (
        pytest.raises(errors.InvalidArgument, match="a transaction under way"),
        producer.transaction() as tx,
    ):
        tx.send(topic, b"never")
    producer.close()
    assert log.admin.describe_transaction(died[1]).state == "aborted"
    with log.transactional_producer("threads").transaction(wait="visible") as tx:
        tx.send(topic, b"next")
    assert values(log, topic) == [b"next"]


def test_i30_what_a_forgotten_connection_left_open_ends_with_its_session(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    def forget() -> int:
        forgotten = cluster.connect()
        tx = forgotten.transactional_producer("forgetful").transaction()
        tx.__enter__()
        tx.send(topic, b"never")
        tx.flush()
        return tx.tx_id

    # Its warning is tested with the loop (tests/unit/client/test_loop.py): here it may come early.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        tx_id = forget()
        gc.collect()
    until(lambda: log.admin.describe_transaction(tx_id).state == "aborted", "it is aborted")
    assert log.admin.describe_transaction(tx_id).cause == "session"


def test_i31_every_call_to_services_that_answer_nobody_ends_with_a_known_error(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect(timeout_ms=CALL_MS) as log:
        producer = log.producer(delivery_timeout_ms=CALL_MS)
        named = log.transactional_producer("quick", delivery_timeout_ms=CALL_MS)
        other = log.transactional_producer(delivery_timeout_ms=CALL_MS)
        consumer = log.consumer([topic], group="quick", pending_timeout_ms=CALL_MS)
        producer.send(topic, b"before")
        producer.flush()
        opened = named.transaction()
        opened.__enter__()
        opened.send(topic, b"in doubt")
        opened.flush()

        def send() -> None:
            producer.send(topic, b"lost")
            producer.flush()

        def transact() -> None:
            with other.transaction() as tx:
                tx.send(topic, b"lost")

        calls: dict[str, Callable[[], object]] = {
            "send": send,
            "commit": opened.commit,
            "transact": transact,
            "register": lambda: log.transactional_producer("another"),
            "position": lambda: consumer.position(topic, 0),
            "end offset": lambda: log.consumer([topic]).end_offset(topic, 0),
            "committed": lambda: log.consumer([topic], group="g").committed(topic, 0),
            "create topic": lambda: log.admin.create_topic("never", partitions=1),
            "describe": lambda: log.admin.describe_topic("no such topic"),
            "delete topic": lambda: log.admin.delete_topic("no such topic"),
            "offsets": lambda: log.admin.offsets(topic),
            "transactions": log.admin.transactions,
            "abort": lambda: log.admin.abort_transaction(opened.tx_id),
            "groups": log.admin.groups,
            "group offsets": lambda: log.admin.group_offsets("quick"),
            "delete group": lambda: log.admin.delete_group("quick"),
            "connect": lambda: cluster.connect(timeout_ms=CALL_MS),
        }
        with cluster.paused(*ROLES):
            ended = all_at_once(calls)
    known = (errors.Unavailable, errors.UnknownOutcome, errors.CannotConnect)
    assert {
        name: type(error) for name, error in ended.items() if not isinstance(error, known)
    } == {}
    for role in ROLES:
        if not cluster.is_running(role):
            # Its lease was over: it ended itself.
            cluster.start(role)
    cluster.wait_ready()


def all_at_once(calls: dict[str, Callable[[], object]]) -> dict[str, object]:
    """How each call ended: its error, or what it gave. Each in a thread of its own."""
    ended: dict[str, object] = {}

    def end(name: str, call: Callable[[], object]) -> None:
        try:
            ended[name] = call()
        except Exception as error:
            ended[name] = error

    threads = [threading.Thread(target=end, args=pair, daemon=True) for pair in calls.items()]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + PATIENCE_S / 2
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    assert ended.keys() == calls.keys(), f"still waiting: {calls.keys() - ended.keys()}"
    return ended

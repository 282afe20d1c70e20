"""What replicas agree on of a topic that is compacted: its settings, and how far it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import PLAIN_PRODUCER_BIT
from oncelog_server.core.machine import Compaction
from oncelog_server.partition_leader.commands import (
    DELETE_RETENTION_MS,
    UNLIMITED,
    Cleaned,
    Configure,
    Produce,
    Settings,
)
from oncelog_server.partition_leader.compaction import CompactionState
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import CompactionPoint, PartitionCodec
from oncelog_server.partition_leader.settling import PartitionSettler
from oncelog_server.partition_leader.topic_configs import (
    COMPACTION,
    RETENTION_MOST,
    settings_of,
)
from oncelogpb import errors
from tests.golden.host import MachineHost

DAY_MS = 24 * 60 * 60 * 1000
LIMITS = {"retention.ms": "60000", "retention.bytes": "500"}
BOTH = ("compact,delete", "delete,compact")


def test_what_is_compacted_alone_is_deleted_by_nothing_and_is_settled() -> None:
    found = settings_of(3, {**LIMITS, "cleanup.policy": "compact"})
    assert found == Settings(3, is_compacted=True)
    assert found.is_settled
    assert (found.retention_ms, found.retention_bytes) == (UNLIMITED, UNLIMITED)
    assert (found.delete_retention_ms, found.min_compaction_lag_ms) == (DAY_MS, 0)


@pytest.mark.parametrize("policy", BOTH)
def test_both_policies_do_both(policy: str) -> None:
    times = {"delete.retention.ms": "7000", "min.compaction.lag.ms": "9"}
    found = settings_of(3, {**LIMITS, **times, "cleanup.policy": policy})
    expected = Settings(3, 60_000, 500, is_compacted=True)
    assert found == msgspec.structs.replace(
        expected, delete_retention_ms=7_000, min_compaction_lag_ms=9
    )


@pytest.mark.parametrize("policy", ["", "delete"])
def test_what_is_not_compacted_journals_nothing_of_how_it_would_be(policy: str) -> None:
    times = {"delete.retention.ms": "7000", "min.compaction.lag.ms": "9"}
    found = settings_of(3, {**LIMITS, **times, "cleanup.policy": policy})
    assert found == Settings(3, 60_000, 500)
    assert not found.is_settled


@pytest.mark.parametrize(("policy", "settles"), [("compact", True), (BOTH[0], True), ("", False)])
def test_who_has_no_machine_settles_by_the_policy_too(policy: str, settles: bool) -> None:
    assert PartitionSettler().asked({"cleanup.policy": policy}).wanted == settles


VALUES = [
    ("cleanup.policy", ["delete", "compact", *BOTH], ["", "Compact", "compact,", "none", "a,b"]),
    ("delete.retention.ms", ["0", "1", str(RETENTION_MOST)], ["-1", "1h", str(RETENTION_MOST + 1)]),
    ("min.compaction.lag.ms", ["0", "60000"], ["-1", "", "1.5"]),
]


@pytest.mark.parametrize(("name", "taken", "refused"), VALUES)
def test_values_are_those_of_kafka(name: str, taken: list[str], refused: list[str]) -> None:
    for value in taken:
        COMPACTION[name].require(value)
    for value in refused:
        with pytest.raises(errors.InvalidArgument, match=name) as raised:
            COMPACTION[name].require(value)
        assert raised.value.metadata["field"] == name


def test_defaults_are_those_of_kafka() -> None:
    assert {name: config.default for name, config in COMPACTION.items()} == {
        "cleanup.policy": "delete",
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        "min.compaction.lag.ms": "0",
    }


@pytest.mark.parametrize("fields", [["settings", 1, 60, 5], ["settings", 1, 60, 5, 1]])
def test_i35_settings_that_were_journaled_before_say_nothing_of_compaction(
    fields: list[object],
) -> None:
    frame = Frame(FrameKind.RECORD, msgspec.msgpack.encode(fields))
    found = PartitionCodec().decode(frame)
    assert isinstance(found, Settings)
    assert (found.version, found.retention_ms, found.retention_bytes) == (1, 60, 5)
    assert not found.is_compacted
    assert found.delete_retention_ms == DAY_MS


def test_a_snapshot_of_before_says_nothing_of_compaction() -> None:
    """As the version before wrote it: the last field was not there."""
    machine = PartitionMachine()
    snapshot = machine.snapshot()
    fields = msgspec.msgpack.decode(snapshot.state)
    assert fields.pop() == msgspec.msgpack.decode(msgspec.msgpack.encode(CompactionState()))
    again = PartitionMachine()
    tables = {name: table.rows for name, table in snapshot.tables.items()}
    again.restore(msgspec.msgpack.encode(fields), tables)
    assert again.settled().compaction == Compaction()
    assert again.snapshot() == snapshot


# ----------------------------------------------------------------------------- points of compaction

RETENTION_MS = 160_000


class Compacted:
    """A partition that is compacted, by whoever leads it; what is true of time is known here."""

    def __init__(self) -> None:
        self.host = MachineHost(PartitionMachine, PartitionCodec())
        self.host.submit(
            Configure(Settings(1, is_compacted=True, delete_retention_ms=RETENTION_MS))
        )
        self.host.sync()
        # When a point was journaled, truly.
        self.points: list[tuple[int, int]] = [(0, 0)]
        self.sequence = 0
        self.jumped = 0
        self.cleaned = 0

    @property
    def machine(self) -> PartitionMachine:
        machine = self.host.machine
        assert isinstance(machine, PartitionMachine)
        return machine

    def write(self, count: int) -> None:
        frame = Frame(
            FrameKind.DATA,
            b"...",
            record_count=count,
            producer_id=PLAIN_PRODUCER_BIT | 1,
            base_sequence=self.sequence,
        )
        self.host.submit(Produce((frame,)))
        self.host.sync()
        self.sequence += count

    def clean(self, share: int) -> None:
        """Its own data log; never further than what is readable."""
        self.cleaned = max(self.cleaned, self.machine.committed.end_offset * share // 4)
        self.host.signal(Cleaned(self.cleaned))

    def jump(self, ms: int) -> None:
        self.host.jump(ms)
        self.jumped += 1

    def fail_over(self, cleaned_share: int) -> None:
        """Who leads next has cleaned as far as he has."""
        self.host.failover(lose_tail=False)
        self.host.sync()
        self.cleaned = self.machine.committed.end_offset * cleaned_share // 4
        self.host.signal(Cleaned(self.cleaned))

    def tick(self) -> list[CompactionPoint]:
        recorded = [it for _, it in self.host.tick() if isinstance(it, CompactionPoint)]
        now_ms = self.host.now.monotonic_ms
        for point in recorded:
            self.points.append((point.compacted_below, now_ms))
            end = self.machine.committed.end_offset
            assert point.compacted_below < end, "the last record is not below it"
            # Of each jump of the clock a sixteenth is believed.
            believed_ms = self.jumped * RETENTION_MS // 16
            old = [it for it, ms in self.points if now_ms - ms >= RETENTION_MS - believed_ms]
            assert point.tombstones_below <= max(old, default=0), (
                "nobody had the time to come to these"
            )
        self.host.sync()
        return recorded


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("clean"), st.integers(0, 4)),
        st.tuples(st.just("tick"), st.integers(0, 40_000)),
        st.tuples(st.just("tick"), st.integers(0, 40_000)),
        st.tuples(st.just("jump"), st.integers(-DAY_MS, DAY_MS)),
        st.tuples(st.just("fail_over"), st.integers(0, 4)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_i33_i35_tombstones_go_only_so_long_after_what_they_superseded(
    steps: list[tuple[str, int]],
) -> None:
    log = Compacted()
    log.write(3)
    for step, number in steps:
        match step:
            case "write":
                log.write(number)
            case "clean":
                log.clean(number)
            case "jump":
                log.jump(number)
            case "fail_over":
                log.fail_over(number)
            case _:
                log.host.pass_time(number)
                log.tick()
    log.host.check_replay()
    # In the end all goes that may, and then nothing is journaled any more.
    log.clean(4)
    for _ in range(100):
        log.host.pass_time(20_000)
        log.tick()
    state = log.machine.compaction
    assert state.compacted_below == state.tombstones_below == log.machine.committed.end_offset - 1
    quiet = log.host.log_end
    for _ in range(50):
        log.host.pass_time(20_000)
        log.tick()
    assert log.host.log_end == quiet, "a partition that is quiet journals nothing for ever"


def test_points_come_no_more_often_than_their_interval() -> None:
    log = Compacted()
    log.write(400)
    recorded = 0
    for _ in range(400):
        log.cleaned += 1
        log.host.signal(Cleaned(log.cleaned))
        log.host.pass_time(1_000)
        recorded += len(log.tick())
    most = 400_000 // (RETENTION_MS // 16) + 400_000 // RETENTION_MS + 2
    assert recorded <= most


def test_a_log_that_is_empty_or_deleted_so_far_has_no_point() -> None:
    log = Compacted()
    log.host.signal(Cleaned(7))
    log.host.pass_time(60_000)
    assert log.tick() == []
    log.write(1)
    log.host.signal(Cleaned(1))
    assert log.tick() == []
    assert log.machine.compaction == CompactionState()


def test_what_is_compacted_no_more_is_told_as_far_as_it_was() -> None:
    """Below the point it is settled all the same (`Settling`); above, as its settings say."""
    log = Compacted()
    log.write(9)
    log.clean(2)
    log.host.pass_time(1_000)
    log.tick()
    log.host.submit(Configure(Settings(2)))
    log.host.sync()
    told = log.machine.settled()
    assert not told.wanted
    assert told.compaction == Compaction(False, 0, compacted_below=4)


def test_i33_time_that_passed_before_a_point_does_not_count_for_it() -> None:
    """It is measured over a while, and journaled at the end of that."""
    state = CompactionState()
    state.reached(CompactionPoint(5, 0), 1_000)
    state.reached(CompactionPoint(7, 0), 9_000)
    state.time_passed(8_000)
    state.reached(CompactionPoint(7, 5), 18_000)
    assert (state.waiting, state.waiting_since_ms) == (7, 17_000), "it came a second before"

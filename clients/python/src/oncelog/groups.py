"""What is told of consumer groups: their members, where they stand, and where they are put."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Generic, Literal, NamedTuple, TypeVar

import pyarrow as pa

from oncelog.batch import TopicPartition

PLACE: Final = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
)


class Row:
    """Of a table: a dataclass whose fields are columns."""

    ARROW: ClassVar[pa.Schema]


R = TypeVar("R", bound=Row)


class Rows(list[R], Generic[R]):
    """A list that is a table, too."""

    def __init__(self, kind: type[R], rows: Iterable[R]) -> None:
        super().__init__(rows)
        self._kind = kind

    def to_arrow(self) -> pa.Table:
        """One column for each field of its rows, by its name."""
        schema = self._kind.ARROW
        columns = [[getattr(row, name) for row in self] for name in schema.names]
        return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group."""

    group: str
    committed_partitions: int
    pending_partitions: int
    # Milliseconds since 1970; 0: it has committed nothing.
    last_commit_time_ms: int
    members: int = 0
    # As in GroupDescription.
    state: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffset(Row):
    """Where a group stands in one partition. `offset` None: it has committed nothing there."""

    ARROW: ClassVar[pa.Schema] = pa.schema(
        [
            *PLACE,
            pa.field("offset", pa.int64()),
            pa.field("metadata", pa.string(), nullable=False),
            pa.field("commit_time_ms", pa.int64(), nullable=False),
            pa.field("pending_tx_id", pa.uint64(), nullable=False),
            pa.field("start_offset", pa.int64()),
            pa.field("end_offset", pa.int64()),
            pa.field("lag", pa.int64()),
            pa.field("owner", pa.string()),
            pa.field("view", pa.string(), nullable=False),
        ]
    )

    topic: str
    partition: int
    offset: int | None
    metadata: str
    commit_time_ms: int
    # The transaction that holds a pending offset here; 0: none.
    pending_tx_id: int
    # First offset that is kept, and one past the last record; None where no leader says so now, or
    # the topic is gone.
    start_offset: int | None = None
    end_offset: int | None = None
    # Records that wait for the group: all there are where it has committed nothing.
    lag: int | None = None
    # Member id of who may process it now; None: nobody, or nobody was asked (`group_offsets`).
    owner: str | None = None
    # Which numbering it is: committed, or journal (isolation="uncommitted").
    view: str = "committed"


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group."""

    member_id: str
    # Of a static member; None: it has none.
    instance_id: str | None
    client_id: str
    # The address that its heartbeats come from.
    host: str
    subscribed_topics: tuple[str, ...]
    # By which it wants partitions to be shared out; None: it does not mind.
    assignor: str | None
    # What it may still process and commit, and what it shall have. What is only in `target` is not
    # free yet; what is only in `assignment` it must let go.
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    session_timeout_ms: int
    # Since its last heartbeat; None: its offset manager, new in office, has not heard of it yet.
    silent_ms: int | None


class LastCommit(NamedTuple):
    """The last transaction of a producer that committed offsets of the group."""

    producer_id: int
    tx_id: int


@dataclass(frozen=True, slots=True)
class OutgrownTopic:
    """A topic that grew, so that its group would have more partitions than a group may have."""

    topic: str
    partitions: int
    # So many are shared out, from the first on; the others are nobody's.
    shared_out: int


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """Somebody who commits for a group without being a member, and keeps members out of it: a
    Spark query."""

    # Who that is, in words.
    holder: str
    # It is over when it is not renewed for so long.
    timeout_ms: int
    # Since it was renewed; None: its offset manager, new in office, has not heard of it yet.
    silent_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its members, and where it stands."""

    group: str
    # empty: it has no members; moving: partitions are on their way from one to another; stable.
    state: str
    # Grows with every change of its membership; 0: it never had members.
    generation: int
    # By which its partitions are shared out; None: it has no members.
    assignor: str | None
    # In the order in which they joined.
    members: tuple[MemberInfo, ...]
    # In every partition of the topics that it has offsets of, or members for.
    offsets: Rows[GroupOffset]
    # By producer id.
    last_commits: tuple[LastCommit, ...]
    # Topics of which some partitions are nobody's.
    outgrown: tuple[OutgrownTopic, ...] = ()
    claims: tuple[GroupClaim, ...] = ()

    @property
    def lag(self) -> int | None:
        """Of all partitions together; None where nobody says so of one of them."""
        lags = [offset.lag for offset in self.offsets]
        return None if None in lags else sum(lag for lag in lags if lag is not None)


@dataclass(frozen=True, slots=True)
class ConsumerPosition(Row):
    """Where a consumer stands in a partition that it reads."""

    ARROW: ClassVar[pa.Schema] = pa.schema(
        [
            *PLACE,
            pa.field("position", pa.int64(), nullable=False),
            pa.field("committed", pa.int64()),
            pa.field("end_offset", pa.int64(), nullable=False),
            pa.field("lag", pa.int64(), nullable=False),
        ]
    )

    topic: str
    partition: int
    # Of the next record that it gives.
    position: int
    # What its group has committed; None: nothing, or it has no group.
    committed: int | None
    # One past the last record that can be read now.
    end_offset: int
    # Records that it has not given yet.
    lag: int


@dataclass(frozen=True, slots=True)
class OffsetReset(Row):
    """What becomes of a group's offset in one partition."""

    ARROW: ClassVar[pa.Schema] = pa.schema(
        [
            *PLACE,
            pa.field("before", pa.int64()),
            pa.field("after", pa.int64(), nullable=False),
            pa.field("lag_before", pa.int64()),
            pa.field("lag_after", pa.int64()),
            pa.field("pending_tx_id", pa.uint64(), nullable=False),
            pa.field("metadata_before", pa.string(), nullable=False),
            pa.field("metadata_after", pa.string(), nullable=False),
        ]
    )

    topic: str
    partition: int
    # None: it has committed nothing there.
    before: int | None
    after: int
    # None where no leader says so now.
    lag_before: int | None
    lag_after: int | None
    # The transaction that holds a pending offset here, and refuses the reset; 0: none.
    pending_tx_id: int
    # What stands beside the offset: what a consumer of whole transactions had given beyond it, or
    # where a buffered one read. It goes with a reset, unless that brings back what was `Saved`.
    metadata_before: str
    metadata_after: str

    @property
    def is_move(self) -> bool:
        """False: it stands there already."""
        return (self.before, self.metadata_before) != (self.after, self.metadata_after)


class Shift(NamedTuple):
    """So many records on from where a group stands; back if negative."""

    by: int


class Saved(NamedTuple):
    """An offset with what stood beside it, as a `GroupOffset` told them."""

    offset: int
    metadata: str


# Where a partition of a group shall stand: an offset; a time with its zone, which is the first
# record of that time or later; or from where it stands.
Where = Literal["earliest", "latest"] | int | datetime | Shift | Saved
# By topic (all of its partitions) or partition; of two that name one partition, the later counts.
Wheres = Mapping[str | TopicPartition | tuple[str, int], Where]

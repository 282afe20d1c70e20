"""Where `send` puts records, from any thread, and how they are taken out.

A *cell* holds the records of one topic between two sealings, in one flat list: bare values,

    [value,  value,  value,  ...]

for as long as no record of the topic has more than that; with keys, two entries a record, and
four once one has more:

    [value, key,  value, key,  ...]
    [value, key, extra, partition,  value, key, extra, partition,  ...]

A tuple per record would be tracked by the garbage collector and costs three times as much; `extend`
of a temporary leaves nothing to track. Of four entries a record taking them out costs twice what it
does of two: the list is larger than the processor's cache. There is no lock on the way of a record:

* `list.append` and `list.extend` are atomic under the GIL: no record is lost or torn;
* `busy, cell.busy = cell.busy, True` is atomic as well: between its load and its store the
  interpreter does not change threads. So who was told "not busy" is alone in the cell until he says
  that he is done, and knows his record's *place*: the length of the list before it. Who was told
  "busy" takes the lock, and a fresh cell;
* the cell is exchanged before its records are counted. Who finds, behind his record, that his cell
  was taken meanwhile looks, under the lock, whether his record was counted, and puts it into the
  next cell where it was not (`rehome`).

A free-threaded Python needs another way.

Invariants:
- a record is in exactly one cell that is taken, at the place that its receipt names;
- records of one topic that one thread sends are taken in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from oncelog._core.deliveries import Deliveries
from oncelogpb import errors, records

# Entries of the flat list per record: of bare values, with keys, and with all that there may be.
BARE: Final = 1
KEYED: Final = 2
COLUMNS: Final = 4
# What a record costs beside its key and value, bytes: for the accounting of memory and batch sizes.
RECORD_OVERHEAD_BYTES: Final = 16
# The largest record (key and value): the batch around it must stay below `max_batch_bytes`, 16 MiB.
RECORD_BYTES_MAX: Final = 15 * 1024 * 1024

assert records.DEFAULT_LIMITS.max_batch_bytes > RECORD_BYTES_MAX

# What users may give as headers: pairs, or a mapping where no name repeats.
HeadersLike = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
# One record: value, key, extra, partition.
Row: TypeAlias = "tuple[bytes | None, bytes | None, Extra | None, int | None]"


class Extra(NamedTuple):
    """The rare parts of a record: kept in one entry so that the common record stays four wide."""

    headers: tuple[tuple[str, bytes | None], ...] | None
    timestamp_us: int | None


class Cell:
    """The records between two sealings of one topic."""

    __slots__ = ("busy", "count", "deliveries", "items", "width")

    def __init__(self, deliveries: Deliveries, width: int) -> None:
        """`width`: entries a record, BARE, KEYED or COLUMNS."""
        self.items: list[Any] = []
        self.width = width
        # Somebody is putting a record into it.
        self.busy = False
        # Entries that were taken; what stands behind them is put elsewhere by who put it. -1: none
        # were yet.
        self.count = -1
        self.deliveries = deliveries
        deliveries.width = width

    @property
    def record_count(self) -> int:
        """Records that were taken, or are there."""
        entries = len(self.items) if self.count < 0 else self.count
        return entries // self.width

    def column(self, number: int) -> list[Any]:
        """Of the records that were taken: values, keys, extras, partitions, as far as it has
        them."""
        return self.items[number : self.count : self.width]

    def put(self, row: Row) -> int:
        """Its place. By who is alone in it."""
        place = len(self.items)
        self.items.extend(row[: self.width])
        return place


class TopicBuffer:
    """What was sent to one topic and is not sealed yet. A slots object: `send` touches it for every
    record."""

    __slots__ = ("armed", "batch_bytes", "cell", "make_deliveries", "room", "topic", "width")

    def __init__(
        self, topic: str, batch_bytes: int, make_deliveries: Callable[[str], Deliveries]
    ) -> None:
        self.topic = topic
        self.make_deliveries = make_deliveries
        # Bytes until it is worth sealing. Several threads may lose an update: it is a hint.
        self.room = batch_bytes
        self.batch_bytes = batch_bytes
        # True where somebody is due to seal it (the linger timer).
        self.armed = False
        # Entries a record: what the widest one so far took.
        self.width = BARE
        self.cell = self._fresh()

    def take(self) -> tuple[Cell, int] | None:
        """All records so far, in order, and about how many bytes they are; None where there are
        none. Under the sealing lock."""
        if not self.cell.items:
            return None
        taken = self._exchange(self._fresh())
        size = self.batch_bytes - self.room
        self.room = self.batch_bytes
        return taken, size

    def put_aside(self, row: Row) -> tuple[Cell, int, Cell | None]:
        """Puts a record that cannot go into the cell as it is: somebody is busy in it (or was
        interrupted there), or it has more than the cell takes. Its cell and place, and the cell
        before, which is to be sealed first. Under the sealing lock."""
        if self.cell is DEAD:
            DEAD.put(row)
        before: Cell | None = None
        self.width = max(self.width, _width(row))
        busy, self.cell.busy = self.cell.busy, True
        if busy or self.width > self.cell.width:
            following = self._fresh()
            following.busy = True
            was_busy, before = self.cell, self._exchange(following)
            was_busy.busy = busy
        cell = self.cell
        place = cell.put(row)
        cell.busy = False
        return cell, place, before if before is not None and before.count else None

    def was_taken(self, cell: Cell, place: int) -> bool:
        """Was this record counted when its cell was taken? Under the sealing lock."""
        return place < cell.count

    def close(self) -> tuple[Cell, int] | None:
        """The last records, as `take`. Nothing can be put any more: it is refused. Under the
        sealing lock."""
        if self.cell is DEAD:
            return None
        taken = self._exchange(DEAD)
        return (taken, self.batch_bytes - self.room) if taken.count else None

    def _exchange(self, following: Cell) -> Cell:
        taken, self.cell = self.cell, following
        # Not before the exchange: who puts after this finds that his cell was taken.
        taken.count = len(taken.items)
        following.deliveries.first = taken.deliveries.first + taken.record_count
        return taken

    def _fresh(self) -> Cell:
        return Cell(self.make_deliveries(self.topic), self.width)


def _width(row: Row) -> int:
    """Entries that this record takes at least."""
    _, key, extra, partition = row
    if extra is not None or partition is not None:
        return COLUMNS
    return BARE if key is None else KEYED


class _Refusing(list[Any]):
    """Items of a cell that takes none."""

    def append(self, row: Any) -> NoReturn:
        raise errors.InvalidArgument("this record came when its producer or transaction had ended")

    def extend(self, row: Any) -> NoReturn:
        self.append(row)


# In every buffer that is closed: who has the buffer at hand still, and puts a record, is refused.
DEAD: Final = Cell(Deliveries("", None), COLUMNS)
DEAD.items = _Refusing()


def check_bytes(name: str, value: object) -> bytes | None:
    """`value` as bytes or None. Raises InvalidArgument: PyArrow would take a str without a word."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise errors.InvalidArgument(
        f"{name} is {type(value).__name__}, not bytes: encode it first", field=name
    )


def check_partition(partition: object) -> None:
    """Raises InvalidArgument."""
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise errors.InvalidArgument(
            f"partition is {partition!r}, not a number from 0", field="partition"
        )


def make_extra(headers: HeadersLike | None, timestamp_us: int | None) -> Extra | None:
    """The rare parts, checked; None where there are none. Raises InvalidArgument."""
    if timestamp_us is not None and (
        not isinstance(timestamp_us, int) or not -(1 << 63) <= timestamp_us < 1 << 63
    ):
        raise errors.InvalidArgument(
            "timestamp_us is a whole number of microseconds since 1970", field="timestamp_us"
        )
    if not headers:
        return None if timestamp_us is None else Extra(None, timestamp_us)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple((_header_name(name), check_bytes("a header", value)) for name, value in pairs)
    return Extra(checked, timestamp_us)


def refuse_size(size: int) -> None:
    """Raises TooLarge."""
    raise errors.TooLarge(
        f"a record of {size} bytes is above record_bytes_max = {RECORD_BYTES_MAX}",
        limit="record_bytes_max",
    )


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise errors.InvalidArgument(
            f"the name of a header is {type(name).__name__}, not str", field="headers"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgument(
            f"the name of a header, {name!r}, is no text: it holds a lone surrogate",
            field="headers",
        ) from None
    return name

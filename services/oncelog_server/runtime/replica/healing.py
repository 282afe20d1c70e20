"""Heals a replica's data log: what no intact block serves here comes from another replica
(docs/adr/0075). Leader and follower do the same, each for itself.

    found, by whoever reads ──► blocks of these offsets, of one donor after the other ──► fitted
                 ▲                                                                          │
                 └── a part of it at a time, until all is there ◄── put in place, durable ◄─┘

Invariants:
  * who asks, and who answers, leads the same epoch or follows it with a log that agrees: so what
    both have settled is equal;
  * nothing is put in place that was not verified, that does not cover exactly what is damaged, or
    once this replica was halted or agrees no more: a cut waits for a step, and comes after it;
  * one step runs at a time, of the process too: memory holds HEAL_BYTES of blocks, and one more
    part;
  * who reads and who writes never waits for it.

Left out: what is damaged (`storage/data_log`), how blocks are made to fit (`fitting`), who is told
what of a read that failed (`driver`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from oncelog_server.core import failpoints
from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import REST_MS_MAX
from oncelog_server.core.ports import Address
from oncelog_server.core.settling import Settler
from oncelog_server.runtime.replica.dialog import SettledThere, SnapshotPart
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.fitting import DoesNotFit, fitted
from oncelog_server.runtime.replica.scrubbing import Scrubbing
from oncelog_server.runtime.storage.data_blocks import (
    BlockError,
    decode_block,
    encoded_block_bytes,
)
from oncelog_server.runtime.storage.data_damage import DamagedRange
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from oncelogpb.errors import CorruptLog, OncelogError, Unavailable

# Of one step.
HEAL_BYTES: Final = 64 << 20
# After a step, so many times as long as it took nothing is healed: others need disk and network.
REST_FACTOR: Final = 1
# What nobody could give is asked for again after so long.
HEAL_AGAIN_MS: Final = 5_000
# Where nobody could give it for so long, readers wait no more; and it is asked for more seldom.
HEAL_WITHIN_MS: Final = 60_000
HEAL_SELDOM_MS: Final = 60_000


class NotSettledThere(Exception):
    """The other replica has what is damaged here in its journal alone."""


class Donation(NamedTuple):
    """Blocks of another replica, from the damaged offset on."""

    blocks: Sequence[Block]
    cleanness: Cleanness
    # Journal offset of the state by which tombstones may be gone; 0: none are.
    dropped_at: int


class Healing:
    """Of one leadership, or one followership. Whoever made it calls `step` by turns with what else
    touches the log, `halt` before that is cut, and at last `drop`."""

    def __init__(
        self,
        partition: PartitionId,
        settler: Settler | None,
        data: DataLog,
        around: ReplicaEnv,
        *,
        agrees_in: Callable[[], int],
        tombstones_below: Callable[[], int],
        synced_end: Callable[[], int],
    ) -> None:
        """`agrees_in`: the epoch that this replica leads, or follows with a log that agrees with
        the leader's; 0: none. `tombstones_below`: up to which a pass of compaction may drop them
        here. `synced_end`: of the journal here."""
        self._partition = partition
        self._settler = settler
        self._data = data
        self._around = around
        self._agrees_in = agrees_in
        self._tombstones_below = tombstones_below
        self._synced_end = synced_end
        self.scrubbing = Scrubbing(partition, data, around)
        self._not_before_ms = 0
        # Since when nobody could give what is asked for; None: nobody has refused.
        self._failing_since_ms: int | None = None
        # Another replica, which was asked last, has it in its journal.
        self._is_in_a_journal = False
        # Whoever was told of what, by first offset.
        self._told: dict[int, DamagedRange] = {}
        self._is_halted = False
        self._asking: asyncio.Future[SnapshotPart] | None = None
        # What is done, or why nothing can be, in words; "": nothing is damaged.
        self.says = ""
        # Why nobody could give it, as it was told last.
        self._told_why = ""

    # ------------------------------------------------------------------------------- what is due

    @property
    def is_waiting(self) -> bool:
        """Something is damaged, or was until now."""
        return self._settler is not None and bool(self._data.damaged or self._told)

    @property
    def is_due(self) -> bool:
        """`step` has something to heal."""
        return self.is_waiting and self._now_ms() >= self._not_before_ms

    @property
    def is_scrub_due(self) -> bool:
        return self._settler is not None and self.scrubbing.is_due

    @property
    def rests_ms(self) -> int:
        """While nothing is damaged: see Scrubbing."""
        return REST_MS_MAX if self._settler is None else self.scrubbing.rests_ms

    @property
    def is_hopeless(self) -> bool:
        """Nobody gives what is damaged here, as far as was found out in time; or another replica
        has it, and may be long in settling it: who leads there serves it at once."""
        return self._is_in_a_journal or self._is_asked_seldom

    @property
    def _is_asked_seldom(self) -> bool:
        """There is nobody, or nobody gave it in time."""
        since_ms = self._failing_since_ms
        is_late = since_ms is not None and self._now_ms() - since_ms >= HEAL_WITHIN_MS
        return self._is_alone or is_late

    def takes(self, error: CorruptLog) -> bool:
        """What could not be read is damaged, and is to be healed: readers wait."""
        return self.is_waiting and self._data.is_damaged(error) and not self.is_hopeless

    def halt(self) -> None:
        """In one turn: no step begins, and nothing more is put in place. Whoever runs a step waits
        for its end, which does not wait for other replicas."""
        self._is_halted = True
        if self._asking is not None:
            self._asking.cancel()

    def go_on(self) -> None:
        """After `halt`, when no step runs any more."""
        self._is_halted = False

    def drop(self) -> None:
        """It is over: an alarm would never end."""
        self.halt()
        if self._told:
            self._told = {}
            self._show()

    # ------------------------------------------------------------------------------------ a step

    async def step(self) -> bool:
        """Whatever it meets, it is tried again later. False: there is nothing to do now."""
        if self._is_halted or not self.is_due or self._around.healing.locked():
            return False
        began_ms = self._now_ms()
        async with self._around.healing:
            try:
                await self._heal()
            except (OSError, OncelogError, ValueError) as error:
                self._failed(str(error))
        rests_until_ms = self._now_ms() + REST_FACTOR * (self._now_ms() - began_ms)
        self._not_before_ms = max(self._not_before_ms, rests_until_ms)
        return self.is_due

    async def _heal(self) -> None:
        damage = await self._look()
        if damage is None:
            return
        epoch = self._agrees_in()
        if not epoch:
            self._not_before_ms = self._now_ms() + HEAL_AGAIN_MS
            return
        donors = self._donors()
        if not donors:
            self._failed(self._why_nobody(damage))
            return
        # The file that it is in is written anew.
        self._around.require_room_to_settle()
        whys: list[str] = []
        is_in_a_journal = False
        for donor in donors:
            self.says = f"asks node {donor.node_id} for offsets from {damage.first_offset} on"
            try:
                donation = await self._ask_for(damage, donor, epoch)
                blocks = await self._fitted(damage, donation)
            except (OncelogError, DoesNotFit, NotSettledThere) as error:
                whys.append(f"node {donor.node_id}: {error}")
                is_in_a_journal = is_in_a_journal or isinstance(error, NotSettledThere)
                continue
            if self._is_halted or self._agrees_in() != epoch:
                return
            await self._replace(blocks, donation, donor)
            return
        if not self._is_halted:
            self._is_in_a_journal = is_in_a_journal
            self._failed("; ".join(whys))

    async def _look(self) -> DamagedRange | None:
        """What is damaged now, of what was found; all of it is told."""
        known = self._data.damaged
        if known:
            offset, found = known[0].first_offset, [known[0]]
            await self._around.offload(lambda: self._look_at(offset, found))
        self._tell(self._data.damaged)
        damaged = self._data.damaged
        return damaged[0] if damaged else None

    def _look_at(self, offset: int, found: list[DamagedRange]) -> None:
        """As far as it was known: a part of it may be intact by now."""
        end = found[0].end_offset
        offset = max(offset, self._data.begin)
        while offset < end and self._data.look_at(offset) is None:
            checked = self._data.check(offset, 1)
            offset = max(checked.end_offset, offset + 1)

    @property
    def _is_alone(self) -> bool:
        return self._around.replication.copies(self._partition) <= 1

    def _why_nobody(self, damage: DamagedRange) -> str:
        if not self._is_alone:
            return "no process with another replica runs: start one"
        return (
            "there is no other replica: put the file back from a copy, or delete what is damaged "
            f"(oncelog topic truncate --before {damage.end_offset})"
        )

    def _donors(self) -> Sequence[Address]:
        return self._around.replication.others(self._partition, self._agrees_in())

    async def _ask_for(self, damage: DamagedRange, donor: Address, epoch: int) -> Donation:
        """As much as a step takes. Raises OncelogError, NotSettledThere where the donor has not
        even the first."""
        blocks: list[Block] = []
        cleanness, dropped_at = Cleanness(), 0
        position, size = max(damage.first_offset, self._data.begin), 0
        while position < damage.end_offset and size < HEAL_BYTES:
            try:
                part = await self._ask(donor, PartOf(Content.BLOCKS, position=position), epoch)
                self._require_as_clean(damage, part.settled.cleanness)
                at = self._dropped_at(part.settled)
                came = await self._decoded(part.part.data, position)
            except (OncelogError, NotSettledThere):
                if not blocks:
                    raise
                # What it has is put in place; another one may have the rest.
                break
            cleanness, dropped_at = part.settled.cleanness, max(dropped_at, at)
            blocks += came
            size += len(part.part.data)
            position = came[-1].end_offset
        return Donation(blocks, cleanness, dropped_at)

    async def _ask(self, donor: Address, wanted: PartOf, epoch: int) -> SnapshotPart:
        """Raises OncelogError; at once where it is halted."""
        if self._is_halted:
            raise Unavailable("it is halted")
        replication = self._around.replication
        asking = asyncio.ensure_future(replication.fetch(donor, self._partition, wanted, epoch))
        self._asking = asking
        try:
            await asyncio.wait([asking])
        finally:
            self._asking = None
            asking.cancel()
        if asking.cancelled():
            raise Unavailable("it was halted")
        return asking.result()

    def _require_as_clean(self, damage: DamagedRange, there: Cleanness) -> None:
        """What both have compacted fits together: no value stays whose tombstone is gone. Raises
        Unavailable."""
        here, first = self._data.cleanness, max(damage.first_offset, self._data.begin)
        # A pass that did not come to its end has dropped some that are not noted.
        dropped_to = min(here.holes_below, self._tombstones_below())
        here = here._replace(tombstones_to=max(here.tombstones_to, dropped_to))
        if here.with_part_inside(there, first=first, end=damage.end_offset) is None:
            raise Unavailable(
                f"of what was taken out there ({there}) and here ({here}) a tombstone may be gone "
                "of which an older record would stay"
            )

    def _dropped_at(self, there: SettledThere) -> int:
        """Raises Unavailable where this journal is not that far: cut at its end, the data log would
        be given up."""
        if not there.cleanness.tombstones_to:
            return 0
        if there.allowed.at > self._synced_end():
            raise Unavailable(
                f"tombstones may be gone there by a state at {there.allowed.at}, and the journal "
                f"here ends at {self._synced_end()}"
            )
        return there.allowed.at

    async def _decoded(self, data: bytes, position: int) -> Sequence[Block]:
        """Neighbours, the first of which holds `position`. Raises CorruptLog, NotSettledThere."""
        found: list[Block] = []
        try:
            await self._around.offload(lambda: found.extend(_blocks(data)))
        except BlockError as error:
            raise CorruptLog(f"a block came damaged: {error}") from error
        if not found:
            raise NotSettledThere(f"it has not settled offset {position}")
        if not found[0].first_offset <= position < found[0].end_offset:
            raise CorruptLog(f"it sent no block of offset {position}")
        return found

    async def _fitted(self, damage: DamagedRange, donation: Donation) -> list[Block]:
        """Raises DoesNotFit, CorruptBatch."""
        assert self._settler is not None, "it has a data log"
        settler, data, found = self._settler, self._data, list[Block]()
        end = min(damage.end_offset, donation.blocks[-1].end_offset)
        first, begin, exposed_max = damage.first_offset, data.begin, data.settled_at
        await self._around.offload(
            lambda: found.extend(
                fitted(
                    settler,
                    donation.blocks,
                    first=first,
                    end=end,
                    begin=begin,
                    exposed_max=exposed_max,
                )
            )
        )
        return found

    async def _replace(self, blocks: list[Block], donation: Donation, donor: Address) -> None:
        """Raises OSError, ValueError."""
        failpoints.reach("driver.heal_replace.before")
        await self._around.offload(
            lambda: self._data.replace(
                blocks, donor=donation.cleanness, dropped_at=donation.dropped_at
            )
        )
        failpoints.reach("driver.heal_replace.after")
        first, end = blocks[0].first_offset, blocks[-1].end_offset
        self._failing_since_ms, self._not_before_ms = None, 0
        self._is_in_a_journal = False
        if end < self._data.settled_end:
            # Perhaps more of it is damaged.
            await self._around.offload(lambda: _ignore(self._data.look_at(end)))
        reporter = self._around.reporter
        reporter.count("healed_records", sum(block.record_count for block in blocks))
        reporter.event(
            "damaged records healed from another replica",
            partition=str(self._partition),
            first_offset=first,
            end_offset=end,
            donor=donor.node_id,
        )
        self._tell(self._data.damaged)

    # ------------------------------------------------------------------------------- what it says

    def _tell(self, damaged: Sequence[DamagedRange]) -> None:
        """What was found, by whoever found it, once; and the alarm."""
        for damage in damaged:
            if damage.first_offset not in self._told:
                self._around.reporter.event(
                    "settled records are damaged",
                    level="error",
                    partition=str(self._partition),
                    file=damage.file,
                    position=damage.position,
                    first_offset=damage.first_offset,
                    end_offset=damage.end_offset,
                    why=damage.why,
                )
        if damaged or self._told:
            self._told = {damage.first_offset: damage for damage in damaged}
            self._show()
        if not damaged:
            self.says = self._told_why = ""
            self._failing_since_ms, self._is_in_a_journal = None, False

    def _show(self) -> None:
        count = sum(damage.record_count for damage in self._told.values())
        self._around.reporter.gauge("damaged_records", count, partition=str(self._partition))

    def _failed(self, why: str) -> None:
        now_ms = self._now_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        self.says = f"nobody gives what is damaged here, trying again: {why}"
        self._not_before_ms = now_ms + (HEAL_SELDOM_MS if self._is_asked_seldom else HEAL_AGAIN_MS)
        if why != self._told_why:
            self._told_why = why
            self._around.reporter.event(
                "damaged records not healed, trying again",
                level="warning",
                partition=str(self._partition),
                error=why,
            )

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms


def _blocks(data: bytes) -> Sequence[Block]:
    """Each verified, and the next one of the one before. Raises BlockError."""
    view, at = memoryview(data), 0
    found: list[Block] = []
    while at < len(view):
        block = decode_block(view, at)
        if found and found[-1].end_offset != block.first_offset:
            raise BlockError(f"offset {found[-1].end_offset} is next, not {block.first_offset}")
        found.append(block)
        at += encoded_block_bytes(block)
    return found


def _ignore(_: object) -> None: ...

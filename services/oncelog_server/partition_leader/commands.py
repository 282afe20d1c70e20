"""What a partition can be asked beside what every participant can (`participant.commands`). PURE.

A command is checked for its shape before it gets here (`wire`): payloads match their CRC and
counts, one command holds batches of one producer. The machine decides what depends on state.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from oncelog_server.core.frame import Frame
from oncelog_server.core.ids import JournalOffset, Offset, TxId
from oncelog_server.core.machine import Tick
from oncelog_server.participant.commands import HearVerdicts, WriteMarkers
from oncelogpb.errors import OncelogError


class Resolution(Enum):
    """What an operator wants done with a damaged part."""

    DROP = "drop"
    EXPOSE = "expose"


# ------------------------------------------------------------------------------------- commands


class Produce(msgspec.Struct, frozen=True):
    """DATA frames of one producer (and TxId, and writer), in sequence order.

    Reply: tuple[Placed | OncelogError, ...], one per batch.
    """

    batches: tuple[Frame, ...]
    # By place: what the outside has against a batch (unsound, too large, no room on the disk). It
    # is refused with that where it is new; one that stands here is acknowledged again whatever has
    # happened since.
    unfit: dict[int, OncelogError] = {}


class Resolve(msgspec.Struct, frozen=True):
    """An operator ends a damaged part. Reply: number of records dropped or exposed."""

    tx_id: TxId
    resolution: Resolution


Command = Produce | WriteMarkers | HearVerdicts | Resolve | Tick


# -------------------------------------------------------------------------------------- replies


class Placed(NamedTuple):
    """Where a batch stands."""

    # Of its first record.
    journal_offset: JournalOffset
    # Plain: of its first record in the committed log. None: the marker will decide.
    offset: Offset | None
    # A repeat: nothing was appended, the positions are the original ones.
    duplicate: bool = False

"""All slots of one log, by name: what a journal does with them as a whole. Each name's files are in
`slots`.

Invariants:
  * there is one object for each name, whoever asks for it, and when;
  * what frames said of slots that nobody asks for any more is taken back where those are cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.slots import SlotFiles

SLOTS_DIRECTORY: Final = "slots"


class SlotSets:
    """See the module. `flush` and `remove_gone` block and may run in a thread beside the rest, one
    at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = f"{directory}/{SLOTS_DIRECTORY}"
        self._sets: dict[str, SlotFiles] = {}
        # Nobody asks for slots below.
        self._begin = 0

    @property
    def by_name(self) -> Mapping[str, SlotFiles]:
        return self._sets

    def open(self, name: str, slot_bytes: int) -> SlotFiles:
        """The slots of that name; the same object for the same name."""
        slots = self._sets.get(name)
        if slots is None:
            slots = SlotFiles(self._disk, f"{self._directory}/{name}", slot_bytes)
            slots.let_go_below(self._begin)
            self._sets[name] = slots
        assert slots.slot_bytes == slot_bytes, f"slots {name} have {slots.slot_bytes} bytes each"
        return slots

    def flush(self) -> None:
        """Makes all that was written into them durable. Raises OSError: what was written stays
        readable, and is held."""
        for slots in list(self._sets.values()):
            slots.flush()

    def let_go(self, below: int) -> None:
        """Nobody asks for them any more. Then call `remove_gone`."""
        self._begin = max(self._begin, below)
        for slots in self._sets.values():
            slots.let_go_below(below)

    @property
    def have_gone(self) -> bool:
        """Some file may be left to remove."""
        return any(slots.has_gone for slots in self._sets.values())

    def remove_gone(self) -> None:
        """Raises OSError: it may be tried again."""
        for slots in list(self._sets.values()):
            slots.remove_gone()

    @property
    def held(self) -> int:
        """How many memory has and the disk perhaps not."""
        return sum(slots.held for slots in self._sets.values())

    def cut(self, end: int) -> None:
        self._begin = min(self._begin, end)
        for slots in self._sets.values():
            slots.cut(end)

    def close(self) -> None:
        for slots in self._sets.values():
            slots.close()

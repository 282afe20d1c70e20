"""What the RPCs of Participant need: markers come from coordinators, and from nobody else. One that
was forged would decide somebody's transaction, at one partition, for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog_server.core.needs import Entry, serving

ENTRIES: Final[Mapping[str, Entry]] = {"write_markers": serving("write_markers")}

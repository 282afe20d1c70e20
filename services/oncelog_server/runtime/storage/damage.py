"""What recovery says when it refuses a journal (I26).

A torn tail is no damage: nobody was told that it is there, so it is cut. What stands below the
replica's own `synced_end` was promised, so a bad frame there refuses the whole replica.
"""

from __future__ import annotations


class JournalDamaged(Exception):
    """The journal is refused and serves nothing. It has taken a new incarnation, so this replica
    can neither win an election nor count."""

    def __init__(self, file: str, position: int, why: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {position}: {why}. This is below what was synced, so the "
            "replica is refused and nothing was deleted. Copy its directory away, then restore it "
            "from another replica or a backup; `oncelog cluster unclean-elect` goes on without it"
        )
        self.file = file
        self.position = position
        self.why = why


class UnknownFrame(JournalDamaged):
    """An intact frame that this version cannot read. Nothing is lost, so the incarnation stays."""

    def __init__(self, file: str, position: int, why: str) -> None:
        Exception.__init__(
            self,
            f"{file} holds at byte {position} a frame that this version cannot read: {why}. A "
            "newer Oncelog wrote it and it is never skipped: start this node with that version",
        )
        self.file = file
        self.position = position
        self.why = why

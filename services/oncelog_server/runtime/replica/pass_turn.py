"""PURE. Whose pass of compaction runs in a process: one at a time, for each has a map of keys in
memory; and whoever holds up readers goes first (docs/adr/0088).

    free ──take──► a pass ──its end──► free
                      ▲ └── somebody holds up readers: it ends, and begins anew later
                      └──── it holds up readers itself: it goes on

Invariant: nobody takes it while readers wait for somebody else, unless they wait for him, too.
"""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """One that makes passes."""

    @property
    def holds_up_readers(self) -> bool:
        """Until its pass is through they are refused; and it could begin now."""
        ...


class PassTurn:
    """Of a process."""

    def __init__(self) -> None:
        self._holder: Waiter | None = None
        # Those that hold up readers, or did, and asked for it while it was taken.
        self._hurried: list[Waiter] = []

    def locked(self) -> bool:
        """A pass is under way."""
        return self._holder is not None

    def is_free_for(self, who: Waiter) -> bool:
        if self._holder is not None:
            return False
        return who.holds_up_readers or not self._is_hurried

    def take(self, who: Waiter) -> None:
        assert self.is_free_for(who), "it is his turn"
        self._holder = who
        self._hurried = [it for it in self._hurried if it is not who]

    def release(self, who: Waiter) -> None:
        assert self._holder is who, "he has it"
        self._holder = None

    def hurry(self, who: Waiter) -> None:
        """Whoever has it should let go of it, for readers wait."""
        if not self.is_hurried_by(who):
            self._hurried.append(who)

    def is_hurried_by(self, who: Waiter) -> bool:
        return any(it is who for it in self._hurried)

    def should_end(self, who: Waiter) -> bool:
        """He has it, and readers wait for somebody else's pass, and not for his."""
        return self._holder is who and not who.holds_up_readers and self._is_hurried

    @property
    def _is_hurried(self) -> bool:
        # Those who hold up nobody any more have had their pass, or are gone.
        self._hurried = [it for it in self._hurried if it.holds_up_readers]
        return bool(self._hurried)

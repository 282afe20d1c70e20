"""Group commit: everything that was appended in one loop turn, or while a sync was under way, of
all journals of the node, goes to disk in the next single write and sync. Where much is waiting,
that one is written while the one before is still being synced (ADR 94).

    wrote ─► waiting ─┬─ nothing is under way ────────────────► a commit
                      └─ one is, and much is waiting ─────────► a commit ahead of its end

Invariants:
  * `on_synced(end)` is called after the disk's commit of everything below `end` returned (I5, I25);
  * a failed commit fails exactly the journals that had bytes in it: their bytes are in doubt. They
    are written no more until their owner abandons what is not synced; the others go on;
  * a journal, or its owner, that fails in another way than the disk does is a bug: it is logged,
    and fails that journal alone, for it must not stand there and wait for ever;
  * commits end in the order in which they began, two at most are under way, and one that began
    ahead fails where the one before fails: a disk says of an error once, to either of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from errno import EIO
from typing import Final, NamedTuple

from oncelog_server.runtime import vital
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import Disk, Write
from oncelog_server.runtime.vital import Fatal

# The second is written while the first is synced.
UNDER_WAY_MAX: Final = 2


class CommitStats(NamedTuple):
    """What one commit did, for metrics."""

    journals: int
    written_bytes: int
    # Handing over, writing and syncing.
    took_ms: float
    failed: bool


class _Waiting(NamedTuple):
    journal: Journal
    on_synced: Callable[[int], None]
    on_failed: Callable[[OSError], None]
    # Bytes of frames that were appended to this journal, and are not written yet.
    unwritten_bytes: int


class _Commit(NamedTuple):
    """That the disk has, and has not answered."""

    # Identities of those whose bytes are in it.
    journals: frozenset[int]
    # With what it failed, if it did.
    ended: asyncio.Future[OSError | None]


class GroupCommit:
    """One per node. Belongs to one event loop."""

    def __init__(
        self,
        disk: Disk,
        *,
        ahead_bytes: int,
        on_commit: Callable[[CommitStats], None] | None = None,
        on_fatal: Fatal = vital.complain,
    ) -> None:
        """`ahead_bytes`: with so much waiting a commit begins ahead of the end of the one before;
        small ones had better wait, and share a sync. `on_fatal`: no journal of the node is written
        any more."""
        self._disk = disk
        self._on_fatal = on_fatal
        self._on_commit = on_commit
        # By identity of the journal, in the order in which they were written.
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._ahead_bytes = ahead_bytes
        # Each sees one commit to its end, and goes on with the next.
        self._running: set[asyncio.Task[None]] = set()
        # One of them has not taken its first step.
        self._is_beginning = False
        # In the order in which they began.
        self._under_way: list[_Commit] = []
        # One has failed, and what began ahead of its end fails with it: nothing begins ahead of
        # that, or one failure would pass on for as long as there is something to write.
        self._is_failing = False
        self._stopped = False
        # Appended to journals, and not in a commit that has ended: it will need room on the disk.
        self.unwritten_bytes = 0

    def wrote(
        self,
        journal: Journal,
        on_synced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        *,
        appended_bytes: int = 0,
    ) -> None:
        """The journal has something for the disk, so many bytes of frames. The callbacks run on the
        loop, once per commit that takes part of it; those of the latest call count."""
        assert not self._stopped, "no append after GroupCommit.stop()"
        before = self._waiting.get(id(journal))
        unwritten = appended_bytes + (0 if before is None else before.unwritten_bytes)
        self._waiting[id(journal)] = _Waiting(journal, on_synced, on_failed, unwritten)
        self.unwritten_bytes += appended_bytes
        self._waiting_bytes += appended_bytes
        if not self._is_beginning and self._may_begin():
            # The task's first step comes after this loop turn: the turn's appends go together.
            self._is_beginning = True
            task = vital.spawn(self._run(), self._on_fatal)
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _may_begin(self) -> bool:
        if not self._under_way:
            return True
        has_room = len(self._under_way) < UNDER_WAY_MAX and not self._is_failing
        return has_room and self._waiting_bytes >= self._ahead_bytes

    async def flush(self) -> None:
        """Returns when nothing is on its way to the disk."""
        while self._running:
            await asyncio.wait(self._running)

    async def leave(self, journal: Journal) -> None:
        """Takes nothing more of it, and returns when nothing of it is on its way to the disk: from
        then on its files may be moved. Before, a name that is gone would fail the commit of all
        who are in it."""
        left = self._waiting.pop(id(journal), None)
        if left is not None:
            self.unwritten_bytes -= left.unwritten_bytes
            self._waiting_bytes -= left.unwritten_bytes
        while ends := [one.ended for one in self._under_way if id(journal) in one.journals]:
            await asyncio.wait(ends)

    async def stop(self) -> None:
        """Flushes, then takes no more."""
        await self.flush()
        self._stopped = True

    async def _run(self) -> None:
        self._is_beginning = False
        while self._waiting and self._may_begin():
            await self._commit_once()

    async def _commit_once(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        try:
            await self._commit_all(waiting.values())
        finally:
            self.unwritten_bytes -= sum(item.unwritten_bytes for item in waiting.values())

    async def _commit_all(self, waiting: Iterable[_Waiting]) -> None:
        taken: list[tuple[_Waiting, int]] = []
        writes: list[Write] = []
        for item in waiting:
            try:
                of_journal, end = item.journal.take_writes()
            except Exception as not_taken:
                self._fail(item, _as_failure(not_taken, "its bytes could not be taken"))
                continue
            if of_journal:
                writes += of_journal
                taken.append((item, end))
            elif end <= item.journal.synced_end:
                # An earlier commit took it all: whoever asked is still told.
                self._tell(item, end)
            elif self._under_way:
                # One that is under way took it all: whoever asked is told when that has ended.
                self._waiting.setdefault(id(item.journal), item._replace(unwritten_bytes=0))
        if not writes:
            return
        before = self._under_way[-1] if self._under_way else None
        ended: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        commit = _Commit(frozenset(id(item.journal) for item, _ in taken), ended)
        self._under_way.append(commit)
        error: OSError | None = OSError(EIO, "given up before the disk had answered")
        try:
            error = await self._commit(writes, len(taken), before)
        except BaseException:
            # Cancelled: the process ends, and nobody knows what the disk has.
            for item, _ in taken:
                item.journal.mark_failed()
            raise
        finally:
            self._under_way.remove(commit)
            self._is_failing = bool(self._under_way) and (self._is_failing or error is not None)
            ended.set_result(error)
        for item, end in taken:
            if error is not None:
                self._fail(item, error)
            else:
                item.journal.mark_synced(end)
                self._tell(item, end)

    async def _commit(
        self, writes: Sequence[Write], journals: int, before: _Commit | None
    ) -> OSError | None:
        """With what it failed. `before`: was under way when it began, and ends before it."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        failure: OSError | None = None
        try:
            await self._disk.commit(writes)
        except Exception as error:
            # Whatever it was, the bytes are in doubt.
            failure = _as_failure(error, "commit failed")
        if before is not None:
            if not before.ended.done():
                await asyncio.wait([before.ended])
            failure = before.ended.result() or failure
        if self._on_commit is not None:
            written = sum(len(chunk) for write in writes for chunk in write.chunks)
            took_ms = (loop.time() - started) * 1000
            stats = CommitStats(journals, written, took_ms, failure is not None)
            self._on_commit(stats)
        return failure

    def _tell(self, item: _Waiting, end: int) -> None:
        """What is durable is so whatever its owner makes of it; but one that cannot tell its
        callers must not go on as if it had."""
        try:
            item.on_synced(end)
        except Exception as error:
            self._fail(item, _as_failure(error, "what is durable could not be told"))

    def _fail(self, item: _Waiting, error: OSError) -> None:
        item.journal.mark_failed()
        item.on_failed(error)


def _as_failure(error: Exception, what: str) -> OSError:
    """The error of a disk as it is; any other is a bug of ours, which the log shows."""
    if isinstance(error, OSError):
        return error
    context = {"message": f"group commit: {what}", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
    return OSError(EIO, f"{what}: {error!r}")

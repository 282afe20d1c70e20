"""One event loop in one background thread: what the plain face stands on.

Usable from many threads. Does not survive fork: a child that uses its parent's connection is told
so (Forked) instead of hanging on a thread that it does not have.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from oncelog._hand_over import HandOver
from oncelog.errors import INSTEAD_OF_FORK, Closed, Forked

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
# Runs a plain function in the thread that waits: see run_serving.
Serve = Callable[..., Coroutine[Any, Any, Any]]

# How long the end of the loop may take, seconds; what then still runs is abandoned.
CLOSE_SECONDS_MAX: Final = 10.0
# How long work that was interrupted (Ctrl-C) may take to end in good order, seconds: a transaction
# is aborted, or its consumer forgets where it stands. A second interrupt ends the wait.
INTERRUPTED_SECONDS_MAX: Final = 2.0
# How long a loop that has ended still takes what gRPC has for it, seconds: what became of calls
# comes after their end, in the thread of whichever connection gRPC woke, and a closed loop makes
# that thread print a traceback. Nobody waits for it.
LINGER_SECONDS: Final = 0.5
# A thread that waits looks up so often, seconds: Python does not see an interrupt that comes right
# before the wait until that is over.
LOOK_UP_SECONDS: Final = 0.5
# How long the last words of a connection that nobody holds may take, seconds.
LAST_WORDS_SECONDS_MAX: Final = 10.0
# How often the end of tasks may begin new ones, which are ended too.
ENDINGS_MAX: Final = 100


class LoopThread:
    """Starts at once; `close` ends it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        # The thread does not hold this object: a connection that nobody holds ends.
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=_serve, args=(self.loop, self._ended), name=name, daemon=True
        )
        self._thread.start()
        # As `run`, for who must not hold this object: what the loop itself holds.
        self.run_held = _weakly(weakref.ref(self))
        # Awaited before the loop ends because nobody holds the connection any more.
        self.last_words: list[Callable[[], Coroutine[Any, Any, object]]] = []
        self._abandoned = weakref.finalize(
            self, _abandon, self.loop, name, self._pid, self.last_words
        )
        self._abandoned.atexit = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the loop, waited for in this thread. The coroutine bounds
        its own time. Raises what it raises; Closed, Forked."""
        try:
            self.require_usable()
        except BaseException:
            work.close()
            raise
        # Let go of when the work has ended.
        over = threading.Lock()
        over.acquire()
        handed = HandOver(work, over.release)
        try:
            self.loop.call_soon_threadsafe(handed.begin)
            while not over.acquire(timeout=LOOK_UP_SECONDS):
                if handed.has_ended:
                    break
            return handed.result()
        except asyncio.CancelledError:
            raise Closed(f"{self._name} was closed meanwhile") from None
        except BaseException:
            # KeyboardInterrupt, too, ends the work that nobody waits for any more.
            self._interrupt(handed)
            raise

    def ask(self, question: Callable[[], T]) -> T:
        """What it returns on the loop, where nothing changes meanwhile. Raises as `run`."""

        async def asked() -> T:
            return question()

        return self.run(asked())

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Has the loop call it soon. Raises Closed, Forked."""
        self.require_usable()
        self.loop.call_soon_threadsafe(callback, *arguments)

    def run_serving(self, start: Callable[[Serve], Coroutine[Any, Any, T]]) -> T:
        """As `run`, for work that calls back: `start` gets a function that runs a plain function in
        *this* thread, and waits for it on the loop. So users' code never runs on the loop, nor in a
        thread that they do not know."""
        calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

        async def serve(function: Callable[..., R], *arguments: Any) -> R:
            done: asyncio.Future[R] = self.loop.create_future()

            def called() -> None:
                try:
                    result = function(*arguments)
                except BaseException as error:
                    self.loop.call_soon_threadsafe(_fail, done, error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    self.loop.call_soon_threadsafe(_succeed, done, result)

            calls.put(called)
            return await done

        self.require_usable()
        handed = HandOver(start(serve), lambda: calls.put(None))
        try:
            self.loop.call_soon_threadsafe(handed.begin)
            while (call := _next_of(calls, handed)) is not None:
                call()
            return handed.result()
        except asyncio.CancelledError:
            raise Closed(f"{self._name} was closed meanwhile") from None
        except BaseException:
            self._interrupt(handed)
            raise

    def require_usable(self) -> None:
        """Raises Closed or Forked."""
        if os.getpid() != self._pid:
            raise Forked(
                f"{self._name} was opened in process {self._pid} and does not survive fork: "
                f"{INSTEAD_OF_FORK}"
            )
        if self._closed:
            raise Closed(f"{self._name} is closed")
        if threading.current_thread() is self._thread:
            raise Closed("the plain API cannot be used on its own event loop: use oncelog.aio")

    def close(self) -> None:
        """Cancels what runs and waits for its end. Safe to repeat."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                self._closed = True
                return
            self._closed = True
        self._abandoned.detach()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._ended.wait(CLOSE_SECONDS_MAX)

    def _interrupt(self, handed: HandOver[Any]) -> None:
        """Cancels the work and waits until it has ended: what the caller does next must not meet a
        transaction that is half way out. Nothing to do for work that failed by itself."""
        if self._closed or handed.has_ended:
            return
        ended = asyncio.run_coroutine_threadsafe(handed.cancel(), self.loop)
        with contextlib.suppress(
            concurrent.futures.TimeoutError, concurrent.futures.CancelledError
        ):
            ended.result(INTERRUPTED_SECONDS_MAX)


def _weakly(held: weakref.ref[LoopThread]) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    def run(work: Coroutine[Any, Any, Any]) -> Any:
        loop = held()
        if loop is None:
            work.close()
            raise Closed("the connection is closed")
        return loop.run(work)

    return run


def _next_of(calls: queue.SimpleQueue[C | None], handed: HandOver[Any]) -> C | None:
    """None: the work has ended, and nothing is to be called any more."""
    while True:
        try:
            return calls.get(timeout=LOOK_UP_SECONDS)
        except queue.Empty:
            if handed.has_ended and calls.empty():
                return None


def _serve(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        try:
            _end_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            ended.set()
        loop.run_until_complete(asyncio.sleep(LINGER_SECONDS))
        # Of who came just before the end.
        _end_tasks(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """And those that their end begins: a session that breaks asks for another one."""
    for _ in range(ENDINGS_MAX):
        left = asyncio.all_tasks(loop)
        if not left:
            return
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _abandon(
    loop: asyncio.AbstractEventLoop,
    name: str,
    pid: int,
    last_words: list[Callable[[], Coroutine[Any, Any, object]]],
) -> None:
    """Nobody holds the connection any more. Its end breaks the sessions, and with them what was
    left open is aborted."""
    if os.getpid() == pid:
        asyncio.run_coroutine_threadsafe(_say_and_stop(loop, last_words), loop)
        warnings.warn(f"{name} was never closed: use `with`", ResourceWarning, stacklevel=2)


async def _say_and_stop(
    loop: asyncio.AbstractEventLoop,
    last_words: list[Callable[[], Coroutine[Any, Any, object]]],
) -> None:
    try:
        for words in last_words:
            await asyncio.wait_for(words(), LAST_WORDS_SECONDS_MAX)
    finally:
        loop.stop()


def _succeed(future: asyncio.Future[R], result: R) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """A StopIteration cannot be put into a future; nobody raises one on purpose here. An interrupt
    or an exit is of the thread that waits: raised on the loop, it would end the loop."""
    if future.done():
        return
    if not isinstance(error, Exception):
        future.cancel()
    else:
        future.set_exception(
            RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
        )

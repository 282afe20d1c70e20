"""The background loop: from many threads, not across a fork, never hanging on what is closed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from oncelog._loop import LoopThread, Serve
from oncelog.errors import Closed, Forked


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("the loop under test")
    yield made
    made.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_many_threads_get_their_own_results(loop: LoopThread) -> None:
    results: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: loop.run(double(n))}))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: 2 * n for n in range(20)}


def test_an_error_reaches_the_thread_that_waits(loop: LoopThread) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.run(fail())


def test_a_closed_loop_says_so_and_ends_what_waits(loop: LoopThread) -> None:
    started = threading.Event()
    caught: list[BaseException] = []

    async def wait_for_ever() -> None:
        started.set()
        await asyncio.Event().wait()

    def waiter() -> None:
        try:
            loop.run(wait_for_ever())
        except Closed as error:
            caught.append(error)

    thread = threading.Thread(target=waiter)
    thread.start()
    started.wait()
    loop.close()
    thread.join()
    assert len(caught) == 1
    with pytest.raises(Closed):
        loop.run(double(1))
    loop.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_is_told_to_connect_again(loop: LoopThread) -> None:
    child = os.fork()
    if child == 0:
        try:
            loop.run(double(1))
        except Forked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert loop.run(double(4)) == 8


def test_served_functions_run_in_the_thread_that_waits(loop: LoopThread) -> None:
    here = threading.get_ident()

    def where(number: int) -> tuple[int, bool]:
        return number, threading.get_ident() == here

    async def work(serve: Serve) -> list[tuple[int, bool]]:
        return [await serve(where, number) for number in range(3)]

    assert loop.run_serving(work) == [(0, True), (1, True), (2, True)]


def test_an_error_of_a_served_function_passes_through_the_loop(loop: LoopThread) -> None:
    seen: list[str] = []

    def fail() -> None:
        raise KeyError("mine")

    async def work(serve: Serve) -> None:
        try:
            await serve(fail)
        except KeyError:
            seen.append("on the loop")
            raise

    with pytest.raises(KeyError, match="mine"):
        loop.run_serving(work)
    assert seen == ["on the loop"]


def test_the_loops_own_thread_is_sent_to_the_asyncio_face(loop: LoopThread) -> None:
    async def misuse() -> None:
        loop.run(double(1))

    with pytest.raises(Closed, match=r"oncelog\.aio"):
        loop.run(misuse())


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_served_function_ends_the_work_and_not_the_loop(
    loop: LoopThread, ending: type[BaseException]
) -> None:
    seen: list[type[BaseException]] = []

    def end() -> None:
        raise ending

    async def work(serve: Serve) -> None:
        try:
            await serve(end)
        except BaseException as error:
            seen.append(type(error))
            raise

    # Many times: the thread and the loop raced for what the work gets to see.
    for _ in range(100):
        with pytest.raises(ending):
            loop.run_serving(work)
    assert set(seen) == {asyncio.CancelledError}
    assert loop.run(double(4)) == 8


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts a run in the background has it ignore SIGINT: the test would hang."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_work_has_ended_when_its_caller_goes_on(loop: LoopThread) -> None:
    started, ended = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            # An abort, say: it takes a while.
            await asyncio.sleep(0.05)
            ended.set()

    _interrupt_when(started, threading.main_thread())
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert ended.is_set()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("serving", [False, True])
def test_an_interrupt_that_does_not_wake_the_wait_is_seen_all_the_same(
    loop: LoopThread, serving: bool
) -> None:
    """As one that comes right before the wait: Python has noted it, and looks at it afterwards.
    Here another thread takes it."""
    started = threading.Event()

    async def work(serve: Serve | None = None) -> None:
        started.set()
        await asyncio.Event().wait()

    _interrupt_when(started, None)
    with pytest.raises(KeyboardInterrupt):
        if serving:
            loop.run_serving(work)
        else:
            loop.run(work())
    assert loop.run(double(4)) == 8


def _interrupt_when(started: threading.Event, thread: threading.Thread | None) -> None:
    """Ctrl-C, taken by that thread or by one of nobody."""

    def interrupt() -> None:
        started.wait()
        # Until the main thread waits.
        time.sleep(0.1)
        taker = thread or threading.current_thread()
        signal.pthread_kill(taker.ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()


def test_the_loop_ends_what_its_end_has_begun() -> None:
    """A session that breaks with the loop asks for another one."""
    ending = LoopThread("a connection that is closed")

    async def session(left: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if left:
                tasks.append(asyncio.get_running_loop().create_task(session(left - 1)))
                # It has begun when it is cancelled.
                await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []

    async def start() -> None:
        tasks.append(asyncio.get_running_loop().create_task(session(5)))
        await asyncio.sleep(0)

    ending.run(start())
    ending.close()
    ending._thread.join()
    assert [task.done() for task in tasks] == [True] * 6


def test_a_loop_that_nobody_holds_warns_and_ends_its_work() -> None:
    held = [LoopThread("the connection to nowhere")]
    thread = held[0]._thread
    cancelled = threading.Event()

    async def session() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(session())

    task = held[0].run(start())
    with pytest.warns(ResourceWarning, match="connection to nowhere was never closed"):
        held.clear()
    thread.join()
    assert cancelled.is_set()
    assert task.done()


def test_a_loop_that_has_ended_still_takes_what_grpc_has_for_it() -> None:
    """It comes in a thread of another connection, which printed a traceback for a closed loop."""
    ended = LoopThread("a connection that is closed")
    ended.close()
    taken = threading.Event()
    ended.loop.call_soon_threadsafe(taken.set)
    assert taken.wait(10)


def test_who_comes_after_the_end_is_not_left_waiting() -> None:
    ended = LoopThread("a connection that is closed")
    ended.close()
    late = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), ended.loop)
    with pytest.raises(concurrent.futures.CancelledError):
        late.result(10)


def test_a_function_that_raises_stop_iteration_ends_the_wait_for_it(loop: LoopThread) -> None:
    async def serving(serve: Serve) -> None:
        async with asyncio.timeout(5):
            await serve(next, iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        loop.run_serving(serving)


def test_work_that_a_closed_loop_refuses_is_closed(loop: LoopThread) -> None:
    """Else it complains, somewhere else, that it was never awaited."""
    loop.close()
    work = double(1)
    with pytest.raises(Closed):
        loop.run(work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED

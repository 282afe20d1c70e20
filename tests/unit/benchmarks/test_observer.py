"""Counting context switches: of all threads, and of those that ended, too."""

from __future__ import annotations

import os
import threading
import time

from benchmarks.observer import (
    Look,
    Observer,
    Seen,
    Tally,
    Usage,
    below,
    own_usage,
    switches_in,
    switches_of,
)

STATUS = """\
Name:\tpython
Threads:\t3
voluntary_ctxt_switches:\t1200
nonvoluntary_ctxt_switches:\t34
"""


def test_voluntary_and_nonvoluntary_switches_are_added() -> None:
    assert switches_in(STATUS) == 1234


def test_a_thread_that_ended_stays_counted() -> None:
    tally = Tally()
    tally.look({(1, 1): 10, (1, 2): 5})
    tally.look({(1, 1): 12})
    assert tally.of(1) == 17
    tally.look({})
    assert tally.of(1) == 17


def test_a_number_that_is_used_again_is_another_thread() -> None:
    tally = Tally()
    tally.look({(1, 2): 100})
    tally.look({(1, 2): 3})
    tally.look({(1, 2): 4})
    assert tally.of(1) == 104


def test_each_process_has_its_own() -> None:
    tally = Tally()
    tally.look({(1, 1): 10, (2, 2): 7})
    assert (tally.of(1), tally.of(2), tally.of(3)) == (10, 7, 0)


def test_what_was_used_before_is_taken_off() -> None:
    before = Look(5.0, {"a": {"server": Usage(1.0, 10)}})
    after = Look(9.0, {"a": {"server": Usage(1.5, 14), "helper": Usage(0.25, 3)}})
    assert after.since(before) == Look(
        4.0, {"a": {"server": Usage(0.5, 4), "helper": Usage(0.25, 3)}}
    )


def test_descendants_belong_to_their_root_and_others_do_not() -> None:
    processes = {1: Seen(0, 0), 10: Seen(1, 0), 11: Seen(10, 0), 12: Seen(11, 0), 20: Seen(1, 0)}
    assert below(10, processes) == {10, 11, 12}
    assert below(99, processes) == set()


def _switch(times: int) -> None:
    for _ in range(times):
        time.sleep(0)
        time.sleep(0.001)


def test_all_threads_of_this_process_are_seen() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        seen = {key for key, _ in switches_of({os.getpid(): None})}
        assert {(os.getpid(), thread.native_id), (os.getpid(), os.getpid())} <= seen
    finally:
        over.set()
        thread.join()


def test_of_itself_a_process_counts_threads_that_ended() -> None:
    before = own_usage()
    thread = threading.Thread(target=_switch, args=(50,))
    thread.start()
    thread.join()
    assert own_usage().since(before).switches >= 50


def test_the_observer_sees_what_a_thread_of_a_server_did_and_forgets_nothing_at_its_end() -> None:
    """This process is the server here."""
    with Observer({"side": [os.getpid()]}) as observer:
        before = observer.look()
        done, go_on = threading.Event(), threading.Event()

        def work() -> None:
            _switch(200)
            done.set()
            go_on.wait(60)

        thread = threading.Thread(target=work)
        thread.start()
        assert done.wait(60)
        # It lives, and is looked at; then it ends.
        assert _switches(observer.look().since(before)) >= 200
        go_on.set()
        thread.join()
        assert _switches(observer.look().since(before)) >= 200


def _switches(look: Look) -> int:
    return sum(used.switches for used in look.roots["side"].values())

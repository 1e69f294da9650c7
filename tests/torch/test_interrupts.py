"""Ctrl-C is held back while something could be lost, and comes out right after."""

from __future__ import annotations

import signal
import threading

import pytest

from penstock.torch.interrupts import Held


def test_it_comes_out_at_the_end_of_the_block_and_what_was_done_stays_done() -> None:
    done = []

    def work() -> None:
        with Held():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_is_not_held_back() -> None:
    done = []

    def work() -> None:
        with Held():
            for number in range(3):
                signal.raise_signal(signal.SIGINT)
                done.append(number)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_out_where_it_is_asked_for() -> None:
    done = []

    def work() -> None:
        with Held() as held:
            held.check()
            signal.raise_signal(signal.SIGINT)
            held.check()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done


def test_a_handler_of_the_users_own_is_called_once() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with Held() as held:
            signal.raise_signal(signal.SIGINT)
            assert not heard
            held.check()
            assert heard == [1]
        assert heard == [1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    handlers = []

    def look() -> None:
        with Held():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert handlers == [signal.default_int_handler]

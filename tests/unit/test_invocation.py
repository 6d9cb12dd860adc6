"""An invocation: its time, whether its caller is still connected, and the one wait that looks at both."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial

import pytest

from sm.errors import CallerGone, DeadlinePassed
from sm.invocation import FIRST_LOOK_S, LOOK_S, Invocation, wait
from sm.polling import POLL_S, poll_until
from sm.router.wsgi import is_disconnected


def test_only_a_closed_connection_counts_as_disconnected() -> None:
    server_side, client_side = socket.socketpair()
    with server_side:
        assert not is_disconnected(server_side)
        client_side.sendall(b"pipelined")
        assert not is_disconnected(server_side)
        assert server_side.recv(9) == b"pipelined"
        client_side.close()
        assert is_disconnected(server_side)
    assert is_disconnected(server_side)
    assert not is_disconnected(None)


class Never:
    """Something that never comes; it says how long each part of the wait for it was."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_a_wait_returns_what_it_waited_for_even_if_that_is_empty() -> None:
    answers: list[object] = [None, False, b""]
    assert wait(lambda _: answers.pop(0), None) == b""
    lock = threading.Lock()
    assert wait(partial(lock.acquire, True), Invocation(time.monotonic() + 10)) is True


def test_the_caller_is_looked_at_soon_and_then_less_often() -> None:
    never, looks = Never(), iter([False, False, False, True])
    with pytest.raises(CallerGone):
        wait(never, Invocation(time.monotonic() + 10, lambda: next(looks)))
    assert never.seconds == [FIRST_LOOK_S, LOOK_S, LOOK_S, LOOK_S]


def test_a_wait_ends_with_the_time_of_its_invocation_and_not_after_it() -> None:
    never = Never()
    with pytest.raises(DeadlinePassed):
        wait(never, Invocation(time.monotonic() - 1))
    assert never.seconds == [0.0]
    with pytest.raises(DeadlinePassed):
        wait(partial(poll_until, lambda: None), Invocation(time.monotonic() + POLL_S))

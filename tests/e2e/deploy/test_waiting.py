"""What is shown while an endpoint starts."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from sm.commands.progress import Progress
from tests.support.aws_proxy import json_error
from tests.support.boxes import wait_until
from tests.support.deploy_account import FakeAccount
from trireme_tools.aws import ServiceUnavailable
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.waiting import Clock, Waiter

#: A piece of rich's bar.
BAR = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeTime:
    """A clock that a wait moves on at once. It first calls ``meanwhile``."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.wait)

    def wait(self, seconds: float) -> None:
        self._meanwhile()
        self.now += seconds


def wait_through_update(cloud: FakeAccount, stream: io.StringIO, time: FakeTime) -> None:
    """Wait for an endpoint that is in service at the fifth look."""
    assert cloud.deploy().code == 0
    cloud.proxy.endpoint_states = [{"EndpointStatus": "Updating"}] * 4
    account = Account(cloud.session, Progress(stream), Progress(io.StringIO()))
    endpoint = Waiter(account, time.clock()).wait("ships")
    assert endpoint is not None
    assert endpoint["EndpointStatus"] == "InService"


def test_a_terminal_shows_state_and_time_in_a_bar_and_erases_it_at_the_end(
    cloud: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rich asks these whether it writes to a terminal, and how wide it is.
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    stream = Terminal()
    time = FakeTime(
        lambda: wait_until(lambda: f"Updating {time.now:.0f} s" in stream.getvalue(), description="the bar")
    )
    wait_through_update(cloud, stream, time)
    output = stream.getvalue()
    assert "endpoint ships" in output
    assert BAR in output
    assert output.endswith("InService after 8 s\n")
    # The bar's line is erased before the last one.
    assert output.rindex("\x1b[2K") > output.rindex("Updating")


def test_the_wait_ends_if_aws_does_not_answer_for_minutes(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    cloud.proxy.fixed_responses["DescribeEndpoint"] = json_error(400, "ThrottlingException", "Rate exceeded")
    time = FakeTime()
    with pytest.raises(ServiceUnavailable, match="AWS asks to slow down"):
        Waiter(cloud.account(), time.clock()).wait("ships")
    assert 300 < time.now < 310

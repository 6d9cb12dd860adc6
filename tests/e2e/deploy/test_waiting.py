"""What is shown while an endpoint starts."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from sm.tools.deploy.account import Account
from sm.tools.deploy.aws import ServiceUnavailable
from sm.tools.deploy.waiting import Clock, Waiter
from sm.tools.progress import Progress
from tests.support.aws_proxy import error
from tests.support.boxes import wait_until
from tests.support.deploy_account import Cloud

#: A piece of rich's bar.
BAR = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Hours:
    """A clock on which a wait takes no time, but for what has to happen meanwhile."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.wait)

    def wait(self, seconds: float) -> None:
        self._meanwhile()
        self.now += seconds


def updating(cloud: Cloud, stream: io.StringIO, hours: Hours) -> None:
    """Wait for an endpoint that is looked at four times before it is there."""
    assert cloud.deploy().code == 0
    cloud.proxy.states = [{"EndpointStatus": "Updating"}] * 4
    account = Account(cloud.session, Progress(stream), Progress(io.StringIO()))
    found = Waiter(account, hours.clock()).wait("ships")
    assert found is not None
    assert found["EndpointStatus"] == "InService"


def test_a_terminal_has_a_bar_with_state_and_time_that_is_gone_at_the_end(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rich asks these whether it writes to a terminal, and how wide it is.
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    stream = Terminal()
    hours = Hours(
        lambda: wait_until(lambda: f"Updating {hours.now:.0f} s" in stream.getvalue(), description="the bar")
    )
    updating(cloud, stream, hours)
    shown = stream.getvalue()
    assert "endpoint ships" in shown
    assert BAR in shown
    assert shown.endswith("InService after 8 s\n")
    # The bar's line is erased before the last one.
    assert shown.rindex("\x1b[2K") > shown.rindex("Updating")


def test_elsewhere_a_state_is_said_once(cloud: Cloud) -> None:
    stream = io.StringIO()
    updating(cloud, stream, Hours())
    assert stream.getvalue() == "Updating 0 s\nInService after 8 s\n"


def test_an_endpoint_that_is_there_already_is_not_waited_for(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    stream = Terminal()
    account = Account(cloud.session, Progress(stream), Progress(io.StringIO()))
    assert Waiter(account, Hours().clock()).wait("ships") is not None
    assert stream.getvalue() == ""


def test_aws_that_stays_away_ends_the_wait(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    cloud.proxy.refused["DescribeEndpoint"] = error(400, "ThrottlingException", "Rate exceeded")
    hours = Hours()
    with pytest.raises(ServiceUnavailable, match="AWS asks to slow down"):
        Waiter(cloud.account(), hours.clock()).wait("ships")
    assert 300 < hours.now < 310

"""The live line while an endpoint starts."""

from __future__ import annotations

import io

import pytest

from sm.tools.deploy.account import Account
from sm.tools.deploy.aws import ServiceUnavailable
from sm.tools.deploy.waiting import Clock, Waiter
from sm.tools.progress import Progress
from tests.support.aws_proxy import error
from tests.support.deploy_account import Cloud


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Hours:
    """A clock on which a wait takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_terminal_has_one_line_that_changes_elsewhere_a_state_is_told_once(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        cloud.proxy.states = [{"EndpointStatus": "Updating"}] * 4
        account = Account(cloud.session, Progress(stream), Progress(io.StringIO()))
        found = Waiter(account, Hours().clock()).wait("ships")
        assert found is not None and found["EndpointStatus"] == "InService"
        shown[type(stream)] = stream.getvalue()
    assert shown[Terminal].count("\r\x1b[2KUpdating") == 4 and shown[Terminal].count("\n") == 1
    assert shown[io.StringIO] == "Updating 0 s\nInService after 8 s\n"


def test_aws_that_stays_away_ends_the_wait(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    cloud.proxy.refused["DescribeEndpoint"] = error(400, "ThrottlingException", "Rate exceeded")
    hours = Hours()
    with pytest.raises(ServiceUnavailable, match="AWS asks to slow down"):
        Waiter(cloud.account(), hours.clock()).wait("ships")
    assert 300 < hours.now < 310

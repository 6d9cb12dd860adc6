"""What is shown while an endpoint starts."""

from __future__ import annotations

import pytest

from tests.support.aws_proxy import json_error
from tests.support.deploy_account import FakeAccount
from trireme_tools.aws import ServiceUnavailable
from trireme_tools.deploy.waiting import Waiter


class FakeTime:
    """A clock that a wait moves on at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_the_wait_ends_if_aws_does_not_answer_for_minutes(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    cloud.proxy.fixed_responses["DescribeEndpoint"] = json_error(400, "ThrottlingException", "Rate exceeded")
    time = FakeTime()
    with pytest.raises(ServiceUnavailable, match="AWS asks to slow down"):
        Waiter(cloud.account(), time, time.wait).wait("ships")
    assert 300 < time.now < 310

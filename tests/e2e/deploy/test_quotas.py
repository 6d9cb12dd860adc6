"""Quotas of instances: asked before anything is uploaded, with what runs already."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.deploy.account import Done, FakeAccount, write_repository
from tests.support.aws_proxy import json_error

TYPE = "ml.g4dn.xlarge"
SCALED = ("--target-invocations", "60", "--autoscale")
COMPONENT = ("--component", "--memory", "8192")


def refused(cloud: FakeAccount, done: Done) -> str:
    """Return the sentence of a command that changed nothing and sent nothing."""
    assert done.code == 1 and cloud.proxy.changes == [], done.err
    return done.err


@pytest.mark.parametrize(
    ("options", "quota"),
    [
        ((), 0),
        (("--count", "3"), 2),
        ((*SCALED, "1:4"), 3),
        (("--async", "s3://answers/", *SCALED, "0:4"), 3),
        ((*COMPONENT, "--copies", "4"), 3),
        (("--archive",), 0),
    ],
)
def test_too_low_a_quota_is_named_before_the_upload(
    cloud: FakeAccount, options: tuple[str, ...], quota: int
) -> None:
    cloud.proxy.quotas[TYPE] = quota
    sentence = refused(cloud, cloud.deploy(*options))
    assert not cloud.list_resources()["archives"]
    # The command that asks for more is one of boto3's operations, with its arguments.
    (command,) = re.findall(r"aws service-quotas request-service-quota-increase (.*)", sentence)
    given = dict(re.findall(r"--([a-z-]+) (\S+)", command))
    assert given.keys() == {"service-code", "quota-code", "desired-value", "region"}
    assert f"'{TYPE} for endpoint usage' ({given['quota-code']})" in sentence and f"is {quota}," in sentence
    cloud.proxy.quotas[TYPE] = int(given["desired-value"])
    cloud.deployed(*options)


def test_the_default_counts_where_the_account_has_no_quota_of_its_own(cloud: FakeAccount) -> None:
    cloud.proxy.quotas.clear()
    cloud.proxy.default_quotas[TYPE] = 0
    assert TYPE in refused(cloud, cloud.deploy())


def test_what_runs_already_counts(cloud: FakeAccount) -> None:
    cloud.proxy.quotas[TYPE] = 3
    cloud.deployed("--count", "2", name="boats")
    cloud.proxy.changes = []
    assert "beside 2" in refused(cloud, cloud.deploy("--count", "2"))
    cloud.deployed()


def test_an_update_needs_room_beside_what_serves_and_the_same_again_none(cloud: FakeAccount) -> None:
    cloud.proxy.quotas[TYPE] = 1
    cloud.deployed()
    cloud.proxy.changes = []
    cloud.deployed()
    assert cloud.proxy.changes == [], "it is up to date"
    assert "beside the 1" in refused(cloud, cloud.deploy("--env", "A=1"))
    before = cloud.list_resources()["archives"]
    write_repository(cloud.repository, "2")
    for kind in ((), ("--archive",)):
        refused(cloud, cloud.deploy(*kind))
    assert cloud.list_resources()["archives"] == before
    cloud.proxy.quotas[TYPE] = 2
    cloud.deployed()
    cloud.proxy.quotas[TYPE] = 1
    cloud.proxy.changes = []
    refused(cloud, cloud.sm("deploy", "ships", "--rollback"))
    # Rolling, a few instances start at once.
    rolling = {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}, "WaitIntervalInSeconds": 60}
    cloud.deployed("--env", "A=1", "--set", f"DeploymentConfig.RollingUpdatePolicy={json.dumps(rolling)}")


def test_a_serverless_endpoint_has_no_instances_to_count(cloud: FakeAccount) -> None:
    cloud.proxy.quotas.clear()
    cloud.proxy.default_quotas.clear()
    cloud.deployed("--serverless", "2048:5")


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException"])
@pytest.mark.parametrize("operation", ["ListServiceQuotas", "ListEndpoints"])
def test_without_the_right_to_see_quotas_or_an_answer_one_line_says_so(
    cloud: FakeAccount, operation: str, code: str
) -> None:
    cloud.proxy.fixed_responses[operation] = json_error(400, code, f"User may not perform: {operation}")
    done = cloud.deployed()
    assert len([line for line in done.err.splitlines() if line.startswith("not checked")]) == 1
    assert done.equal == {"ship"}

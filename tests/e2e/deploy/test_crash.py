"""``sm`` is killed after a change, before AWS's answer arrives: the next run continues and repeats nothing."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from threading import Event

import pytest

from tests.e2e.deploy.account import (
    IMAGE,
    FakeAccount,
    find_problems,
    session_of,
    write_repository,
)

SERVICES = ("s3", "sagemaker", "cloudwatch", "application-autoscaling", "ecr", "iam", "sts")


def run_sm(cloud: FakeAccount, words: tuple[str, ...]) -> None:
    os._exit(cloud.sm(*words).code)


def killed_after_each_change(cloud: FakeAccount, *words: str) -> list[str]:
    """Kill a command after each kind of change until it ends by itself; return the changes, in order."""
    seen: list[str] = []
    while True:
        # In a process of its own, which has loaded boto3 already.
        process, started = get_context("fork").Process(target=run_sm, args=(cloud, words)), Event()

        def kill(process: BaseProcess = process, started: Event = started) -> None:
            assert started.wait(10)
            process.kill()

        cloud.proxy.after_change = kill
        process.start()
        started.set()
        process.join()
        cloud.proxy.after_change = None
        if process.exitcode == 0:
            return seen
        assert process.exitcode == -signal.SIGKILL, process.exitcode
        seen.append(cloud.proxy.changes[-1])


@pytest.mark.exhaustive
def test_deploy_update_and_delete_continue_after_a_kill_at_each_change(cloud: FakeAccount) -> None:
    # The processes share what is loaded here. A connection they must not share, so this session has made none.
    cloud.session = session_of("a process that is killed")
    for service in SERVICES:
        cloud.session.client(service)
    find_problems(cloud.repository, mme=False)
    words = (
        *("deploy", "ships", "--image", IMAGE, "--model-data", str(cloud.repository)),
        *("--instance-type", "ml.g4dn.xlarge", "--alarm", "errors"),
        *("--autoscale", "1:2", "--target-invocations", "60"),
    )
    assert killed_after_each_change(cloud, *words) == [
        *("PutBucket", "PutObject", "PutMetricAlarm", "CreateModel", "CreateEndpointConfig"),
        *("CreateEndpoint", "RegisterScalableTarget", "PutScalingPolicy"),
    ]
    first = cloud.deployed_configuration()
    assert {len(names) for names in cloud.list_resources().values()} == {1}

    write_repository(cloud.repository, "2")
    seen_above = {"PutMetricAlarm", "RegisterScalableTarget", "PutScalingPolicy"}
    cloud.proxy.interrupted_operations = seen_above
    updating = ["PutObject", "CreateModel", "CreateEndpointConfig", "AddTags", "UpdateEndpoint"]
    assert killed_after_each_change(cloud, *words) == updating
    assert cloud.deployed_configuration() != first
    cloud.succeed("deploy", "ships", "--rollback")
    assert cloud.deployed_configuration() == first, "what served before was forgotten"

    cloud.proxy.interrupted_operations = set()
    deleted = killed_after_each_change(cloud, "delete", "ships", "--yes")
    assert deleted == [
        *("DeregisterScalableTarget", "DeleteEndpoint", "DeleteAlarms", "DeleteEndpointConfig"),
        *("DeleteObject", "DeleteModel"),
    ]
    assert not any(cloud.list_resources().values())

"""``sm`` is killed after a change, before AWS's answer arrives: the next run continues and repeats nothing."""

from __future__ import annotations

from tests.support.deploy_account import IMAGE, FakeAccount, write_repository
from tests.support.killable_sm import runner


def test_deploy_update_and_delete_continue_after_a_kill_at_each_change(cloud: FakeAccount) -> None:
    words = (
        *("deploy", "ships", "--image", IMAGE, "--model-data", str(cloud.repository)),
        *("--instance-type", "ml.g4dn.xlarge", "--alarm", "errors"),
        *("--autoscale", "1:2", "--target-invocations", "60"),
    )
    with runner(cloud.proxy, cloud.env) as killed:
        assert killed.killed_after_each_change(*words) == [
            *("PutBucket", "PutObject", "PutMetricAlarm", "CreateModel", "CreateEndpointConfig"),
            *("CreateEndpoint", "RegisterScalableTarget", "PutScalingPolicy"),
        ]
        first = cloud.deployed_configuration()
        assert {kind: len(names) for kind, names in cloud.list_resources().items()} == dict.fromkeys(
            cloud.list_resources(), 1
        )

        write_repository(cloud.repository, "2")
        cloud.proxy.interrupted_operations = {
            "PutMetricAlarm",
            "RegisterScalableTarget",
            "PutScalingPolicy",
        }  # seen above
        updating = ["PutObject", "CreateModel", "CreateEndpointConfig", "AddTags", "UpdateEndpoint"]
        assert killed.killed_after_each_change(*words) == updating
        assert cloud.deployed_configuration() != first
        assert cloud.sm("deploy", "ships", "--rollback").code == 0
        assert cloud.deployed_configuration() == first, "what served before was forgotten"

        cloud.proxy.interrupted_operations = set()
        deleting = ["DeregisterScalableTarget", "DeleteEndpoint", "DeleteAlarms", "DeleteEndpointConfig"]
        deleted = killed.killed_after_each_change("delete", "ships", "--yes")
        assert deleted == [*deleting, "DeleteObject", "DeleteModel"]
    assert not any(cloud.list_resources().values())

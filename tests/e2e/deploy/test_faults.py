"""Failures of a deployment: each has its sentence, and what is left behind is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.aws_proxy import Response, json_error, xml_error
from tests.support.deploy_account import BUCKET, IMAGE, FakeAccount, write_repository

THROTTLED = json_error(400, "ThrottlingException", "Rate exceeded")


def has_only_the_archive(cloud: FakeAccount) -> bool:
    return not any(names for kind, names in cloud.list_resources().items() if kind != "archives")


def test_a_failed_endpoint_says_why_shows_its_log_and_is_removed(cloud: FakeAccount) -> None:
    reason = "The primary container for production variant AllTraffic did not pass the ping health check."
    cloud.proxy.endpoint_states = [
        {"EndpointStatus": "Creating"},
        {"EndpointStatus": "Failed", "FailureReason": reason},
    ]
    cloud.put_log_lines("loading ship", "ship: no file weight")
    done = cloud.deploy("--alarm", "errors")
    assert done.code == 1
    assert reason in done.err
    assert done.err.count("ship: no file weight") == 2, "once while it starts, and once in the log's end"
    assert "--startup-timeout" in done.err and "s3://" in done.err, "the next step, and what is left"
    assert has_only_the_archive(cloud)


def test_a_throttled_call_is_retried_and_the_next_run_uses_what_exists(cloud: FakeAccount) -> None:
    cloud.proxy.fixed_responses["CreateEndpoint"] = THROTTLED
    done = cloud.deploy()
    assert done.code == 1
    assert len(cloud.list_resources()["configurations"]) == 1, "it is for the next run"
    cloud.proxy.reset()
    assert cloud.deploy().code == 0
    assert cloud.proxy.changes == ["CreateEndpoint"]


def test_a_call_without_permission_names_the_action_and_removes_the_rest(cloud: FakeAccount) -> None:
    message = (
        "User: arn:aws:iam::1:user/u is not authorized to perform: sagemaker:CreateEndpoint on resource: x"
    )
    cloud.proxy.fixed_responses["CreateEndpoint"] = json_error(400, "AccessDeniedException", message)
    done = cloud.deploy()
    assert "sagemaker:CreateEndpoint" in done.err and "sm iam" in done.err
    assert has_only_the_archive(cloud)
    cloud.proxy.fixed_responses["DeleteEndpointConfig"] = json_error(
        400, "AccessDeniedException", "not authorized"
    )
    done = cloud.deploy()
    (model,), (configuration,) = cloud.list_resources()["models"], cloud.list_resources()["configurations"]
    assert model in done.err and configuration in done.err


def test_an_update_during_another_fails_and_leaves_nothing(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    before = cloud.list_resources() | {"archives": []}
    write_repository(cloud.repository, "2")
    message = "Cannot update in-progress endpoint"
    cloud.proxy.fixed_responses["UpdateEndpoint"] = json_error(400, "ValidationException", message)
    done = cloud.deploy()
    assert done.code == 1 and message in done.err
    assert cloud.list_resources() | {"archives": []} == before


def test_a_used_up_quota_is_named_and_leaves_nothing(cloud: FakeAccount) -> None:
    message = "The account-level service limit 'ml.g4dn.xlarge for endpoint usage' is 0 Instances"
    cloud.proxy.fixed_responses["CreateEndpoint"] = json_error(400, "ResourceLimitExceeded", message)
    done = cloud.deploy()
    assert message in done.err
    assert has_only_the_archive(cloud)


@pytest.mark.parametrize("operation", ["PutObject", "CreateModel", "CreateEndpoint"])
def test_a_run_after_a_lost_connection_repeats_nothing(cloud: FakeAccount, operation: str) -> None:
    cloud.proxy.disconnect_after = {operation}  # after it was done
    done = cloud.deploy()
    assert done.code == 1
    cloud.proxy.reset()
    files_before = len(cloud.keys(BUCKET))
    assert cloud.deploy().code == 0
    to_do = {"PutObject": len(cloud.keys(BUCKET)) - files_before}  # files are sent in parallel
    assert cloud.proxy.changes.count(operation) == to_do.get(operation, 0), "it was done already"
    assert {len(cloud.list_resources()[kind]) for kind in ("models", "configurations", "archives")} == {1}


def test_errors_while_waiting_are_retried(cloud: FakeAccount) -> None:
    cloud.proxy.endpoint_states = [{"EndpointStatus": "Creating"}, THROTTLED, {"EndpointStatus": "InService"}]
    done = cloud.deploy()
    assert done.code == 0, done.err


def test_an_endpoint_that_failed_earlier_is_created_again(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    cloud.proxy.endpoint_states = [{"EndpointStatus": "Failed", "FailureReason": "CapacityError"}]
    done = cloud.deploy()
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("refusal", "named"),
    [
        (xml_error(404, "NoSuchBucket", "The specified bucket does not exist"), "aws s3 mb"),
        (xml_error(403, "AccessDenied", "Access Denied"), "PutObject"),
        (xml_error(503, "SlowDown", "Reduce your request rate"), ""),
        (xml_error(500, "InternalError", "We encountered an internal error"), ""),
    ],
)
def test_a_refused_upload_creates_nothing(cloud: FakeAccount, refusal: Response, named: str) -> None:
    cloud.proxy.fixed_responses["PutObject"] = refusal
    done = cloud.deploy()
    assert done.code == 1 and named in done.err and "Traceback" not in done.err
    assert not cloud.list_resources()["models"] and not cloud.list_resources()["archives"]


def test_a_missing_image_is_named_before_any_change(cloud: FakeAccount) -> None:
    for image, named in {
        IMAGE.replace("eu-west-1", "us-east-1"): "./build_and_push.sh --region eu-west-1",
        IMAGE.replace(":1", ":2"): ":2",
        IMAGE.replace("trireme", "galley"): "galley",
    }.items():
        done = cloud.sm("deploy", "ships", "--image", image, "--model-data", str(cloud.repository))
        assert done.code == 1 and named in done.err
    assert cloud.proxy.changes == []


def test_a_missing_role_is_named_with_the_command_that_creates_one(cloud: FakeAccount) -> None:
    cloud.client("iam").delete_role(RoleName="trireme")
    assert "sm iam ships" in cloud.deploy().err
    assert "'trireme'" in cloud.deploy("--role", "trireme").err
    assert cloud.proxy.changes == []


def test_a_repository_that_would_not_start_is_not_uploaded(cloud: FakeAccount) -> None:
    (cloud.repository / "ship/config.pbtxt").write_text("max_batch_size: four")
    assert cloud.deploy().code == 1
    assert cloud.deploy(data="nowhere").code == 1
    assert cloud.proxy.changes == []


def without_keys(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("AWS_ACCESS_KEY_ID")
    patch.delenv("AWS_SECRET_ACCESS_KEY")


def test_each_problem_with_credentials_or_network_has_a_sentence_of_its_own(cloud: FakeAccount) -> None:
    cloud.session = None
    sentences = set()
    changes: list[Callable[[pytest.MonkeyPatch], None]] = [
        lambda patch: patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        lambda patch: patch.delenv("AWS_DEFAULT_REGION"),
        lambda patch: patch.setenv("AWS_DEFAULT_REGION", "atlantis"),
        lambda patch: patch.setenv("AWS_PROFILE", "nobody"),
        without_keys,
    ]
    for change in changes:
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            done = cloud.sm("status", "ships")
        assert done.code == 1 and done.err.startswith("sm: ") and "Traceback" not in done.err
        sentences.add(done.err)
    assert len(sentences) == len(changes)

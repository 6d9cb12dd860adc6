"""Failures of a deployment: nothing is left half-done, and the next run continues."""

from __future__ import annotations

from collections import Counter

import pytest
from werkzeug import Response

from tests.e2e.deploy.account import BUCKET, IMAGE, FakeAccount, write_repository
from tests.support.aws_proxy import json_error, xml_error
from trireme_tools.aws import ServiceUnavailable
from trireme_tools.deploy.waiting import Waiter

THROTTLED = json_error(400, "ThrottlingException", "Rate exceeded")
DENIED = json_error(400, "AccessDeniedException", "not authorized to perform: sagemaker:CreateEndpoint")
DURING_ANOTHER = json_error(400, "ValidationException", "Cannot update in-progress endpoint")
NO_QUOTA = json_error(400, "ResourceLimitExceeded", "ml.g4dn.xlarge for endpoint usage is 0")


def has_only_the_archive(cloud: FakeAccount) -> bool:
    return not any(names for kind, names in cloud.list_resources().items() if kind != "archives")


def test_a_failed_endpoint_shows_its_reason_and_its_log_and_is_removed(cloud: FakeAccount) -> None:
    reason = "The primary container for production variant AllTraffic did not pass the ping health check."
    failed = {"EndpointStatus": "Failed", "FailureReason": reason}
    cloud.proxy.endpoint_states = [{"EndpointStatus": "Creating"}, failed]
    cloud.put_log_lines("loading ship", "ship: no file weight")
    done = cloud.deploy("--alarm", "errors")
    assert done.code == 1
    assert reason in done.err and "--startup-timeout" in done.err and "s3://" in done.err
    assert done.err.count("ship: no file weight") == 2, "once while it starts, and once in the log's end"
    assert has_only_the_archive(cloud)


def test_the_next_run_after_a_throttled_call_uses_what_exists(cloud: FakeAccount) -> None:
    cloud.proxy.fixed_responses["CreateEndpoint"] = THROTTLED
    assert cloud.deploy().code == 1
    assert len(cloud.list_resources()["configurations"]) == 1
    cloud.proxy.reset()
    cloud.deployed()
    assert cloud.proxy.changes == ["CreateEndpoint"]


@pytest.mark.parametrize(
    ("refusal", "named"), [(DENIED, "sagemaker:CreateEndpoint"), (NO_QUOTA, "ml.g4dn.xlarge")]
)
def test_a_refused_endpoint_leaves_nothing_or_names_what_it_could_not_remove(
    cloud: FakeAccount, refusal: Response, named: str
) -> None:
    cloud.proxy.fixed_responses["CreateEndpoint"] = refusal
    done = cloud.deploy()
    assert done.code == 1 and named in done.err and has_only_the_archive(cloud)
    cloud.proxy.fixed_responses["DeleteEndpointConfig"] = DENIED
    done, things = cloud.deploy(), cloud.list_resources()
    assert done.code == 1
    for left in (*things["models"], *things["configurations"]):
        assert left in done.err


@pytest.mark.parametrize(("is_shadow", "refusal"), [(False, None), (False, DURING_ANOTHER), (True, None)])
def test_a_failed_update_leaves_the_old_version_and_nothing_of_the_new(
    cloud: FakeAccount, is_shadow: bool, refusal: Response | None
) -> None:
    cloud.deployed()
    before = cloud.list_resources()
    if refusal:
        cloud.proxy.fixed_responses["UpdateEndpoint"] = refusal
    else:
        cloud.proxy.fail_updates(before["configurations"][0], "The alarm ships-errors is in ALARM state")
    write_repository(cloud.repository, "2")
    update = cloud.sm("deploy", "ships", "--shadow", str(cloud.repository)) if is_shadow else cloud.deploy()
    assert update.code == 1
    after = cloud.list_resources()
    assert after | {"archives": []} == before | {"archives": []}
    assert len(after["archives"]) == 2, "the archive is for the next run"


def test_a_run_after_a_lost_connection_repeats_nothing(cloud: FakeAccount) -> None:
    cloud.proxy.after_change = lambda: None  # the first call of each kind gets no response
    assert [cloud.deploy().code for _ in range(6)] == [1] * 5 + [0]
    changes = Counter(cloud.proxy.changes)
    assert changes.pop("PutObject") == len(cloud.keys(BUCKET))
    assert changes == dict.fromkeys(("PutBucket", "CreateModel", "CreateEndpointConfig", "CreateEndpoint"), 1)


def test_errors_while_waiting_are_retried_and_a_failed_endpoint_is_created_again(cloud: FakeAccount) -> None:
    cloud.proxy.endpoint_states = [{"EndpointStatus": "Creating"}, THROTTLED, {"EndpointStatus": "InService"}]
    cloud.deployed()
    cloud.proxy.endpoint_states = [{"EndpointStatus": "Failed", "FailureReason": "CapacityError"}]
    cloud.deployed()


def test_the_wait_ends_if_aws_does_not_answer_for_minutes(cloud: FakeAccount) -> None:
    cloud.deployed()
    cloud.proxy.fixed_responses["DescribeEndpoint"] = THROTTLED
    waited: list[float] = [0.0]
    with pytest.raises(ServiceUnavailable):
        Waiter(cloud.account(), lambda: sum(waited), waited.append).wait("ships")
    assert 300 < sum(waited) < 310


@pytest.mark.parametrize(
    "error", ["404 NoSuchBucket", "403 AccessDenied", "503 SlowDown", "500 InternalError"]
)
def test_a_refused_upload_creates_nothing(cloud: FakeAccount, error: str) -> None:
    status, code = error.split()
    cloud.proxy.fixed_responses["PutObject"] = xml_error(int(status), code, "no")
    assert cloud.deploy().code == 1
    assert not cloud.list_resources()["models"] and not cloud.list_resources()["archives"]


def test_what_is_missing_is_named_before_any_change(cloud: FakeAccount) -> None:
    for old, new in (("eu-west-1", "us-east-1"), (":1", ":2"), ("trireme", "galley")):
        done = cloud.deploy("--image", IMAGE.replace(old, new))
        assert done.code == 1 and new in done.err
    config = cloud.repository / "ship/config.pbtxt"
    right = config.read_text()
    config.write_text("max_batch_size: four")
    assert cloud.deploy().code == 1
    config.write_text(right)
    assert cloud.deploy(data="nowhere").code == 1
    cloud.client("iam").delete_role(RoleName="trireme")
    assert "sm iam ships" in cloud.deploy().err
    assert "'trireme'" in cloud.deploy("--role", "trireme").err
    assert cloud.proxy.changes == []


def test_each_problem_with_credentials_or_network_has_a_sentence_of_its_own(cloud: FakeAccount) -> None:
    cloud.session = None
    sentences = set()
    problems: list[dict[str, str]] = [
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        {"AWS_DEFAULT_REGION": ""},
        {"AWS_DEFAULT_REGION": "atlantis"},
        {"AWS_PROFILE": "nobody"},
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    ]
    for variables in problems:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value) if value else patch.delenv(name)
            done = cloud.sm("status", "ships")
        assert done.code == 1 and done.err.startswith("sm: ")
        sentences.add(done.err)
    assert len(sentences) == len(problems)

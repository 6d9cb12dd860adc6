"""``sm iam``: policies that IAM takes, with what is needed and no more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from sm.settings import HERE
from tests.support.aws import fake_aws
from tests.support.sm_command import RunSm

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
GIVEN = ("--image", IMAGE, "--model-data", DATA)


def policies(sm: RunSm, *given: str) -> Any:
    said = sm("iam", "Cats", *given)
    assert said.status == 0, said.err
    return json.loads(said.out)


def statement(document: Any, sid: str) -> Any:
    (found,) = (row for row in document["Statement"] if row["Sid"] == sid)
    return found


def managed(document: Any) -> Any:
    return {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": document}}


def role(document: Any, policy: Any) -> Any:
    inline = [{"PolicyName": "p", "PolicyDocument": policy}]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": document, "Policies": inline},
    }


def test_iam_knows_every_action_and_form(sm: RunSm, tmp_path: Path) -> None:
    """cfn-lint knows IAM's actions and the forms of policies, so it is asked about a stack that has them all."""
    whole = policies(sm, *GIVEN, "--account", "210987654321", "--async", "s3://answers/out")
    many = policies(sm, *GIVEN[:2], "--model-data", "s3://models/many", "--mme")
    gateway = policies(sm, "--gateway", "--bucket", "pictures")
    resources = {
        "Execution": role(whole["role"]["trust"], whole["role"]["policy"]),
        "Many": role(many["role"]["trust"], many["role"]["policy"]),
        "Deployer": managed(whole["deployer"]),
        "Repository": {
            "Type": "AWS::ECR::Repository",
            "Properties": {"RepositoryPolicyText": whole["repository"]},
        },
        "Gateway": role(gateway["trust"], gateway["policy"]),
        "GatewayGroup": group(gateway["network"]["gateway"]),
        "TritonGroup": group(gateway["network"]["triton"]),
    }
    stack = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}
    text = json.dumps(stack)
    for place, real in (
        ("TRITON-GROUP", "sg-0123456789abcdef0"),
        ("GATEWAY-GROUP", "sg-0123456789abcdef1"),
        ("PREFIX-LIST-OF-S3", "pl-6da54004"),
    ):
        assert place in text
        text = text.replace(place, real)
    (tmp_path / "stack.json").write_text(text)
    command = [str(Path(sys.executable).with_name("cfn-lint")), "-r", "eu-west-1", "--", "stack.json"]
    lint = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert lint.returncode == 0, lint.stdout


def group(rules: Any) -> Any:
    return {
        "Type": "AWS::EC2::SecurityGroup",
        "Properties": {"GroupDescription": "one", "VpcId": "vpc-0123456789abcdef0", **rules},
    }


def test_the_role_reads_one_archive_pulls_one_image_and_writes_its_own_logs(sm: RunSm) -> None:
    policy = policies(sm, *GIVEN)["role"]["policy"]
    assert statement(policy, "ReadModels")["Resource"] == "arn:aws:s3:::models/cats/model.tar.gz"
    assert statement(policy, "PullImage")["Resource"] == (
        "arn:aws:ecr:eu-west-1:123456789012:repository/team/trireme"
    )
    assert statement(policy, "WriteLogs")["Resource"][0] == (
        "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/sagemaker/Endpoints/Cats"
    )
    everything = [row["Sid"] for row in policy["Statement"] if row["Resource"] == "*"]
    assert everything == ["SignInToRegistry", "WriteMetrics"]
    assert not any("*" in action for row in policy["Statement"] for action in row["Action"])


def test_a_multi_model_role_reads_and_lists_its_prefix(sm: RunSm) -> None:
    policy = policies(sm, "--image", IMAGE, "--model-data", "s3://models/many/", "--mme")["role"]["policy"]
    assert statement(policy, "ReadModels")["Resource"] == "arn:aws:s3:::models/many/*"
    assert statement(policy, "ListModels")["Condition"] == {"StringLike": {"s3:prefix": ["many/", "many/*"]}}


@pytest.mark.parametrize(
    ("given", "bucket"), [((), "sagemaker-eu-west-1-123456789012"), (("--bucket", "own"), "own")]
)
def test_a_folders_archives_may_be_read_whatever_their_hash_is(
    sm: RunSm, given: tuple[str, ...], bucket: str
) -> None:
    found = policies(sm, "--image", IMAGE, "--model-data", "model", *given)
    place = f"arn:aws:s3:::{bucket}/trireme/Cats/*"
    assert statement(found["role"]["policy"], "ReadModels")["Resource"] == place
    assert statement(found["deployer"], "Archives")["Resource"] == [place]


def test_an_asynchronous_role_reads_and_writes_below_the_output_path(sm: RunSm) -> None:
    policy = policies(sm, *GIVEN, "--async", "s3://answers/out")["role"]["policy"]
    assert statement(policy, "ReadRequestsWriteAnswers")["Resource"] == "arn:aws:s3:::answers/out/*"


def test_an_image_in_another_account_needs_that_accounts_word(sm: RunSm) -> None:
    assert "repository" not in policies(sm, *GIVEN)
    found = policies(sm, *GIVEN, "--account", "210987654321")
    assert found["repository"]["Statement"][0]["Principal"] == {"AWS": "arn:aws:iam::210987654321:root"}
    assert found["role"]["arn"] == "arn:aws:iam::210987654321:role/Cats-execution"


def test_aws_own_image_is_anybodys_to_pull(sm: RunSm) -> None:
    image = "785573368785.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:24.09-py3"
    found = policies(sm, "--image", image, "--model-data", DATA, "--account", "210987654321")
    assert "repository" not in found


def test_china_has_its_own_partition(sm: RunSm) -> None:
    image = "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/trireme:1"
    policy = policies(sm, "--image", image, "--model-data", DATA)["role"]["policy"]
    assert statement(policy, "ReadModels")["Resource"].startswith("arn:aws-cn:s3:::")


def test_who_deploys_may_touch_only_the_deployments_own_things(sm: RunSm) -> None:
    deployer = policies(sm, *GIVEN)["deployer"]
    assert statement(deployer, "OwnThings")["Resource"] == [
        "arn:aws:sagemaker:eu-west-1:123456789012:endpoint/cats",
        "arn:aws:sagemaker:eu-west-1:123456789012:endpoint-config/cats-*",
        "arn:aws:sagemaker:eu-west-1:123456789012:model/cats-*",
    ]
    assert statement(deployer, "GiveRole")["Resource"] == "arn:aws:iam::123456789012:role/Cats-execution"
    own = "arn:aws:iam::123456789012:role/trireme"
    assert statement(policies(sm, *GIVEN, "--role", own)["deployer"], "GiveRole")["Resource"] == own


#: Calls that IAM names otherwise, or that need no permission.
NAMED = {
    "get_caller_identity": None,
    "head_bucket": "s3:ListBucket",
    "head_object": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
}


def test_who_deploys_may_make_every_call_that_deploying_makes(sm: RunSm) -> None:
    verbs = "get|put|list|describe|create|delete|update|add|register|deregister|head|invoke|abort|filter"
    code = "".join(file.read_text() for file in sorted((HERE / "sm" / "tools" / "deploy").glob("*.py")))
    calls = set(re.findall(rf'"((?:{verbs})_[a-z0-9_]+)"', code))
    assert {"create_endpoint", "put_metric_alarm"} <= calls
    allowed = [action for row in policies(sm, *GIVEN)["deployer"]["Statement"] for action in row["Action"]]
    without = {action.partition(":")[2].lower() for action in allowed}
    for call in sorted(calls):
        action = NAMED.get(call, call)
        assert action is None or action in allowed or call.replace("_", "") in without, call


def test_the_gateway_reaches_its_prefixes_and_triton_only(sm: RunSm) -> None:
    given = ("--bucket", "pictures", "--inputs", "a/,b/", "--results", "out/", "--triton-port", "9001")
    found = policies(sm, "--gateway", *given)
    assert statement(found["policy"], "ReadInputsAndModels")["Resource"] == [
        f"arn:*:s3:::pictures/{prefix}*" for prefix in ("a/", "b/", "models/")
    ]
    assert statement(found["policy"], "WriteResults")["Resource"] == "arn:*:s3:::pictures/out/*"
    assert found["trust"]["Statement"][0]["Principal"] == {"Service": "lambda.amazonaws.com"}
    ports = [rule["FromPort"] for rule in found["network"]["gateway"]["SecurityGroupEgress"]]
    assert ports == [9001, 443]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--gateway",), "--gateway needs --bucket BUCKET"),
        (("--model-data", DATA), "--model-data goes with --image"),
        (("--image", "x", "--model-data", DATA), "'x' is no image in ECR"),
        (("--image", IMAGE, "--model-data", "s3://"), "'s3://' is no place on S3"),
    ],
)
def test_what_is_missing_is_said(sm: RunSm, given: tuple[str, ...], sentence: str) -> None:
    said = sm("iam", "cats", *given)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"sm: {sentence}")


@pytest.fixture(scope="module")
def account() -> Iterator[str]:
    """A fake AWS in which an endpoint is deployed; its address."""
    with fake_aws() as address:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "eu-west-1"}
        with closing(boto3.client("sagemaker", endpoint_url=f"http://{address}", **keys)) as client:
            container = {"Image": IMAGE, "ModelDataUrl": DATA, "Mode": "SingleModel"}
            client.create_model(
                ModelName="m",
                PrimaryContainer=container,
                ExecutionRoleArn="arn:aws:iam::123456789012:role/mine",
            )
            variant = {
                "VariantName": "all",
                "ModelName": "m",
                "InstanceType": "ml.m5.large",
                "InitialInstanceCount": 1,
            }
            client.create_endpoint_config(EndpointConfigName="c", ProductionVariants=[variant])
            tags = [{"Key": "trireme:deployment", "Value": "cats"}]
            client.create_endpoint(EndpointName="cats", EndpointConfigName="c", Tags=tags)
        yield f"http://{address}"


def test_an_endpoint_that_is_there_needs_no_more_words(
    account: str, sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", account)
    said = sm("iam", "cats")
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert found["role"]["arn"] == "arn:aws:iam::123456789012:role/mine"
    assert statement(found["role"]["policy"], "ReadModels")["Resource"].endswith("models/cats/model.tar.gz")
    assert "there is no endpoint 'dogs'" in sm("iam", "dogs").err

"""``sm iam`` prints valid IAM policies that allow what a deployment needs, and no more."""

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
OPTIONS = ("--image", IMAGE, "--model-data", DATA)
TOPIC = "arn:aws:sns:eu-west-1:210987654321:answers"
ASYNC = ("--async", "s3://answers/out", "--notify", TOPIC)


def print_policies(sm: RunSm, *options: str) -> Any:
    command = sm("iam", "Cats", *options)
    assert command.status == 0, command.err
    return json.loads(command.out)


def find_statement(document: Any, sid: str) -> Any:
    (statement,) = (candidate for candidate in document["Statement"] if candidate["Sid"] == sid)
    return statement


def managed_policy(document: Any) -> Any:
    return {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": document}}


def role_resource(document: Any, policy: Any) -> Any:
    inline = [{"PolicyName": "p", "PolicyDocument": policy}]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": document, "Policies": inline},
    }


def test_every_action_and_policy_is_one_that_iam_knows(sm: RunSm, tmp_path: Path) -> None:
    """cfn-lint knows IAM's actions and the grammar of policies, so it checks a stack that has all of them."""
    single_model = print_policies(sm, *OPTIONS, "--account", "210987654321", *ASYNC)
    multi_model = print_policies(sm, *OPTIONS[:2], "--model-data", "s3://models/many", "--mme")
    gateway_policies = print_policies(sm, "--gateway", "--bucket", "pictures")
    resources = {
        "Execution": role_resource(single_model["role"]["trust"], single_model["role"]["policy"]),
        "Many": role_resource(multi_model["role"]["trust"], multi_model["role"]["policy"]),
        "Deployer": managed_policy(single_model["deployer"]),
        "Repository": {
            "Type": "AWS::ECR::Repository",
            "Properties": {"RepositoryPolicyText": single_model["repository"]},
        },
        "Gateway": role_resource(gateway_policies["trust"], gateway_policies["policy"]),
        "GatewayGroup": security_group(gateway_policies["network"]["gateway"]),
        "TritonGroup": security_group(gateway_policies["network"]["triton"]),
    }
    stack = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}
    template = json.dumps(stack)
    for placeholder, identifier in (
        ("TRITON-GROUP", "sg-0123456789abcdef0"),
        ("GATEWAY-GROUP", "sg-0123456789abcdef1"),
        ("PREFIX-LIST-OF-S3", "pl-6da54004"),
    ):
        assert placeholder in template
        template = template.replace(placeholder, identifier)
    (tmp_path / "stack.json").write_text(template)
    command = [str(Path(sys.executable).with_name("cfn-lint")), "-r", "eu-west-1", "--", "stack.json"]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert completed.returncode == 0, completed.stdout


def security_group(rules: Any) -> Any:
    return {
        "Type": "AWS::EC2::SecurityGroup",
        "Properties": {"GroupDescription": "one", "VpcId": "vpc-0123456789abcdef0", **rules},
    }


def test_the_role_reads_one_archive_pulls_one_image_and_writes_its_own_logs(sm: RunSm) -> None:
    policy = print_policies(sm, *OPTIONS)["role"]["policy"]
    assert find_statement(policy, "ReadModels")["Resource"] == "arn:aws:s3:::models/cats/model.tar.gz"
    assert find_statement(policy, "PullImage")["Resource"] == (
        "arn:aws:ecr:eu-west-1:123456789012:repository/team/trireme"
    )
    assert find_statement(policy, "WriteLogs")["Resource"][0] == (
        "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/sagemaker/Endpoints/Cats"
    )
    on_any_resource = [statement["Sid"] for statement in policy["Statement"] if statement["Resource"] == "*"]
    assert on_any_resource == ["SignInToRegistry", "WriteMetrics"]
    assert not any("*" in action for statement in policy["Statement"] for action in statement["Action"])


CHINA_IMAGE = "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/trireme:1"


@pytest.mark.parametrize(
    ("options", "sid", "resource"),
    [
        (
            ("--image", IMAGE, "--model-data", "s3://models/many/", "--mme"),
            "ReadModels",
            "aws:s3:::models/many/*",
        ),
        ((*OPTIONS, *ASYNC), "ReadRequestsWriteAnswers", "aws:s3:::answers/out/*"),
        ((*OPTIONS, *ASYNC), "TellTopic", TOPIC.removeprefix("arn:")),
        (
            ("--image", IMAGE, "--model-data", "s3://models/cats/"),
            "ReadModels",
            "aws:s3:::models/cats/*",
        ),
        (
            ("--image", CHINA_IMAGE, "--model-data", DATA),
            "ReadModels",
            "aws-cn:s3:::models/cats/model.tar.gz",
        ),
    ],
)
def test_the_role_reaches_what_its_kind_of_endpoint_needs(
    sm: RunSm, options: tuple[str, ...], sid: str, resource: str
) -> None:
    policy = print_policies(sm, *options)["role"]["policy"]
    assert find_statement(policy, sid)["Resource"] == f"arn:{resource}"
    if "--mme" in options:
        keys = ["many/", "many/*"]
        assert find_statement(policy, "ListModels")["Condition"] == {"StringLike": {"s3:prefix": keys}}


@pytest.mark.parametrize(
    ("options", "bucket"), [((), "sagemaker-eu-west-1-123456789012"), (("--bucket", "own"), "own")]
)
def test_a_folders_archives_may_be_read_whatever_their_hash_is(
    sm: RunSm, options: tuple[str, ...], bucket: str
) -> None:
    policies = print_policies(sm, "--image", IMAGE, "--model-data", "model", *options)
    archives = f"arn:aws:s3:::{bucket}/trireme/Cats/*"
    assert find_statement(policies["role"]["policy"], "ReadModels")["Resource"] == archives
    assert find_statement(policies["deployer"], "Archives")["Resource"] == [archives]


def test_an_image_in_another_account_needs_a_repository_policy(sm: RunSm) -> None:
    assert "repository" not in print_policies(sm, *OPTIONS)
    policies = print_policies(sm, *OPTIONS, "--account", "210987654321")
    assert policies["repository"]["Statement"][0]["Principal"] == {"AWS": "arn:aws:iam::210987654321:root"}
    assert policies["role"]["arn"] == "arn:aws:iam::210987654321:role/Cats-execution"
    image = "785573368785.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:24.09-py3"
    of_aws = print_policies(sm, "--image", image, "--model-data", DATA, "--account", "210987654321")
    assert "repository" not in of_aws, "everyone may pull it"


def test_the_deployer_may_only_change_resources_of_the_deployment(sm: RunSm) -> None:
    deployer = print_policies(sm, *OPTIONS)["deployer"]
    assert find_statement(deployer, "OwnThings")["Resource"] == [
        "arn:aws:sagemaker:eu-west-1:123456789012:endpoint/cats",
        "arn:aws:sagemaker:eu-west-1:123456789012:endpoint-config/cats-*",
        "arn:aws:sagemaker:eu-west-1:123456789012:inference-component/cats",
        "arn:aws:sagemaker:eu-west-1:123456789012:model/cats-*",
    ]
    assert find_statement(deployer, "GiveRole")["Resource"] == "arn:aws:iam::123456789012:role/Cats-execution"
    own = "arn:aws:iam::123456789012:role/trireme"
    assert (
        find_statement(print_policies(sm, *OPTIONS, "--role", own)["deployer"], "GiveRole")["Resource"] == own
    )


#: The IAM action of calls that have another name there. None: the call needs no permission.
ACTION_NAMES = {
    "get_caller_identity": None,
    "head_bucket": "s3:ListBucket",
    "head_object": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
}


def test_the_deployer_may_make_every_call_that_sm_deploy_makes(sm: RunSm) -> None:
    verbs = "get|put|list|describe|create|delete|update|add|register|deregister|head|invoke|abort|filter"
    code = "".join(
        file.read_text() for file in sorted((HERE / "tools" / "trireme_tools" / "deploy").glob("*.py"))
    )
    calls = set(re.findall(rf'"((?:{verbs})_[a-z0-9_]+)"', code))
    assert {"create_endpoint", "put_metric_alarm"} <= calls
    allowed = [
        action
        for statement in print_policies(sm, *OPTIONS)["deployer"]["Statement"]
        for action in statement["Action"]
    ]
    allowed_without_service = {action.partition(":")[2].lower() for action in allowed}
    for call in sorted(calls):
        action = ACTION_NAMES.get(call, call)
        assert action is None or action in allowed or call.replace("_", "") in allowed_without_service, call


def test_the_gateways_role_reaches_only_its_prefixes_and_triton(sm: RunSm) -> None:
    options = ("--bucket", "pictures", "--inputs", "a/,b/", "--results", "out/", "--triton-port", "9001")
    policies = print_policies(sm, "--gateway", *options)
    assert find_statement(policies["policy"], "ReadInputsAndModels")["Resource"] == [
        f"arn:*:s3:::pictures/{prefix}*" for prefix in ("a/", "b/", "models/")
    ]
    assert find_statement(policies["policy"], "WriteResults")["Resource"] == "arn:*:s3:::pictures/out/*"
    assert policies["trust"]["Statement"][0]["Principal"] == {"Service": "lambda.amazonaws.com"}
    ports = [rule["FromPort"] for rule in policies["network"]["gateway"]["SecurityGroupEgress"]]
    assert ports == [9001, 443]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--gateway",), "--gateway needs --bucket BUCKET"),
        (("--model-data", DATA), "--model-data needs --image"),
        (("--image", "x", "--model-data", DATA), "'x' is not an image in ECR"),
        (("--image", IMAGE, "--model-data", "s3://"), "'s3://' is not an S3 address"),
    ],
)
def test_a_missing_or_invalid_option_is_reported(sm: RunSm, options: tuple[str, ...], sentence: str) -> None:
    command = sm("iam", "cats", *options)
    assert (command.status, command.out) == (1, "")
    assert command.err.startswith(f"sm: {sentence}")


@pytest.fixture(scope="module")
def fake_account() -> Iterator[str]:
    """The address of a fake AWS in which an endpoint is deployed."""
    with fake_aws() as address:
        credentials = {
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "region_name": "eu-west-1",
        }
        with closing(boto3.client("sagemaker", endpoint_url=f"http://{address}", **credentials)) as client:
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


def test_a_deployed_endpoint_needs_no_options(
    fake_account: str, sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", fake_account)
    command = sm("iam", "cats")
    assert command.status == 0, command.err
    policies = json.loads(command.out)
    assert policies["role"]["arn"] == "arn:aws:iam::123456789012:role/mine"
    assert find_statement(policies["role"]["policy"], "ReadModels")["Resource"].endswith(
        "models/cats/model.tar.gz"
    )
    assert "there is no endpoint 'dogs'" in sm("iam", "dogs").err

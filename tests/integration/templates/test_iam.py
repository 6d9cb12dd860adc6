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
from tests.support.snapshots import changes, check_snapshot

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
OPTIONS = ("--image", IMAGE, "--model-data", DATA)
TOPIC = "arn:aws:sns:eu-west-1:210987654321:answers"
ASYNC = ("--async", "s3://answers/out", "--notify", TOPIC)
#: The options of each kind of deployment, as words of a shell.
KINDS = {
    "plain": f"--image {IMAGE} --model-data {DATA}",
    "multi-model": f"--image {IMAGE} --model-data s3://models/many/ --mme",
    "async": f"--image {IMAGE} --model-data {DATA} {' '.join(ASYNC)}",
    "files": f"--image {IMAGE} --model-data s3://models/cats/",
    "folder": f"--image {IMAGE} --model-data model",
    "folder and bucket": f"--image {IMAGE} --model-data model --bucket own",
    "China": f"--image 123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/trireme:1 --model-data {DATA}",
    "role": f"--image {IMAGE} --model-data {DATA} --role arn:aws:iam::123456789012:role/trireme",
    "another account": f"--image {IMAGE} --model-data {DATA} --account 210987654321",
    # Everyone may pull AWS's own image.
    "AWS's image": "--image 785573368785.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:24.09-py3"
    f" --model-data {DATA} --account 210987654321",
}
GATEWAY = "--gateway --bucket pictures --inputs a/,b/ --results out/ --triton-port 9001"


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


def test_the_policies_are_those_that_were_read_last(sm: RunSm) -> None:
    printed = {kind: sm("iam", "Cats", *options.split()).out for kind, options in KINDS.items()}
    plain = printed.pop("plain")
    check_snapshot("iam.json", plain)
    check_snapshot("iam-options.diff", changes(plain, printed))
    check_snapshot("iam-gateway.json", sm("iam", "Cats", *GATEWAY.split()).out)


def test_only_what_has_no_resource_is_allowed_on_all_and_no_action_is_a_pattern(sm: RunSm) -> None:
    policy = print_policies(sm, *OPTIONS)["role"]["policy"]
    on_any_resource = [statement["Sid"] for statement in policy["Statement"] if statement["Resource"] == "*"]
    assert on_any_resource == ["SignInToRegistry", "WriteMetrics"]
    assert not any("*" in action for statement in policy["Statement"] for action in statement["Action"])


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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--gateway", "--bucket"),
        (f"--model-data {DATA}", "--image"),
        (f"--image x --model-data {DATA}", "'x'"),
        (f"--image {IMAGE} --model-data s3://", "'s3://'"),
    ],
)
def test_a_missing_or_invalid_option_is_named(sm: RunSm, options: str, named: str) -> None:
    command = sm("iam", "cats", *options.split())
    assert (command.status, command.out) == (1, "")
    assert named in command.err


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
    assert sm("iam", "dogs").status == 1

"""``sm iam`` prints valid IAM policies that allow what a deployment needs, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sm.settings import HERE
from tests.integration.templates.linting import cfn_lint
from tests.support.sm_command import RunSm
from tests.support.snapshots import changes, check_snapshot

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
PLAIN = f"--image {IMAGE} --model-data {DATA}"
OTHER_ACCOUNT = "--account 210987654321"
ASYNC = "--async s3://answers/out --notify arn:aws:sns:eu-west-1:210987654321:answers"
MULTI_MODEL = f"--image {IMAGE} --model-data s3://models/many/ --mme"
GATEWAY = "--gateway --bucket pictures --inputs a/,b/ --results out/ --triton-port 9001"
#: The options of each kind of deployment, as words of a shell.
KINDS = {
    "plain": PLAIN,
    "multi-model": MULTI_MODEL,
    "async": f"{PLAIN} {ASYNC}",
    "files": f"--image {IMAGE} --model-data s3://models/cats/",
    "folder and bucket": f"--image {IMAGE} --model-data model --bucket own",
    "role": f"{PLAIN} --role arn:aws:iam::123456789012:role/trireme",
    "another account": f"{PLAIN} {OTHER_ACCOUNT}",
}


def print_policies(sm: RunSm, options: str, name: str = "Cats") -> Any:
    command = sm("iam", name, *options.split())
    assert command.status == 0, command.err
    return json.loads(command.out)


def test_the_policies_are_those_that_were_read_last(sm: RunSm) -> None:
    printed = {kind: sm("iam", "Cats", *options.split()).out for kind, options in KINDS.items()}
    plain = printed.pop("plain")
    check_snapshot("iam.json", plain)
    check_snapshot("iam-options.diff", changes(plain, printed))
    check_snapshot("iam-gateway.json", sm("iam", "Cats", *GATEWAY.split()).out)


def test_china_has_a_partition_of_its_own_and_everyone_may_pull_awss_image(sm: RunSm) -> None:
    image = "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/trireme:1"
    assert '"arn:aws:' not in sm("iam", "Cats", "--image", image, "--model-data", DATA).out
    image = "785573368785.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:24.09-py3"
    assert "repository" not in print_policies(sm, f"--image {image} --model-data {DATA} {OTHER_ACCOUNT}")


def resource(kind: str, **properties: Any) -> Any:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def role(policies: Any) -> Any:
    inline = [{"PolicyName": "p", "PolicyDocument": policies["policy"]}]
    return resource("IAM::Role", AssumeRolePolicyDocument=policies["trust"], Policies=inline)


def test_every_action_and_policy_is_one_that_iam_knows(sm: RunSm, tmp_path: Path) -> None:
    """cfn-lint knows IAM's actions and the grammar of policies, so it checks a stack that has all of them."""
    single_model = print_policies(sm, f"{PLAIN} {OTHER_ACCOUNT} {ASYNC}")
    gateway = print_policies(sm, GATEWAY)
    build = print_policies(sm, "--build --account 123456789012 --region eu-west-1")
    group = {"GroupDescription": "one", "VpcId": "vpc-0123456789abcdef0"}
    resources = {
        "Execution": role(single_model["role"]),
        "Many": role(print_policies(sm, MULTI_MODEL)["role"]),
        "Deployer": resource("IAM::ManagedPolicy", PolicyDocument=single_model["deployer"]),
        "Repository": resource("ECR::Repository", RepositoryPolicyText=single_model["repository"]),
        "Gateway": role(gateway),
        "Build": role(build["role"]),
        "Builder": resource("IAM::ManagedPolicy", PolicyDocument=build["builder"]),
        "GatewayGroup": resource("EC2::SecurityGroup", **group, **gateway["network"]["gateway"]),
        "TritonGroup": resource("EC2::SecurityGroup", **group, **gateway["network"]["triton"]),
    }
    template = json.dumps({"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources})
    for placeholder, identifier in (
        ("TRITON-GROUP", "sg-0123456789abcdef0"),
        ("GATEWAY-GROUP", "sg-0123456789abcdef1"),
        ("PREFIX-LIST-OF-S3", "pl-6da54004"),
    ):
        assert placeholder in template
        template = template.replace(placeholder, identifier)
    (tmp_path / "stack.json").write_text(template)
    assert cfn_lint(tmp_path / "stack.json") == ""


def test_only_what_has_no_resource_is_allowed_on_all_and_no_action_is_a_pattern(sm: RunSm) -> None:
    statements = print_policies(sm, PLAIN)["role"]["policy"]["Statement"]
    on_any_resource = [statement["Sid"] for statement in statements if statement["Resource"] == "*"]
    assert on_any_resource == ["SignInToRegistry", "WriteMetrics"]
    assert not any("*" in action for statement in statements for action in statement["Action"])


#: The IAM action of calls that have another name there. None: the call needs no permission.
ACTION_NAMES = {
    "get_caller_identity": None,
    "head_bucket": "s3:ListBucket",
    "head_object": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
}


@pytest.mark.parametrize(
    ("package", "options", "policy", "some"),
    [
        ("deploy", PLAIN, "deployer", {"create_endpoint", "put_metric_alarm"}),
        ("codebuild", "--build", "builder", {"start_build", "put_role_policy", "delete_project"}),
    ],
)
def test_a_policy_allows_every_call_that_its_commands_make(
    sm: RunSm, package: str, options: str, policy: str, some: set[str]
) -> None:
    verbs = "get|put|list|describe|create|delete|update|add|register|deregister|head|invoke|abort|filter|start|stop|batch"
    code = "".join(file.read_text() for file in (HERE / "tools" / "trireme_tools" / package).glob("*.py"))
    calls = set(re.findall(rf'"((?:{verbs})_[a-z0-9_]+)"', code)) - {"batch_size"}
    assert some <= calls
    statements = print_policies(sm, options)[policy]["Statement"]
    allowed = {action for statement in statements for action in statement["Action"]}
    allowed_without_service = {action.partition(":")[2].lower() for action in allowed}
    for call in calls:
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
    assert (command.status, command.out, named in command.err) == (1, "", True)

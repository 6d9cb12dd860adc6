"""The permissions on docs/deploy/push.md are enough for a push, and each one that the fake AWS knows is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sm.settings import HERE
from tests.support.aws import aws_client, fake_aws
from tests.support.push_checkout import Checkout

#: moto looks at the signature and the permissions of every call after these: the user, the policy, the key.
SET_UP_CALLS = 3


@pytest.fixture
def strict_aws() -> Iterator[str]:
    """A fake AWS that refuses what no policy allows."""
    with fake_aws(INITIAL_NO_AUTH_ACTION_COUNT=str(SET_UP_CALLS)) as address:
        yield f"http://{address}"


def documented_permissions() -> list[str]:
    (block,) = re.findall(r"```json\n(.*?)```", (HERE / "docs" / "deploy" / "push.md").read_text(), re.DOTALL)
    statements: list[dict[str, Any]] = json.loads(block)["Statement"]
    actions = [statement["Action"] for statement in statements]
    return [name for names in actions for name in ([names] if isinstance(names, str) else names)]


def create_user_with(aws: str, actions: list[str]) -> dict[str, str]:
    iam = aws_client("iam", aws, "us-east-1")
    # AWS lets everybody call GetCallerIdentity; moto does not. Moto does not check resources.
    allowed = {"Effect": "Allow", "Action": ["sts:GetCallerIdentity", *actions], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.create_user(UserName="ci")
    iam.put_user_policy(UserName="ci", PolicyName="push", PolicyDocument=policy)
    key = iam.create_access_key(UserName="ci")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


@pytest.mark.exhaustive
def test_the_documented_permissions_are_enough(pushing: Checkout, strict_aws: str) -> None:
    key = create_user_with(strict_aws, documented_permissions())
    done = pushing.push(AWS_ENDPOINT_URL=strict_aws, **key)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("ecr:DescribeRepositories", "ecr describe-repositories"),
        ("ecr:CreateRepository", "ecr create-repository"),
        ("ecr:GetAuthorizationToken", "ecr get-login-password"),
    ],
)
def test_a_missing_permission_is_named_in_the_error(
    pushing: Checkout, strict_aws: str, missing: str, command: str
) -> None:
    key = create_user_with(strict_aws, [name for name in documented_permissions() if name != missing])
    done = pushing.push(AWS_ENDPOINT_URL=strict_aws, **key)
    assert (done.returncode, done.stdout) == (1, "")
    error = done.stderr.splitlines()[-1]
    assert f"may not do '{command}' in eu-west-1: docs/deploy/push.md lists the permissions" in error
    assert missing in error

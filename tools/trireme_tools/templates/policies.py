"""IAM policies with the least permissions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trireme_tools.templates.arns import Image, Objects

VERSION = "2012-10-17"
PULL = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
WRITE_LOGS = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]

Document = dict[str, Any]


@dataclass(frozen=True)
class EndpointNeeds:
    """What an endpoint uses. ``account`` is its own; ``output`` is where an asynchronous endpoint writes
    answers.

    ``data`` is None if the image contains the models.
    """

    name: str
    image: Image
    data: Objects | None
    account: str
    output: str | None = None

    @property
    def log_group(self) -> list[str]:
        """The endpoint's log group and its streams: some calls name one, some the other."""
        group = self.arn("logs", f"log-group:/aws/sagemaker/Endpoints/{self.name}")
        return [group, f"{group}:*"]

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource in the endpoint's account and Region."""
        return f"arn:{self.image.partition}:{service}:{self.image.region}:{self.account}:{resource}"


def document(statements: Iterable[Document]) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def allow(sid: str, actions: list[str], resources: list[str] | str, **condition: Any) -> Document:
    statement: Document = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def trust_policy(service: str) -> Document:
    """Return the trust policy: only the service may assume the role."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return document([statement])


def execution_policy(needs: EndpointNeeds) -> Document:
    """Return the role's policy: read its models, pull its image, write logs and metrics."""
    spaces = {"cloudwatch:namespace": ["AWS/SageMaker", "/aws/sagemaker/*"]}
    return document(
        [
            *_read_access(needs),
            allow("PullImage", PULL, needs.image.arn),
            allow("SignInToRegistry", ["ecr:GetAuthorizationToken"], "*"),
            allow("WriteLogs", WRITE_LOGS, needs.log_group),
            allow("WriteMetrics", ["cloudwatch:PutMetricData"], "*", StringLike=spaces),
            *_async_access(needs),
        ]
    )


def merge(policy: Document, other: Document, prefix: str) -> Document:
    """Add what only ``other`` allows; its statements' names begin with ``prefix``."""
    added = [statement for statement in other["Statement"] if statement not in policy["Statement"]]
    renamed = [{**statement, "Sid": f"{prefix}{statement['Sid']}"} for statement in added]
    return document([*policy["Statement"], *renamed])


def _read_access(needs: EndpointNeeds) -> Iterable[Document]:
    partition = needs.image.partition
    if (place := needs.data) is None:
        return
    keys = sorted({place.key.removesuffix("*"), place.key})
    yield allow("ReadModels", ["s3:GetObject"], place.arn(partition))
    yield allow(
        "ListModels",
        ["s3:ListBucket"],
        place.bucket_arn(partition),
        StringLike={"s3:prefix": keys},
    )


def _async_access(needs: EndpointNeeds) -> Iterable[Document]:
    """Allow an asynchronous endpoint to read requests and write answers below its output path."""
    if needs.output:
        place = Objects.below(needs.output)
        arn = place.arn(needs.image.partition)
        yield allow("ReadRequestsWriteAnswers", ["s3:GetObject", "s3:PutObject"], arn)


def repository_policy(needs: EndpointNeeds) -> Document:
    """Return the policy for the image's repository in another account, which must allow the access too."""
    principal = {"AWS": f"arn:{needs.image.partition}:iam::{needs.account}:root"}
    statement = {"Sid": "PullFromElsewhere", "Effect": "Allow", "Principal": principal, "Action": PULL}
    return document([statement])

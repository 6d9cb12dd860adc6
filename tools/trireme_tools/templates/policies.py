"""IAM policies with the least permissions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sm.errors import CommandError
from sm.router.s3 import S3Uri
from trireme_tools.deploy import aws

ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<repository>[^:@]+)([:@].+)?"
)


@dataclass(frozen=True)
class Image:
    """An image in ECR."""

    account: str
    region: str
    repository: str

    @classmethod
    def read(cls, uri: str) -> Image:
        if not (match := ECR.fullmatch(uri)):
            raise CommandError(
                f"{uri!r} is not an image in ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG."
            )
        return cls(match["account"], match["region"], match["repository"])

    @property
    def partition(self) -> str:
        """Return the partition of a Region: ``aws-cn`` for China, ``aws-us-gov`` for the government's."""
        for partition, start in (("aws-cn", "cn-"), ("aws-us-gov", "us-gov-")):
            if self.region.startswith(start):
                return partition
        return "aws"

    @property
    def arn(self) -> str:
        return f"arn:{self.partition}:ecr:{self.region}:{self.account}:repository/{self.repository}"


class Objects(S3Uri):
    """An object on S3, or all below a prefix."""

    @classmethod
    def read(cls, uri: str) -> Objects:
        place = aws.s3_place(uri)
        return cls(place.bucket, place.key)

    @classmethod
    def below(cls, uri: str) -> Objects:
        """Read a prefix: all objects below it."""
        place = cls.read(uri)
        path = place.key.strip("/")
        return cls(place.bucket, f"{path}/*" if path else "*")

    def arn(self, partition: str) -> str:
        return f"arn:{partition}:s3:::{self.bucket}/{self.key}"

    def bucket_arn(self, partition: str) -> str:
        return f"arn:{partition}:s3:::{self.bucket}"


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

"""Policies of IAM: who may do what, and no more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sm.tools.templates.places import Image, Objects

VERSION = "2012-10-17"
PULL = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
WRITE_LOGS = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]

Document = dict[str, Any]


@dataclass(frozen=True)
class Needs:
    """What an endpoint uses. ``account`` is its own; ``output`` is where an asynchronous one answers.

    ``data`` is None where the image has the models inside.
    """

    name: str
    image: Image
    data: Objects | None
    account: str
    output: str | None = None

    @property
    def log_group(self) -> list[str]:
        """The endpoint's, and its streams: some calls name the one, some the other."""
        group = self.arn("logs", f"log-group:/aws/sagemaker/Endpoints/{self.name}")
        return [group, f"{group}:*"]

    def arn(self, service: str, resource: str) -> str:
        """Of a thing in the endpoint's own account and Region."""
        return f"arn:{self.image.partition}:{service}:{self.image.region}:{self.account}:{resource}"


def document(statements: Iterable[Document]) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def allow(sid: str, actions: list[str], resources: list[str] | str, **condition: Any) -> Document:
    made: Document = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**made, "Condition": condition} if condition else made


def trust(service: str) -> Document:
    """Who may take the role: the service alone."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return document([statement])


def execution(needs: Needs) -> Document:
    """What the endpoint's role may do: read its models, pull its image, write its logs and metrics."""
    spaces = {"cloudwatch:namespace": ["AWS/SageMaker", "/aws/sagemaker/*"]}
    return document(
        [
            *_reading(needs),
            allow("PullImage", PULL, needs.image.arn),
            allow("SignInToRegistry", ["ecr:GetAuthorizationToken"], "*"),
            allow("WriteLogs", WRITE_LOGS, needs.log_group),
            allow("WriteMetrics", ["cloudwatch:PutMetricData"], "*", StringLike=spaces),
            *_answering(needs),
        ]
    )


def _reading(needs: Needs) -> Iterable[Document]:
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


def _answering(needs: Needs) -> Iterable[Document]:
    """An asynchronous endpoint reads requests and writes answers below its output path."""
    if needs.output:
        place = Objects.below(needs.output)
        arn = place.arn(needs.image.partition)
        yield allow("ReadRequestsWriteAnswers", ["s3:GetObject", "s3:PutObject"], arn)


def repository(needs: Needs) -> Document:
    """For the image's repository, where it is in another account: that one must allow it, too."""
    principal = {"AWS": f"arn:{needs.image.partition}:iam::{needs.account}:root"}
    statement = {"Sid": "PullFromElsewhere", "Effect": "Allow", "Principal": principal, "Action": PULL}
    return document([statement])

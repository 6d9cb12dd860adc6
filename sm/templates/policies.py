"""Policies of IAM: who may do what, and no more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sm.templates.places import Image, Objects

VERSION = "2012-10-17"
PULL = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
WRITE_LOGS = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
READ_LOGS = ["logs:DescribeLogStreams", "logs:FilterLogEvents", "logs:GetLogEvents"]

Document = dict[str, Any]


@dataclass(frozen=True)
class Needs:
    """What an endpoint uses. ``account`` is its own; ``output`` is where an asynchronous one answers."""

    name: str
    image: Image
    data: str
    account: str
    mme: bool = False
    output: str | None = None

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
    partition, group = needs.image.partition, f"/aws/sagemaker/Endpoints/{needs.name}"
    spaces = ["AWS/SageMaker", "/aws/sagemaker/*"]
    return document(
        [
            *_reading(needs),
            allow("PullImage", PULL, needs.image.arn),
            allow("SignInToRegistry", ["ecr:GetAuthorizationToken"], "*"),
            allow(
                "WriteLogs", WRITE_LOGS, [needs.arn("logs", f"log-group:{group}{end}") for end in ("", ":*")]
            ),
            allow(
                "WriteMetrics",
                ["cloudwatch:PutMetricData"],
                "*",
                StringLike={"cloudwatch:namespace": spaces},
            ),
            *_answering(needs, partition),
        ]
    )


def _reading(needs: Needs) -> Iterable[Document]:
    partition = needs.image.partition
    place = Objects.below(needs.data) if needs.mme else Objects.read(needs.data)
    yield allow("ReadModels", ["s3:GetObject"], place.arn(partition))
    yield allow(
        "ListModels",
        ["s3:ListBucket"],
        place.bucket_arn(partition),
        StringLike={"s3:prefix": [place.key.removesuffix("*"), place.key] if needs.mme else [place.key]},
    )


def _answering(needs: Needs, partition: str) -> Iterable[Document]:
    """An asynchronous endpoint reads requests and writes answers below its output path."""
    if needs.output:
        place = Objects.below(needs.output)
        yield allow("ReadRequestsWriteAnswers", ["s3:GetObject", "s3:PutObject"], place.arn(partition))


def repository(needs: Needs) -> Document:
    """For the image's repository, where it is in another account: that one must allow it, too."""
    principal = {"AWS": f"arn:{needs.image.partition}:iam::{needs.account}:root"}
    statement = {"Sid": "PullFromElsewhere", "Effect": "Allow", "Principal": principal, "Action": PULL}
    return document([statement])


def deployer(needs: Needs, role: str) -> Document:
    """What ``sm deploy``, ``status``, ``logs``, ``invoke`` and ``delete`` do for the one who runs them."""
    partition = needs.image.partition
    # SageMaker's ARNs are in lower case, whatever the names are.
    own = [
        needs.arn("sagemaker", f"{kind}/{needs.name.lower()}{end}")
        for kind, end in (("endpoint", ""), ("endpoint-config", "-*"), ("model", "-*"))
    ]
    verbs = [
        f"{verb}{kind}"
        for kind in ("Endpoint", "EndpointConfig", "Model")
        for verb in ("Create", "Delete", "Describe")
    ]
    more = ["AddTags", "DeleteTags", "InvokeEndpoint", "InvokeEndpointAsync", "ListTags", "UpdateEndpoint"]
    return document(
        [
            allow("OwnThings", sorted(f"sagemaker:{action}" for action in [*verbs, *more]), own),
            allow("FindThings", ["sagemaker:ListEndpointConfigs", "sagemaker:ListModels"], "*"),
            allow(
                "GiveRole",
                ["iam:GetRole", "iam:PassRole"],
                role,
            ),
            *_uploading(needs, partition),
            allow("LookAtImage", ["ecr:DescribeImages"], needs.image.arn),
            allow(
                "ReadLogs", READ_LOGS, needs.arn("logs", f"log-group:/aws/sagemaker/Endpoints/{needs.name}:*")
            ),
            allow(
                "Alarms",
                ["cloudwatch:DeleteAlarms", "cloudwatch:PutMetricAlarm", "cloudwatch:TagResource"],
                needs.arn("cloudwatch", f"alarm:{needs.name}-*"),
            ),
            allow("LookAtAlarms", ["cloudwatch:DescribeAlarms", "cloudwatch:GetMetricStatistics"], "*"),
            allow(
                "Autoscaling",
                [
                    f"application-autoscaling:{action}"
                    for action in (
                        "DeregisterScalableTarget",
                        "DescribeScalableTargets",
                        "PutScalingPolicy",
                        "RegisterScalableTarget",
                    )
                ],
                "*",
            ),
        ]
    )


def _uploading(needs: Needs, partition: str) -> Iterable[Document]:
    data = Objects.below(needs.data) if needs.mme else Objects.read(needs.data)
    places = [data, *([Objects.below(needs.output)] if needs.output else [])]
    objects = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    yield allow("Archives", objects, [place.arn(partition) for place in places])
    yield allow(
        "Bucket",
        ["s3:CreateBucket", "s3:ListBucket", "s3:ListBucketMultipartUploads"],
        sorted({place.bucket_arn(partition) for place in places}),
    )

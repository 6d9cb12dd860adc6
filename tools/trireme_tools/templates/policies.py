"""IAM policies with the least permissions: of the endpoint, of who deploys it, and of the gateway."""

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


CHANGES = [
    f"sagemaker:{verb}{kind}"
    for kind in ("Endpoint", "EndpointConfig", "Model")
    for verb in ("Create", "Delete", "Describe")
]
USES = [
    f"sagemaker:{action}"
    for action in (
        "AddTags",
        "InvokeEndpoint",
        "InvokeEndpointAsync",
        "InvokeEndpointWithResponseStream",
        "ListTags",
        "UpdateEndpoint",
    )
]
#: Actions of application autoscaling, whose resources cannot be limited by name.
SCALING = [
    f"application-autoscaling:{action}"
    for action in (
        "DeleteScalingPolicy",
        "DeregisterScalableTarget",
        "DescribeScalableTargets",
        "DescribeScalingPolicies",
        "PutScalingPolicy",
        "RegisterScalableTarget",
    )
]
READ_LOGS = ["logs:DescribeLogStreams", "logs:FilterLogEvents", "logs:GetLogEvents"]
ALARMS = ["cloudwatch:DeleteAlarms", "cloudwatch:PutMetricAlarm", "cloudwatch:TagResource"]
ARCHIVES = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
BUCKET = ["s3:CreateBucket", "s3:ListBucket", "s3:ListBucketMultipartUploads"]


def policy(needs: EndpointNeeds, role: str) -> Document:
    """Return the policy. ``role`` is the endpoint's, which may be passed to SageMaker only."""
    return document([*_sagemaker(needs), *_role(role), *_archives(needs), *_monitoring(needs)])


def _sagemaker(needs: EndpointNeeds) -> Iterable[Document]:
    # SageMaker's ARNs are in lower case, even if names are not.
    own_arns = [
        needs.arn("sagemaker", f"{kind}/{needs.name.lower()}{end}")
        for kind, end in (("endpoint", ""), ("endpoint-config", "-*"), ("model", "-*"))
    ]
    yield allow("OwnThings", sorted([*CHANGES, *USES]), own_arns)
    yield allow("FindThings", ["sagemaker:ListEndpointConfigs", "sagemaker:ListModels"], "*")
    yield allow("LookAtImage", ["ecr:DescribeImages"], needs.image.arn)
    yield allow("Autoscaling", SCALING, "*")


def _role(role: str) -> Iterable[Document]:
    to_sagemaker = {"iam:PassedToService": "sagemaker.amazonaws.com"}
    yield allow("LookAtRole", ["iam:GetRole"], role)
    yield allow("GiveRole", ["iam:PassRole"], role, StringEquals=to_sagemaker)


def _archives(needs: EndpointNeeds) -> Iterable[Document]:
    partition = needs.image.partition
    objects = [
        *([needs.data] if needs.data else []),
        *([Objects.below(needs.output)] if needs.output else []),
    ]
    if not objects:
        return
    yield allow("Archives", ARCHIVES, [place.arn(partition) for place in objects])
    yield allow("Bucket", BUCKET, sorted({place.bucket_arn(partition) for place in objects}))


def _monitoring(needs: EndpointNeeds) -> Iterable[Document]:
    yield allow("ReadLogs", READ_LOGS, needs.log_group)
    yield allow("Alarms", ALARMS, needs.arn("cloudwatch", f"alarm:{needs.name}-*"))
    yield allow("LookAtAlarms", ["cloudwatch:DescribeAlarms", "cloudwatch:GetMetricStatistics"], "*")


#: A function in a VPC creates and removes its own network interface; AWS allows no resource for these
#: actions.
INTERFACES = [
    f"ec2:{verb}"
    for verb in ("CreateNetworkInterface", "DeleteNetworkInterface", "DescribeNetworkInterfaces")
]


def policies(name: str, bucket: str, inputs: list[str], results: str, models: str, port: int) -> Document:
    """Return role, trust and network of the gateway ``name``. Prefixes are of keys in ``bucket``."""
    arn = f"arn:*:s3:::{bucket}"
    group = f"arn:*:logs:*:*:log-group:/aws/lambda/{name}-*"
    reading = [f"{arn}/{prefix}*" for prefix in (*inputs, models)]
    listing = [f"{prefix}*" for prefix in (*inputs, models)]
    return {
        "trust": trust_policy("lambda.amazonaws.com"),
        "policy": document(
            [
                allow("ReadInputsAndModels", ["s3:GetObject"], reading),
                # Without this, a missing object is a 403 instead of a 404.
                allow("List", ["s3:ListBucket"], arn, StringLike={"s3:prefix": listing}),
                allow("WriteResults", ["s3:PutObject"], f"{arn}/{results}*"),
                allow(
                    "WriteLogs", ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"], group
                ),
                allow("Interfaces", INTERFACES, "*"),
            ]
        ),
        "network": network(port),
    }


def network(port: int) -> Document:
    """Allow the function to reach Triton and S3 only, and Triton to be reached by the function."""
    triton = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port}
    return {
        "gateway": {
            "SecurityGroupEgress": [
                {**triton, "Description": "gRPC to Triton", "DestinationSecurityGroupId": "TRITON-GROUP"},
                {
                    "IpProtocol": "tcp",
                    "FromPort": 443,
                    "ToPort": 443,
                    "Description": "S3, through a gateway endpoint of the VPC",
                    "DestinationPrefixListId": "PREFIX-LIST-OF-S3",
                },
            ],
            "SecurityGroupIngress": [],
        },
        "triton": {
            "SecurityGroupIngress": [
                {**triton, "Description": "the gateway", "SourceSecurityGroupId": "GATEWAY-GROUP"}
            ]
        },
    }

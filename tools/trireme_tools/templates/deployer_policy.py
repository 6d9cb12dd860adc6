"""The permissions of a user of ``sm deploy``, ``status``, ``logs``, ``invoke`` and ``delete``."""

from __future__ import annotations

from collections.abc import Iterable

from trireme_tools.templates.policies import Document, EndpointNeeds, Objects, allow, document

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

"""IAM policies with the least permissions: of the endpoint, of who deploys it, and of the gateway.

The statements are in ``policies.yaml``, for people to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sm.http.s3 import S3Uri
from trireme_tools import aws, documents
from trireme_tools.deploy.images import Image
from trireme_tools.documents import fill

Document = dict[str, Any]
STATEMENTS = documents.read(__file__, "policies.yaml")


class S3Objects(S3Uri):
    """An object on S3, or all below a prefix."""

    @classmethod
    def read(cls, uri: str) -> S3Objects:
        place = aws.s3_place(uri)
        return cls(place.bucket, place.key)

    @classmethod
    def below(cls, uri: str) -> S3Objects:
        """Read a prefix: all objects below it."""
        place = cls.read(uri)
        path = place.key.strip("/")
        return cls(place.bucket, f"{path}/*" if path else "*")


@dataclass(frozen=True)
class EndpointNeeds:
    """The resources that an endpoint uses. ``account`` is its own; ``output`` is where an asynchronous one
    writes answers, and ``topic`` what it tells of them.

    ``data`` is None if the image contains the models.
    """

    name: str
    image: Image
    data: S3Objects | None
    account: str
    output: str | None = None
    topic: str = ""

    def policy(self, kind: str, role: str = "") -> Document:
        """Return the policy ``execution``, ``deployer`` or ``repository``. ``role`` is the endpoint's, which
        may be passed to SageMaker only.
        """
        partition = self.image.partition

        def arn(service: str, resource: str) -> str:
            return f"arn:{partition}:{service}:{self.image.region}:{self.account}:{resource}"

        answers = S3Objects.below(self.output) if self.output else None
        places = [place for place in (self.data, answers) if place]
        objects = {place: f"arn:{partition}:s3:::{place.bucket}/{place.key}" for place in places}
        buckets = {place: f"arn:{partition}:s3:::{place.bucket}" for place in places}
        log_group = arn("logs", f"log-group:/aws/sagemaker/Endpoints/{self.name}")
        return document(
            kind,
            partition=partition,
            account=self.account,
            image=self.image.arn,
            models=objects[self.data] if self.data else "",
            models_bucket=buckets[self.data] if self.data else "",
            models_keys=sorted({self.data.key.removesuffix("*"), self.data.key}) if self.data else [],
            answers=objects[answers] if answers else "",
            topic=self.topic,
            # Some calls name the group, some its streams.
            log_group=[log_group, f"{log_group}:*"],
            own=arn("sagemaker", ""),
            lower_name=self.name.lower(),
            role=role,
            objects=list(objects.values()),
            buckets=sorted(set(buckets.values())),
            alarms=arn("cloudwatch", f"alarm:{self.name}-*"),
        )


def document(kind: str, **values: Any) -> Document:
    statements = fill(STATEMENTS[kind], values)
    allowed = [statement for statement in statements if statement.get("Resource", "*")]
    return {"Version": "2012-10-17", "Statement": allowed}


def trust_policy(service: str) -> Document:
    """Return the trust policy: only the service may assume the role."""
    return document("trust", service=service)


def merge(policy: Document, other: Document, prefix: str) -> Document:
    """Add what only ``other`` allows; its statements' names begin with ``prefix``."""
    added = [statement for statement in other["Statement"] if statement not in policy["Statement"]]
    renamed = [{**statement, "Sid": f"{prefix}{statement['Sid']}"} for statement in added]
    return {**policy, "Statement": [*policy["Statement"], *renamed]}


def gateway(name: str, bucket: str, inputs: list[str], results: str, models: str, port: int) -> Document:
    """Return role, trust and network of the gateway ``name``. Prefixes are of keys in ``bucket``."""
    listed = [f"{prefix}*" for prefix in (*inputs, models)]
    read = [f"arn:*:s3:::{bucket}/{keys}" for keys in listed]
    return {
        "trust": trust_policy("lambda.amazonaws.com"),
        "policy": document("gateway", name=name, bucket=bucket, read=read, listed=listed, results=results),
        "network": fill(STATEMENTS["network"], {"port": port}),
    }

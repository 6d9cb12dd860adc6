"""Convert image URIs and S3 URLs to ARNs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sm.errors import CommandError
from sm.router.s3.uris import S3Uri
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

"""Where things are: what an image's URI and a place on S3 say, as ARNs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sm.errors import StartError

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
        if not (found := ECR.fullmatch(uri)):
            raise StartError(
                f"{uri!r} is no image in ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG."
            )
        return cls(found["account"], found["region"], found["repository"])

    @property
    def partition(self) -> str:
        """``aws-cn`` for the Regions of China, ``aws-us-gov`` for those of the government."""
        for partition, start in (("aws-cn", "cn-"), ("aws-us-gov", "us-gov-")):
            if self.region.startswith(start):
                return partition
        return "aws"

    @property
    def arn(self) -> str:
        return f"arn:{self.partition}:ecr:{self.region}:{self.account}:repository/{self.repository}"


@dataclass(frozen=True)
class Objects:
    """An object on S3, or all below a prefix."""

    bucket: str
    key: str

    @classmethod
    def read(cls, uri: str) -> Objects:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if not uri.startswith("s3://") or not bucket:
            raise StartError(f"{uri!r} is no place on S3: s3://BUCKET/KEY. 'sm package' makes an archive.")
        return cls(bucket, key)

    @classmethod
    def below(cls, uri: str) -> Objects:
        """All below the prefix."""
        place = cls.read(uri)
        path = place.key.strip("/")
        return cls(place.bucket, f"{path}/*" if path else "*")

    def arn(self, partition: str) -> str:
        return f"arn:{partition}:s3:::{self.bucket}/{self.key}"

    def bucket_arn(self, partition: str) -> str:
        return f"arn:{partition}:s3:::{self.bucket}"

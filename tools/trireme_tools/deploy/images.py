"""Images in ECR, and AWS's prebuilt ones of Triton, which can be deployed like our own."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass

from sm.errors import CommandError
from trireme_tools import documents
from trireme_tools.progress import Progress

REPOSITORY = "sagemaker-tritonserver"
#: The newest that the SageMaker SDK's table has for all the Regions below.
NEWEST = "24.09"
#: The last release of the notebooks' accounts and the first of the SDK's: both maps have it.
SHARED_RELEASE = "23.12"
#: The accounts by Region: the notebooks' up to SHARED_RELEASE, the SDK's from then on.
ACCOUNTS = documents.read(__file__, "triton_accounts.yaml")
ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?"
    r"/(?P<repository>[^:@]+)(:(?P<tag>[^@]+))?(@(?P<digest>.+))?"
)


@dataclass(frozen=True)
class Image:
    """An image in ECR."""

    account: str
    region: str
    repository: str
    tag: str | None
    digest: str | None

    @classmethod
    def find(cls, uri: str) -> Image | None:
        """Return the image of an address; None if it is not in ECR."""
        match = ECR.fullmatch(uri)
        return cls(**match.groupdict()) if match else None

    @classmethod
    def read(cls, uri: str) -> Image:
        if image := cls.find(uri):
            return image
        raise CommandError(
            f"{uri!r} is not an image in ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG."
        )

    @property
    def partition(self) -> str:
        return partition_of(self.region)

    @property
    def arn(self) -> str:
        return f"arn:{self.partition}:ecr:{self.region}:{self.account}:repository/{self.repository}"


def partition_of(region: str) -> str:
    """Return the partition of a Region: ``aws-cn`` for China, ``aws-us-gov`` for the government's."""
    partitions = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    return next((name for start, name in partitions.items() if region.startswith(f"{start}-")), "aws")


def show_images(options: argparse.Namespace) -> int:
    """Print one Region's image alone, for scripts; otherwise all with their Regions.

    If a second account may have the release too, it is printed beside the first.
    """
    results = Progress(sys.stdout)
    if options.region:
        first, *others = uris(options.region, options.version, options.cpu)
        results.say(first)
        for other in others:
            Progress(sys.stderr).say(f"the SageMaker SDK's table has it in another account: {other}")
        return 0
    for region in regions(options.version):
        results.say(f"{region:<15} {' or '.join(uris(region, options.version, options.cpu))}")
    return 0


def uri(region: str, version: str = NEWEST, cpu: bool = False) -> str:
    """Return the image of a Region. Raises :class:`CommandError`. ``version`` is, for example, 24.09."""
    return uris(region, version, cpu)[0]


def uris(region: str, version: str = NEWEST, cpu: bool = False) -> list[str]:
    """Return the image in each account that may have it: for ``SHARED_RELEASE`` two, the notebooks' first."""
    maps = _maps(version)
    accounts = list(dict.fromkeys(by_region[region] for by_region in maps if region in by_region))
    if not accounts:
        raise CommandError(
            f"there is no prebuilt Triton image {version} in {region}; "
            f"there is in {', '.join(regions(version))}."
        )
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    tag = f"{version}-py3{'-cpu' if cpu else ''}"
    return [f"{account}.dkr.ecr.{region}.{domain}/{REPOSITORY}:{tag}" for account in accounts]


def regions(version: str = NEWEST) -> list[str]:
    """Return the Regions with an image of this release."""
    return sorted({region for by_region in _maps(version) for region in by_region})


def _maps(version: str) -> list[dict[str, str]]:
    """Return the accounts that may have a release, by Region."""
    if not re.fullmatch(r"\d\d\.\d\d", version):
        raise CommandError(f"{version!r} is not a version of the Triton image; one is {NEWEST}.")
    if version == SHARED_RELEASE:
        return [ACCOUNTS["notebooks"], ACCOUNTS["sdk"]]
    return [ACCOUNTS["notebooks" if version < SHARED_RELEASE else "sdk"]]


def is_prebuilt(image: str) -> bool:
    """True if the image is AWS's, which has no clients of ours."""
    return f"/{REPOSITORY}:" in image or f"/{REPOSITORY}@" in image

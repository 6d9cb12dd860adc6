"""AWS's prebuilt Triton images, which can be deployed like our own."""

from __future__ import annotations

import argparse
import re
import sys

from sm.commands.progress import Progress
from sm.errors import CommandError

REPOSITORY = "sagemaker-tritonserver"
#: The newest that the SageMaker SDK's table has for all the Regions below.
NEWEST = "24.09"
#: The last release of the notebooks' accounts and the first of the SDK's: both maps have it.
SHARED_RELEASE = "23.12"
#: Up to IN_BOTH. Source: the account_id_map in the Triton notebooks of aws/amazon-sagemaker-examples, which
#: use it with 23.02 and 23.12. available_images.md of aws/deep-learning-containers names the same account of
#: us-east-2 for 22.xx and 23.xx; Terraform's AWS provider (internal/service/sagemaker/model_test.go) agrees.
NOTEBOOK_ACCOUNTS = {
    "af-south-1": "774647643957",
    "ap-east-1": "110948597952",
    "ap-northeast-1": "941853720454",
    "ap-northeast-2": "151534178276",
    "ap-south-1": "763008648453",
    "ap-southeast-1": "324986816169",
    "ap-southeast-2": "355873309152",
    "ca-central-1": "464438896020",
    "cn-north-1": "472730292857",
    "cn-northwest-1": "474822919863",
    "eu-central-1": "746233611703",
    "eu-north-1": "601324751636",
    "eu-south-1": "966458181534",
    "eu-west-1": "802834080501",
    "eu-west-2": "205493899709",
    "eu-west-3": "254080097072",
    "me-south-1": "836785723513",
    "sa-east-1": "756306329178",
    "us-east-1": "785573368785",
    "us-east-2": "007439368137",
    "us-west-1": "710691900526",
    "us-west-2": "301217895009",
}
#: From IN_BOTH on. Source: image_uri_config/sagemaker-tritonserver.json of aws/sagemaker-python-sdk, which
#: lists 23.12 to 24.09.
USUAL_SDK_ACCOUNT = "763104351884"
SDK_ACCOUNTS = {
    **dict.fromkeys(NOTEBOOK_ACCOUNTS, USUAL_SDK_ACCOUNT),
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-northeast-3": "364406365360",
    "ap-southeast-3": "907027046896",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-south-1": "692866216735",
    "il-central-1": "780543022126",
    "me-south-1": "217643126080",
}


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
        return [NOTEBOOK_ACCOUNTS, SDK_ACCOUNTS]
    return [NOTEBOOK_ACCOUNTS if version < SHARED_RELEASE else SDK_ACCOUNTS]


def is_prebuilt(image: str) -> bool:
    """True if the image is AWS's, which has no clients of ours."""
    return f"/{REPOSITORY}:" in image or f"/{REPOSITORY}@" in image

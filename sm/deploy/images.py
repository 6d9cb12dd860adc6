"""AWS's prebuilt Triton images, which can be deployed like our own."""

from __future__ import annotations

import re

from sm.errors import StartError

REPOSITORY = "sagemaker-tritonserver"
#: The newest that the SageMaker SDK's table has for all the Regions below.
NEWEST = "24.09"
#: The first release that the SDK's table knows; those before lie in the other accounts.
MOVED = "23.12"
#: Up to MOVED: the table in the example notebooks of Triton on SageMaker, also in Terraform's AWS provider
#: (internal/service/sagemaker/model_test.go).
BEFORE = {
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
#: From MOVED on: image_uri_config/sagemaker-tritonserver.json of aws/sagemaker-python-sdk.
USUAL = "763104351884"
SINCE = {
    **dict.fromkeys(BEFORE, USUAL),
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


def uri(region: str, version: str = NEWEST, cpu: bool = False) -> str:
    """The image of a Region; :class:`StartError` where there is none. ``version`` is such as 24.09."""
    if not re.fullmatch(r"\d\d\.\d\d", version):
        raise StartError(f"{version!r} is no version of the Triton image; one is {NEWEST}.")
    accounts = SINCE if version >= MOVED else BEFORE
    if region not in accounts:
        raise StartError(
            f"there is no prebuilt Triton image {version} in {region}; "
            f"there is in {', '.join(sorted(accounts))}."
        )
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    tag = f"{version}-py3{'-cpu' if cpu else ''}"
    return f"{accounts[region]}.dkr.ecr.{region}.{domain}/{REPOSITORY}:{tag}"


def regions(version: str = NEWEST) -> list[str]:
    return sorted(SINCE if version >= MOVED else BEFORE)


def is_prebuilt(image: str) -> bool:
    """Whether this is AWS's, which has none of our clients."""
    return f"/{REPOSITORY}:" in image or f"/{REPOSITORY}@" in image

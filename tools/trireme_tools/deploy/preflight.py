"""Check the role and the image before anything is created."""

from __future__ import annotations

import re
from typing import Any

from sm.errors import CommandError
from trireme_tools.deploy import images
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.gpu_hosts import gpus
from trireme_tools.deploy.images import Image
from trireme_tools.deploy.resources import Resources

#: Instance types with AWS's ARM processors (Graviton), such as ml.c7g.xlarge; ml.g5 and ml.g4dn have GPUs.
ARM = re.compile(r"ml\.[a-z]+\d+g[dn]?\..+")
#: The role that is used if none is named and it exists.
DEFAULT_ROLE = "trireme"


def choose_role(account: Account, resources: Resources, arn: str | None) -> str:
    """Return the role's ARN: the given one, the one that serves now, or the account's role ``trireme``."""
    if arn:
        if not re.fullmatch(r"arn:aws[a-z-]*:iam::\d{12}:role/.+", arn):
            raise CommandError(f"{arn!r} is not a role's ARN: arn:aws:iam::ACCOUNT:role/NAME.")
        return arn
    if serving := resources.serving():
        return str(serving["ExecutionRoleArn"])
    existing = None
    with account.optional():
        existing = account.describe("iam", "get_role", f"look for role {DEFAULT_ROLE}", RoleName=DEFAULT_ROLE)
    if existing:
        return str(existing["Role"]["Arn"])
    raise CommandError(
        f"no role: give --role ARN, or make one named {DEFAULT_ROLE!r} "
        f"('sm iam {resources.name}' prints its policies)."
    )


def check_image(account: Account, uri: str) -> None:
    """Raise :class:`CommandError` if SageMaker could not pull the image, as far as can be seen."""
    image = Image.find(uri)
    if image is None:
        account.progress.say(f"{uri} is not in ECR: SageMaker pulls from elsewhere only through a VPC")
        return
    if image.region != account.region:
        raise CommandError(
            f"the image is in {image.region} and the endpoint would be in {account.region}: SageMaker "
            f"pulls from its own Region only. Push it there: ./build_and_push.sh --region {account.region}."
        )
    if image.account == account.number:
        _check_exists(account, uri, image)


def check_architecture(uri: str, instance_type: str) -> None:
    """Raise :class:`CommandError` if the tag of ./build_and_push.sh is of the other architecture."""
    image = Image.find(uri)
    words = (image.tag or "").split("-") if image else []
    if ARM.fullmatch(instance_type) and words[1:] and "arm64" not in words:
        needed, given = "linux/arm64", "x86"
    elif "arm64" in words and not ARM.fullmatch(instance_type):
        needed, given = "linux/amd64", "ARM"
    else:
        return
    raise CommandError(
        f"{uri} is an image for {given} processors by its tag, and {instance_type} has the other kind: "
        f"./build_and_push.sh --platform {needed}, or another --instance-type."
    )


def check_multi_model(account: Account, uri: str, instance_type: str) -> None:
    """Warn that AWS supports multi-model endpoints on GPUs for its own image only."""
    if gpus(instance_type) and not images.is_prebuilt(uri):
        account.progress.say(
            f"multi-model endpoints with GPUs ({instance_type}) are documented for AWS's own image only"
        )


def _check_exists(account: Account, uri: str, image: Image) -> None:
    image_id = {"imageDigest": image.digest} if image.digest else {"imageTag": image.tag or "latest"}
    description: dict[str, Any] | None = {}
    with account.optional():
        description = account.describe(
            "ecr",
            "describe_images",
            f"look at image {uri}",
            repositoryName=image.repository,
            imageIds=[image_id],
        )
    if description is None:
        raise CommandError(
            f"there is no image {uri}. Push it (./build_and_push.sh --region {account.region}), "
            f"or check its tag: aws ecr list-images --repository-name {image.repository}."
        )

"""GPU instance types and the drivers of SageMaker's hosts: which host can run which image."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from sm.errors import CommandError
from trireme_tools import documents
from trireme_tools.deploy import images
from trireme_tools.deploy.images import Image

TABLE = documents.read(__file__, "gpu_hosts.yaml")
#: Families with NVIDIA's GPUs, those that the table does not have yet included.
GPU_FAMILY = re.compile(r"[gp]\d")
#: The property of a variant, in SageMaker's API and in CloudFormation.
AMI = "InferenceAmiVersion"
#: The value of --ami for SageMaker's own choice.
NO_AMI = "none"
#: A tag by ./build_and_push.sh: version, commit, then what makes the image differ.
OWN_TAG = re.compile(r"\d+\.\d+\.\d+\w*-[0-9a-f]{12}(-.+)?")


def gpus(instance_type: str) -> int:
    """Return the number of GPUs of an instance type: one if its family has GPUs and the size is unknown."""
    family, size = _parts(instance_type)
    return int(_known(family).get("gpus", {}).get(size, 1)) if GPU_FAMILY.match(family) else 0


def choose_ami(instance_type: str, requested: str | None) -> str | None:
    """Return the variant's InferenceAmiVersion; None for SageMaker's own choice.

    Args:
        requested: a name, ``none``, or None for the newest that botocore knows.

    Raises:
        CommandError: botocore does not know the name, or the instance type has no GPU.
    """
    if requested == NO_AMI or (requested is None and not gpus(instance_type)):
        return None
    names = known_amis()
    if requested is None:
        return names[-1] if names else None
    if not gpus(instance_type):
        raise CommandError(f"--ami {requested} is for instance types with a GPU; {instance_type} has none.")
    if requested not in names:
        raise CommandError(
            f"--ami {requested} is not a host image for GPUs that the installed boto3 knows: "
            f"{', '.join(names)}; or {NO_AMI}. A newer boto3 may know more."
        )
    return requested


@cache  # reading botocore's model takes 60 ms
def known_amis() -> tuple[str, ...]:
    """Return the host images for GPUs that botocore's model of SageMaker names, the newest last."""
    from botocore.loaders import create_loader

    shapes = create_loader().load_service_model("sagemaker", "service-2")["shapes"]
    names = shapes.get("ProductionVariantInferenceAmiVersion", {}).get("enum", ())
    versions = {
        name: [int(part) for part in version[1].split("-")]
        for name in names
        if (version := re.search(r"-gpu-(\d+(?:-\d+)*)$", name))
    }
    return tuple(sorted(versions, key=lambda name: versions[name]))


def check(uri: str, instance_type: str, ami: str | None) -> None:
    """Raise :class:`CommandError` if the image's CUDA cannot run on this GPU or with this host's driver.

    An image whose base is unknown, and a host whose driver is unknown, are left to AWS.
    """
    release = base_release(uri)
    if release is None or not gpus(instance_type):
        return
    needs = next((row for row in TABLE["base_images"] if release >= row["since"]), None)
    if needs is None:
        return
    family, _ = _parts(instance_type)
    host = _known(family)
    capability = host.get("capability")
    if capability is not None and capability < needs["capability"]:
        raise CommandError(
            f"{instance_type} has GPUs of compute capability {capability}, and Triton {release} (CUDA "
            f"{needs['cuda']}) runs on {needs['capability']} and newer: choose another --instance-type, such "
            "as ml.g5.xlarge, or an image with an older base."
        )
    driver = (TABLE["amis"].get(ami, {}) if ami else host).get("driver")
    if driver is not None and driver < needs["driver"]:
        raise CommandError(
            f"the host's driver would be {driver} ({ami or f'{instance_type} without {AMI}'}), and Triton "
            f"{release} (CUDA {needs['cuda']}) needs {needs['driver']} or newer: leave --ami out for the "
            "newest that the installed boto3 knows, upgrade boto3, or choose an image with an older base."
        )


def base_release(uri: str) -> str | None:
    """Return the release of NVIDIA's Triton image that an image is built on; None if its tag does not say."""
    image = Image.find(uri)
    tag = (image.tag or "") if image else ""
    if images.is_prebuilt(uri):
        match = re.match(r"(\d\d\.\d\d)-py3(?!-cpu)", tag)
        return match[1] if match else None
    if OWN_TAG.fullmatch(tag) and "cpu" not in tag.split("-"):
        return str(TABLE["own_base"])
    return None


def _parts(instance_type: str) -> tuple[str, str]:
    """Return family and size of ``ml.g5.xlarge``."""
    family, _, size = instance_type.removeprefix("ml.").partition(".")
    return family, size


def _known(family: str) -> dict[str, Any]:
    return dict(TABLE["families"].get(family, {}))

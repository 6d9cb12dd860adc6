"""Which SageMaker host runs which image: number of GPUs, host image, driver, compute capability, processor."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from sm.errors import CommandError
from trireme_tools.deploy import gpu_hosts
from trireme_tools.deploy.gpu_hosts import check, choose_ami, gpus, known_amis
from trireme_tools.deploy.preflight import check_architecture

ACCOUNT = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
OWN = f"{ACCOUNT}/trireme:0.1.0-3f2c9a1b7d04"
PREBUILT = f"{ACCOUNT}/sagemaker-tritonserver"
AL2_535 = "al2-ami-sagemaker-inference-gpu-2-1"
AL2_550 = "al2-ami-sagemaker-inference-gpu-3-1"
AL2023_580 = "al2023-ami-sagemaker-inference-gpu-4-1"


@pytest.fixture(scope="module")
def shapes() -> Any:
    return botocore.session.get_session().get_service_model("sagemaker")


@pytest.mark.parametrize(
    ("count", "types"),
    [
        (0, "ml.c7g.xlarge ml.m6gd.large ml.inf2.xlarge"),
        (1, "ml.g4dn.xlarge ml.p5.4xlarge ml.g99.xlarge"),
        (4, "ml.g4dn.12xlarge ml.g5.24xlarge"),
        (8, "ml.g6e.48xlarge ml.p4de.24xlarge ml.p5en.48xlarge ml.p6-b200.48xlarge"),
    ],
)
def test_an_instance_types_gpus_are_counted(count: int, types: str) -> None:
    assert {gpus(instance_type) for instance_type in types.split()} == {count}


def test_every_gpu_type_of_botocore_gets_the_newest_host_image_and_no_other_type_one(shapes: Any) -> None:
    newest = choose_ami("ml.g5.xlarge", None)
    assert newest in shapes.shape_for("ProductionVariantInferenceAmiVersion").enum
    assert newest == known_amis()[-1]
    for instance_type in shapes.shape_for("ProductionVariantInstanceType").enum:
        has_gpu = re.match(r"ml\.[gp]\d", instance_type)
        assert choose_ami(instance_type, None) == (newest if has_gpu else None)


def test_an_ami_can_be_named_or_left_to_sagemaker_if_it_is_known_and_for_a_gpu() -> None:
    assert choose_ami("ml.g5.xlarge", AL2_550) == AL2_550
    assert choose_ami("ml.g5.xlarge", "none") is choose_ami("ml.c5.xlarge", "none") is None
    unknown = (AL2_550[:-4], AL2_550.replace("gpu", "neuron"))
    for instance_type, ami in (("ml.c5.xlarge", AL2_550), *(("ml.g5.xlarge", each) for each in unknown)):
        with pytest.raises(CommandError, match="--ami"):
            choose_ami(instance_type, ami)


def test_the_table_has_the_driver_of_every_host_image_as_botocore_describes_it(shapes: Any) -> None:
    text = re.sub(r"<[^>]+>", " ", shapes.shape_for("ProductionVariant").members[gpu_hosts.AMI].documentation)
    described = re.findall(r"(\S+-gpu-[\d-]+)\s+Accelerator: GPU\s+NVIDIA driver version: (\d+)", text)
    drivers = {name: str(row["driver"]) for name, row in gpu_hosts.TABLE["amis"].items()}
    assert dict(described) == drivers and drivers.keys() == set(known_amis())


@pytest.mark.parametrize(
    ("image", "instance_type", "ami", "is_refused"),
    [
        (OWN, "ml.g5.xlarge", None, True),
        (OWN, "ml.g4dn.xlarge", AL2_535, True),
        (f"{OWN}-arm64-models-0123456789ab", "ml.g5.xlarge", AL2_535, True),
        (f"{OWN}@sha256:0", "ml.p5e.48xlarge", None, True),
        (f"{PREBUILT}:25.09-py3", "ml.g6.xlarge", None, True),
        (OWN, "ml.p3.2xlarge", AL2023_580, True),
        (f"{PREBUILT}:24.09-py3", "ml.p2.xlarge", None, True),
        # What runs, and what is left to AWS.
        (OWN, "ml.g4dn.xlarge", AL2023_580, False),
        (OWN, "ml.g5.xlarge", "al2027-ami-sagemaker-inference-gpu-9-1", False),
        (f"{OWN}-cpu-amd64", "ml.g5.xlarge", None, False),
        (OWN, "ml.c5.xlarge", None, False),
        (f"{PREBUILT}:24.09-py3", "ml.p3.2xlarge", AL2_535, False),
        (f"{PREBUILT}:25.09-py3-cpu", "ml.p3.2xlarge", None, False),
        (f"{ACCOUNT}/mine:1", "ml.p3.2xlarge", None, False),
    ],
)
def test_a_host_that_cannot_run_the_image_is_refused(
    image: str, instance_type: str, ami: str | None, is_refused: bool
) -> None:
    with pytest.raises(CommandError) if is_refused else nullcontext():
        check(image, instance_type, ami)


def test_every_file_names_the_dockerfiles_release_of_triton() -> None:
    """But the changelog, and the article's own Dockerfile, which a page quotes."""
    root = Path(__file__).parents[4]
    (release,) = re.findall(
        r"^ARG BASE_IMAGE=\S+:(\d\d\.\d\d)-py3$", (root / "Dockerfile").read_text(), re.MULTILINE
    )
    assert gpu_hosts.TABLE["own_base"] == release
    files = [root / name for name in ("Dockerfile", "Makefile", "README.md", "build_and_push.sh")]
    for folder in ("docs", "deploy", "examples", "sm", "tools"):
        files += [
            path for path in (root / folder).rglob("*") if path.suffix in (".md", ".py", ".sh", ".yaml")
        ]
    named = {
        file.relative_to(root).as_posix(): found
        for file in files
        if (found := set(re.findall(r"nvcr\.io/nvidia/tritonserver:(\d\d\.\d\d)", file.read_text())))
    }
    assert named.pop("docs/start/from-the-article.md") != {release}
    assert {"Dockerfile", "Makefile", "docs/run/image.md"} <= named.keys()
    assert {name: found for name, found in named.items() if found != {release}} == {}
    assert f"{release} (Triton 2." in (root / "docs" / "run" / "image.md").read_text()


@pytest.mark.parametrize(
    ("image", "instance_type", "platform"),
    [
        (f"{OWN}-cpu", "ml.c7g.xlarge", "linux/arm64"),
        (f"{OWN}-cpu-arm64", "ml.m5.xlarge", "linux/amd64"),
        (f"{OWN}-arm64-models-0123456789ab", "ml.g5.xlarge", "linux/amd64"),
        # Others are left to AWS.
        (f"{OWN}-cpu-arm64", "ml.c7g.xlarge", ""),
        (f"{OWN}-cpu-amd64", "ml.g4dn.xlarge", ""),
        (f"{ACCOUNT}/mine", "ml.m5.xlarge", ""),
    ],
)
def test_an_image_for_the_other_processor_is_refused(image: str, instance_type: str, platform: str) -> None:
    with pytest.raises(CommandError, match=platform) if platform else nullcontext():
        check_architecture(image, instance_type)

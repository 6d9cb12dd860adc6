"""A manifest is validated, and tells whether a plan runs on this machine and what to do if not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sm.hardware import Gpu, Hardware
from sm.repository import manifest
from sm.repository.manifest import Manifest
from tests.support.plans import PLAN_MANIFEST, plan_manifest

A10G = Gpu("NVIDIA A10G", "8.6")
T4 = Gpu("Tesla T4", "7.5")


def plan_built_with(version: str) -> Manifest:
    return plan_manifest(tool={"name": "TensorRT", "version": version})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("no json", "the file"),
        (json.dumps({**PLAN_MANIFEST, "target": "tpu"}), "target"),
        (json.dumps({**PLAN_MANIFEST, "built": "2026-11-21T12:00:00"}), "built"),
        (json.dumps({**PLAN_MANIFEST, "more": 1}), "more"),
    ],
)
def test_the_error_for_an_invalid_manifest_names_the_field(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / manifest.NAME).write_text(text)
    with pytest.raises(ValueError, match=rf"manifest\.json .*: {field}: "):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("built", "hardware", "difference"),
    [
        ("10.1.0", Hardware((A10G,), "11.0.0"), ("7.5", "10.1", "8.6", "11.0")),
        ("10.1.0", Hardware((T4,), "10.3.0"), ("7.5", "10.1", "7.5", "10.3")),
        ("10.1.0", Hardware((T4,), "10.1.2"), ("7.5", "10.1.0", "7.5", "10.1.2")),
        ("8.6.1.2", Hardware((T4,), "8.6.1.6"), ("7.5", "8.6.1.2", "7.5", "8.6.1.6")),
        ("10.1.0", Hardware((), None), ("7.5", "10.1")),
        ("10.1.0", Hardware((A10G,), None), ("7.5", "10.1", "8.6")),
    ],
    ids=["another GPU", "other minor version", "other patch version", "other build", "no GPU", "no TensorRT"],
)
def test_the_error_for_a_plan_of_another_machine_shows_versions_as_precisely_as_they_differ(
    built: str, hardware: Hardware, difference: tuple[str, ...]
) -> None:
    misfit = plan_built_with(built).find_misfit(hardware) or ""
    assert tuple(re.findall(r"\d+(?:\.\d+)+", misfit)) == difference
    assert "sm build-model resnet --target tensorrt" in misfit


@pytest.mark.parametrize("version", ["10.1", "10.1.0", "10.1.0.27", None])
def test_a_plan_for_this_gpu_and_tensorrt_runs(version: str | None) -> None:
    assert plan_built_with("10.1.0.27").find_misfit(Hardware((A10G, T4), version)) is None


@pytest.mark.parametrize(
    ("built", "available", "is_doubtful"),
    [
        ("10.1.0.27", "10.1.0.27", False),
        ("10.1.0", "10.1.0.27", True),
        ("10.1.0.27", "10.1.0", True),
        ("10.1.0", "10.1.0", True),
        ("10.1.0.27", None, False),
    ],
)
def test_a_plan_is_doubtful_if_one_of_the_four_numbers_is_unknown(
    built: str, available: str | None, is_doubtful: bool
) -> None:
    doubt = plan_built_with(built).find_doubt(Hardware((T4,), available))
    assert (doubt is not None) == is_doubtful


@pytest.mark.parametrize(
    ("available", "runs"),
    [
        ("10.1.0.27", True),
        ("10.1.0.28", True),
        ("10.13.3", True),
        ("11.0.0", True),
        ("10.0.9", False),
        ("8.6.1", False),
    ],
)
def test_a_version_compatible_plan_runs_with_every_later_tensorrt(available: str, runs: bool) -> None:
    plan = plan_manifest(tool={"name": "TensorRT", "version": "10.1.0.27"}, version_compatible=True)
    assert (plan.find_misfit(Hardware((T4,), available)) is None) == runs
    assert plan.find_misfit(Hardware((A10G,), available)) is not None
    assert plan.find_doubt(Hardware((T4,), available)) is None


@pytest.mark.parametrize(
    ("level", "capability", "runs"),
    [
        ("none", "8.6", True),
        ("none", "8.9", False),
        ("sameComputeCapability", "8.6", True),
        ("sameComputeCapability", "9.0", False),
        ("ampere+", "8.0", True),
        ("ampere+", "9.0", True),
        ("ampere+", "12.0", True),
        ("ampere+", "7.5", False),
    ],
)
def test_a_hardware_compatible_plan_runs_on_the_gpus_of_its_level(
    level: str, capability: str, runs: bool
) -> None:
    plan = plan_manifest(
        gpu={"name": "NVIDIA A10G", "compute_capability": "8.6"}, hardware_compatibility=level
    )
    assert (plan.find_misfit(Hardware((Gpu("another", capability),), "10.1")) is None) == runs

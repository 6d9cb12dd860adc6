"""A manifest is validated, and tells whether a plan runs on this machine and what to do if not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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
    with pytest.raises(ValueError, match=field):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("built", "hardware", "difference"),
    [
        ("10.1.0", Hardware((A10G,), "11.0.0"), ("7.5", "10.1.0", "8.6", "11.0.0")),
        ("10.1.0", Hardware((T4,), "10.3.0"), ("7.5", "10.1.0", "7.5", "10.3.0")),
        ("10.1.0", Hardware((T4,), "10.1.2"), ("7.5", "10.1.0", "7.5", "10.1.2")),
        ("8.6.1.2", Hardware((T4,), "8.6.1.6"), ("7.5", "8.6.1.2", "7.5", "8.6.1.6")),
        ("10.1.0", Hardware((), None), ("7.5", "10.1.0")),
        ("10.1.0", Hardware((A10G,), None), ("7.5", "10.1.0", "8.6")),
    ],
    ids=["another GPU", "other minor version", "other patch version", "other build", "no GPU", "no TensorRT"],
)
def test_a_plan_of_another_machine_is_refused_with_both_versions(
    built: str, hardware: Hardware, difference: tuple[str, ...]
) -> None:
    misfit = plan_built_with(built).find_misfit(hardware) or ""
    assert tuple(re.findall(r"\d+(?:\.\d+)+", misfit)) == difference
    assert "sm build-model resnet --target tensorrt" in misfit


ANY_LATER = {"version_compatible": True}


def on_gpus_like_the_a10g(level: str) -> dict[str, Any]:
    return {"gpu": {"name": A10G.name, "compute_capability": "8.6"}, "hardware_compatibility": level}


@pytest.mark.parametrize(
    ("fields", "gpu", "tensorrt", "runs"),
    [
        (ANY_LATER, "7.5", "10.1.0.28", True),
        (ANY_LATER, "7.5", "11.0.0", True),
        (ANY_LATER, "7.5", "10.0.9", False),
        (ANY_LATER, "7.5", "8.6.1", False),
        (ANY_LATER, "8.6", "11.0.0", False),
        (on_gpus_like_the_a10g("none"), "8.6", "10.1.0.27", True),
        (on_gpus_like_the_a10g("none"), "8.9", "10.1.0.27", False),
        (on_gpus_like_the_a10g("sameComputeCapability"), "8.6", "10.1.0.27", True),
        (on_gpus_like_the_a10g("sameComputeCapability"), "9.0", "10.1.0.27", False),
        (on_gpus_like_the_a10g("ampere+"), "8.0", "10.1.0.27", True),
        (on_gpus_like_the_a10g("ampere+"), "12.0", "10.1.0.27", True),
        (on_gpus_like_the_a10g("ampere+"), "7.5", "10.1.0.27", False),
    ],
)
def test_a_compatible_plan_runs_where_it_is_compatible(
    fields: Any, gpu: str, tensorrt: str, runs: bool
) -> None:
    plan = plan_manifest(tool={"name": "TensorRT", "version": "10.1.0.27"}, **fields)
    assert (plan.find_misfit(Hardware((Gpu("another", gpu),), tensorrt)) is None) == runs

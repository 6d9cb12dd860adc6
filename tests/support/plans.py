"""Make manifests of TensorRT plans, and say what is wrong with a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sm.repository import problems
from sm.repository.machine import Machine
from sm.repository.manifest import Manifest

SIZES = (3, 224, 224)
PLAN_MANIFEST: dict[str, Any] = {
    "model": "resnet",
    "target": "tensorrt",
    "source": {"name": "model.onnx", "sha256": "0" * 64},
    "tool": {"name": "TensorRT", "version": "10.1"},
    "precision": "fp16",
    "gpu": {"name": "Tesla T4", "compute_capability": "7.5"},
    "profiles": [{"input": "input", "minimum": [1, *SIZES], "optimum": [8, *SIZES], "maximum": [8, *SIZES]}],
    "built": "2026-11-21T12:00:00Z",
    "accuracy": {"max_error": 0.01, "mean_error": 0.001, "sizes": ["1", "8"]},
}


def plan_manifest(**changes: Any) -> Manifest:
    return Manifest.model_validate({**PLAN_MANIFEST, **changes})


def certain_problems(repository: Path, machine: Machine | None = None) -> list[str]:
    """Return the sentences of a repository's problems that stop a start."""
    return [problem.sentence for problem in problems.find(repository, machine) if problem.is_certain]

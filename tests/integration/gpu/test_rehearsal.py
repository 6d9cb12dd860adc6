"""A rehearsal of the GPU command on a machine without GPU and network, on a Python that has torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.contestant import MODELS
from bench.gpu import bundle
from sm.settings import HERE

#: A Python 3.12 with torch, onnx, onnxruntime and OpenCV, as the machine with the GPU has one.
GPU_PYTHON = os.environ.get("TRIREME_GPU_PYTHON", "")


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not GPU_PYTHON or not shutil.which("unshare"), reason="TRIREME_GPU_PYTHON names no Python with torch"
)
def test_the_models_give_their_golden_tensors_without_a_network(tmp_path: Path) -> None:
    bundle.make(tmp_path / "bundle", bundle.PYTHON, bundle.MODELS_WITH_OWN_WEIGHTS)
    stages = ("machine", "graphs", "programs", "serving")
    arguments = f"-m bench.gpu --bundle {tmp_path}/bundle --work {tmp_path}/work --out {tmp_path}/out --short --minutes 25"
    subprocess.run(
        (
            "unshare",
            "-n",
            "sh",
            "-c",
            f"ip link set lo up; exec {GPU_PYTHON} {arguments} --only {' '.join(stages)}",
        ),
        cwd=HERE,
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(tmp_path)},
        check=False,
        timeout=1700,
    )
    stage_results = json.loads((tmp_path / "out" / "gpu.json").read_text())["stages"]
    checks = {check["name"]: check["outcome"] for stage in stages for check in stage_results[stage]["checks"]}
    assert [checks[f"{model}: golden tensors"] for model in MODELS] == ["passed"] * 3
    assert "failed" not in checks.values(), checks

"""Checks of the GPU command that do not apply say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu import checks
from bench.gpu.stages import Context
from sm.repository.machine import Machine


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path / "bundle", tmp_path / "work", tmp_path / "out", True, 1.0, "fp32", False)


def test_without_a_plan_the_serving_check_does_not_apply(context: Context) -> None:
    (check,) = checks.served_plans(context).checks
    assert (check.outcome, check.detail) == ("not applicable", "no plan was built")


def test_the_serving_check_reports_a_triton_without_the_tensorrt_backend(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_folder = context.work / "plans" / "resnet" / "1"
    version_folder.mkdir(parents=True)
    (version_folder / "model.plan").touch()
    (tmp_path / "backends" / "python").mkdir(parents=True)
    monkeypatch.setattr(Machine, "of_this_host", lambda: Machine(backends=tmp_path / "backends"))
    (check,) = checks.served_plans(context).checks
    assert check.outcome == "not applicable"
    assert "no TensorRT backend" in check.detail


def test_a_model_with_other_outputs_is_not_compared_with_the_golden_tensors(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights_folder = context.bundle / "weights" / "bert_base"
    weights_folder.mkdir(parents=True)
    (weights_folder / "about.json").write_text('{"weights": "random"}')
    np.savez(weights_folder / "golden.npz", **{"input.ids": np.zeros(1), "output.words": np.zeros(1)})
    (tmp_path / "bert_base").mkdir()
    (tmp_path / "bert_base" / "config.pbtxt").write_text('output { name: "logits" }')

    class AnsweringBox:
        def invoke(self, model: str, payload: object) -> object:
            return type("Answer", (), {"status_code": 200})

    box: Any = AnsweringBox()
    tensors_check, answer_check = checks.compare_with_golden(context, box, "bert_base", tmp_path, "fp16")
    assert tensors_check.outcome == "not applicable"
    assert "logits" in tensors_check.detail
    assert answer_check.outcome == "not applicable"

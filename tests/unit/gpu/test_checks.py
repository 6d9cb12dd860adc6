"""What the checks of the GPU command say where they do not apply."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sm.inspection.machine import Machine
from tests.gpu import checks
from tests.gpu.stages import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path / "bundle", tmp_path / "work", tmp_path / "out", True, 1.0, "fp32", False)


def test_without_a_plan_there_is_nothing_to_serve(context: Context) -> None:
    (check,) = checks.served_plans(context).checks
    assert (check.outcome, check.detail) == ("not applicable", "no plan was built")


def test_a_triton_without_the_backend_is_named_as_the_reason(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = context.work / "plans" / "resnet" / "1"
    version.mkdir(parents=True)
    (version / "model.plan").touch()
    (tmp_path / "backends" / "python").mkdir(parents=True)
    monkeypatch.setattr(Machine, "of_this_host", lambda: Machine(backends=tmp_path / "backends"))
    (check,) = checks.served_plans(context).checks
    assert check.outcome == "not applicable"
    assert "no TensorRT backend" in check.detail


def test_a_model_with_other_outputs_is_not_compared_with_the_golden_tensors(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = context.bundle / "weights" / "bert_base"
    folder.mkdir(parents=True)
    (folder / "about.json").write_text('{"weights": "random"}')
    np.savez(folder / "golden.npz", **{"input.ids": np.zeros(1), "output.words": np.zeros(1)})
    (tmp_path / "bert_base").mkdir()
    (tmp_path / "bert_base" / "config.pbtxt").write_text('output { name: "logits" }')

    class Answering:
        def invoke(self, model: str, payload: object) -> object:
            return type("Answer", (), {"status_code": 200})

    first, second = checks.golden(context, Answering(), "bert_base", tmp_path, "fp16")  # type: ignore[arg-type]
    assert first.outcome == "not applicable"
    assert "logits" in first.detail
    assert second.outcome == "not applicable"

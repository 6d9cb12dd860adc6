"""Which default functions a script gets, and what they do without a library or with a fake one."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sm.errors import StartError
from sm.http.messages import CSV, JSON
from sm.plugins.toolkit.scripts import (
    Context,
    Defaults,
    PyTorchDefaults,
    ScikitLearnDefaults,
    ScriptFunctions,
    XGBoostDefaults,
    choose_defaults,
    load_torchscript,
)


def model_of_library(module: str, name: str) -> Any:
    """Return an object whose class derives from a class with this module and name."""
    return type("Own", (type(name, (), {"__module__": module}),), {"__module__": "inference"})()


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("torch.nn.modules.module", "Module", PyTorchDefaults),
        ("xgboost.core", "Booster", XGBoostDefaults),
        ("xgboost.sklearn", "XGBClassifier", ScikitLearnDefaults),
        ("sklearn.ensemble._forest", "RandomForestClassifier", ScikitLearnDefaults),
        ("builtins_of_mine", "Model", Defaults),
    ],
)
def test_a_script_gets_the_defaults_of_its_models_library(module: str, name: str, expected: type) -> None:
    assert type(choose_defaults(model_of_library(module, name))) is expected


def test_without_model_fn_and_torchscript_the_start_fails(tmp_path: Path) -> None:
    functions = ScriptFunctions(ModuleType("inference"))
    with pytest.raises(StartError, match="model_fn"):
        functions.load(Context("model", tmp_path))
    for name in ("a.pt", "b.pth"):
        (tmp_path / name).touch()
    with pytest.raises(StartError, match="a.pt, b.pth"):
        load_torchscript(tmp_path)
    (tmp_path / "model.pt").touch()
    with pytest.raises(StartError, match=r"torch, .*code/requirements.txt"):
        load_torchscript(tmp_path)


class FakeTensor:
    """A tensor that knows its device."""

    def __init__(self, values: np.ndarray[Any, Any], device: str = "cpu") -> None:
        self.values, self.device = values, device

    def to(self, device: str) -> FakeTensor:
        return FakeTensor(self.values, device)

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return FakeTensor(self.values)

    def tolist(self) -> Any:
        assert self.device == "cpu"
        return self.values.tolist()


class FakeModel:
    def __init__(self) -> None:
        self.device, self.evaluating = "cpu", False

    def to(self, device: str) -> FakeModel:
        self.device = device
        return self

    def eval(self) -> None:
        self.evaluating = True

    def __call__(self, data: FakeTensor) -> FakeTensor:
        assert (self.device, data.device, self.evaluating) == ("cuda", "cuda", True)
        return FakeTensor(data.values * 2, "cuda")


@pytest.mark.parametrize(("body", "content_type"), [("[1, 2]", JSON), ("1,2", CSV)])
def test_on_a_gpu_model_and_tensors_are_moved_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, content_type: str
) -> None:
    load_arguments: list[Any] = []

    def jit_load(path: str, map_location: str) -> FakeModel:
        load_arguments[:] = [Path(path).name, map_location]
        return FakeModel()

    fake_torch: Any = ModuleType("torch")
    fake_torch.cuda = SimpleNamespace(is_available=lambda: True)
    fake_torch.jit = SimpleNamespace(load=jit_load)
    fake_torch.device, fake_torch.no_grad = str, nullcontext
    fake_torch.from_numpy, fake_torch.Tensor = FakeTensor, FakeTensor
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    (tmp_path / "model.pth").touch()
    model, defaults = load_torchscript(tmp_path), PyTorchDefaults()
    assert (load_arguments, model.device) == (["model.pth", "cuda"], "cuda")
    data = defaults.decode(body, content_type, model)
    assert (data.device, data.values.dtype) == ("cuda", np.float32)
    answer = np.array(json.loads(defaults.encode(defaults.predict(data, model), JSON)))
    assert answer.ravel().tolist() == [2, 4]


def test_the_scikit_learn_decoder_makes_rows_and_keeps_texts() -> None:
    decode = ScikitLearnDefaults().decode
    assert decode("1,2.5,3", CSV, None).shape == (1, 3)
    assert decode("1,2.5\n3,4.5", CSV, None).dtype == np.float32
    assert decode('["42", "6"]', JSON, None).tolist() == [[42, 6]]
    assert decode('["a text", "another"]', JSON, None).tolist() == ["a text", "another"]

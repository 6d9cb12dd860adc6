"""Whose default functions a script gets, and what they do where a library is missing or played."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sm.errors import BadInput, StartError, UnsupportedType
from sm.plugins.toolkit import codecs
from sm.plugins.toolkit.defaults import (
    Defaults,
    PyTorchDefaults,
    ScikitLearnDefaults,
    XGBoostDefaults,
    choose_defaults,
    load_torchscript,
)
from sm.plugins.toolkit.libsvm import read
from sm.plugins.toolkit.npz import NPZ, read_sparse
from sm.plugins.toolkit.script_context import Context
from sm.plugins.toolkit.script_functions import ScriptFunctions


def model_of(module: str, name: str) -> Any:
    """An object whose class, below its own, is one of a library."""
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
def test_the_model_says_whose_defaults_a_script_gets(module: str, name: str, expected: type) -> None:
    assert type(choose_defaults(model_of(module, name))) is expected


@pytest.mark.parametrize(
    ("imports", "expected"),
    [(("torch.nn",), PyTorchDefaults), (("torch", "transformers"), Defaults), ((), Defaults)],
)
def test_of_a_model_of_its_own_a_script_says_it_by_what_it_imports(
    imports: tuple[str, ...], expected: type
) -> None:
    script = ModuleType("inference")
    for name in imports:
        setattr(script, name.replace(".", "_"), ModuleType(name))
    assert type(choose_defaults({"net": 1}, script)) is expected


def test_without_model_fn_and_a_torchscript_file_the_start_fails_and_says_so(tmp_path: Path) -> None:
    handler = ScriptFunctions(ModuleType("inference"))
    with pytest.raises(StartError, match="it has no model_fn, and the default for one needs a TorchScript"):
        handler.load(Context("model", tmp_path))
    for name in ("a.pt", "b.pth"):
        (tmp_path / name).touch()
    with pytest.raises(StartError, match="there are a.pt, b.pth"):
        load_torchscript(tmp_path)
    (tmp_path / "model.pt").touch()
    with pytest.raises(StartError, match="torch, which would load model.pt, is not installed: name it in"):
        load_torchscript(tmp_path)


class PlayedTensor:
    """Remembers where it was moved to."""

    def __init__(self, values: np.ndarray[Any, Any], place: str = "cpu") -> None:
        self.values, self.place = values, place

    def to(self, place: str) -> PlayedTensor:
        return PlayedTensor(self.values, place)

    def detach(self) -> PlayedTensor:
        return self

    def cpu(self) -> PlayedTensor:
        return PlayedTensor(self.values)

    def tolist(self) -> Any:
        assert self.place == "cpu"
        return self.values.tolist()


class PlayedModel:
    def __init__(self) -> None:
        self.place, self.evaluating = "cpu", False

    def to(self, place: str) -> PlayedModel:
        self.place = place
        return self

    def eval(self) -> None:
        self.evaluating = True

    def __call__(self, data: PlayedTensor) -> PlayedTensor:
        assert (self.place, data.place, self.evaluating) == ("cuda", "cuda", True)
        return PlayedTensor(data.values * 2, "cuda")


class NoGradients:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("body", "content_type"), [("[1, 2]", codecs.JSON), ("1,2", codecs.CSV), ("1 1:1 2:2", "text/libsvm")]
)
def test_with_a_played_gpu_model_and_tensors_are_moved_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, content_type: str
) -> None:
    loaded: list[Any] = []

    def jit_load(path: str, map_location: str) -> PlayedModel:
        loaded[:] = [Path(path).name, map_location]
        return PlayedModel()

    played: Any = ModuleType("torch")
    played.cuda = SimpleNamespace(is_available=lambda: True)
    played.jit = SimpleNamespace(load=jit_load)
    played.device, played.no_grad = str, NoGradients
    played.from_numpy, played.Tensor = PlayedTensor, PlayedTensor
    monkeypatch.setitem(sys.modules, "torch", played)
    (tmp_path / "model.pth").touch()
    model, defaults = load_torchscript(tmp_path), PyTorchDefaults()
    assert (loaded, model.place) == (["model.pth", "cuda"], "cuda")
    data = defaults.decode(body, content_type, model)
    assert (data.place, data.values.dtype) == ("cuda", np.float32)
    answer = np.array(json.loads(defaults.encode(defaults.predict(data, model), codecs.JSON)))
    assert answer.ravel().tolist() == [2, 4]


def test_what_cannot_be_in_a_tensor_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    played: Any = ModuleType("torch")
    played.from_numpy = PlayedTensor
    monkeypatch.setitem(sys.modules, "torch", played)
    for body in ('["a", "b"]', "[[1], [2, 3]]"):
        with pytest.raises(BadInput):
            PyTorchDefaults().decode(body, codecs.JSON, None)
    # As scripts for the Hugging Face container expect it.
    assert PyTorchDefaults().decode('{"inputs": "a"}', codecs.JSON, None) == {"inputs": "a"}


def test_scikit_learns_rows_keep_texts_and_make_one_row_of_a_list() -> None:
    decode = ScikitLearnDefaults().decode
    assert decode("1,2.5,3", codecs.CSV, None).shape == (1, 3)
    assert decode("1,2.5\n3,4.5", codecs.CSV, None).dtype == np.float32
    assert decode('["42", "6"]', codecs.JSON, None).tolist() == [[42, 6]]
    assert decode('["a text", "another"]', codecs.JSON, None).tolist() == ["a text", "another"]
    assert decode("1 1:5", "text/libsvm", SimpleNamespace(n_features_in_=3)).tolist() == [[5, 0, 0]]


def test_a_sparse_body_without_scipy_says_what_to_install() -> None:
    with pytest.raises(UnsupportedType, match="code/requirements.txt has to name it"):
        read_sparse(b"PK")
    assert NPZ in codecs.DECODERS


def test_libsvm_lines_have_labels_or_none_and_count_from_one_or_zero() -> None:
    assert read("0 1:1 2:2\n1 3:3").dense().tolist() == [[1, 2, 0], [0, 0, 3]]
    assert read("0:1 2:2\n1 qid:7 1:3 # two").dense().tolist() == [[1, 0, 2], [0, 3, 0]]
    assert read("1\n0 2:1").dense().tolist() == [[0, 0], [0, 1]]
    assert read("-1.5").dense(4).tolist() == [[0, 0, 0, 0]]

"""A script's functions and the defaults in their place: which it must have, what each is given, and how its answers are sent."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sm.errors import StartError, TriremeError
from sm.http.messages import CSV, JSON, JSON_LINES, NPY
from sm.plugins import code_imports
from sm.plugins.checks import UncheckedClient
from sm.plugins.loading import load
from sm.plugins.sources import discover
from tests.support.client_sources import EmptyTriton
from tests.support.npy_bodies import encode_npy
from trireme_extensions.toolkit.client_sources import STAND_IN
from trireme_extensions.toolkit.scripts import (
    Context,
    Defaults,
    PyTorchDefaults,
    ScikitLearnDefaults,
    ScriptFunctions,
    XGBoostDefaults,
    choose_defaults,
    load_torchscript,
)


def context() -> Context:
    return Context("model", Path("/opt/ml/model"), {"x-amzn-sagemaker-custom-attributes": "k=v"})


def script_module(text: str) -> ModuleType:
    module = ModuleType("inference")
    exec(text, vars(module))
    return module


def answer_of_script(text: str) -> tuple[bytes, str]:
    functions = ScriptFunctions(script_module(text))
    return functions.answer(functions.load(context()), b"[1]", JSON, JSON, context())


MODEL_FN = "def model_fn(folder): return folder\n"


def test_each_function_may_take_the_context() -> None:
    text = (
        "def model_fn(folder, context): return [context.system_properties['model_dir']]\n"
        "def input_fn(body, kind, context): return context.get_request_header(0, 'X-Amzn-SageMaker-Custom-Attributes')\n"
        "def predict_fn(data, model, context): return [data, context.model_name, *model]\n"
        "def output_fn(prediction, accept, context):\n"
        "    context.set_response_content_type(0, 'text/plain')\n"
        "    return ' '.join(prediction)\n"
    )
    assert answer_of_script(text) == (b"k=v model /opt/ml/model", "text/plain")


@pytest.mark.parametrize(("accept", "body"), [(CSV, b"2\n4\n"), (JSON, b"[2, 4]"), (JSON_LINES, b"2\n4")])
def test_without_own_codecs_the_body_and_the_answer_have_the_types_of_the_headers(
    accept: str, body: bytes
) -> None:
    functions = ScriptFunctions(script_module("def model_fn(folder): return lambda data: data * 2\n"))
    model, sent = functions.load(context()), encode_npy(np.array([1, 2]))
    assert functions.answer(model, sent, NPY, accept, context()) == (body, accept)


#: The codecs' errors are caught unless it is ``STRICT``.
CATCHING = """
from sagemaker_inference import decoder, encoder, errors

def model_fn(folder):
    return folder

def transform_fn(model, body, content_type, accept):
    try:
        return encoder.encode(decoder.decode(body, content_type).tolist(), accept)
    except (errors.UnsupportedFormatError, ValueError) as error:
        if STRICT:
            raise
        return type(error).__name__, "text/plain"
"""


@pytest.mark.parametrize(
    ("body", "content_type", "accept", "status"),
    [(b"<x/>", "text/xml", JSON, 415), (b"[1,", JSON, JSON, 400), (b"[1]", JSON, "image/png", 406)],
)
def test_a_script_can_catch_the_codecs_errors_which_have_a_status_else(
    monkeypatch: pytest.MonkeyPatch, body: bytes, content_type: str, accept: str, status: int
) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    strict, lenient = (
        ScriptFunctions(script_module(f"STRICT = {value}{CATCHING}")) for value in (True, False)
    )
    assert strict.answer("", b"[1]", JSON, CSV, context()) == (b"1\n", CSV)
    with pytest.raises(TriremeError) as failed:
        strict.answer("", body, content_type, accept, context())
    assert failed.value.status == status
    assert lenient.answer("", body, content_type, accept, context())[1] == "text/plain"


def test_a_toolkit_error_keeps_its_status_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    raises = "raise errors.GenericInferenceToolkitError(422, 'no such colour')"
    text = f"from sagemaker_inference import errors\n{MODEL_FN}def predict_fn(data, model): {raises}\n"
    with pytest.raises(TriremeError, match="no such colour") as failed:
        answer_of_script(text)
    assert failed.value.status == 422


OUTPUTS = {
    "'text'": b"text",
    "b'bytes'": b"bytes",
    "bytearray(b'a')": b"a",
    "{'a': [1]}": b'{"a": [1]}',
    "None": b"null",
}


@pytest.mark.parametrize("expression", OUTPUTS)
def test_the_output_of_a_script_is_sent_as_bytes(expression: str) -> None:
    text = f"{MODEL_FN}def predict_fn(d, m): return 0\ndef output_fn(p, accept): return {expression}\n"
    assert answer_of_script(text) == (OUTPUTS[expression], JSON)


def test_pre_model_fn_and_model_warmup_fn_run_before_and_after_model_fn() -> None:
    text = (
        "seen = []\n"
        "def pre_model_fn(folder): seen.append('before')\n"
        "def model_fn(folder): seen.append('model'); return seen\n"
        "def model_warmup_fn(folder, model): model.append('after')\n"
    )
    assert ScriptFunctions(script_module(text)).load(context()) == ["before", "model", "after"]


@pytest.mark.parametrize(
    ("functions", "named"),
    [
        ("def transform_fn(m, b, c, a): pass\ndef input_fn(b, c): pass\n", "transform_fn and input_fn"),
        ("def predict_fn(data): pass\n", r"predict_fn\(data\)"),
        ("def input_fn(a, b, c, d): pass\n", r"input_fn\(a, b, c, d\)"),
    ],
)
def test_a_script_with_wrong_functions_stops_the_start_and_they_are_named(functions: str, named: str) -> None:
    with pytest.raises(StartError, match=named):
        ScriptFunctions(script_module(MODEL_FN + functions))


def test_without_model_fn_and_torchscript_the_start_fails(tmp_path: Path) -> None:
    for files, named in (((), "model_fn"), (("a.pt", "b.pth"), "a.pt, b.pth"), (("model.pt",), "torch, ")):
        for name in files:
            (tmp_path / name).touch()
        with pytest.raises(StartError, match=named):
            ScriptFunctions(ModuleType("inference")).load(Context("model", tmp_path))


def model_of_library(module: str, name: str) -> Any:
    """Return an object whose class derives from a class with this module and name."""
    return type("Own", (type(name, (), {"__module__": module}),), {"__module__": "inference"})()


@pytest.mark.parametrize(
    ("model", "imports", "expected"),
    [
        (model_of_library("torch.nn.modules.module", "Module"), [], PyTorchDefaults),
        (model_of_library("xgboost.core", "Booster"), [], XGBoostDefaults),
        (model_of_library("xgboost.sklearn", "XGBClassifier"), [], ScikitLearnDefaults),
        (model_of_library("sklearn.ensemble._forest", "RandomForestClassifier"), [], ScikitLearnDefaults),
        (model_of_library("builtins_of_mine", "Model"), [], Defaults),
        # A class of the script's own has the defaults of its imports.
        ({"net": 1}, ["torch"], PyTorchDefaults),
        ({"net": 1}, ["torch", "transformers"], Defaults),
        ({"net": 1}, [], Defaults),
    ],
)
def test_a_script_gets_the_defaults_of_its_models_library(model: Any, imports: Any, expected: type) -> None:
    script = ModuleType("inference")
    vars(script).update({name: ModuleType(name) for name in imports})
    assert type(choose_defaults(model, script)) is expected


class FakeTensor:
    """A tensor or a model that knows its device."""

    def __init__(self, values: Any = None, device: str = "cpu") -> None:
        self.values, self.device, self.evaluating = values, device, False

    def to(self, device: str) -> FakeTensor:
        return FakeTensor(self.values, device)

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        assert self.device == "cpu"
        return self.values.tolist()

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

    def jit_load(path: str, map_location: str) -> FakeTensor:
        load_arguments[:] = [Path(path).name, map_location]
        return FakeTensor()

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


#: A model whose class a pickle would look up by its module's name, while the model is loaded.
OWN_CLASS = """
import importlib

class Net:
    pass

def model_fn(folder):
    return importlib.import_module("inference").Net()

def transform_fn(model, body, content_type, accept):
    return str(isinstance(model, Net)), "text/plain"
"""


def test_what_a_model_is_unpickled_to_is_of_the_scripts_own_class(tmp_path: Path) -> None:
    """In multi-model mode a client is loaded and checked one after the other."""
    (tmp_path / "inference.py").write_text(OWN_CLASS)
    (source,) = discover((tmp_path,))
    client: Any = load(source, EmptyTriton(), tmp_path)
    UncheckedClient(client, source, EmptyTriton()).check()
    answer = client.inference(client.payload(body=b"", content_type="text/plain"))
    code_imports.forget_modules(tmp_path)
    assert answer.body == b"True"

"""Which functions a script must have, what it is told when it has not, and what each is given."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sm.errors import ChosenStatus, ClientFailed, StartError, UnsupportedType
from sm.plugins.toolkit.defaults import Defaults
from sm.plugins.toolkit.script_context import Context
from sm.plugins.toolkit.script_functions import ScriptFunctions, accept_context, to_trireme_error
from sm.plugins.toolkit.script_modules import STAND_IN


def context() -> Context:
    return Context("model", Path("/opt/ml/model"), {"x-amzn-sagemaker-custom-attributes": "k=v"})


def script(text: str) -> ModuleType:
    module = ModuleType("inference")
    exec(text, vars(module))
    return module


def answer(text: str, body: bytes = b"[1]", content_type: str = "application/json") -> tuple[bytes, str]:
    handler = ScriptFunctions(script(text))
    return handler.answer(handler.load(context()), body, content_type, "application/json", context())


MODEL = "def model_fn(folder): return folder\n"


def test_transform_fn_does_all_the_work() -> None:
    text = (
        MODEL
        + "def transform_fn(model, body, kind, accept): return f'{model} {body} {kind} {accept}', 'text/x'\n"
    )
    assert answer(text) == (b"/opt/ml/model [1] application/json application/json", "text/x")


def test_each_function_may_take_the_context_too() -> None:
    text = (
        "def model_fn(folder, context): return [context.system_properties['model_dir']]\n"
        "def input_fn(body, kind, context): return context.get_request_header(0, 'X-Amzn-SageMaker-Custom-Attributes')\n"
        "def predict_fn(data, model, context): return [data, context.model_name, *model]\n"
        "def output_fn(prediction, accept, context):\n"
        "    context.set_response_content_type(0, 'text/plain')\n"
        "    return ' '.join(prediction)\n"
    )
    assert answer(text) == (b"k=v model /opt/ml/model", "text/plain")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("'text'", b"text"),
        ("b'bytes'", b"bytes"),
        ("bytearray(b'array')", b"array"),
        ("{'a': [1]}", b'{"a": [1]}'),
        ("None", b"null"),
    ],
)
def test_whatever_the_script_answers_becomes_bytes(said: str, expected: bytes) -> None:
    text = (
        MODEL + f"def predict_fn(data, model): return 0\ndef output_fn(prediction, accept): return {said}\n"
    )
    assert answer(text) == (expected, "application/json")


def test_json_and_csv_are_text_to_the_script_and_all_else_is_bytes() -> None:
    text = MODEL + "def transform_fn(model, body, kind, accept): return type(body).__name__\n"
    kinds = {
        kind: answer(text, b"1", kind)[0] for kind in ("application/json", "text/csv", "text/plain", "x/y")
    }
    assert kinds == {"application/json": b"str", "text/csv": b"str", "text/plain": b"bytes", "x/y": b"bytes"}


def test_what_comes_before_and_after_the_model_is_called() -> None:
    text = (
        "seen = []\n"
        "def pre_model_fn(folder): seen.append('before')\n"
        "def model_fn(folder): seen.append('model'); return seen\n"
        "def model_warmup_fn(folder, model): model.append('after')\n"
    )
    assert ScriptFunctions(script(text)).load(context()) == ["before", "model", "after"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            MODEL + "def transform_fn(m, b, c, a): pass\ndef input_fn(b, c): pass\n",
            "it has transform_fn and input_fn",
        ),
        (MODEL + "def predict_fn(data): pass\n", r"predict_fn\(data\) is given 2 arguments"),
        (MODEL + "def input_fn(a, b, c, d): pass\n", r"input_fn\(a, b, c, d\) is given 2 arguments"),
    ],
)
def test_a_script_that_cannot_work_is_told_so_at_start(text: str, reason: str) -> None:
    with pytest.raises(StartError, match=reason):
        ScriptFunctions(script(text))


def test_an_argument_with_a_default_is_left_at_it_unless_it_is_the_context() -> None:
    def own_default(folder: str, name: str = "own") -> str:
        return name

    def context_default(folder: str, context: Any = None) -> Any:
        return context

    given = context()
    assert accept_context(own_default, 1)("folder", given) == "own"
    assert accept_context(context_default, 1)("folder", given) is given
    assert accept_context(lambda *arguments: arguments, 2)(1, 2, given) == (1, 2)


def test_without_predict_fn_the_model_predicts_or_is_called() -> None:
    predict = Defaults().predict
    assert predict(2, SimpleNamespace(predict=lambda data: data + 1)) == 3
    assert predict(2, lambda data: data + 2) == 4
    with pytest.raises(ClientFailed, match=r"no predict_fn, and its model \(dict\) cannot be called"):
        predict(2, {})


def test_the_toolkits_errors_become_the_boxs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    errors = importlib.import_module("sagemaker_inference.errors")
    chosen = to_trireme_error(errors.GenericInferenceToolkitError(422, "no such colour"))
    assert isinstance(chosen, ChosenStatus)
    assert (chosen.status, chosen.sentence) == (422, "no such colour")
    assert isinstance(to_trireme_error(errors.UnsupportedFormatError("text/xml")), UnsupportedType)
    assert isinstance(to_trireme_error(KeyError("own")), KeyError)
    for name in [name for name in sys.modules if name.startswith("sagemaker_inference")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("status", [0, 200, 302, 700])
def test_a_status_that_is_no_errors_is_a_500(status: int) -> None:
    assert ChosenStatus(status, "odd").status == 500

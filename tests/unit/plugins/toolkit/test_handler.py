"""A script's functions: which it must have, what each is request_context, and how its answers are sent."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from sm.errors import StartError
from sm.plugins.toolkit.scripts import Context, ScriptFunctions


def context() -> Context:
    return Context("model", Path("/opt/ml/model"), {"x-amzn-sagemaker-custom-attributes": "k=v"})


def script_module(text: str) -> ModuleType:
    module = ModuleType("inference")
    exec(text, vars(module))
    return module


def answer_of_script(
    text: str, body: bytes = b"[1]", content_type: str = "application/json"
) -> tuple[bytes, str]:
    functions = ScriptFunctions(script_module(text))
    return functions.answer(functions.load(context()), body, content_type, "application/json", context())


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


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'text'", b"text"),
        ("b'bytes'", b"bytes"),
        ("bytearray(b'array')", b"array"),
        ("{'a': [1]}", b'{"a": [1]}'),
        ("None", b"null"),
    ],
)
def test_the_output_of_a_script_is_sent_as_bytes(expression: str, expected: bytes) -> None:
    text = (
        MODEL_FN
        + f"def predict_fn(data, model): return 0\ndef output_fn(prediction, accept): return {expression}\n"
    )
    assert answer_of_script(text) == (expected, "application/json")


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

"""A script's functions, with the toolkit's defaults for those it has not."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from inspect import Parameter
from types import ModuleType
from typing import Any

from sm.errors import ChosenStatus, ClientFailed, StartError, TriremeError, UnsupportedType
from sm.toolkit import codecs
from sm.toolkit.context import Context

Function = Callable[..., Any]
#: How many arguments each function is given, the context not counted.
ARGUMENTS = {
    "pre_model_fn": 1,
    "model_fn": 1,
    "model_warmup_fn": 2,
    "input_fn": 2,
    "predict_fn": 2,
    "output_fn": 2,
    "transform_fn": 4,
}


class Handler:
    """The functions of one script. :class:`StartError` says what is wrong with them."""

    def __init__(self, script: ModuleType) -> None:
        own = {name: given for name in ARGUMENTS if (given := getattr(script, name, None))}
        if "model_fn" not in own:
            raise StartError("it has no model_fn, and there is no default for it.")
        if "transform_fn" in own and (more := sorted(own.keys() & {"input_fn", "predict_fn", "output_fn"})):
            raise StartError(
                f"it has transform_fn and {', '.join(more)}: transform_fn does the work of all three."
            )
        defaults: dict[str, Function] = {
            "input_fn": codecs.decode,
            "predict_fn": predict,
            "output_fn": encode,
            "transform_fn": self._steps,
        }
        self._functions = {
            name: with_context(function, ARGUMENTS[name]) for name, function in {**defaults, **own}.items()
        }

    def load(self, context: Context) -> Any:
        """The script's model."""
        folder = str(context.model_dir)
        self._call("pre_model_fn", folder, context)
        model = self._call("model_fn", folder, context)
        self._call("model_warmup_fn", folder, model, context)
        return model

    def answer(
        self, model: Any, body: bytes, content_type: str, accept: str, context: Context
    ) -> tuple[bytes, str]:
        """The answer's bytes and their content type."""
        data = codecs.text_of(body) if content_type in codecs.TEXTS else body
        try:
            said = self._call("transform_fn", model, data, content_type, accept, context)
        except Exception as error:
            raise translated(error) from error
        given, kind = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
        return _bytes(given), kind or context.content_type or accept

    def _call(self, name: str, *arguments: Any) -> Any:
        function = self._functions.get(name)
        return function(*arguments) if function else None

    def _steps(self, model: Any, data: Any, content_type: str, accept: str, context: Context) -> Any:
        decoded = self._call("input_fn", data, content_type, context)
        prediction = self._call("predict_fn", decoded, model, context)
        return self._call("output_fn", prediction, accept, context)


def with_context(function: Function, given: int) -> Function:
    """``function`` as one that takes a context behind its ``given`` arguments, whether it wants it or not.

    It does if one argument more has no default, or is called ``context``.
    """
    signature = inspect.signature(function)
    more = list(signature.parameters.values())[given : given + 1]
    wants = any(
        each.name == "context" or (each.default is Parameter.empty and each.kind in POSITIONAL)
        for each in more
    )
    try:
        signature.bind(*range(given + wants))
    except TypeError:
        name = getattr(function, "__name__", "a function")
        raise StartError(
            f"{name}{signature} is given {given} arguments, and a context if it takes one more."
        ) from None
    return function if wants else lambda *arguments: function(*arguments[:-1])


def predict(data: Any, model: Any) -> Any:
    """``model.predict`` as in the scikit-learn container, or the model called, as in PyTorch's."""
    ask = getattr(model, "predict", model)
    if not callable(ask):
        raise ClientFailed(
            f"the script has no predict_fn, and its model ({type(model).__name__}) cannot be called"
        )
    return ask(data)


def encode(prediction: Any, accept: str) -> tuple[str | bytes, str]:
    return codecs.encode(prediction, accept), accept


def translated(error: Exception) -> Exception:
    """The toolkit's own errors as the box's; any other as it is."""
    kinds = sys.modules.get("sagemaker_inference.errors")
    if kinds is None or isinstance(error, TriremeError):
        return error
    if isinstance(error, kinds.BaseInferenceToolkitError):
        return ChosenStatus(int(error.status_code), str(error.message))
    if isinstance(error, kinds.UnsupportedFormatError):
        return UnsupportedType(str(error).strip().splitlines()[0])
    return error


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _bytes(given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    return codecs.to_json(given).encode()

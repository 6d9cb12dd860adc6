"""Call a script's functions, or the default for one that it does not define."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from http import HTTPStatus
from inspect import Parameter
from types import ModuleType
from typing import Any

from werkzeug.wrappers import Response

from sm.errors import ChosenStatus, StartError, TriremeError, UnsupportedType
from sm.plugins.toolkit import codecs
from sm.plugins.toolkit.defaults import Defaults, defaults_of, load_torchscript
from sm.plugins.toolkit.script_context import Context

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


class ScriptFunctions:
    """The functions of one script. :class:`StartError` says what is wrong with them."""

    def __init__(self, script: ModuleType) -> None:
        own = {name: given for name in ARGUMENTS if (given := getattr(script, name, None))}
        if "transform_fn" in own and (more := sorted(own.keys() & {"input_fn", "predict_fn", "output_fn"})):
            raise StartError(
                f"it has transform_fn and {', '.join(more)}: transform_fn does the work of all three."
            )
        self._script = script
        self._own = {name: with_context(function, ARGUMENTS[name]) for name, function in own.items()}
        #: For the functions that the script has not; chosen once its model is there.
        self._defaults = Defaults()

    def load(self, context: Context) -> Any:
        """The script's model."""
        folder = str(context.model_dir)
        self._call("pre_model_fn", folder, context)
        if "model_fn" in self._own:
            model = self._call("model_fn", folder, context)
        else:
            model = load_torchscript(context.model_dir)
        self._defaults = defaults_of(model, self._script)
        self._call("model_warmup_fn", folder, model, context)
        return model

    def answer(
        self, model: Any, body: bytes, content_type: str, accept: str, context: Context
    ) -> tuple[bytes, str]:
        """The answer's bytes and their content type."""
        data = codecs.text_of(body) if content_type in codecs.TEXTS else body
        try:
            if "transform_fn" in self._own:
                said = self._call("transform_fn", model, data, content_type, accept, context)
            else:
                said = self._steps(model, data, content_type, accept, context)
        except Exception as error:
            raise to_trireme_error(error) from error
        given, kind = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
        if isinstance(given, Response):
            given, kind = _opened(given)
        return _bytes(given), kind or context.content_type or accept

    def _call(self, name: str, *arguments: Any) -> Any:
        function = self._own.get(name)
        return function(*arguments) if function else None

    def _steps(self, model: Any, data: Any, content_type: str, accept: str, context: Context) -> Any:
        own, defaults = self._own, self._defaults
        if "input_fn" in own:
            decoded = self._call("input_fn", data, content_type, context)
        else:
            decoded = defaults.decode(data, content_type, model)
        if "predict_fn" in own:
            prediction = self._call("predict_fn", decoded, model, context)
        else:
            prediction = defaults.predict(decoded, model)
        if "output_fn" in own:
            return self._call("output_fn", prediction, accept, context)
        if content_type == codecs.JSON_LINES and not context.accept_named:
            accept = codecs.JSON_LINES
        return defaults.encode(prediction, accept), accept


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


def to_trireme_error(error: Exception) -> Exception:
    """The toolkit's own errors as the box's; any other as it is."""
    kinds = sys.modules.get("sagemaker_inference.errors")
    if kinds is None or isinstance(error, TriremeError):
        # Also what the stand-in's codecs raise, which is both.
        return error
    if isinstance(error, kinds.BaseInferenceToolkitError):
        return ChosenStatus(int(error.status_code), str(error.message))
    if isinstance(error, kinds.UnsupportedFormatError):
        return UnsupportedType(str(error).strip().splitlines()[0])
    return error


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _opened(given: Response) -> tuple[bytes, str]:
    """The body of a response as Flask has it, which scripts for the older toolkit answer with."""
    body = given.get_data()
    if given.status_code >= HTTPStatus.BAD_REQUEST:
        raise ChosenStatus(given.status_code, body.decode(errors="replace"))
    return body, given.mimetype or ""


def _bytes(given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    return codecs.to_json(given).encode()

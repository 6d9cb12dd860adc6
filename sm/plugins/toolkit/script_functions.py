"""Call a script's functions, or the default for one that it does not define."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

from werkzeug.wrappers import Response

from sm.errors import ChosenStatus, StartError, TriremeError, UnsupportedType
from sm.plugins.toolkit import codecs
from sm.plugins.toolkit.defaults import Defaults, choose_defaults, load_torchscript


@dataclass
class Context:
    """The context of a request, or of loading the model. A batch always has one record."""

    model_name: str
    model_dir: Path
    #: Names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: True if the caller sent an Accept header.
    accept_named: bool = True
    #: The content type of the answer, set by the script.
    content_type: str = ""

    @property
    def system_properties(self) -> dict[str, object]:
        return {
            "model_dir": str(self.model_dir),
            "gpu_id": 0 if Path("/dev/nvidia0").exists() else None,
            "batch_size": 1,
            "server_name": "trireme",
        }

    @property
    def manifest(self) -> dict[str, object]:
        return {}

    @property
    def request_processor(self) -> list[Context]:
        return [self]

    def get_request_properties(self) -> dict[str, str]:
        return dict(self.headers)

    def get_all_request_header(self, _index: int) -> dict[str, str]:
        return dict(self.headers)

    def get_request_header(self, _index: int, key: str) -> str | None:
        return self.headers.get(key.lower())

    def set_response_content_type(self, _index: int, value: str) -> None:
        self.content_type = value


Function = Callable[..., Any]
#: The number of arguments of each function, without the context.
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
    """The functions of one script. Raises :class:`StartError` if their arguments are wrong."""

    def __init__(self, script: ModuleType) -> None:
        functions = {name: function for name in ARGUMENTS if (function := getattr(script, name, None))}
        others = sorted(functions.keys() & {"input_fn", "predict_fn", "output_fn"})
        if "transform_fn" in functions and others:
            raise StartError(
                f"it has transform_fn and {', '.join(others)}: transform_fn does the work of all three."
            )
        self._script = script
        self._functions = {
            name: accept_context(function, ARGUMENTS[name]) for name, function in functions.items()
        }
        #: Stand-ins for functions that the script lacks; chosen after its model is loaded.
        self._defaults = Defaults()

    def load(self, context: Context) -> Any:
        """Load the script's model."""
        folder = str(context.model_dir)
        self._call("pre_model_fn", folder, context)
        if "model_fn" in self._functions:
            model = self._call("model_fn", folder, context)
        else:
            model = load_torchscript(context.model_dir)
        self._defaults = choose_defaults(model, self._script)
        self._call("model_warmup_fn", folder, model, context)
        return model

    def answer(
        self, model: Any, body: bytes, content_type: str, accept: str, context: Context
    ) -> tuple[bytes, str]:
        """Return the answer's bytes and content type."""
        data = codecs.decode_text(body) if content_type in codecs.TEXT_TYPES else body
        try:
            if "transform_fn" in self._functions:
                returned = self._call("transform_fn", model, data, content_type, accept, context)
            else:
                returned = self._run_steps(model, data, content_type, accept, context)
        except Exception as error:
            raise to_trireme_error(error) from error
        content, chosen_type = (
            returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, "")
        )
        if isinstance(content, Response):
            content, chosen_type = _read_response(content)
        return _to_bytes(content), chosen_type or context.content_type or accept

    def _call(self, name: str, *arguments: Any) -> Any:
        function = self._functions.get(name)
        return function(*arguments) if function else None

    def _run_steps(self, model: Any, data: Any, content_type: str, accept: str, context: Context) -> Any:
        functions, defaults = self._functions, self._defaults
        if "input_fn" in functions:
            decoded = self._call("input_fn", data, content_type, context)
        else:
            decoded = defaults.decode(data, content_type, model)
        if "predict_fn" in functions:
            prediction = self._call("predict_fn", decoded, model, context)
        else:
            prediction = defaults.predict(decoded, model)
        if "output_fn" in functions:
            return self._call("output_fn", prediction, accept, context)
        if content_type == codecs.JSON_LINES and not context.accept_named:
            accept = codecs.JSON_LINES
        return defaults.encode(prediction, accept), accept


def accept_context(function: Function, argument_count: int) -> Function:
    """Wrap ``function``, which takes ``argument_count`` arguments, so that a context can be passed too.

    It gets the context if its next argument has no default, or is named ``context``.
    """
    signature = inspect.signature(function)
    next_parameters = list(signature.parameters.values())[argument_count : argument_count + 1]
    takes_context = any(
        parameter.name == "context" or (parameter.default is Parameter.empty and parameter.kind in POSITIONAL)
        for parameter in next_parameters
    )
    try:
        signature.bind(*range(argument_count + takes_context))
    except TypeError:
        name = getattr(function, "__name__", "a function")
        raise StartError(
            f"{name}{signature} is given {argument_count} arguments, and a context if it takes one more."
        ) from None
    return function if takes_context else lambda *arguments: function(*arguments[:-1])


def to_trireme_error(error: Exception) -> Exception:
    """Translate the toolkit's errors to the box's; others are returned unchanged."""
    toolkit_errors = sys.modules.get("sagemaker_inference.errors")
    if toolkit_errors is None or isinstance(error, TriremeError):
        # The stand-in's codecs raise errors that are both.
        return error
    if isinstance(error, toolkit_errors.BaseInferenceToolkitError):
        return ChosenStatus(int(error.status_code), str(error.message))
    if isinstance(error, toolkit_errors.UnsupportedFormatError):
        return UnsupportedType(str(error).strip().splitlines()[0])
    return error


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _read_response(response: Response) -> tuple[bytes, str]:
    """Return the body of a Flask response, which scripts for the older toolkit may return."""
    body = response.get_data()
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        raise ChosenStatus(response.status_code, body.decode(errors="replace"))
    return body, response.mimetype or ""


def _to_bytes(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    return codecs.to_json(content).encode()

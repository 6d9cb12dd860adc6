"""Serve a script of the SageMaker toolkit as a client.

The functions that it does not define are those of AWS's containers. The model's class decides: a torch module
gets the defaults of the PyTorch container, models of scikit-learn and XGBoost those of their containers, and
any other model those of the plain toolkit. The libraries come with the user's model, not with the box.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.recfunctions import structured_to_unstructured
from werkzeug.wrappers import Response

from sm.client.base import Client, Triton
from sm.client.payloads import BodyPayload
from sm.client.results import Encoded
from sm.errors import (
    BadInput,
    ChosenStatus,
    ClientFailed,
    DeadlinePassed,
    NotAcceptable,
    StartError,
    TriremeError,
    UnsupportedType,
)
from sm.http.media_types import acceptable, kind_of, most_wanted, quality_of, read_accept
from sm.http.messages import CSV, JSON, JSON_LINES, NPY
from sm.invocation import current, wait
from sm.plugins.code_imports import plain_names
from sm.plugins.stuck_code import GRACE_S, replace_worker
from trireme_extensions.toolkit import codecs
from trireme_extensions.toolkit.functions import FUNCTIONS

log = logging.getLogger(__name__)


#: Suffixes of TorchScript files, and the name that is preferred if there are several.
TORCH_SUFFIXES = (".pt", ".pth")
TORCH_FILE = "model.pt"
#: Characters of a CSV in which XGBoost's container searches for the delimiter.
SNIFFED_CHARACTERS = 512
#: Types of an Accept header that a script is asked for, one after the other.
MAX_ACCEPTED = 4


class Defaults:
    """The plain toolkit's defaults: arrays in, ``model.predict`` or a call of the model, arrays out."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        return codecs.decode(body, content_type)

    def predict(self, data: Any, model: Any) -> Any:
        call = getattr(model, "predict", model)
        if not callable(call):
            raise ClientFailed(
                f"the script has no predict_fn, and its model ({type(model).__name__}) cannot be called"
            )
        return call(data)

    def encode(self, prediction: Any, accept: str) -> str | bytes:
        return codecs.encode(prediction, accept)


class PyTorchDefaults(Defaults):
    """Tensors, on the GPU if there is one, without gradients."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        """Return a tensor: float32 from text, the array's own type from ``.npy``."""
        torch = import_torch()
        array = codecs.decode(body, content_type)
        if not isinstance(array, np.ndarray):
            # A JSON object or a sparse matrix, which a tensor cannot hold.
            return array
        try:
            numbers = array if content_type == NPY else to_plain_array(array).astype(np.float32)
            tensor = torch.from_numpy(numbers)
        except (TypeError, ValueError):
            raise BadInput(
                f"the body has values ({array.dtype}) that cannot be in a tensor: numbers are expected"
            ) from None
        return tensor.to(device(torch))

    def predict(self, data: Any, model: Any) -> Any:
        if not callable(getattr(model, "to", None)):
            return super().predict(data, model)
        torch = import_torch()
        with torch.no_grad():
            model = model.to(device(torch))
            model.eval()
            return model(data.to(device(torch)) if hasattr(data, "to") else data)

    def encode(self, prediction: Any, accept: str) -> str | bytes:
        if isinstance(prediction, import_torch().Tensor):
            prediction = prediction.detach().cpu().tolist()
        return codecs.encode(prediction, accept)


class ScikitLearnDefaults(Defaults):
    """Rows of float32 from text, and ``model.predict``."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        array = codecs.decode(body, content_type)
        if not isinstance(array, np.ndarray):
            return array
        if content_type != NPY:
            try:
                array = to_plain_array(array).astype(np.float32)
            except (TypeError, ValueError):
                # Strings, which a pipeline with a vectorizer accepts.
                return array
        return array.reshape(1, -1) if array.ndim == 1 else array


class XGBoostDefaults(Defaults):
    """A ``DMatrix`` of rows, and ``Booster.predict``."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        if content_type == CSV:
            return csv_to_dmatrix(body)
        array = codecs.decode(body, content_type)
        if isinstance(array, dict):
            raise BadInput("the body is a JSON object: XGBoost takes rows of numbers")
        return dmatrix(array)

    def predict(self, data: Any, model: Any) -> Any:
        return model.predict(data, validate_features=False)


def choose_defaults(model: Any, script: ModuleType | None = None) -> Defaults:
    """Choose the defaults by the model's class, or by the script's imports if no library is recognised."""
    classes = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}
    libraries = {name.partition(".")[0] for name in classes}
    if "torch.nn.modules.module.Module" in classes:
        return PyTorchDefaults()
    if "xgboost.core.Booster" in classes:
        return XGBoostDefaults()
    if libraries & {"sklearn", "xgboost"}:
        return ScikitLearnDefaults()
    imported = set(_imported_libraries(script)) if script else set()
    # Scripts for the Hugging Face container import both, and expect JSON objects instead of tensors.
    if "torch" in imported and "transformers" not in imported:
        return PyTorchDefaults()
    return Defaults()


def load_torchscript(folder: Path) -> Any:
    """Load the TorchScript model in ``model.pt``, or in the only file of its kind: the default ``model_fn``.

    Raises :class:`StartError` if there is none, or if torch is missing.
    """
    paths = [path for path in folder.glob("*") if path.suffix in TORCH_SUFFIXES and path.is_file()]
    path = paths[0] if len(paths) == 1 else folder / TORCH_FILE
    if path not in paths:
        found = ", ".join(sorted(path.name for path in paths)) or "none"
        raise StartError(
            f"it has no model_fn, and the default for one takes {TORCH_FILE} or the only .pt or .pth file in "
            f"{folder}: there are {found}."
        )
    try:
        torch = import_torch()
    except ImportError:
        raise StartError(
            f"it has no model_fn, and torch, which would load {path.name}, is not installed: name it in "
            "code/requirements.txt and set TRIREME_INSTALL_REQUIREMENTS=true, or build an image that has it."
        ) from None
    target = device(torch)
    try:
        return torch.jit.load(str(path), map_location=target).to(target)
    except (RuntimeError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise StartError(
            f"it has no model_fn, and {path.name} is not a TorchScript model "
            f"as torch.jit.save writes it: {reason}"
        ) from error


def import_torch() -> Any:
    return importlib.import_module("torch")


def device(torch: Any) -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_plain_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert records to rows and columns: NumPy creates records from a CSV with integers and floats."""
    if array.dtype.names is None:
        return array
    table: np.ndarray[Any, Any] = structured_to_unstructured(array, dtype=np.float64)
    return table


def csv_to_dmatrix(body: str | bytes) -> Any:
    """Parse rows of numbers with any delimiter; an empty cell is a missing value."""
    text = codecs.to_text(body).strip("\r\n")
    if not text.strip():
        raise BadInput("the body has no line of CSV")
    lines = text.splitlines()
    try:
        delimiter = csv.Sniffer().sniff(lines[0][:SNIFFED_CHARACTERS]).delimiter
    except csv.Error:
        delimiter = ","
    delimiter = "," if delimiter.isalnum() or delimiter in ".-+" else delimiter
    try:
        rows = [[float(cell) if cell.strip() else np.nan for cell in line.split(delimiter)] for line in lines]
    except ValueError as error:
        raise BadInput(f"the body is not CSV of numbers: {str(error)[:100]}") from None
    if len(set(map(len, rows))) > 1:
        raise BadInput("the lines of the body differ in their number of cells")
    return dmatrix(np.array(rows))


def dmatrix(rows: Any) -> Any:
    """Create a ``DMatrix`` from rows of numbers. Raises :class:`BadInput`."""
    xgboost = importlib.import_module("xgboost")
    try:
        if isinstance(rows, np.ndarray):
            rows = to_plain_array(rows).astype(np.float64)
            rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
        return xgboost.DMatrix(rows)
    except (TypeError, ValueError, xgboost.core.XGBoostError) as error:
        raise BadInput(f"the body is not a table of numbers: {str(error).strip()[:100]}") from None


def _imported_libraries(script: ModuleType) -> Iterator[str]:
    """Yield the libraries that a script imports, in whole or in part."""
    for value in vars(script).values():
        # Compare types only: another object may define ``__getattr__`` with side effects.
        if type(value) is ModuleType:
            yield value.__name__.partition(".")[0]
        elif isinstance(value, type):
            yield str(value.__module__).partition(".")[0]


@dataclass
class Context:
    """The context of a request, or of loading the model. A batch always has one record."""

    model_name: str
    model_dir: Path
    #: Names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The types that the caller accepts, the best first.
    accepted: tuple[str, ...] = ()
    #: True if the caller named one.
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


class ScriptFunctions:
    """The functions of one script. Raises :class:`StartError` if their arguments are wrong."""

    def __init__(self, script: ModuleType) -> None:
        functions = {name: function for name in FUNCTIONS if (function := getattr(script, name, None))}
        others = sorted(functions.keys() & {"input_fn", "predict_fn", "output_fn"})
        if "transform_fn" in functions and others:
            raise StartError(
                f"it has transform_fn and {', '.join(others)}: transform_fn does the work of all three."
            )
        self._script = script
        self._functions = {
            name: accept_context(function, FUNCTIONS[name]) for name, function in functions.items()
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
        data = codecs.decode_text(body) if kind_of(content_type) in codecs.TEXT_TYPES else body
        try:
            accepted = context.accepted or (accept,)
            if "transform_fn" in self._functions:
                returned, accept = first_acceptable(
                    accepted,
                    lambda kind: self._call("transform_fn", model, data, content_type, kind, context),
                )
            else:
                returned, accept = self._run_steps(model, data, content_type, accepted, context)
        except Exception as error:
            raise to_trireme_error(error) from error
        content, chosen_type = (
            returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, "")
        )
        if isinstance(content, Response):
            content, chosen_type = _read_response(content)
        return to_bytes(content), chosen_type or context.content_type or accept

    def _call(self, name: str, *arguments: Any) -> Any:
        function = self._functions.get(name)
        return function(*arguments) if function else None

    def _run_steps(
        self, model: Any, data: Any, content_type: str, accepted: Sequence[str], context: Context
    ) -> tuple[Any, str]:
        """Return the answer, with its content type if the defaults have made it, and the type asked for."""
        functions, defaults = self._functions, self._defaults
        decode: Function = functions.get(
            "input_fn", lambda data, kind, _: defaults.decode(data, kind_of(kind), model)
        )
        predict: Function = functions.get("predict_fn", lambda data, model, _: defaults.predict(data, model))
        prediction = predict(decode(data, content_type, context), model, context)
        if "output_fn" in functions:
            return first_acceptable(accepted, lambda kind: functions["output_fn"](prediction, kind, context))
        if kind_of(content_type) == JSON_LINES and not context.accept_named:
            accepted = (JSON_LINES,)
        encoded = first_acceptable(accepted, lambda kind: defaults.encode(prediction, kind_of(kind)))
        return encoded, encoded[1]


def first_acceptable(accepted: Sequence[str], encode: Callable[[str], Any]) -> tuple[Any, str]:
    """Return what ``encode`` gives for the first type that it can give, and the type.

    Raises what it raises for the first one if it can give none.
    """
    first: Exception | None = None
    for kind in accepted:
        try:
            return encode(kind), kind
        except Exception as error:
            translated = to_trireme_error(error)
            if not isinstance(translated, NotAcceptable | UnsupportedType):
                raise
            first = first or error
    assert first is not None
    raise first


def accepted_types(header: str, default: str) -> tuple[str, ...]:
    """Return the types that a script is asked for, the best first: at most :data:`MAX_ACCEPTED`.

    The types of the box's own encoders come before others of the same quality, as a browser's ``text/html``.
    """
    offers = tuple(dict.fromkeys((default, *codecs.ENCODERS)))
    known = acceptable(header, offers)
    named = {each.name: each.quality for each in read_accept(header) if "*" not in each.name and each.quality}
    # A wildcard gets its best type only: the script need not run again for a type that nobody named.
    own = {kind: named.pop(kind, quality_of(header, kind)) for kind in known if kind in (known[0], *named)}
    ordered = sorted({**own, **named}.items(), key=lambda item: -item[1])
    return tuple(kind for kind, _ in ordered)[:MAX_ACCEPTED] or (most_wanted(header) or default,)


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


def to_bytes(content: Any) -> bytes:
    """Return an answer as bytes: a text in UTF-8, another value as JSON."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    return codecs.to_json(content).encode()


class ToolkitClient(Client):
    """Serves a script that has the functions of the SageMaker inference toolkit."""

    payload = BodyPayload
    answers_unnamed = True
    #: The script's name to ``import``.
    module = ""

    def __init__(self, triton: Triton, folder: Path, repository: Path) -> None:
        super().__init__(triton, folder, repository)
        self._handler = self.read_functions()
        #: The toolkit runs one request at a time in each process, and a script may rely on that.
        self._lock = threading.Lock()
        #: The deadline of the current request, in seconds of the monotonic clock, and its thread.
        self._request_end, self._thread = math.inf, 0
        self._is_ending = False

    def read_functions(self) -> ScriptFunctions:
        """Import the script."""
        with plain_names(self.folder):
            return ScriptFunctions(importlib.import_module(self.module))

    def setup(self) -> None:
        with plain_names(self.folder, anew=False):
            self._model = self._handler.load(self._context())

    def inference(self, payload: BodyPayload) -> object:
        """Answer bytes with bytes, or the payload of a dispatch request with a value for its answer."""
        accept = JSON if payload.dispatched else payload.accept
        with self._exclusive_access():
            body, kind = self._handler.answer(
                self._model, payload.body, payload.content_type, accept, self._context(payload)
            )
        return _decode_answer(body, kind) if payload.dispatched else Encoded(body, kind)

    def _context(self, payload: BodyPayload | None = None) -> Context:
        if payload is None:
            return Context(self.name, self.repository)
        headers = {**payload.headers, "content-type": payload.content_type, "accept": payload.accept}
        if payload.dispatched:
            return Context(self.name, self.repository, headers, (JSON,))
        accepted = accepted_types(payload.accept_header, payload.accept)
        named = bool(most_wanted(payload.accept_header))
        return Context(self.name, self.repository, headers, accepted, named)

    @contextmanager
    def _exclusive_access(self) -> Iterator[None]:
        invocation = current()
        try:
            wait(partial(self._lock.acquire, True), invocation)
        except DeadlinePassed:
            self._replace_if_stuck()
            raise DeadlinePassed(
                f"{self.name} was busy with earlier requests until the invocation's time was over"
            ) from None
        try:
            if invocation:
                invocation.check()
            self._request_end = invocation.at if invocation else math.inf
            self._thread = threading.get_ident()
            yield
        finally:
            self._lock.release()

    def _replace_if_stuck(self) -> None:
        """End this worker if the script does not return: gunicorn starts another."""
        if time.monotonic() < self._request_end + GRACE_S or self._is_ending:
            return
        self._is_ending = True
        log.error("%s is still busy with a request after its deadline: its worker is replaced", self.name)
        replace_worker(self._thread, 0)  # the other requests have ended


def _decode_answer(body: bytes, content_type: str) -> Any:
    """Decode a script's answer for the ``result`` of a JSON answer."""
    try:
        return json.loads(body) if content_type.startswith("application/json") else body.decode()
    except ValueError:
        raise NotAcceptable(
            f"the answer is {content_type[:100]!r}, which has no place in JSON: send the payload as the body"
        ) from None

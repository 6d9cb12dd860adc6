"""The part of the SageMaker inference toolkit that scripts import, for a box without the toolkit.

Names and meaning are the toolkit's; :mod:`trireme_extensions.toolkit` does the work. This file has the code
of all modules of the package, and adds them to ``sys.modules``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from logging import Logger, getLogger
from pathlib import Path
from types import ModuleType
from typing import Any

from sm.errors import BadInput, ClientFailed, NotAcceptable, UnsupportedType
from sm.http.messages import CSV, JSON, NPY, NPZ
from trireme_extensions.toolkit import codecs

__path__: list[str] = []


def add_module(name: str, *members: Any, **constants: object) -> ModuleType:
    """Add a module of the package. Its classes and functions then say that they come from it."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    for member in members:
        if member.__module__ == name.partition(".")[0]:
            member.__module__ = name
        setattr(module, member.__name__, member)
    vars(module).update(constants)
    parent, _, own_name = name.rpartition(".")
    setattr(sys.modules[parent], own_name, module)
    sys.modules[name] = module
    return module


content_types = add_module(
    f"{__name__}.content_types",
    JSON=JSON,
    CSV=CSV,
    OCTET_STREAM="application/octet-stream",
    ANY="*/*",
    NPY=NPY,
    NPZ=NPZ,
    UTF8_TYPES=[JSON, CSV],
)
parameters = add_module(
    f"{__name__}.parameters",
    BASE_PATH_ENV="SAGEMAKER_BASE_DIR",
    USER_PROGRAM_ENV="SAGEMAKER_PROGRAM",
    LOG_LEVEL_ENV="SAGEMAKER_CONTAINER_LOG_LEVEL",
    DEFAULT_INVOCATIONS_ACCEPT_ENV="SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT",
    MODEL_SERVER_WORKERS_ENV="SAGEMAKER_MODEL_SERVER_WORKERS",
    MODEL_SERVER_TIMEOUT_ENV="SAGEMAKER_MODEL_SERVER_TIMEOUT",
    STARTUP_TIMEOUT_ENV="SAGEMAKER_STARTUP_TIMEOUT",
    BIND_TO_PORT_ENV="SAGEMAKER_BIND_TO_PORT",
    SAFE_PORT_RANGE_ENV="SAGEMAKER_SAFE_PORT_RANGE",
    MULTI_MODEL_ENV="SAGEMAKER_MULTI_MODEL",
    MAX_REQUEST_SIZE="SAGEMAKER_MAX_REQUEST_SIZE",
)


# The errors that a script raises to choose its answer; ``to_trireme_error`` of the scripts translates
# them. The codecs here raise subclasses that are also the box's own errors: if a script does not catch one,
# its caller gets the status and the sentence.


class UnsupportedFormatError(Exception):
    """A content type that the script cannot read or write."""

    def __init__(self, content_type: str, **_: object) -> None:
        super().__init__(f"the script does not know the content type {content_type!r}")


class BaseInferenceToolkitError(Exception):
    """An error with a status that the script chose."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        self.status_code, self.message, self.phrase = status_code, message, phrase
        super().__init__(status_code, message, phrase)


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    """The same with defaults."""

    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        text = message or "Invalid Request"
        super().__init__(status_code, text, phrase or text)


class UnsupportedBody(UnsupportedFormatError, UnsupportedType):
    """A body's content type that cannot be decoded."""

    def __init__(self, error: UnsupportedType) -> None:
        UnsupportedType.__init__(self, error.sentence)


class UnsupportedAnswer(UnsupportedFormatError, NotAcceptable):
    """A content type in which nothing can be encoded."""

    def __init__(self, error: NotAcceptable) -> None:
        NotAcceptable.__init__(self, error.sentence)


class UnreadableBody(BadInput, ValueError):
    """A body that does not match its content type. The toolkit raises some kind of ValueError."""


class UnwritableAnswer(ClientFailed, TypeError, ValueError):
    """A value that the content type cannot express. The toolkit raises either of the two."""


add_module(
    f"{__name__}.errors",
    UnsupportedFormatError,
    BaseInferenceToolkitError,
    GenericInferenceToolkitError,
    UnsupportedBody,
    UnsupportedAnswer,
    UnreadableBody,
    UnwritableAnswer,
)


def decode(obj: str | bytes, content_type: str) -> Any:
    """Decode a body to an array. Raises :class:`UnsupportedFormatError` for an unknown content type."""
    try:
        return codecs.decode(obj, content_type)
    except UnsupportedType as error:
        raise UnsupportedBody(error) from None
    except BadInput as error:
        raise UnreadableBody(error.sentence) from None


def encode(array_like: Any, content_type: str) -> str | bytes:
    """Encode an array, or a value that can become one. Raises :class:`UnsupportedFormatError`."""
    try:
        return codecs.encode(array_like, content_type)
    except NotAcceptable as error:
        raise UnsupportedAnswer(error) from None
    except ClientFailed as error:
        raise UnwritableAnswer(error.sentence) from error


add_module(f"{__name__}.decoder", decode)
encoder = add_module(f"{__name__}.encoder", encode, SUPPORTED_CONTENT_TYPES=set(codecs.ENCODERS))


class Environment:
    """The environment variables, read when the object is created."""

    def __init__(self) -> None:
        getenv = os.environ.get
        self.module_name = getenv(parameters.USER_PROGRAM_ENV, environment.DEFAULT_MODULE_NAME)
        self.module_name = self.module_name.removesuffix(".py")
        self.model_server_timeout = int(
            getenv(parameters.MODEL_SERVER_TIMEOUT_ENV, environment.DEFAULT_MODEL_SERVER_TIMEOUT)
        )
        self.model_server_workers = getenv(parameters.MODEL_SERVER_WORKERS_ENV)
        self.default_accept = getenv(parameters.DEFAULT_INVOCATIONS_ACCEPT_ENV, content_types.JSON)
        self.inference_http_port = getenv(parameters.BIND_TO_PORT_ENV, environment.DEFAULT_HTTP_PORT)
        self.management_http_port = self.inference_http_port
        self.safe_port_range = getenv(parameters.SAFE_PORT_RANGE_ENV)


# Texts, because scripts join texts to them.
_base = os.environ.get(parameters.BASE_PATH_ENV, "/opt/ml")
_model = str(Path(_base) / ("models" if os.environ.get(parameters.MULTI_MODEL_ENV) == "true" else "model"))
environment = add_module(
    f"{__name__}.environment",
    Environment,
    DEFAULT_MODULE_NAME="inference.py",
    DEFAULT_MODEL_SERVER_TIMEOUT="60",
    DEFAULT_HTTP_PORT="8080",
    SAGEMAKER_BASE_PATH="/opt/ml",
    base_dir=_base,
    model_dir=_model,
    code_dir=f"{_model}/code",
)


def configure_logger() -> None:
    """Do nothing: the box has configured logging."""


def get_logger() -> Logger:
    """Return the toolkit's logger; its lines go to the box's log."""
    return getLogger("sagemaker-inference")


add_module(f"{__name__}.logging", configure_logger, get_logger)

CONTENT_TYPE_REGEX = re.compile(r"content-?type", re.IGNORECASE)


def read_file(path: str, mode: str = "r") -> Any:
    with Path(path).open(mode) as file:
        return file.read()


def write_file(path: str, data: Any, mode: str = "w") -> None:
    with Path(path).open(mode) as file:
        file.write(data)


def retrieve_content_type_header(request_property: Mapping[str, str]) -> str | None:
    """Return the header's value, in any spelling of its name."""
    return next((value for name, value in request_property.items() if CONTENT_TYPE_REGEX.match(name)), None)


def parse_accept(accept: str) -> list[str]:
    """Parse the content types of an ``Accept`` header."""
    return accept.replace(" ", "").split(",")


def remove_crlf(illegal_string: str) -> str:
    """Remove line ends, so that a text can be a header's value."""
    return illegal_string.replace("\r", " ").replace("\n", " ")


add_module(
    f"{__name__}.utils",
    read_file,
    write_file,
    retrieve_content_type_header,
    parse_accept,
    remove_crlf,
    CONTENT_TYPE_REGEX=CONTENT_TYPE_REGEX,
)


class DefaultInferenceHandler:
    """Decodes and encodes; subclasses load a model and call it."""

    def default_model_fn(self, model_dir: str, context: Any = None) -> Any:
        raise NotImplementedError("the script has to have a model_fn(model_dir) that returns the model")

    def default_input_fn(self, input_data: Any, content_type: str, context: Any = None) -> Any:  # noqa: ARG002
        return decode(input_data, content_type)

    def default_predict_fn(self, data: Any, model: Any, context: Any = None) -> Any:
        raise NotImplementedError("the script has to have a predict_fn(data, model) that returns the result")

    def default_output_fn(self, prediction: Any, accept: str, context: Any = None) -> Any:  # noqa: ARG002
        """Return the encoded value and its content type: the first of ``accept`` that has an encoder."""
        for content_type in parse_accept(accept):
            if content_type in encoder.SUPPORTED_CONTENT_TYPES:
                return encode(prediction, content_type), content_type
        raise UnsupportedFormatError(accept)


add_module(f"{__name__}.default_inference_handler", DefaultInferenceHandler)

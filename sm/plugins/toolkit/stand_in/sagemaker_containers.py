"""The older toolkit, of the scikit-learn and XGBoost containers: the part that scripts import."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sagemaker_inference import content_types, environment
from sagemaker_inference.decoder import decode
from sagemaker_inference.encoder import encode
from sagemaker_inference.errors import UnsupportedFormatError
from werkzeug import wrappers

from sm.plugins.toolkit.code_imports import add_module

__path__: list[str] = []


def array_to_npy(array_like: Any) -> Any:
    return encode(array_like, content_types.NPY)


def array_to_json(array_like: Any) -> Any:
    return encode(array_like, content_types.JSON)


def array_to_csv(array_like: Any) -> Any:
    return encode(array_like, content_types.CSV)


def npy_to_numpy(npy_array: bytes) -> Any:
    return decode(npy_array, content_types.NPY)


def json_to_numpy(string_like: str, dtype: Any = None) -> Any:
    return _cast(decode(string_like, content_types.JSON), dtype)


def csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    return _cast(decode(string_like, content_types.CSV), dtype)


def _cast(array: Any, dtype: Any) -> Any:
    return array if dtype is None else array.astype(dtype)


class ServingEnv(environment.Environment):  # type: ignore[misc]  # a class without types to mypy
    """The toolkit's environment under its older name."""


class ClientError(Exception):
    """The script's own error. Its caller gets a 500."""


class Response(wrappers.Response):
    """A body with its content type; read by :mod:`sm.plugins.toolkit.scripts`."""

    def __init__(
        self,
        response: Any = None,
        accept: str | None = None,
        status: int = HTTPStatus.OK,
        mimetype: str = content_types.JSON,
    ) -> None:
        super().__init__(response=response, status=status, mimetype=accept or mimetype)


# Scripts import these three but call nothing of them: the box does not train, and imports modules and calls a
# script's functions itself.
add_module(f"{__name__}.entry_point")
add_module(f"{__name__}.beta")
FRAMEWORK = f"{__name__}.beta.framework"
add_module(FRAMEWORK)
add_module(f"{FRAMEWORK}.modules")
add_module(f"{FRAMEWORK}.transformer")
add_module(
    f"{FRAMEWORK}.content_types",
    **{name: value for name, value in vars(content_types).items() if name.isupper()},
)
add_module(
    f"{FRAMEWORK}.encoders",
    array_to_npy,
    array_to_json,
    array_to_csv,
    npy_to_numpy,
    json_to_numpy,
    csv_to_numpy,
    decode,
    encode,
)
add_module(f"{FRAMEWORK}.env", ServingEnv, code_dir=environment.code_dir, model_dir=environment.model_dir)
add_module(f"{FRAMEWORK}.errors", ClientError, UnsupportedFormatError)
add_module(f"{FRAMEWORK}.worker", Response)

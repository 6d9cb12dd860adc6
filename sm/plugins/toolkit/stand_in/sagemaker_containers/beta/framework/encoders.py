"""Bodies to arrays and arrays to bodies."""

from __future__ import annotations

from typing import Any

from sagemaker_inference import content_types
from sagemaker_inference.decoder import decode
from sagemaker_inference.encoder import encode

__all__ = [
    "array_to_csv",
    "array_to_json",
    "array_to_npy",
    "csv_to_numpy",
    "decode",
    "encode",
    "json_to_numpy",
    "npy_to_numpy",
]


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

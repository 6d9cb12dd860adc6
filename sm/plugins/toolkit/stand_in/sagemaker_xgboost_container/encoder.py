"""Bodies to XGBoost's ``DMatrix``."""

from __future__ import annotations

import json
from typing import Any

from sagemaker_inference.errors import UnsupportedFormatError

from sm.plugins.toolkit import codecs, libsvm, recordio
from sm.plugins.toolkit.defaults import csv_to_dmatrix, libsvm_to_dmatrix, recordio_protobuf_to_dmatrix

__all__ = [
    "csv_to_dmatrix",
    "decode",
    "json_to_jsonlines",
    "libsvm_to_dmatrix",
    "recordio_protobuf_to_dmatrix",
]


def decode(obj: str | bytes, content_type: str) -> Any:
    """Decode CSV, LibSVM or RecordIO to a ``DMatrix``. Raises :class:`UnsupportedFormatError` for another
    type.
    """
    kind = content_type.partition(";")[0].strip()
    if kind == codecs.CSV:
        return csv_to_dmatrix(obj)
    if kind in libsvm.TYPES:
        return libsvm_to_dmatrix(obj)
    if kind == recordio.RECORDIO:
        return recordio_protobuf_to_dmatrix(obj)
    raise UnsupportedFormatError(kind)


def json_to_jsonlines(json_data: Any) -> bytes:
    """Return a line for each entry of the only list in a JSON object."""
    members = json_data if isinstance(json_data, dict) else json.loads(json_data)
    if len(members) != 1:
        raise ValueError("the JSON object has to have one member, a list")
    (entries,) = members.values()
    return "".join(f"{json.dumps(entry)}\n" for entry in entries).encode()

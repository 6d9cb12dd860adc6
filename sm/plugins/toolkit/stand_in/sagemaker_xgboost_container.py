"""What scripts of the XGBoost container import."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from sagemaker_inference.errors import UnsupportedFormatError

from sm.plugins.toolkit.code_imports import add_module
from sm.plugins.toolkit.scripts import (
    TO_DMATRIX,
    csv_to_dmatrix,
    libsvm_to_dmatrix,
    recordio_protobuf_to_dmatrix,
)

__path__: list[str] = []


def decode(obj: str | bytes, content_type: str) -> Any:
    """Decode CSV, LibSVM or RecordIO to a ``DMatrix``. Raises :class:`UnsupportedFormatError` for another
    type.
    """
    kind = content_type.partition(";")[0].strip()
    if kind not in TO_DMATRIX:
        raise UnsupportedFormatError(kind)
    return TO_DMATRIX[kind](obj)


def json_to_jsonlines(json_data: Any) -> bytes:
    """Return a line for each entry of the only list in a JSON object."""
    members = json_data if isinstance(json_data, dict) else json.loads(json_data)
    if len(members) != 1:
        raise ValueError("the JSON object has to have one member, a list")
    (entries,) = members.values()
    return "".join(f"{json.dumps(entry)}\n" for entry in entries).encode()


def get_dmatrix(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("the box serves and does not train: get_dmatrix is for training")


def rabit_run(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("the box serves and does not train: rabit_run is for training")


add_module(
    f"{__name__}.encoder",
    csv_to_dmatrix,
    decode,
    json_to_jsonlines,
    libsvm_to_dmatrix,
    recordio_protobuf_to_dmatrix,
)
# Scripts that can also train import these but call none of them.
add_module(f"{__name__}.data_utils", get_dmatrix)
add_module(f"{__name__}.distributed", rabit_run)

"""Read ``config.pbtxt`` with Triton's own protobuf."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import text_format

#: Bytes. Real configurations have a few kilobytes, and the text parser takes seconds for a megabyte.
MAX_CONFIG_BYTES = 2**20
#: Messages of the text parser for a field or a value that it does not know.
UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
UNKNOWN_VALUE = re.compile(r"Enum type .* has no value named")


class UnknownName(ValueError):
    """The file has a field or value that this version of Triton's protobuf does not know."""


@functools.cache
def protobuf() -> ModuleType:
    """Import ``model_config_pb2`` without its package, which would load gRPC: 30 MB more in PID 1."""
    package = importlib.util.find_spec("tritonclient")
    (home, *_) = package.submodule_search_locations or [""] if package else [""]
    path = Path(home) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("tritonclient.grpc.model_config_pb2", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is missing from tritonclient")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Any:
    """Read a ``ModelConfig``. Raises ValueError with the fault and its line."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a regular file.")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(
                f"{path} has more than {MAX_CONFIG_BYTES} bytes: that is not a Triton configuration."
            )
        return text_format.Parse(path.read_text(), protobuf().ModelConfig())
    except text_format.ParseError as error:
        raise _explain(path, error) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a Triton configuration: {error}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None


def parse(text: str) -> Any:
    """Parse the text of a ``ModelConfig``. Raises ValueError with the fault."""
    try:
        return text_format.Parse(text, protobuf().ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(f"it is not a Triton configuration: {error}.") from None


def write(config: Any) -> str:
    """Format a ``ModelConfig`` as the text of a file."""
    return str(text_format.MessageToString(config))


def is_on_gpu(group: Any) -> bool:
    """True if an instance group needs a GPU, by its kind or by its list of GPUs."""
    return bool(group.gpus) or group.kind == protobuf().ModelInstanceGroup.KIND_GPU


def without_gpu(config: Any) -> Any:
    """Return a copy whose instances run on the CPU."""
    copy = type(config)()
    copy.CopyFrom(config)
    for group in filter(is_on_gpu, copy.instance_group):
        group.kind = protobuf().ModelInstanceGroup.KIND_CPU
        del group.gpus[:]
    return copy


def version() -> tuple[int, ...]:
    """Return the Triton version that the protobuf comes from; empty if unknown."""
    try:
        return numbers(importlib.metadata.version("tritonclient"))
    except importlib.metadata.PackageNotFoundError:
        return ()


def numbers(text: str) -> tuple[int, ...]:
    """Return the major and minor version; empty if ``text`` is not a version."""
    match = re.match(r"(\d+)\.(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else ()


def _explain(path: Path, error: text_format.ParseError) -> ValueError:
    """Add the line to the parser's message, and the name that was probably meant."""
    message = re.sub(r"^(\d+:\d+ : )+", "", str(error)).rstrip(".")
    line = f"line {error.GetLine()}: " if error.GetLine() else ""
    field = UNKNOWN_FIELD.search(message)
    if field:
        fields = protobuf().DESCRIPTOR.pool.FindMessageTypeByName(field[1]).fields_by_name
        close = difflib.get_close_matches(field[2], list(fields), 1)
        suggestion = f" (is {close[0]!r} meant?)" if close else ""
        message = f"there is no field {field[2]!r}{suggestion}"
    sentence = f"{path} is not a Triton configuration: {line}{message}."
    return UnknownName(sentence) if field or UNKNOWN_VALUE.search(message) else ValueError(sentence)

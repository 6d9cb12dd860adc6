"""``config.pbtxt`` through Triton's own protobuf."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import text_format

#: Bytes. Real configurations have some kilobytes, and the text parser takes seconds for a megabyte.
MAX_CONFIG_BYTES = 2**20


@functools.cache
def protobuf() -> ModuleType:
    """tritonclient's ``model_config_pb2`` alone: its package would bring gRPC, 30 MB more in PID 1."""
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
    """The file's ``ModelConfig``; ValueError says what is wrong in it."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no regular file.")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(
                f"{path} has more than {MAX_CONFIG_BYTES} bytes: that is no Triton configuration."
            )
        return text_format.Parse(path.read_text(), protobuf().ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no Triton configuration: {error}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None

"""The ``context`` argument of a script's functions: the members of the model server's object that scripts
use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


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

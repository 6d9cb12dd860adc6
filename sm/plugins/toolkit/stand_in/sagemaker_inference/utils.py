"""Small helpers that scripts call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONTENT_TYPE_REGEX = re.compile(r"content-?type", re.IGNORECASE)


def read_file(path: str, mode: str = "r") -> Any:
    with Path(path).open(mode) as file:
        return file.read()


def write_file(path: str, data: Any, mode: str = "w") -> None:
    with Path(path).open(mode) as file:
        file.write(data)


def retrieve_content_type_header(request_property: Mapping[str, str]) -> str | None:
    """The value of the header, however its name is spelled."""
    return next((value for name, value in request_property.items() if CONTENT_TYPE_REGEX.match(name)), None)


def parse_accept(accept: str) -> list[str]:
    """The content types in an ``Accept`` header."""
    return accept.replace(" ", "").split(",")


def remove_crlf(illegal_string: str) -> str:
    """A text that may stand in a header."""
    return illegal_string.replace("\r", " ").replace("\n", " ")

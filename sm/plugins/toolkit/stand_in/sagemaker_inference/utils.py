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
    """Return the header's value, in any spelling of its name."""
    return next((value for name, value in request_property.items() if CONTENT_TYPE_REGEX.match(name)), None)


def parse_accept(accept: str) -> list[str]:
    """Parse the content types of an ``Accept`` header."""
    return accept.replace(" ", "").split(",")


def remove_crlf(illegal_string: str) -> str:
    """Remove line ends, so that a text can be a header's value."""
    return illegal_string.replace("\r", " ").replace("\n", " ")

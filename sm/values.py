"""Parse the values of environment variables, and format them.

A parser raises :class:`ValueError` with the end of a sentence that begins with the variable and its value.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any


def number(lowest: float, highest: float, cast: type = int) -> Callable[[str], Any]:
    """Return a parser for a number between two bounds, both included."""

    def parse(text: str) -> Any:
        try:
            value = cast(text)
        except ValueError:
            raise ValueError("is not a number") from None
        if not lowest <= value <= highest:
            raise ValueError(f"is not between {lowest} and {highest}")
        return value

    return parse


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false``, in the usual spellings."""
    spellings = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if text.strip().lower() not in spellings:
        raise ValueError("is neither true nor false")
    return spellings[text.strip().lower()]


def choice(*choices: str) -> Callable[[str], str]:
    """Return a parser for one of ``choices``, in any case."""

    def parse(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text.strip().lower()

    return parse


def strategy(text: str) -> str:
    """Parse ``MULTI_RECORD`` or ``SINGLE_RECORD``; the API for transform jobs writes ``MultiRecord``."""
    choices = {"multirecord": "MULTI_RECORD", "singlerecord": "SINGLE_RECORD"}
    spelling = text.strip().lower().replace("_", "")
    if spelling not in choices:
        raise ValueError("is neither MULTI_RECORD nor SINGLE_RECORD")
    return choices[spelling]


def verbosity(text: str) -> int:
    """Parse 0 to 10. Users of the official container also write true and false."""
    value: int = number(0, 10)(text) if text.strip().isdigit() else int(boolean(text))
    return value


def script(text: str) -> str:
    """Parse the name of a Python file, with or without ``.py``."""
    name = text.strip().removesuffix(".py")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("is not the name of a Python file in code/, such as inference.py")
    return f"{name}.py"


def port_range(text: str) -> tuple[int, int]:
    """Parse ``A-B``, both included."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last) <= 65535):
        raise ValueError("is not a range of ports such as 9000-9100")
    return int(first), int(last)


def arguments(text: str) -> tuple[str, ...]:
    """Split arguments as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"cannot be split into arguments ({error})") from None


def buckets(text: str) -> tuple[str, ...]:
    """Parse names of S3 buckets, each with an optional prefix after a slash."""
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", name):
            raise ValueError("is not a list of buckets such as team-inputs,team-results/answers")
    return names


def namespace(text: str) -> str:
    """Check a namespace of CloudWatch's metrics."""
    if not re.fullmatch(r"[A-Za-z0-9._/#:-]{1,255}", text) or text.startswith(("AWS/", ":")):
        raise ValueError("is not a namespace of CloudWatch, such as Trireme or Team/Vision")
    return text


def origins(text: str) -> tuple[str, ...]:
    """Parse origins as browsers send them: scheme, host, and a port if it is not the default."""
    all_origins = tuple(text.replace(",", " ").split())
    for origin in all_origins:
        if not re.fullmatch(r"https?://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?", origin):
            raise ValueError(
                "is not a list of origins such as https://app.example.com,http://localhost:3000; "
                "* is not allowed, because it would admit every page of the web"
            )
    return all_origins


def folders(text: str) -> tuple[Path, ...]:
    """Parse folders separated by colons."""
    return tuple(Path(part) for part in text.split(os.pathsep) if part)


def format_value(value: object) -> str:
    """Format a value as a user would type it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return (os.pathsep if any(isinstance(part, Path) for part in value) else " ").join(map(str, value))
    return str(value)

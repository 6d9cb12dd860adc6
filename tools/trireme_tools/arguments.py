"""Types of command line arguments, which several commands have."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable


def matching(pattern: str, form: str) -> Callable[[str], str]:
    """Take what matches the regular expression; ``form`` describes it to people."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ArgumentTypeError(f"{text!r} is not {form}")
        return text

    return read


def number(most: float, form: str) -> Callable[[str], float]:
    """Take a number over 0, at most ``most``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise ArgumentTypeError(f"{text!r} is not {form}")
        return value

    return read


def whole_number(name: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{name} is a number from {least} to {most}, not {text!r}")
        return int(text)

    return read

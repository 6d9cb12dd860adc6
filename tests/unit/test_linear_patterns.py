"""Every pattern that runs over a caller's text takes linear time, whatever the text repeats."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import chalicelib
import pytest

from sm.triton.triton_errors import ErrorRule
from tests.support.faults.words import UNITS

#: Not imported by a router: they run in the models' processes.
FOREIGN = ("trireme_extensions.convert.onnx_cpu", "sm.triton.stub_utils")
PACKAGES = (
    *(
        f"sm.{name}"
        for name in ["client", "control", "http", "models", "plugins", "router", "server.access", "triton"]
    ),
    *(f"trireme_extensions.{name}" for name in ("observe", "search", "tasks", "toolkit")),
)
#: These read a setting's address and the help of Triton.
OF_NO_CALLER = ("sm.models.fetch.addresses.QUERY-0", "sm.triton.server.OPTION-0")
#: Characters, and processor time that a search of them may take. A linear one takes less than a millisecond, a
#: quadratic one more than a quarter of a second.
SIZE, SECONDS = 12_000, 0.1
SEARCHES = re.compile(r"\b(\w+)\.(?:search|finditer|findall|sub|split)\(")


def modules() -> Iterator[ModuleType]:
    names = []
    for package in map(importlib.import_module, PACKAGES):
        names.append(package.__name__)
        names += [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names += [f"chalicelib.{each.name}" for each in pkgutil.iter_modules(chalicelib.__path__)]
    for name in names:
        if not name.startswith(FOREIGN) and "stand_in" not in name:
            yield importlib.import_module(name)


def patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from patterns_in(each)
    elif isinstance(value, ErrorRule):
        yield value.text


def collect() -> dict[str, tuple[re.Pattern[Any], bool]]:
    """Return the patterns by name, and whether each is searched for, and not only matched."""
    found = {}
    for module in modules():
        source = Path(str(module.__file__)).read_text()
        searched = set(SEARCHES.findall(source))
        for name, value in vars(module).items():
            for number, pattern in enumerate(patterns_in(value)):
                found[f"{module.__name__}.{name}-{number}"] = pattern, name in searched
    return {name: each for name, each in found.items() if name not in OF_NO_CALLER}


PATTERNS = collect()


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_linear_time(name: str) -> None:
    pattern, is_searched = PATTERNS[name]
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    literal = re.sub(r"\\[a-zA-Z]|\[[^\]]*\]|\(\?[:!=<P>\w]*|[\\()?*+^$|.]", "", text)
    for unit in (*UNITS, literal or "x", literal[: len(literal) // 2] or "x"):
        repeated = unit * (SIZE // len(unit))
        for candidate in (repeated, literal[:40] + repeated):
            subject: Any = candidate.encode() if isinstance(pattern.pattern, bytes) else candidate
            began = time.thread_time()
            pattern.match(subject)
            pattern.fullmatch(subject)
            for _ in pattern.finditer(subject) if is_searched else ():
                pass
            assert time.thread_time() - began < SECONDS, (name, unit)

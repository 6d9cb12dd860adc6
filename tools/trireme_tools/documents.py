"""Documents of AWS that people also read: YAML files beside the code, with placeholders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml


def read(module: str, name: str) -> Any:
    """Return the document ``name`` beside a module, whose ``__file__`` is given."""
    return yaml.safe_load(Path(module).with_name(name).read_text("utf-8"))


def fill(part: Any, values: Mapping[str, Any]) -> Any:
    """Return ``part`` with every ``${name}`` replaced; a text that is only ``${name}`` becomes its value."""
    if isinstance(part, dict):
        return {key: fill(member, values) for key, member in part.items()}
    if isinstance(part, list):
        return [fill(member, values) for member in part]
    if not isinstance(part, str):
        return part
    whole = re.fullmatch(r"\$\{(\w+)\}", part)
    return values[whole[1]] if whole else Template(part).substitute(values)

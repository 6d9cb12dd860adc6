"""Read one file of a folder, and refuse what is not obeyed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomllib

from sm.errors import CommandError


class FileField(NamedTuple):
    """Says whether one field of a file is obeyed, refused or without effect."""

    effect: Literal["obeyed", "refused", "without effect"]
    #: How, or why not; a part of a sentence for the page of tasks.
    note: str = ""
    #: Values of a refused field that ask for nothing.
    harmless: Sequence[Any] = ()


#: The fields of a file. A field that its class does not have is ignored, as the class does.
Fields = Mapping[str, FileField]


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """Return what ``NAME.toml`` beside this module has."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())


def fields_of(table: str, part: str = "") -> Fields:
    """Return the fields in a table of ``fields.toml``, or in a part of one."""
    rows = read_table("fields")[table]
    return {name: FileField(**row) for name, row in (rows[part] if part else rows).items()}


def read_json(path: Path) -> Any:
    """Return the JSON of a file; an empty object if it does not exist."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}.") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a file; an empty one if it does not exist."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise CommandError(f"{path} is not an object of fields.")
    return content


def refuse(path: Path, content: Mapping[str, Any], fields: Fields, advice: str = "") -> None:
    """Refuse the first field that asks for what is not done here.

    Args:
        path: The file, for the sentence.
        content: What it has.
        fields: What each of its fields means.
        advice: The next step, a sentence.

    Raises:
        CommandError: The sentence names the file, the field and its value.
    """
    for name, value in content.items():
        field = fields.get(name)
        if field is None or field.effect != "refused":
            continue
        # By type as well: 0 is not False here, and 1 is not True.
        if value is None or any(type(value) is type(each) and value == each for each in field.harmless):
            continue
        reason = field.note or "is not obeyed here"
        sentence = f"{path}: {name} is {json.dumps(value, ensure_ascii=False)[:200]}, which {reason}."
        raise CommandError(f"{sentence} {advice}".rstrip())

"""Read one file of a folder, and refuse what is not obeyed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sm.errors import CommandError


@dataclass(frozen=True)
class FileField:
    """Says whether one field of a file is obeyed, refused or without effect."""

    effect: Literal["obeyed", "refused", "without effect"]
    #: How, or why not; a part of a sentence for the page of tasks.
    note: str = ""
    #: Values of a refused field that ask for nothing.
    harmless: tuple[Any, ...] = ()


#: The fields of a file. A field that its class does not have is ignored, as the class does.
Fields = Mapping[str, FileField]


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

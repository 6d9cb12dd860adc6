"""Write the tables of docs/clients/checkpoint-fields.md: ``python -m tests.support.checkpoint_fields``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sm.server.checkpoint.files import Field, Fields
from sm.server.checkpoint.generation import GENERATION
from sm.server.checkpoint.pictures import COMMON, PROCESSORS
from sm.server.checkpoint.sentences import MODULES, SENTENCES, TRANSFORMER
from sm.server.checkpoint.texts import TOKENIZER
from sm.settings import HERE

PAGE = HERE / "docs" / "clients" / "checkpoint-fields.md"
START, END = "<!-- fields -->", "<!-- /fields -->"
#: The tables of the page by their headings.
TABLES: Mapping[str, Fields] = {
    "`tokenizer_config.json` and `special_tokens_map.json`": TOKENIZER,
    "`generation_config.json`": GENERATION,
    "`preprocessor_config.json` of pictures: every class": COMMON,
    **{
        f"`preprocessor_config.json` of pictures: `{name}ImageProcessor`": processor.fields
        for name, processor in PROCESSORS.items()
    },
    "`config_sentence_transformers.json`": SENTENCES,
    "`sentence_bert_config.json`": TRANSFORMER,
    **{f"`config.json` in the folder of a `{kind}`": fields for kind, fields in MODULES.items()},
}


def tables() -> str:
    """Return a table for each file, in Markdown; files with the same fields share one."""
    names: dict[str, list[str]] = {}
    for name, fields in TABLES.items():
        if fields:
            names.setdefault("\n".join(rows(fields)), []).append(name)
    return "\n\n".join(f"## {_joined(found)}\n\n{table}" for table, found in names.items())


def rows(fields: Fields) -> list[str]:
    """Return the lines of one file's table, by the fields' names."""
    lines = [f"| `{name}` | {field.effect} | {_note(field)} |" for name, field in sorted(fields.items())]
    return ["| field | here | how, or why not |", "|---|---|---|", *lines]


def _note(field: Field) -> str:
    values = " or ".join(f"`{json.dumps(value)}`" for value in field.harmless)
    return f"{field.note}; may be {values}" if values else field.note


def _joined(names: list[str]) -> str:
    """Return the headings of one table as one: what they begin with comes once."""
    first, *others = names
    start = first.rpartition(": ")[0]
    return ", ".join([first, *(name.removeprefix(f"{start}: ") if start else name for name in others)])


def with_tables(page: str) -> str:
    """Return the page with today's tables between its marks."""
    return re.sub(f"{START}.*?{END}", lambda _: f"{START}\n\n{tables()}\n\n{END}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))

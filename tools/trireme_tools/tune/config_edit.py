"""Change a few fields in the text of a ``config.pbtxt`` and leave every other character as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: The tokens of protobuf's text format, with comments and space between them.
TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<space>[\s]+)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[\w.+-]+)|(?P<mark>[\[\]{}<>:,;])""",
    re.VERBOSE,
)
CLOSED_BY = {"{": "}", "<": ">", "[": "]"}


class Token(NamedTuple):
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Field:
    """A field from the first character of its name to the last of its value."""

    name: str
    start: int
    end: int
    #: Where the value begins: a scalar's first character, or the bracket of a message or list.
    value: int


def read_fields(text: str, start: int, end: int) -> list[Field]:
    """Return the fields of the message whose content is ``text[start:end]``. Raises ValueError."""
    tokens = list(_tokens(text, start, end))
    fields, at = [], 0
    while at < len(tokens):
        name = tokens[at]
        if name.text in ",;":
            at += 1
            continue
        at += 1
        if at < len(tokens) and tokens[at].text == ":":
            at += 1
        if at >= len(tokens):
            raise ValueError(f"{name.text!r} has no value")
        value = tokens[at]
        at = _after_value(tokens, at)
        fields.append(Field(name.text, name.start, tokens[at - 1].end, value.start))
    return fields


def _tokens(text: str, start: int, end: int) -> Iterator[Token]:
    at = start
    while at < end:
        match = TOKEN.match(text, at, end)
        if match is None:
            raise ValueError(f"{text[at : at + 10]!r} cannot be read")
        if match.lastgroup not in ("comment", "space"):
            yield Token(match.group(), at, match.end())
        at = match.end()


def _after_value(tokens: list[Token], at: int) -> int:
    """Return the index after the value that begins at ``at``; adjacent texts are one value."""
    if tokens[at].text not in CLOSED_BY:
        at += 1
        while at < len(tokens) and tokens[at].text[0] in "\"'" and tokens[at - 1].text[0] in "\"'":
            at += 1
        return at
    open_brackets = []
    while at < len(tokens):
        if tokens[at].text in CLOSED_BY:
            open_brackets.append(CLOSED_BY[tokens[at].text])
        elif open_brackets and tokens[at].text == open_brackets[-1]:
            open_brackets.pop()
        at += 1
        if not open_brackets:
            return at
    raise ValueError("a bracket is not closed")


def messages(text: str, field: Field) -> Iterator[tuple[int, int]]:
    """Yield start and end of the content of each message of a field, which may be a list of messages."""
    if text[field.value] == "[":
        tokens = list(_tokens(text, field.value + 1, field.end - 1))
        at = 0
        while at < len(tokens):
            if tokens[at].text == ",":
                at += 1
                continue
            after = _after_value(tokens, at)
            yield tokens[at].end, tokens[after - 1].start
            at = after
    else:
        yield field.value + 1, field.end - 1


def set_instance_count(text: str, count: int) -> str:
    """Give each instance group ``count`` instances; add a group if there is none."""
    spans = [
        span
        for field in read_fields(text, 0, len(text))
        if field.name == "instance_group"
        for span in messages(text, field)
    ]
    if not spans:
        return append(text, f"instance_group {{\n  count: {count}\n}}\n")
    for start, end in reversed(spans):
        text = _set(text, start, end, "count", str(count))
    return text


def set_batching(text: str, preferred_sizes: tuple[int, ...], delay_us: int) -> str:
    """Switch dynamic batching on with these sizes (none: any) and this delay; its other fields stay."""
    fields = [field for field in read_fields(text, 0, len(text)) if field.name == "dynamic_batching"]
    if not fields:
        text = append(text, "dynamic_batching {\n}\n")
        fields = [field for field in read_fields(text, 0, len(text)) if field.name == "dynamic_batching"]
    values = {
        "max_queue_delay_microseconds": str(delay_us) if delay_us else "",
        "preferred_batch_size": f"[{', '.join(map(str, preferred_sizes))}]" if preferred_sizes else "",
    }
    for name, value in values.items():
        field = next(
            candidate for candidate in read_fields(text, 0, len(text)) if candidate.name == "dynamic_batching"
        )
        (start, end), *_ = messages(text, field)
        text = _set(text, start, end, name, value)
    return text


def remove_batching(text: str) -> str:
    """Switch dynamic batching off."""
    for field in reversed(read_fields(text, 0, len(text))):
        if field.name == "dynamic_batching":
            text = _cut(text, field.start, field.end)
    return text


def set_parameter(text: str, key: str, value: str) -> str:
    """Set the ``string_value`` of a parameter; add the parameter if there is none."""
    for field in read_fields(text, 0, len(text)):
        for start, end in messages(text, field) if field.name == "parameters" else ():
            parts = {part.name: part for part in read_fields(text, start, end)}
            if "key" in parts and text[parts["key"].value : parts["key"].end].strip("'\"") == key:
                ((first, last),) = messages(text, parts["value"])
                return _set(text, first, last, "string_value", f'"{value}"')
    return append(text, f'parameters {{\n  key: "{key}"\n  value {{ string_value: "{value}" }}\n}}\n')


def append(text: str, block: str) -> str:
    """Add a block at the end of the text."""
    return text + ("" if not text or text.endswith("\n") else "\n") + block


def _set(text: str, start: int, end: int, name: str, value: str) -> str:
    """Set a field of the message whose content is ``text[start:end]``; remove it if ``value`` is empty."""
    fields = [field for field in read_fields(text, start, end) if field.name == name]
    if not value:
        for field in reversed(fields):
            text = _cut(text, field.start, field.end)
        return text
    if not fields:
        return text[:start] + _format_insertion(text, start, end, f"{name}: {value}") + text[start:]
    for field in reversed(fields[1:]):
        text = _cut(text, field.start, field.end)
    return text[: fields[0].value] + value + text[fields[0].end :]


def _format_insertion(text: str, start: int, end: int, field: str) -> str:
    """Format a field to insert after an opening bracket: on its own line, or on the message's one line."""
    content = text[start:end]
    if "\n" not in content:
        return f" {field}" + ("" if content.startswith(" ") else " ")
    line = text.rfind("\n", 0, start) + 1
    indent = text[line : len(text[line:]) - len(text[line:].lstrip(" ")) + line]
    return f"\n{indent}  {field}"


def _cut(text: str, start: int, end: int) -> str:
    """Remove ``text[start:end]``, and its line if nothing else is on it."""
    while end < len(text) and text[end] in ",;":
        end += 1
    before, after = text[:start].rstrip(" \t"), text[end:].lstrip(" \t")
    if (not before or before.endswith("\n")) and (not after or after.startswith("\n")):
        return before + after[1:]
    return text[:start] + text[end:].lstrip(" ")

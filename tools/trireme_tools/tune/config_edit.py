"""Change a few fields in the text of a ``config.pbtxt`` and leave every other character as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

HIDDEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")
#: A field up to its value: a bracket, texts (hidden, adjacent ones are one value), or a word.
FIELD = re.compile(r"([\w.]+)\s*:?\s*([\[{<]|_+(?:\s+_+)*|[\w.+-]+)")
BRACKETS = re.compile(r"[\[\]{}<>]")
SEPARATORS = re.compile(r"[\s,;]*")


class ConfigField(NamedTuple):
    """A field from the first character of its name to the last of its value."""

    name: str
    start: int
    end: int
    #: Where the value begins: a scalar's first character, or the bracket of a message or list.
    value: int


def read_fields(text: str, start: int, end: int) -> list[ConfigField]:
    """Return the fields of the message whose content is ``text[start:end]``. Raises ValueError."""
    hidden, fields = _hide(text), []
    at = _skip(hidden, start, end)
    while at < end:
        match = FIELD.match(hidden, at, end)
        if match is None:
            raise ValueError(f"{text[at : at + 10]!r} cannot be read")
        value = match.start(2)
        after = _after_bracket(hidden, value) if BRACKETS.match(match[2]) else match.end()
        fields.append(ConfigField(match[1], at, after, value))
        at = _skip(hidden, after, end)
    return fields


def _hide(text: str) -> str:
    """Return the text with spaces for comments and underscores for texts, so that what is left is syntax."""
    return HIDDEN.sub(lambda match: (" " if match[0][0] == "#" else "_") * len(match[0]), text)


def _skip(hidden: str, start: int, end: int) -> int:
    match = SEPARATORS.match(hidden, start, end)
    return match.end() if match else start


def _after_bracket(hidden: str, at: int) -> int:
    """Return the index after the bracket that closes the one at ``at``."""
    depth = 0
    for bracket in BRACKETS.finditer(hidden, at):
        depth += 1 if bracket[0] in "[{<" else -1
        if not depth:
            return bracket.end()
    raise ValueError("a bracket is not closed")


def messages(text: str, field: ConfigField) -> Iterator[tuple[int, int]]:
    """Yield start and end of the content of each message of a field, which may be a list of messages."""
    hidden, at = _hide(text), field.value
    if text[at] == "[":
        at += 1
    while bracket := BRACKETS.search(hidden, at, field.end):
        if bracket[0] not in "{<":
            return
        at = _after_bracket(hidden, bracket.start())
        yield bracket.end(), at - 1


def _messages_named(text: str, name: str) -> list[tuple[int, int]]:
    """Return start and end of the content of each message of the fields ``name``."""
    fields = [field for field in read_fields(text, 0, len(text)) if field.name == name]
    return [span for field in fields for span in messages(text, field)]


def set_instance_count(text: str, count: int) -> str:
    """Give each instance group ``count`` instances; add a group if there is none."""
    spans = _messages_named(text, "instance_group")
    if not spans:
        return append(text, f"instance_group {{\n  count: {count}\n}}\n")
    for start, end in reversed(spans):
        text = _set(text, start, end, "count", str(count))
    return text


def set_batching(text: str, preferred_sizes: tuple[int, ...], delay_us: int) -> str:
    """Switch dynamic batching on with these sizes (none: any) and this delay; its other fields stay."""
    if not _messages_named(text, "dynamic_batching"):
        text = append(text, "dynamic_batching {\n}\n")
    values = {
        "max_queue_delay_microseconds": str(delay_us) if delay_us else "",
        "preferred_batch_size": f"[{', '.join(map(str, preferred_sizes))}]" if preferred_sizes else "",
    }
    for name, value in values.items():
        (start, end), *_ = _messages_named(text, "dynamic_batching")
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
    for start, end in _messages_named(text, "parameters"):
        parts = {part.name: part for part in read_fields(text, start, end)}
        if "key" in parts and text[parts["key"].value : parts["key"].end].strip("'\"") == key:
            ((first, last),) = messages(text, parts["value"])
            return _set(text, first, last, "string_value", f'"{value}"')
    return append(text, f'parameters {{\n  key: "{key}"\n  value {{ string_value: "{value}" }}\n}}\n')


def set_backend(text: str, backend: str) -> str:
    """Name the backend that runs the model; add the field if there is none."""
    is_named = any(field.name == "backend" for field in read_fields(text, 0, len(text)))
    value = f'"{backend}"'
    return _set(text, 0, len(text), "backend", value) if is_named else append(text, f"backend: {value}\n")


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

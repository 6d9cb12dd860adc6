"""Change a few fields in the text of a ``config.pbtxt`` and leave every other character as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: What a text in protobuf's text format consists of; comments and space lie between.
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
    """The fields of the message whose content lies there; ValueError where that is no such content."""
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
    """The place behind the value that begins at ``at``; of texts side by side, behind the last."""
    if tokens[at].text not in CLOSED_BY:
        at += 1
        while at < len(tokens) and tokens[at].text[0] in "\"'" and tokens[at - 1].text[0] in "\"'":
            at += 1
        return at
    waiting = []
    while at < len(tokens):
        if tokens[at].text in CLOSED_BY:
            waiting.append(CLOSED_BY[tokens[at].text])
        elif waiting and tokens[at].text == waiting[-1]:
            waiting.pop()
        at += 1
        if not waiting:
            return at
    raise ValueError("a bracket is not closed")


def messages(text: str, field: Field) -> Iterator[tuple[int, int]]:
    """Where the content of each message of a field lies: it may be a list of them."""
    if text[field.value] == "[":
        waiting = field.value + 1
        tokens = list(_tokens(text, waiting, field.end - 1))
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
    """Each instance group has ``count`` instances; a file without a group gets one."""
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
    """Dynamic batching is on, with these sizes (none: any) and this delay; what else it says stays."""
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
    """Dynamic batching is off."""
    for field in reversed(read_fields(text, 0, len(text))):
        if field.name == "dynamic_batching":
            text = _cut(text, field.start, field.end)
    return text


def append(text: str, block: str) -> str:
    """The block as the text's last lines."""
    return text + ("" if not text or text.endswith("\n") else "\n") + block


def _set(text: str, start: int, end: int, name: str, value: str) -> str:
    """A field of the message whose content lies there; removed where ``value`` is empty."""
    fields = [field for field in read_fields(text, start, end) if field.name == name]
    if not value:
        for field in reversed(fields):
            text = _cut(text, field.start, field.end)
        return text
    if not fields:
        return text[:start] + _inserted(text, start, end, f"{name}: {value}") + text[start:]
    for field in reversed(fields[1:]):
        text = _cut(text, field.start, field.end)
    return text[: fields[0].value] + value + text[fields[0].end :]


def _inserted(text: str, start: int, end: int, field: str) -> str:
    """What goes behind an opening bracket: a line of its own, unless all stands in one line."""
    content = text[start:end]
    if "\n" not in content:
        return f" {field}" + ("" if content.startswith(" ") else " ")
    line = text.rfind("\n", 0, start) + 1
    indent = text[line : len(text[line:]) - len(text[line:].lstrip(" ")) + line]
    return f"\n{indent}  {field}"


def _cut(text: str, start: int, end: int) -> str:
    """Without this part, and without its line where nothing else stands there."""
    while end < len(text) and text[end] in ",;":
        end += 1
    before, after = text[:start].rstrip(" \t"), text[end:].lstrip(" \t")
    if (not before or before.endswith("\n")) and (not after or after.startswith("\n")):
        return before + after[1:]
    return text[:start] + text[end:].lstrip(" ")

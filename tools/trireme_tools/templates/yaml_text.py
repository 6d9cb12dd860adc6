"""Write documents as YAML for people, with Helm's template expressions where a chart has them.

A YAML library would quote ``{{ … }}``. Scalars are written as JSON, which is valid YAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expression:
    """A template expression in the place of a value."""

    text: str


@dataclass(frozen=True)
class When:
    """A member that Helm writes only if the expression ``condition`` is true."""

    condition: str
    value: Any


@dataclass(frozen=True)
class Each:
    """Members of a list: ``item`` for each ``$name`` and ``$value`` of the map that ``path`` names."""

    path: str
    item: dict[str, Any]


def document(value: Any) -> str:
    """Write one document."""
    return "\n".join(_lines(value, 0)) + "\n"


def documents(values: list[Any]) -> str:
    """Write several documents, as ``kubectl apply -f -`` and ``podman kube play -`` read them."""
    return "".join(f"---\n{document(value)}" for value in values)


def _lines(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _member(name, member, depth)
    else:
        for item in value:
            yield from _item(item, depth)


def _member(name: str, member: Any, depth: int) -> Iterator[str]:
    if isinstance(member, When):
        yield f"{{{{- if {member.condition} }}}}"
        yield from _member(name, member.value, depth)
        yield "{{- end }}"
    elif _is_scalar(member):
        yield f"{' ' * depth}{_key(name)}: {_scalar(member)}"
    else:
        yield f"{' ' * depth}{_key(name)}:"
        yield from _lines(member, depth + 2)


def _item(item: Any, depth: int) -> Iterator[str]:
    if isinstance(item, Each):
        yield f"{{{{- range $name, $value := .Values.{item.path} }}}}"
        yield from _item(item.item, depth)
        yield "{{- end }}"
    elif _is_scalar(item):
        yield f"{' ' * depth}- {_scalar(item)}"
    else:
        first, *others = _lines(item, depth + 2)
        yield f"{' ' * depth}- {first.lstrip()}"
        yield from others


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list) or not value


def _scalar(value: Any) -> str:
    if isinstance(value, Expression):
        return f"{{{{ {value.text} }}}}"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.replace("-", "").replace(".", "").replace("/", "").isalnum() else json.dumps(name)

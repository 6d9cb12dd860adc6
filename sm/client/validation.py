"""Validate what a caller sent, at a price that its size bounds.

pydantic makes an error object for each wrong item of a list and for each unknown member: a megabyte of them
takes 3 s and half a gigabyte, and only the first is read. Here a list, a set or a mapping ends at its first
wrong item, and of an object's unknown members one is looked at. All else is as the type's own validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core.core_schema import no_info_before_validator_function

Model = TypeVar("Model", bound=BaseModel)
#: Types of pydantic's core schema with many items, which can end at the first wrong one.
WITH_ITEMS = frozenset(
    "counter deque dict frozendict frozenset list ordered-dict set tuple".split()  # noqa: SIM905
)
#: Types with named members.
WITH_MEMBERS = frozenset({"model-fields", "typed-dict", "dataclass-args"})
#: Members of a schema that are not schemas themselves.
NOT_SCHEMAS = frozenset({"cls", "config", "default", "expected", "function", "metadata", "serialization"})
#: A reloaded client has new types, and the old ones go.
_validators: WeakKeyDictionary[type[BaseModel], SchemaValidator] = WeakKeyDictionary()


def validate(kind: type[Model], value: object) -> Model:
    """Return ``kind.model_validate(value)``.

    Raises:
        pydantic.ValidationError: A member is wrong. It has an error for each member of ``kind`` at most.
    """
    validator = _validators.get(kind)
    if validator is None:
        kind.model_rebuild()  # a type may name one that was defined behind it
        # Without its own schema a member's type would come with the validator that pydantic has made for it.
        schema = _bounded(kind.__pydantic_core_schema__)
        validator = _validators[kind] = SchemaValidator(schema, None, _use_prebuilt=False)
    validated: Model = validator.validate_python(value)
    return validated


class _Members:
    """Leaves out of an object's unknown members all but the first, which stands for them.

    Args:
        fields: Of a core schema: those of a model by name, those of a dataclass as a list.
    """

    def __init__(self, fields: Mapping[str, Any] | Sequence[Any]) -> None:
        named = fields.items() if isinstance(fields, Mapping) else ((each["name"], each) for each in fields)
        self.names: set[str | int] = set()
        for name, field in named:
            alias = field.get("validation_alias", ())
            paths = [[alias]] if isinstance(alias, str) else [[*part] for part in map(_as_list, alias)]
            self.names |= {name, *(path[0] for path in paths if path)}

    def __call__(self, value: object) -> object:
        if type(value) is not dict or len(value) <= len(self.names):
            return value
        unknown = next(name for name in value if name not in self.names)
        return {name: value[name] for name in (*self.names, unknown) if name in value}


def _as_list(path: str | list[str | int]) -> list[str | int]:
    return [path] if isinstance(path, str) else path


def _bounded(node: Any) -> Any:
    """Return a core schema that makes few errors, whatever it validates."""
    if isinstance(node, list | tuple):
        return type(node)(map(_bounded, node))
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):  # schemas by a name, which may be the name of anything
        return {name: _bounded(part) for name, part in node.items()}
    bounded = {name: part if name in NOT_SCHEMAS else _bounded(part) for name, part in node.items()}
    if kind in WITH_ITEMS:
        bounded["fail_fast"] = True
    elif kind in WITH_MEMBERS:
        return no_info_before_validator_function(_Members(bounded["fields"]), cast(CoreSchema, bounded))
    return bounded

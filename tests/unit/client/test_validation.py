"""What a caller sent is validated as pydantic does it, and what is wrong with it is said once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from sm.client.payloads import Parameters, Payload
from sm.client.validation import validate

MANY = 50_000


class Person(TypedDict):
    name: str


@dataclasses.dataclass
class Place:
    name: str


class Inner(BaseModel):
    """A type that is not one of the box's, as a team's client has them."""

    model_config = {"extra": "forbid"}
    type: int = 1


class Options(Parameters):
    words: tuple[str, ...] = ()


class Everything(Payload):
    default: int = Field(default=3, validation_alias=AliasChoices("default", "other"))
    numbers: list[int] | None = None
    unique: set[int] = set()
    scores: dict[str, float] = {}
    rows: list[dict[str, int] | list[int]] = []
    inner: list[Inner] = []
    person: Person | None = None
    place: Place | None = None
    parameters: Options = Options()


def faults(value: Any) -> list[tuple[Any, str]]:
    with pytest.raises(ValidationError) as caught:
        validate(Everything, value)
    return [(fault["loc"], fault["type"]) for fault in caught.value.errors(include_input=False)]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"numbers": ["a"] * MANY}, (("numbers", 0), "int_parsing")),
        ({"numbers": [1] * MANY + ["a"] * MANY}, (("numbers", MANY), "int_parsing")),
        ({"unique": ["a"] * MANY}, (("unique", 0), "int_parsing")),
        ({"scores": {str(number): "a" for number in range(MANY)}}, (("scores", "0"), "float_parsing")),
        ({"rows": [["a"] * MANY] * 9}, (("rows", 0, "dict[str,int]"), "dict_type")),
        ({"inner": [{"type": "a"}] * MANY}, (("inner", 0, "type"), "int_parsing")),
        ({"inner": [dict.fromkeys(map(str, range(MANY)))]}, (("inner", 0, "0"), "extra_forbidden")),
        ({"parameters": {"words": [1] * MANY}}, (("parameters", "words", 0), "string_type")),
        ({"parameters": dict.fromkeys(map(str, range(MANY)))}, (("parameters", "0"), "extra_forbidden")),
        (dict.fromkeys(map(str, range(MANY))), (("0",), "extra_forbidden")),
        ({"person": dict.fromkeys(map(str, range(MANY)))}, (("person", "name"), "missing")),
        ({"place": dict.fromkeys(map(str, range(MANY)))}, (("place", "name"), "missing")),
    ],
)
def test_of_many_faults_few_are_made(value: Any, fault: tuple[Any, str]) -> None:
    found = faults(value)
    assert found[0] == fault
    assert len(found) <= len(Everything.model_fields) + 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"other": "7"},
        {"numbers": [1, "2"], "unique": [1, 1], "scores": {"a": 1}, "rows": [{"a": 1}, [2]]},
        {"inner": [{"type": 4}, {}], "person": {"name": "a"}, "place": {"name": "a"}},
        {"parameters": {"words": ["a", "b"]}, "numbers": None},
        Everything(default=4),
    ],
)
def test_what_is_right_is_read_as_the_type_reads_it(value: Any) -> None:
    assert validate(Everything, value) == Everything.model_validate(value)


@pytest.mark.parametrize("value", [None, 3, [], "a", {"numbers": 3}, {"default": 1, "other": 2}, {"x": 1}])
def test_a_single_fault_is_that_of_the_type(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Everything.model_validate(value)
    assert faults(value) == [(fault["loc"], fault["type"]) for fault in caught.value.errors()]

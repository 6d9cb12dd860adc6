"""The error of a limit says the number and, where there is one, the setting that changes it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from sm.client.decode_budget import DecodeBudget
from sm.client.picture_header import MAX_PIXELS, check_pixels
from sm.errors import BadInput, TooLarge
from sm.router.request_types import RecordLimit
from sm.router.wsgi import read_body
from sm.settings import Settings


def body_over(most: int) -> None:
    read_body({"CONTENT_LENGTH": str(most + 1), "wsgi.input": io.BytesIO(), "REQUEST_METHOD": "POST"}, most)


LIMITS: list[tuple[Callable[[], Any], str, int]] = [
    (lambda: body_over(1000), "max_body_bytes", 1000),
    (lambda: RecordLimit(10).add(11), "max_records", 10),
]


@pytest.mark.parametrize(("exceed", "member", "number"), LIMITS)
def test_an_error_of_a_limit_has_its_number(exceed: Callable[[], Any], member: str, number: int) -> None:
    with pytest.raises(TooLarge) as error:
        exceed()
    assert error.value.details[member] == number


def test_an_error_names_a_setting_that_exists() -> None:
    budget = DecodeBudget(2**20)
    with pytest.raises(TooLarge) as memory:
        budget.acquire(2**21)
    with pytest.raises(TooLarge) as body:
        body_over(1000)
    for error, other in ((memory, "1"), (body, "1")):
        name = str(error.value.details["setting"])
        assert Settings.read({name: other}) != Settings.read({}), name


@pytest.mark.parametrize(
    ("width", "height"), [(12_000, 9_000), (9_000, 12_000), (65_500, 1_000), (64_000_001, 1)]
)
def test_a_picture_of_too_many_pixels_is_told_a_size_that_is_read(width: int, height: int) -> None:
    with pytest.raises(BadInput) as error:
        check_pixels(width, height)
    assert error.value.details["max_pixels"] == MAX_PIXELS
    smaller: Any = error.value.details["smaller"]
    check_pixels(*smaller)
    assert smaller[0] / smaller[1] == pytest.approx(width / height, rel=0.01)

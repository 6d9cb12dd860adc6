"""The ids that a caller may choose: AWS's grammar, in nginx (tests/integration/supervisor/test_front.py) and in the router."""

from __future__ import annotations

import pytest

from sm.request_ids import given_id
from tests.support.request_id_examples import ACCEPTED, INFERENCE, REFUSED, ROOT, TRACE


def environ(header: str, value: str) -> dict[str, str]:
    return {"HTTP_" + header.upper().replace("-", "_"): value}


@pytest.mark.parametrize(("header", "value"), ACCEPTED)
def test_an_id_in_awss_grammar_is_the_requests(header: str, value: str) -> None:
    assert given_id(environ(header, value)) == value


@pytest.mark.parametrize(("header", "value"), REFUSED)
def test_any_other_is_not(header: str, value: str) -> None:
    assert given_id(environ(header, value)) is None


def test_nginxs_choice_comes_first_and_a_forged_one_is_none() -> None:
    asked = {**environ(INFERENCE, "mine"), **environ(TRACE, ROOT)}
    assert given_id(asked) == "mine"
    assert (
        given_id({**asked, **environ("X-Trireme-Request-Id", "0123456789abcdef" * 2)})
        == "0123456789abcdef" * 2
    )
    assert given_id({**asked, **environ("X-Trireme-Request-Id", ROOT)}) == ROOT
    assert given_id({**asked, **environ("X-Trireme-Request-Id", "x" * 300)}) == "mine"

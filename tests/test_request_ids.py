"""The ids that a caller may choose: AWS's grammar, in nginx (tests/supervisor/test_front.py) and in the router."""

from __future__ import annotations

import pytest

from sm.request_ids import given_id

INFERENCE, TRACE = "X-Amzn-SageMaker-Inference-Id", "X-Amzn-Trace-Id"
ROOT = "Root=1-5759e988-bd862e3fe1be46a994272793"
ACCEPTED = [
    (INFERENCE, "mine-1"),
    (INFERENCE, "a b"),
    (INFERENCE, "x" * 64),
    (INFERENCE, "{order: 17}"),
    (TRACE, ROOT),
    (TRACE, f"{ROOT};Parent=53995c3f42cd8ad8;Sampled=1"),
    (TRACE, f"{ROOT};Sampled=?"),
    (TRACE, f"Self=1-67891234-12456789abcdef012345678;{ROOT}"),
    (TRACE, f"{ROOT};Parent=4bf92f3577b34da6;Sampled=0;Lineage=a87bd80c:1|68fd508a:5|c512fbe3:2"),
    (TRACE, f"{ROOT};CalledFrom=app"),
]
REFUSED = [
    (INFERENCE, "x" * 65),
    (INFERENCE, 'a"b'),
    (INFERENCE, "a\\b"),
    (INFERENCE, "grüße"),
    (TRACE, "mine-1"),
    (TRACE, "Root=1-2"),
    (TRACE, f"{ROOT} forged"),
    (TRACE, f"{ROOT}; Sampled=1"),
    (TRACE, "request served by someone else"),
    (TRACE, f"{ROOT}0"),
    (TRACE, f"{ROOT};"),
    (TRACE, f"{ROOT};" + "Field=0123456789;" * 7 + "Field=1"),
    (TRACE, ROOT + ";Field=" + "x" * 65),
    (TRACE, ROOT.replace("b", "g")),
]


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

"""The platform's headers: taken in, and nothing given back that nobody asked for."""

from __future__ import annotations

import pytest

from .container import PREFIX, Container, Question

pytestmark = pytest.mark.modes("single", "batch")
MARK = "a-mark-of-the-caller-7f3a"
#: All that the platform sends.
ALL = (
    "Custom-Attributes",
    "Target-Variant",
    "Target-Container-Hostname",
    "Inference-Id",
    "Enable-Explanations",
    "Inference-Component",
)


def test_the_platform_s_headers_do_no_harm(container: Container) -> None:
    answer = container.invoke(container.good(), headers={f"{PREFIX}{name}": MARK for name in ALL})
    assert answer.status_code == 200, answer.text[:500]


@pytest.mark.parametrize("name", ["Custom-Attributes", "Anything", "Target-Variant"])
def test_nothing_that_was_sent_is_echoed(container: Container, name: str) -> None:
    answer = container.invoke(container.good(), headers={f"{PREFIX}{name}": MARK, f"X-{name}": MARK})
    assert MARK not in str(answer.headers)


def test_the_caller_s_request_id_is_in_the_error(container: Container) -> None:
    answer = container.invoke(Question(b"{"), headers={f"{PREFIX}Inference-Id": MARK})
    found = container.error(answer).get("request_id")
    container.expects(found == MARK, "the request's id is not in the error")


def test_a_request_without_an_id_gets_one(container: Container) -> None:
    first, second = (container.invoke(Question(b"{")) for _ in range(2))
    ids = {container.error(answer).get("request_id") for answer in (first, second)}
    container.expects(len(ids) == 2 and None not in ids, "no id is made")

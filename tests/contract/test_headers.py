"""The platform's headers are accepted, and not echoed."""

from __future__ import annotations

import pytest

from .container import PREFIX, Container, ModelRequest

pytestmark = pytest.mark.modes("single", "batch")
CALLER_VALUE = "a-mark-of-the-caller-7f3a"
#: Every header that the platform sends, without its prefix.
PLATFORM_HEADERS = (
    *("Custom-Attributes", "Target-Variant", "Target-Container-Hostname"),
    *("Inference-Id", "Enable-Explanations", "Inference-Component"),
)


def test_the_platform_s_headers_do_no_harm(container: Container) -> None:
    response = container.invoke(
        container.accepted_request(), headers={f"{PREFIX}{name}": CALLER_VALUE for name in PLATFORM_HEADERS}
    )
    assert response.status_code == 200, response.text[:500]


@pytest.mark.parametrize("name", ["Custom-Attributes", "Anything", "Target-Variant"])
def test_nothing_that_was_sent_is_echoed(container: Container, name: str) -> None:
    response = container.invoke(
        container.accepted_request(), headers={f"{PREFIX}{name}": CALLER_VALUE, f"X-{name}": CALLER_VALUE}
    )
    assert CALLER_VALUE not in str(response.headers)


def test_the_caller_s_request_id_is_in_the_error(container: Container) -> None:
    answer = container.invoke(ModelRequest(b"{"), headers={f"{PREFIX}Inference-Id": CALLER_VALUE})
    request_id = container.error(answer).get("request_id")
    container.expect(request_id == CALLER_VALUE, "the request's id is not in the error")


def test_a_request_without_an_id_gets_one(container: Container) -> None:
    first, second = (container.invoke(ModelRequest(b"{")) for _ in range(2))
    ids = {container.error(answer).get("request_id") for answer in (first, second)}
    container.expect(len(ids) == 2 and None not in ids, "an error has no request id of its own")

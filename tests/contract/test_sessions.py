"""Stateful sessions: opened and closed by a request, named by a header."""

from __future__ import annotations

import datetime
import re

import pytest
import requests

from .container import PREFIX, Container, ModelRequest, assert_refused

pytestmark = pytest.mark.modes("single")
SESSION_HEADER = f"{PREFIX}Session-Id"
NEW_SESSION_HEADER, CLOSED_SESSION_HEADER = f"{PREFIX}New-Session-Id", f"{PREFIX}Closed-Session-Id"
NEW_SESSION, CLOSE_SESSION = (
    ModelRequest(f'{{"requestType":"{kind}"}}'.encode()) for kind in ("NEW_SESSION", "CLOSE")
)
UNKNOWN_SESSION = "00000000-0000-0000-0000-000000000000"


def open_session(container: Container) -> requests.Response:
    return container.invoke(NEW_SESSION, headers={SESSION_HEADER: "NEW_SESSION"})


@pytest.fixture
def new_session(container: Container) -> requests.Response:
    """The response that opened a session."""
    response = open_session(container)
    is_opened = response.status_code == 200 and NEW_SESSION_HEADER in response.headers
    container.expect(is_opened, f"NEW_SESSION is answered with {response.status_code}")
    return response


def test_a_new_session_has_an_id_and_says_when_it_ends(new_session: requests.Response) -> None:
    header = re.fullmatch(
        r"([^;]+); Expires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", new_session.headers[NEW_SESSION_HEADER]
    )
    assert header, new_session.headers[NEW_SESSION_HEADER]
    expiry = datetime.datetime.strptime(header[2], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    assert expiry > datetime.datetime.now(datetime.timezone.utc)


def test_a_new_session_is_named_in_both_headers(container: Container, new_session: requests.Response) -> None:
    container.expect(SESSION_HEADER in new_session.headers, f"no {SESSION_HEADER}")
    assert new_session.headers[SESSION_HEADER] == session_id(new_session)


def test_an_open_session_is_served_again_and_again(
    container: Container, new_session: requests.Response
) -> None:
    headers = {SESSION_HEADER: session_id(new_session)}
    for _ in range(10):
        response = container.invoke(container.accepted_request(), headers=headers)
        assert response.status_code == 200, response.text[:500]


def test_closing_a_session_names_it_and_ends_it(container: Container, new_session: requests.Response) -> None:
    headers = {SESSION_HEADER: session_id(new_session)}
    response = container.invoke(CLOSE_SESSION, headers=headers)
    assert response.status_code == 200
    assert response.headers[CLOSED_SESSION_HEADER] == session_id(new_session)
    for request in (CLOSE_SESSION, container.accepted_request()):
        assert_refused(container.invoke(request, headers=headers))


def test_every_session_has_an_id_of_its_own(container: Container, new_session: requests.Response) -> None:
    ids = {session_id(new_session), *(session_id(open_session(container)) for _ in range(20))}
    assert len(ids) == 21


@pytest.mark.parametrize("session", [UNKNOWN_SESSION, "../../etc/passwd", "/dev/shm", "x" * 4000, "a;b=c"])
def test_a_session_id_that_is_not_open_is_a_400(
    container: Container, new_session: requests.Response, session: str
) -> None:
    request = container.accepted_request()
    container.expect_refusal(container.invoke(request, headers={SESSION_HEADER: session}), 400)


@pytest.mark.modes("batch")
def test_with_sessions_off_opening_one_is_a_400_that_says_so(container: Container) -> None:
    response = open_session(container)
    if NEW_SESSION_HEADER in response.headers:
        container.cannot_tell("sessions are on")
    container.expect_refusal(response, 400)
    container.expect("session" in container.error(response).get("error", ""), "the error does not say so")


def session_id(response: requests.Response) -> str:
    """The id of a new session."""
    return response.headers[NEW_SESSION_HEADER].partition(";")[0]

"""Stateful sessions: opened, used and closed by header."""

from __future__ import annotations

import datetime
import re

import pytest
import requests

from .container import PREFIX, Container, Question, refused

pytestmark = pytest.mark.modes("single")
HEADER = f"{PREFIX}Session-Id"
OPENED, CLOSED = f"{PREFIX}New-Session-Id", f"{PREFIX}Closed-Session-Id"
NEW, CLOSE = Question(b'{"requestType":"NEW_SESSION"}'), Question(b'{"requestType":"CLOSE"}')
NOBODY = "00000000-0000-0000-0000-000000000000"


def ask_for_one(container: Container) -> requests.Response:
    return container.invoke(NEW, headers={HEADER: "NEW_SESSION"})


@pytest.fixture
def opened(container: Container) -> requests.Response:
    """The answer to who opens a session."""
    answer = ask_for_one(container)
    there = answer.status_code == 200 and OPENED in answer.headers
    container.expects(there, f"NEW_SESSION is answered with {answer.status_code}")
    return answer


def test_a_new_session_has_an_id_and_says_when_it_ends(opened: requests.Response) -> None:
    found = re.fullmatch(r"([^;]+); Expires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", opened.headers[OPENED])
    assert found, opened.headers[OPENED]
    end = datetime.datetime.strptime(found[2], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    assert end > datetime.datetime.now(datetime.timezone.utc)


def test_its_answer_names_it_in_both_headers(container: Container, opened: requests.Response) -> None:
    container.expects(HEADER in opened.headers, f"no {HEADER}")
    assert opened.headers[HEADER] == identity(opened)


def test_an_open_session_is_served_again_and_again(container: Container, opened: requests.Response) -> None:
    for _ in range(10):
        answer = container.invoke(container.good(), headers={HEADER: identity(opened)})
        assert answer.status_code == 200, answer.text[:500]


def test_a_closed_session_says_so_and_is_closed(container: Container, opened: requests.Response) -> None:
    answer = container.invoke(CLOSE, headers={HEADER: identity(opened)})
    assert answer.status_code == 200
    assert answer.headers[CLOSED] == identity(opened)
    for question in (CLOSE, container.good()):
        refused(container.invoke(question, headers={HEADER: identity(opened)}))


def test_every_session_has_an_id_of_its_own(container: Container, opened: requests.Response) -> None:
    ids = {identity(opened), *(identity(ask_for_one(container)) for _ in range(20))}
    assert len(ids) == 21


@pytest.mark.parametrize("session", [NOBODY, "../../etc/passwd", "/dev/shm", "x" * 4000, "a;b=c"])
def test_what_is_no_open_session_is_a_400(
    container: Container, opened: requests.Response, session: str
) -> None:
    answer = container.invoke(container.good(), headers={HEADER: session})
    refused(answer)
    container.expects(answer.status_code == 400, f"it is a {answer.status_code}")


@pytest.mark.modes("batch")
def test_where_sessions_are_off_asking_for_one_is_a_400_that_says_so(container: Container) -> None:
    answer = ask_for_one(container)
    if OPENED in answer.headers:
        container.unasked("sessions are on")
    refused(answer)
    container.expects(answer.status_code == 400, f"it is a {answer.status_code}")
    container.expects("session" in container.error(answer).get("error", ""), "the error does not say so")


def identity(answer: requests.Response) -> str:
    """The id of a new session."""
    return answer.headers[OPENED].partition(";")[0]

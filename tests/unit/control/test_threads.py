"""Requests that take long leave threads for the quick ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask

from sm.control.app import keep_threads_free
from sm.errors import UnknownModel
from sm.http.control_paths import PATHS
from sm.http.responses import handle_errors
from tests.support.boxes import wait_until


@pytest.mark.parametrize("path", ["/models", "/models/a", "/models/a/versions"])
def test_slow_requests_are_refused_before_they_hold_every_thread(path: str) -> None:
    app, go_on, entered = Flask("slow"), threading.Event(), list[str]()
    handle_errors(app)
    keep_threads_free(app, max_slow_requests=3)

    def answer(name: str = "") -> str:
        entered.append(name)
        assert go_on.wait(20)
        if len(entered) > 2:
            raise UnknownModel("it is not there")
        return "done"

    for rule in (path.rule for path in PATHS if path.is_slow):
        app.add_url_rule(rule, rule, answer, methods=["POST"])
    app.add_url_rule("/ping", "ping", lambda: "here")

    def post() -> int:
        return app.test_client().post(path).status_code

    with ThreadPoolExecutor(3) as callers:
        running = [callers.submit(post) for _ in range(3)]
        wait_until(lambda: len(entered) == 3)
        assert post() == 429
        assert app.test_client().get("/ping").status_code == 200
        go_on.set()
        assert {each.result() for each in running} == {404}
    # Refused and failed requests have given back what they had.
    assert [post() for _ in range(5)] == [404] * 5

"""The routes of the router with small clients, without nginx."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from gunicorn.http.errors import InvalidChunkSize

from sm.client import Client, TextPayload
from sm.model_processes.answer_guard import AnswerGuard
from sm.models.table import Models, models_of
from sm.router.classify import RequestClassifier
from sm.router.invocation_routes import Router, blueprint
from sm.router.records import OrderedMap
from sm.router.request_flow import RequestFlow
from sm.router.triton_requests import TritonForwarder
from sm.server.logs import JsonFormatter
from sm.settings import Settings
from sm.triton.calls import Calls
from sm.triton.http_proxy import Upstream
from tests.support.client_sources import EmptyTriton

#: The WSGI variable of a chunked body.
CHUNKED_BODY = {"HTTP_TRANSFER_ENCODING": "chunked"}


class Upper(Client):
    payload = TextPayload

    def inference(self, payload: TextPayload) -> object:
        return payload.text.upper()


@pytest.fixture
def http_client(request: pytest.FixtureRequest) -> Iterator[FlaskClient]:
    """An HTTP client of a router behind nginx, or without it (parameter False)."""
    behind_nginx = getattr(request, "param", True)
    client, calls = Upper(EmptyTriton(), Path(), Path()), Calls(AnswerGuard(None))
    client.name = "upper"
    with ThreadPoolExecutor(2) as pool:
        models = models_of({"upper": client})
        flow = RequestFlow(
            models,
            RequestClassifier(models, "upper", max_records=100),
            TritonForwarder(Upstream(1, 5.0, calls), models),
            calls,
            OrderedMap(pool, 2),
        )
        app = Router(flow, Settings(), behind_nginx)
        app.max_body = 1000
        app.register_blueprint(blueprint(app))
        yield app.test_client()


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413), (5000, 413)])
def test_a_chunked_body_over_the_limit_is_refused_and_not_cut(
    http_client: FlaskClient, size: int, status: int
) -> None:
    # gunicorn passes a chunked body this way.
    environ = {"wsgi.input": io.BytesIO(b"a" * size), "wsgi.input_terminated": True, **CHUNKED_BODY}
    response = http_client.post("/invocations", content_type="text/plain", environ_overrides=environ)
    assert response.status_code == status, response.text


@pytest.mark.parametrize("error", [InvalidChunkSize(b"zz"), OSError("gone")], ids=repr)
def test_a_chunked_body_that_cannot_be_read_is_a_400(http_client: FlaskClient, error: Exception) -> None:
    class BrokenInput:
        def read(self, _: int = -1) -> bytes:
            raise error

    environ = {"wsgi.input": BrokenInput(), "wsgi.input_terminated": True, **CHUNKED_BODY}
    response = http_client.post("/invocations", content_type="text/plain", environ_overrides=environ)
    assert (response.status_code, response.json and response.json["code"]) == (400, "bad_input")


@pytest.mark.parametrize(("http_client", "status"), [(True, 504), (False, 200)], indirect=["http_client"])
def test_time_spent_in_nginx_counts_but_only_nginx_may_report_it(
    http_client: FlaskClient, status: int
) -> None:
    headers = {"X-Trireme-Start": "1.0"}
    response = http_client.post("/invocations", json={"modelname": "upper", "payload": "a"}, headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("http_client", "said"),
    [(True, ("alice", "192.0.2.1", "1700000000.123")), (False, ("", "127.0.0.1", ""))],
    indirect=["http_client"],
)
def test_only_nginx_may_say_whose_request_it_is(http_client: FlaskClient, said: tuple[str, str, str]) -> None:
    told = {
        "HTTP_X_TRIREME_KEY_NAME": "alice",
        "HTTP_X_TRIREME_ADDRESS": "192.0.2.1",
        "HTTP_X_TRIREME_START": "1700000000.123",
    }
    router = http_client.application
    assert isinstance(router, Router)
    begun = router.begin({"REMOTE_ADDR": "127.0.0.1", **told})
    assert (begun.api_key_name, begun.address, begun.arrival) == said
    assert begun.caller == (begun.api_key_name or begun.address)


@pytest.fixture
def log_line(caplog: pytest.LogCaptureFixture) -> Callable[[], logging.LogRecord]:
    """The one line of the requests since the last call."""
    caplog.set_level(logging.INFO)

    def take() -> logging.LogRecord:
        (line,) = [record for record in caplog.records if record.message == "invocation"]
        caplog.clear()
        return line

    return take


def test_each_request_has_one_log_line_with_its_model_sizes_and_status(
    http_client: FlaskClient, log_line: Callable[[], logging.LogRecord]
) -> None:
    body = json.dumps({"modelname": "upper", "version": "3", "payload": ["a", "b"]})
    response = http_client.post("/invocations", data=body, headers={"X-Request-Id": "mine"})
    logged = vars(log_line())
    expected = {"levelno": logging.INFO, "model": "upper", "status": 200, "version": "3", "records": 2}
    sizes = {"bytes_in": len(body), "bytes_out": len(response.data)}
    assert logged.items() >= {**expected, **sizes, "request_id": "mine", "queue_ms": 0}.items()
    assert set(logged["stages_ms"]) == {"decode"}
    http_client.post("/invocations", data=b'"a"\n"b"\n', content_type="application/jsonlines")
    logged = vars(log_line())
    assert (logged["records"], logged["status"]) == (2, 200)


@pytest.mark.parametrize(
    ("body", "status", "code", "reason"),
    [
        ('{"modelname":"upper","payload":SECRET}', 400, "bad_input", ""),
        ('{"modelname":"upper","payload":{"text":"a","SECRET":1}}', 422, "wrong_payload", "payload.…: "),
        ('{"modelname":"upper","payload":{"text":["SECRET"]}}', 422, "wrong_payload", "payload.text: "),
        ('{"payload":"a","parameters":{"SECRET":1}}', 422, "wrong_payload", "parameters: "),
        ('{"modelname":"upper","payload":"' + "SECRET" * 200 + '"}', 413, "too_large", ""),
        ('{"modelname":"gone","payload":"SECRET"}', 404, "unknown_model", ""),
    ],
)
def test_each_refused_request_is_logged_with_code_and_reason_but_no_payload(
    http_client: FlaskClient,
    log_line: Callable[[], logging.LogRecord],
    body: str,
    status: int,
    code: str,
    reason: str,
) -> None:
    assert http_client.post("/invocations", data=body, content_type="application/json").status_code == status
    line = log_line()
    logged = vars(line)
    assert (line.levelno, logged["status"], logged["code"]) == (logging.WARNING, status, code)
    assert logged["reason"].startswith(reason)
    assert "SECRET" not in JsonFormatter().format(line)


@pytest.mark.parametrize(("http_client", "has_id"), [(True, False), (False, True)], indirect=["http_client"])
def test_without_nginx_the_router_adds_the_request_id_to_every_answer(
    http_client: FlaskClient, has_id: bool
) -> None:
    for path in ("/invocations", "/nothing"):
        response = http_client.post(path, json={"payload": "a"}, headers={"X-Request-Id": "mine-4"})
        assert response.headers.getlist("X-Request-Id") == (["mine-4"] if has_id else [])


def test_a_model_that_was_unloaded_while_its_request_ran_is_a_404(
    http_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> object:
        raise FileNotFoundError("labels.txt")

    monkeypatch.setattr(Upper, "inference", fail)
    for known, status, code in ((True, 500, "client_failed"), (False, 404, "unknown_model")):
        monkeypatch.setattr(Models, "known", lambda *_, known=known: known)
        response = http_client.post("/models/upper/invoke", json={"payload": "a"})
        assert (response.status_code, response.json and response.json["code"]) == (status, code)

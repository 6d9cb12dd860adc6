"""The routes over a registry of small clients, without a front."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from gunicorn.http.errors import InvalidChunkSize

from sm.client.base import Client, TextPayload
from sm.logs import JsonFormatter
from sm.plugins.registry import Registry
from sm.router import triton_requests
from sm.router.app import Router
from sm.router.classify import Classifier
from sm.router.dispatch import Dispatcher
from sm.router.lines import Lines
from sm.router.routes.invocations import Service, blueprint, direct
from sm.router.routes.responses import handle_errors
from sm.triton.http_proxy import Upstream

#: How WSGI says that a body has no length.
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked"}


class Upper(Client):
    payload = TextPayload

    def inference(self, payload: TextPayload) -> object:
        return payload.text.upper()


class Unsendable(Client):
    payload = TextPayload

    def inference(self, payload: TextPayload) -> object:
        return {1, 2}


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[FlaskClient]:
    """A caller of a router behind nginx, or by itself (parameter False)."""
    fronted = getattr(request, "param", True)
    clients: dict[str, Client] = {}
    for name, kind in (("upper", Upper), ("unsendable", Unsendable)):
        # Neither calls Triton.
        clients[name] = kind(None, Path(), Path())  # type: ignore[arg-type]
        clients[name].name = name
    app = Router("test", fronted)
    handle_errors(app)
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as lines:
        service = Service(
            Dispatcher(Registry(clients), pool),
            Lines(lines, 2),
            None,
            None,
            triton_requests.Triton(Upstream(1, 5.0), Registry(clients)),
            Classifier(Registry(clients), "upper", max_records=100),
            1000,
            5.0,
            5.0,
            fronted,
        )
        app.direct.update(direct(service))
        app.register_blueprint(blueprint(service, local_endpoints=fronted))
        yield app.test_client()


def test_an_answer_has_its_length(caller: FlaskClient) -> None:
    answer = caller.post("/invocations", json={"modelname": "upper", "payload": "a"})
    assert answer.json == {"modelname": "upper", "result": "A"}
    assert int(answer.headers["Content-Length"]) == len(answer.data)


def test_a_result_goes_to_s3_only_where_that_is_allowed(caller: FlaskClient) -> None:
    request = {"modelname": "upper", "payload": "a", "result_s3_uri": "s3://bucket/key"}
    answer = caller.post("/invocations", json=request)
    assert (answer.status_code, answer.json and answer.json["code"]) == (403, "forbidden")


def test_a_body_over_the_limit_is_a_413_also_without_a_front(caller: FlaskClient) -> None:
    answer = caller.post("/invocations", data=b" " * 1001, content_type="application/json")
    assert (answer.status_code, answer.json and answer.json["code"]) == (413, "too_large")


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413), (5000, 413)])
def test_a_body_of_unknown_length_over_the_limit_is_not_cut_but_refused(
    caller: FlaskClient, size: int, status: int
) -> None:
    # As gunicorn alone has a body in chunks.
    environ = {"wsgi.input": io.BytesIO(b"a" * size), "wsgi.input_terminated": True, **CHUNKED}
    answer = caller.post("/invocations", content_type="text/plain", environ_overrides=environ)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("error", [InvalidChunkSize(b"zz"), OSError("gone")], ids=repr)
def test_a_body_whose_chunks_cannot_be_read_is_a_400(caller: FlaskClient, error: Exception) -> None:
    class Broken:
        def read(self, _: int = -1) -> bytes:
            raise error

    environ = {"wsgi.input": Broken(), "wsgi.input_terminated": True, **CHUNKED}
    answer = caller.post("/invocations", content_type="text/plain", environ_overrides=environ)
    assert (answer.status_code, answer.json and answer.json["code"]) == (400, "bad_input")


def test_a_wrong_method_is_a_405_in_the_contracts_words(caller: FlaskClient) -> None:
    answer = caller.get("/invocations")
    assert (answer.status_code, answer.json and answer.json["error"]) == (405, "Method Not Allowed")
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/invocations", "/endpoints/x/invocations"])
def test_options_are_another_method(caller: FlaskClient, path: str) -> None:
    answer = caller.options(path)
    assert (answer.status_code, answer.content_type) == (405, "application/json")
    assert answer.headers["Allow"] == "POST"


def test_slashes_in_front_are_one(caller: FlaskClient) -> None:
    # An address that ends in a slash, and a path that begins with one.
    environ = {"PATH_INFO": "//invocations"}
    answer = caller.post("/", json={"modelname": "upper", "payload": "a"}, environ_overrides=environ)
    assert answer.status_code == 200


def test_an_unknown_path_is_json(caller: FlaskClient) -> None:
    answer = caller.get("/<script>")
    assert (answer.status_code, answer.content_type) == (404, "application/json")


def test_a_slash_too_many_is_a_404_and_no_redirect(caller: FlaskClient) -> None:
    answer = caller.post("/endpoints//any/invocations", base_url="https://box:8080")
    assert answer.status_code == 404
    assert "Location" not in answer.headers
    assert answer.json is not None
    assert answer.json["code"] == "not_found"


def test_a_result_that_json_cannot_carry_is_the_clients_fault(caller: FlaskClient) -> None:
    answer = caller.post("/invocations", json={"modelname": "unsendable", "payload": "a"})
    assert answer.status_code == 500
    assert answer.json is not None
    assert answer.json["code"] == "client_failed"
    assert "unsendable" in answer.json["error"]


@pytest.mark.parametrize(("caller", "status"), [(True, 504), (False, 200)], indirect=["caller"])
def test_time_spent_in_line_is_not_given_twice_but_only_nginx_is_believed(
    caller: FlaskClient, status: int
) -> None:
    headers = {"X-Trireme-Start": "1.0"}
    answer = caller.post("/invocations", json={"modelname": "upper", "payload": "a"}, headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(("caller", "status"), [(True, 200), (False, 404)], indirect=["caller"])
def test_local_endpoints_are_there_unless_they_are_turned_off(caller: FlaskClient, status: int) -> None:
    assert caller.post("/endpoints/x/invocations", json={"payload": "a"}).status_code == status


def test_an_endpoints_error_is_a_424_model_error(caller: FlaskClient) -> None:
    answer = caller.post("/endpoints/x/invocations", data=b"{", content_type="application/json")
    assert answer.status_code == 424
    assert answer.headers["x-amzn-ErrorType"] == "ModelError"
    assert json.loads(answer.data)["OriginalStatusCode"] == 400


@pytest.mark.parametrize(("value", "kept"), [("x" * 64, True), ("x" * 65, False)])
def test_the_callers_request_id_is_kept_if_it_is_not_too_long(
    caller: FlaskClient, value: str, kept: bool
) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": value}
    answer = caller.post("/invocations", data=b"{", headers=headers, content_type="application/json")
    assert answer.json is not None
    assert (answer.json["request_id"] == value) is kept


def test_each_request_has_one_line_with_what_was_asked_and_how_it_ended(
    caller: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body = json.dumps({"modelname": "upper", "version": "3", "payload": ["a", "b"]})
    answer = caller.post("/invocations", data=body, headers={"X-Request-Id": "mine"})
    (line,) = [record for record in caplog.records if record.message == "invocation"]
    assert line.levelno == logging.INFO
    told = vars(line)
    assert (told["model"], told["status"], told["version"], told["records"]) == ("upper", 200, "3", 2)
    assert (told["bytes_in"], told["bytes_out"]) == (len(body), len(answer.data))
    assert told["request_id"] == "mine"
    assert set(told["stages_ms"]) == {"decode"}
    assert told["queue_ms"] == 0


@pytest.mark.parametrize(
    ("body", "status", "code", "reason"),
    [
        ('{"modelname":"upper","payload":SECRET}', 400, "bad_input", "the body is not JSON"),
        ('{"modelname":"upper","payload":{"text":"a","SECRET":1}}', 422, "wrong_payload", "payload.…: "),
        ('{"modelname":"upper","payload":{"text":["SECRET"]}}', 422, "wrong_payload", "payload.text: "),
        (
            '{"modelname":"upper","payload":"a","parameters":{"SECRET":1}}',
            422,
            "wrong_payload",
            "parameters: this model takes no parameters",
        ),
        ('{"modelname":"upper","payload":"' + "SECRET" * 200 + '"}', 413, "too_large", "the body is larger"),
        ('{"modelname":"gone","payload":"SECRET"}', 404, "unknown_model", "no model 'gone'"),
    ],
)
def test_each_refusal_has_its_code_and_reason_in_the_log_and_no_payload(
    caller: FlaskClient,
    caplog: pytest.LogCaptureFixture,
    body: str,
    status: int,
    code: str,
    reason: str,
) -> None:
    caplog.set_level(logging.INFO)
    assert caller.post("/invocations", data=body, content_type="application/json").status_code == status
    (line,) = [record for record in caplog.records if record.message == "invocation"]
    told = vars(line)
    assert line.levelno == logging.WARNING
    assert (told["status"], told["code"]) == (status, code)
    assert told["reason"].startswith(reason)
    assert "SECRET" not in JsonFormatter().format(line)


@pytest.mark.parametrize(("caller", "named"), [(True, False), (False, True)], indirect=["caller"])
def test_without_nginx_the_router_names_the_request_in_every_answer(caller: FlaskClient, named: bool) -> None:
    for path in ("/invocations", "/nothing"):
        answer = caller.post(path, json={"payload": "a"}, headers={"X-Request-Id": "mine-4"})
        assert answer.headers.getlist("X-Request-Id") == (["mine-4"] if named else [])

"""A body is parsed once and an answer encoded once, whatever its form; a form's own paths are checked."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import orjson
import pytest
from flask import Flask
from werkzeug.test import Client as Caller

from sm.errors import StartError
from sm.router import form_routes
from sm.router.forms.form import Form, Reading
from sm.router.forms.table import Forms
from sm.router.invocation_routes import Router
from sm.router.request_types import Call
from tests.support.dear_bodies import applications, task_clients


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Caller:
    folder = tmp_path_factory.mktemp("models")
    clients = task_clients(folder)
    wanted = {name: clients[name] for name in ("sentence-embeddings", "ranker", "tabular")}
    return Caller(applications(wanted, folder)["data"])


class Work:
    """The bytes of JSON that were read and written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed: list[int] = []
        self.encoded: list[int] = []
        loads, dumps = orjson.loads, orjson.dumps

        def count_loads(text: Any) -> Any:
            self.parsed.append(len(text))
            return loads(text)

        def count_dumps(*arguments: Any, **options: Any) -> bytes:
            text = dumps(*arguments, **options)
            self.encoded.append(len(text))
            return text

        monkeypatch.setattr(orjson, "loads", count_loads)
        monkeypatch.setattr(orjson, "dumps", count_dumps)


EMBED = {"model": "sentence-embeddings", "input": ["ada lives", "in paris", "ada"]}
RANK = {"model": "ranker", "query": "where ?", "documents": ["ada", "ada lives in paris"]}
TEI = {"query": "where ?", "texts": ["ada", "in paris"]}
LINE = {"modelname": "sentence-embeddings", "payload": ["ada", "in paris"]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", EMBED, 200),
        ("/v1/embeddings", {**EMBED, "encoding_format": "base64"}, 200),
        ("/embed", {"inputs": EMBED["input"]}, 200),
        *((path, RANK, 200) for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/infinity/rerank")),
        ("/v1/rerank", {**RANK, "top_k": 1}, 200),
        ("/rerank", TEI, 200),
        ("/invocations", LINE, 200),
        ("/invocations", {**LINE, "payload": "ada"}, 200),
        ("/invocations?modelname=sentence-embeddings", {"inputs": EMBED["input"]}, 200),
        ("/invocations?modelname=tabular", {"instances": [[1, 2, 3]]}, 200),
        # Its caller's fault, found in the body, in a record, and in a result.
        ("/v1/embeddings", {**EMBED, "prompt": "a"}, 400),
        ("/v1/embeddings", {**EMBED, "input": ["ada", 3]}, 400),
        ("/v1/embeddings", {**EMBED, "dimensions": 99}, 400),
        ("/invocations", {**LINE, "payload": [3]}, 422),
    ],
)
def test_a_body_is_parsed_once_and_an_answer_encoded_once(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    content = orjson.dumps(body)
    work = Work(monkeypatch)
    answer = caller.post(path, data=content, content_type="application/json")
    assert (answer.status_code, work.parsed) == (status, [len(content)]), answer.data
    # The parts of an answer are encoded where they are made, so that the sum counts.
    encoded = sum(work.encoded) if status == 200 else work.encoded[-1]
    assert encoded <= len(answer.data)
    if status == 400 and "prompt" in body:
        assert work.encoded == [len(answer.data)]
    if status == 200 and path == "/v1/embeddings":
        assert len(work.encoded) == len(body["input"]) + 1  # each vector, and what is behind them


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/embeddings", {**EMBED, "input": ["ada", [3, -1]]}, "input[1][1]"),
        ("/v1/rerank", {**RANK, "query": "a" * 40_000}, "query"),
        ("/v1/rerank", {**RANK, "documents": ["ada", "a" * 40_000]}, "documents[1]"),
        ("/rerank", {**TEI, "texts": ["ada", "a" * 40_000]}, "texts[1]"),
        ("/embed", {"inputs": ["ada"], "prompt_name": "none"}, "prompt_name"),
    ],
)
def test_an_error_names_the_field_as_the_form_of_the_request_does(
    caller: Caller, path: str, body: dict[str, Any], field: str
) -> None:
    answer = caller.post(path, json=body)
    assert answer.status_code == 400
    error = answer.get_json()
    described = (
        error["error"]
        if isinstance(error["error"], dict)
        else {"message": error["error"], "param": error["field"]}
    )
    assert described["param"] == field
    assert described["message"].startswith(f"{field}: ")
    assert "payload" not in described["message"]
    assert "parameters" not in described["message"]


class Own(Form):
    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def has(self, reading: Reading) -> bool:
        return True

    def read(self, reading: Reading) -> Call:
        return Call([reading.json()])


@pytest.mark.parametrize(
    "path", ["/ping", "/dashboard", "/invocations", "/models/a", "/v2/models/a/infer", "predict", "/<name>"]
)
def test_a_form_cannot_have_a_path_of_the_box(path: str) -> None:
    with pytest.raises(StartError, match="Own"):
        Forms.of([Own("/predict", path)])
    assert Forms.of([Own("/predict")]).paths.keys() == {"/predict"}


class Listed(Own):
    lists: ClassVar[Any] = {"/a/b": lambda models: []}


def test_paths_may_differ_in_any_character_and_a_list_may_have_the_path_of_a_form() -> None:
    app = Flask(__name__)
    paths = ("/a/b", "/a-b", "/v1.5/c")
    app.register_blueprint(form_routes.blueprint(cast(Router, None), Forms.of([Listed(*paths)])))
    rules = [
        (str(rule), *rule.methods & {"GET", "POST"}) for rule in app.url_map.iter_rules() if rule.methods
    ]
    assert {*rules} >= {*((path, "POST") for path in paths), ("/a/b", "GET")}

"""``/ping`` by what Triton answers. Triton is played, as only 2.71 asks its models whether they are ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from flask import Flask
from werkzeug import Request, Response

from sm.control import routes
from sm.control.state import check_ready, list_served
from sm.errors import NotReady
from sm.model_processes.generations import SharedGeneration, now
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.run_state import Box
from sm.server.supervisor.processes import Probes
from sm.triton import server
from tests.support.boxes import free_port
from tests.support.http_server import serving
from tests.support.model_archives import multiplying_model

MODELS = ("one", "two")


@dataclass
class PlayedTriton:
    """Its statuses by path, why something is not ready, and what its index says; everything else is ready."""

    statuses: dict[str, int] = field(default_factory=dict)
    words: str = "Model version not ready"
    index: list[dict[str, str]] = field(
        default_factory=lambda: [{"name": name, "version": "1", "state": "READY"} for name in MODELS]
    )

    def unready(self, model: str, status: int = 400) -> None:
        self.statuses["/v2/health/ready"] = 400
        self.statuses[f"/v2/models/{model}/versions/1/ready"] = status

    def respond(self, request: Request) -> Response:
        status = self.statuses.get(request.path, 200)
        if status != 200:
            return Response(json.dumps({"error": self.words}), status)
        return Response(json.dumps(self.index) if request.method == "POST" else "")


@pytest.fixture
def triton() -> PlayedTriton:
    return PlayedTriton()


@pytest.fixture
def box(triton: PlayedTriton, tmp_path: Path) -> Iterator[Box]:
    for name in MODELS:
        multiplying_model().write(tmp_path / "models" / name)
    generation = SharedGeneration.create(tmp_path / "generation").path
    (tmp_path / "run").mkdir()
    with serving(triton.respond) as url:
        port = int(url.rpartition(":")[2])
        box = Box("id", tmp_path / "run", tmp_path / "models", port, 2, 3, "nginx", 0)
        box = replace(box, generation_file=generation, out_seconds=60.0)
        box.state_file.write_text(json.dumps({"ready": True, "processes": {}}))
        yield box


def reason(box: Box) -> str:
    """Why ``/ping`` is not 200; empty if it is."""
    try:
        check_ready(box)
    except NotReady as error:
        return error.sentence
    return ""


def lose(box: Box, model: str) -> None:
    assert box.generation_file
    assert SharedGeneration(box.generation_file).take_out(model, now())


def test_a_request_that_no_worker_answered_is_refused_even_if_the_box_is_ready(box: Box) -> None:
    app = Flask("control")
    app.testing = True  # errors are raised
    app.register_blueprint(routes.blueprint(box))
    assert app.test_client().get("/ping").status_code == 200
    with pytest.raises(NotReady):
        app.test_client().get("/ping", headers={routes.UNSERVED: "1"})


@pytest.mark.parametrize("status", [400, 404, 503])
def test_a_model_that_says_that_it_is_not_ready_is_named(box: Box, triton: PlayedTriton, status: int) -> None:
    triton.unready("one", status)
    assert f"one ({triton.words})" in reason(box)
    assert "two" not in reason(box)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({}, "Triton"),
        ({"state": "LOADING", "reason": "no memory"}, f"two ({server.LOADING})"),
        ({"state": "UNAVAILABLE", "reason": "no memory"}, "two (no memory)"),
        ({"state": "UNLOADING", "reason": "no memory"}, "two (no memory)"),
    ],
)
def test_an_unready_model_is_named(box: Box, triton: PlayedTriton, row: dict[str, str], named: str) -> None:
    triton.unready("no-such-model")
    triton.index[1] |= row
    assert named in reason(box)


def test_a_start_names_the_models_that_it_waits_for(box: Box, triton: PlayedTriton) -> None:
    triton.unready("one")
    triton.index += [
        {"name": "three", "version": "2", "state": "LOADING"},
        {"name": "three", "version": "1", "state": "READY"},
    ]
    assert Probes(box, 0).unready_models() == {"one": triton.words, "three": server.LOADING}
    assert Probes(replace(box, http_port=free_port()), 0).unready_models() is None


def test_a_model_that_is_loaded_again_counts_only_when_it_stays_away(box: Box, triton: PlayedTriton) -> None:
    triton.unready("one")
    lose(box, "one")
    assert reason(box) == ""
    away = replace(box, out_seconds=-1.0)
    assert "one" in reason(away)
    # GET /models says the same of it.
    assert [[row["ready"] for row in list_served(each)] for each in (box, away)] == [
        [True, True],
        [False, True],
    ]
    # One that was unloaded on purpose is not missing; another one is not excused by it.
    triton.index[1] |= {"state": "UNAVAILABLE", "reason": "unloaded"}
    assert reason(box) == ""
    triton.index[1] |= {"state": "READY"}
    triton.unready("two")
    assert "two" in reason(box)


def test_a_new_version_that_cannot_be_loaded_leaves_the_old_one(box: Box, triton: PlayedTriton) -> None:
    box = replace(box, has_versions=True)
    LoadRecords(box.models_file).put(LoadRecord("one", "", "1", "", {"one": "one"}, state=State.SERVES))
    # Of one that is gone again Triton's list has no line, and it is not ready for its sake.
    triton.unready("no-such-model")
    assert reason(box) == ""
    triton.statuses["/v2/health/live"] = 400
    assert "Triton" in reason(box)
    del triton.statuses["/v2/health/live"]
    triton.index.append({"name": "one-2", "version": "1", "state": "UNAVAILABLE", "reason": "broken"})
    assert reason(box) == ""
    triton.unready("one")
    assert "one" in reason(box)


def test_a_version_that_stays_away_has_the_name_that_callers_know(box: Box) -> None:
    box = replace(box, has_versions=True, out_seconds=-1.0)
    old = LoadRecord("two", "", "1", "two", {"two": "two"}, state=State.SERVES).beside(State.RETIRED)
    LoadRecords(box.models_file).put(old)
    LoadRecords(box.models_file).put(LoadRecord("cats", "", "2", "one", {"cats": "one"}, state=State.SERVES))
    for model in MODELS:
        lose(box, model)
    assert "cats" in reason(box)
    assert "two" not in reason(box)


def test_only_liveness_is_asked_where_only_that_counts(box: Box, triton: PlayedTriton) -> None:
    assert reason(box) == ""
    triton.unready("one")
    assert reason(replace(box, ping="live")) == ""
    triton.statuses["/v2/health/live"] = 400
    assert "Triton" in reason(replace(box, ping="live"))

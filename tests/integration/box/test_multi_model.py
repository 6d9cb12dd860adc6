"""Multi-model mode on the real box: loading and unloading archives never disturbs other models."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import requests

from sm.http.messages import BINARY
from tests.support.boxes import retry_until_ok, wait_until
from tests.support.load import Load
from tests.support.model_archives import chain_config, multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.tritons import ECHO_BODY, ECHO_REQUEST, MODELS, Model

#: Says its archive's name for itself twice, and what the model answers.
CLIENT_SOURCE = """
import numpy as np

import helper
from sm.client import Payload, TensorClient
from .helper import NAME


class Numbers(Payload):
    x: list[float]


class Times(TensorClient):
    model, payload = "model", Numbers

    def preprocess(self, payload):
        return {"x": np.float32(payload.x)}

    def postprocess(self, outputs, payload):
        return [NAME, helper.NAME, outputs["y"].tolist()]
"""
CLIENT_BODY = {"payload": {"x": [1, 2]}}


@pytest.fixture
def endpoint(multi_model: MultiModelEndpoint) -> Iterator[MultiModelEndpoint]:
    """Every model is unloaded after each test."""
    yield multi_model
    for name in multi_model.names():
        unload(multi_model, name)


def load(endpoint: MultiModelEndpoint, name: str, factor: float, target: str = "", **code: str) -> str:
    """Load an archive of one model that multiplies, and return its address."""
    url = endpoint.platform.write_flat(name, multiplying_model(factor), **code)
    endpoint.load_successfully(name, url, target)
    return url


def load_chain(endpoint: MultiModelEndpoint, name: str, *factors: float) -> None:
    """Load an archive of an ensemble whose steps multiply, one after the other."""
    steps = {f"step{number}": multiplying_model(factor) for number, factor in enumerate(factors)}
    url = endpoint.platform.write_nested(name, {**steps, "whole": chain_config(*steps)})
    endpoint.load_successfully(name, url)


def unload(endpoint: MultiModelEndpoint, name: str) -> None:
    assert endpoint.unload(name).status_code == 200


def test_ensembles_whose_steps_have_the_same_names_do_not_mix(endpoint: MultiModelEndpoint) -> None:
    load_chain(endpoint, "e1", 2, 10)
    load_chain(endpoint, "e2", 3, 10)
    assert (endpoint.infer_y("e1"), endpoint.infer_y("e2")) == ([20, 40], [30, 60])
    unload(endpoint, "e1")
    assert endpoint.infer_y("e2") == [30, 60]


def test_the_target_model_finds_a_model_and_is_its_name_in_v2_answers(
    endpoint: MultiModelEndpoint,
) -> None:
    """As the official container, which gives Triton the Target-Model as the model's name."""
    target = "team/cats.tar.gz"
    load(endpoint, "h1", 2, target)
    headers = {"X-Amzn-SageMaker-Target-Model": target}
    response = requests.post(f"{endpoint.url}/invocations", json=ECHO_REQUEST, headers=headers, timeout=10)
    assert response.json()["outputs"][0]["data"] == [2, 4]
    assert endpoint.load("h2", endpoint.platform.write_flat("h2"), target).status_code == 409
    # Triton has a model "whole" for the first archive, so the second's model has another name there.
    steps = {"whole": multiplying_model(3), "entry": chain_config("whole")}
    endpoint.load_successfully("e1", endpoint.platform.write_nested("e1", steps))
    load(endpoint, "whole", 5)
    request_id = f'"model_name":"{target}"'
    for name, expected in (("h1", target), ("e1", "e1"), ("whole", "whole")):
        answer = endpoint.invoke(name, {**ECHO_REQUEST, "id": request_id}).json()
        assert (answer["model_name"], answer["id"]) == (expected, request_id), answer

    wanted = {**ECHO_REQUEST, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    head = json.dumps(wanted).encode()
    content_type = {"Content-Type": f"{BINARY};json-header-size={len(head)}"}
    response = requests.post(f"{endpoint.url}/models/h1/invoke", data=head, headers=content_type, timeout=30)
    size = int(response.headers["Content-Type"].removeprefix(f"{BINARY};json-header-size="))
    assert json.loads(response.content[:size])["model_name"] == target
    assert np.frombuffer(response.content[size:], np.float32).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/models/unknown"), ("DELETE", "/models/unknown"), ("POST", "/models/unknown/invoke")],
)
def test_a_404_names_the_loaded_models(endpoint: MultiModelEndpoint, method: str, path: str) -> None:
    load(endpoint, "first", 2)
    response = endpoint.request(method, path, json={"inputs": []})
    assert response.status_code == 404
    assert "first" in response.json()["models"]


def test_a_failed_load_says_why_and_ping_stays_200(endpoint: MultiModelEndpoint) -> None:
    for exception, status in (("ValueError('no such luck')", 400), ("MemoryError('no such luck')", 507)):
        model = multiplying_model(failing=exception)
        response = endpoint.load("h1", endpoint.platform.write_flat("h1", model))
        assert (response.status_code, "no such luck" in response.text) == (status, True)
        assert endpoint.box.ping()[0] == 200
        assert endpoint.list_page() == {"models": []}
    crowd = Path(endpoint.platform.write_flat("h1"))
    with (crowd / "config.pbtxt").open("a") as config:
        config.write("instance_group { count: 33 }")
    assert endpoint.load("h1", str(crowd)).status_code == 400
    load(endpoint, "h1", 4)
    assert endpoint.infer_y("h1") == [4, 8]


@contextmanager
def pending_load(
    endpoint: MultiModelEndpoint, folder: Path, name: str, model: Model
) -> Iterator[Future[requests.Response]]:
    """Load a model that is loaded only when the block ends. It has begun when the block begins."""
    begun, go_on = folder / "begun", folder / "go-on"
    waits = f"""
        open({str(begun)!r}, "w").close()
        while not os.path.exists({str(go_on)!r}):
            time.sleep(0.02)
"""
    url = endpoint.platform.write_flat(name, replace(model, head=model.head + waits))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(endpoint.load, name, url)
        try:
            wait_until(lambda: begun.exists() or pending.done(), description="the load begun")
            assert not pending.done(), pending.result().text
            yield pending
        finally:
            go_on.touch()


def test_a_long_load_does_not_delay_ping_or_others(endpoint: MultiModelEndpoint, tmp_path: Path) -> None:
    load(endpoint, "quick", 2)
    with pending_load(endpoint, tmp_path, "slow", multiplying_model(3)) as pending:
        with Load(endpoint.box.port, ECHO_BODY, path="/models/quick/invoke").start(callers=4) as callers:
            wait_until(lambda: callers.outcomes["200"] >= 20, description="invocations beside the load")
            for _ in range(10):
                assert endpoint.box.ping()[0] == 200
                assert endpoint.names() == ["quick"]
            assert endpoint.unload("slow").status_code == 409
            load(endpoint, "third", 5)
            assert endpoint.infer_y("third") == [5, 10]
            unload(endpoint, "third")
            assert not pending.done()
        assert set(callers.outcomes) == {"200"}
    assert pending.result().status_code == 200
    assert endpoint.infer_y("slow") == [3, 6]


@pytest.mark.parametrize(("killed", "statuses"), [("control", (502, 503)), ("triton", (503,))])
def test_a_process_killed_during_a_load_is_a_503_and_leaves_nothing_of_it(
    endpoint: MultiModelEndpoint, tmp_path: Path, killed: str, statuses: tuple[int, ...]
) -> None:
    with pending_load(endpoint, tmp_path, "half", multiplying_model(2)) as pending:
        endpoint.box.kill_and_wait_for_restart(killed)
        response = pending.result()
    assert response.status_code in statuses
    assert response.status_code == 502 or response.json()["code"] == "not_ready"
    endpoint.box.wait_ready()
    assert endpoint.names() == []
    url = str(endpoint.platform.home / "half" / "model")
    retry_until_ok(lambda: endpoint.load("half", url))
    assert endpoint.infer_y("half") == [2, 4]


def test_an_unload_waits_for_requests_and_no_unread_stream(
    endpoint: MultiModelEndpoint, tmp_path: Path
) -> None:
    model, started_file = multiplying_model(2), tmp_path / "begun"
    answer = f"open({str(started_file)!r}, 'w').close()\ntime.sleep(2)\n{model.answer}"
    for name, each in (("slow", replace(model, answer=answer)), ("torrent", MODELS["torrent"])):
        endpoint.load_successfully(name, endpoint.platform.write_flat(name, each))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(endpoint.infer_y, "slow")
        wait_until(started_file.exists, description="the request's beginning")
        unload(endpoint, "slow")
        assert pending.result() == [2, 4]
    stream_url, body = f"{endpoint.url}/v2/models/torrent/generate_stream", {"seconds": 300, "size": 100_000}
    with requests.post(stream_url, json=body, stream=True, timeout=60) as response:
        assert response.ok
        # The stream alone would take minutes; a request waits two for its answer.
        unload(endpoint, "torrent")


def test_all_models_are_served_again_after_a_process_is_killed(endpoint: MultiModelEndpoint) -> None:
    """Each in turn; the test of a restarted Triton kills that."""
    box = endpoint.box
    load(endpoint, "one", 2, client=CLIENT_SOURCE, helper="NAME = 'kept'")
    load_chain(endpoint, "two", 3)
    workers = box.workers()
    for process in ("worker", "data", "control"):
        if process == "worker":
            os.kill(workers[0], signal.SIGKILL)
            wait_until(
                lambda: len({*box.workers()} - {workers[0]}) == len(workers), description="a new worker"
            )
        else:
            box.kill_and_wait_for_restart(process)
        box.wait_ready()
        retry_until_ok(lambda: endpoint.invoke("one"))
        assert endpoint.names() == ["one", "two"], process
        assert (endpoint.infer_y("one"), endpoint.infer_y("two")) == ([2, 4], [3, 6]), process
        for _ in range(4):
            assert endpoint.invoke("one", CLIENT_BODY).json()["result"] == ["kept", "kept", [2, 4]], process


def test_a_model_whose_process_was_killed_can_be_unloaded_at_once(endpoint: MultiModelEndpoint) -> None:
    """Triton itself would wait for the dead process for ever."""
    load(endpoint, "one", 2)
    load(endpoint, "two", 3)
    os.kill(endpoint.box.pid("/models/one/1/model.py"), signal.SIGKILL)
    # The box may be loading it again at this moment.
    wait_until(lambda: endpoint.unload("one").status_code == 200, description="the unload")
    assert (endpoint.names(), endpoint.infer_y("two")) == (["two"], [3, 6])
    load(endpoint, "one", 4)
    assert endpoint.infer_y("one") == [4, 8]


def test_a_restarted_triton_serves_what_was_loaded_and_is_still_there(
    endpoint: MultiModelEndpoint,
) -> None:
    """The box works on a copy: an archive that has changed since its load changes nothing."""
    changed = Path(load(endpoint, "one", 2, client=CLIENT_SOURCE, helper="NAME = 'kept'"))
    gone = Path(load(endpoint, "two", 3))
    multiplying_model(5).write(changed / "other")
    (changed / "other" / "1" / "model.py").replace(changed / "1" / "model.py")
    away = gone.rename(f"{gone}.away")
    endpoint.box.kill_and_wait_for_restart("triton")
    endpoint.box.wait_ready()
    assert endpoint.infer_y("one") == [2, 4]
    assert endpoint.invoke("one", CLIENT_BODY).json()["result"] == ["kept", "kept", [2, 4]]
    assert endpoint.invoke("two").status_code == 404
    away.rename(gone)
    endpoint.load_successfully("two", str(gone))
    assert endpoint.infer_y("two") == [3, 6]

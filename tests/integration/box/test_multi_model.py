"""Multi-model mode on the real box: loading and unloading archives never disturbs other models."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
from tests.support.tritons import ECHO_REQUEST, MODELS, Model

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


@pytest.fixture
def endpoint(multi_model: MultiModelEndpoint) -> Iterator[MultiModelEndpoint]:
    """Every model is unloaded after each test."""
    yield multi_model
    for name in multi_model.names():
        assert multi_model.unload(name).status_code == 200


def test_ensembles_whose_steps_have_the_same_names_do_not_mix(endpoint: MultiModelEndpoint) -> None:
    for name, factor in (("e1", 2), ("e2", 3)):
        models = {
            "pre": multiplying_model(factor),
            "post": multiplying_model(10),
            "whole": chain_config("pre", "post"),
        }
        endpoint.load_successfully(name, endpoint.platform.write_nested(name, models))
    assert (endpoint.infer_y("e1"), endpoint.infer_y("e2")) == ([20, 40], [30, 60])
    assert endpoint.unload("e1").status_code == 200
    assert endpoint.infer_y("e2") == [30, 60]


def test_the_target_model_of_a_load_finds_it_and_is_its_name_in_v2_answers(
    endpoint: MultiModelEndpoint,
) -> None:
    """As the official container, which gives Triton the Target-Model as the model's name."""
    target = "team/cats.tar.gz"
    url = endpoint.platform.write_flat("h1", multiplying_model(2))
    endpoint.load_successfully("h1", url, target)
    headers = {"X-Amzn-SageMaker-Target-Model": target}
    response = requests.post(f"{endpoint.url}/invocations", json=ECHO_REQUEST, headers=headers, timeout=10)
    assert response.json()["outputs"][0]["data"] == [2, 4]
    assert endpoint.load("h2", endpoint.platform.write_flat("h2"), target).status_code == 409
    # Triton has a model "whole" for the first archive, so the second's model has another name there.
    steps = {"whole": multiplying_model(3), "entry": chain_config("whole")}
    endpoint.load_successfully("e1", endpoint.platform.write_nested("e1", steps))
    endpoint.load_successfully("whole", endpoint.platform.write_flat("whole", multiplying_model(5)))
    requested = json.dumps({**ECHO_REQUEST, "id": f'"model_name":"{target}"'})
    for name, expected in (("h1", target), ("e1", "e1"), ("whole", "whole")):
        answer = requests.post(f"{endpoint.url}/models/{name}/invoke", data=requested, timeout=30).json()
        assert (answer["model_name"], answer["id"]) == (expected, f'"model_name":"{target}"'), answer

    wanted = {**ECHO_REQUEST, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    head = json.dumps(wanted).encode()
    response = requests.post(
        f"{endpoint.url}/models/h1/invoke",
        data=head,
        headers={"Content-Type": f"{BINARY};json-header-size={len(head)}"},
        timeout=30,
    )
    size = int(response.headers["Content-Type"].removeprefix(f"{BINARY};json-header-size="))
    assert json.loads(response.content[:size])["model_name"] == target
    assert np.frombuffer(response.content[size:], np.float32).tolist() == [2, 4]


def test_a_failed_load_says_why_and_ping_stays_200(endpoint: MultiModelEndpoint) -> None:
    for exception, status in (("ValueError('no such luck')", 400), ("MemoryError('no such luck')", 507)):
        model = multiplying_model(failing=exception)
        response = endpoint.load("h1", endpoint.platform.write_flat("h1", model))
        assert (response.status_code, "no such luck" in response.text) == (status, True)
        assert endpoint.box.ping()[0] == 200
        assert endpoint.list_page() == {"models": []}
    endpoint.load_successfully("h1", endpoint.platform.write_flat("h1", multiplying_model(4)))
    assert endpoint.infer_y("h1") == [4, 8]


def test_an_archive_that_would_harm_triton_or_other_archives_is_a_400(endpoint: MultiModelEndpoint) -> None:
    """Unchecked, the version ends Triton, the instances fill the machine, and an ensemble borrows a model."""
    platform = endpoint.platform
    endpoint.load_successfully("other", platform.write_flat("other", multiplying_model(2)))
    late = platform.write_flat("late")
    Path(late, "1").rename(Path(late, "20261123160454123456"))
    many = platform.write_flat("many")
    config = Path(many, "config.pbtxt")
    config.write_text(f"{config.read_text()}instance_group {{ count: 100000 }}")
    triton = endpoint.child_pid("triton")
    for url in (
        late,
        many,
        platform.write_nested("self", {"self": chain_config("self")}),
        platform.write_nested("borrower", {"all": chain_config("other")}),
    ):
        response = endpoint.load(Path(url).parent.name, url)
        assert (response.status_code, response.json()["code"]) == (400, "bad_input"), response.text
    assert endpoint.child_pid("triton") == triton
    assert endpoint.infer_y("other") == [2, 4]


def test_a_name_equal_to_anothers_target_model_is_refused_in_either_order(
    endpoint: MultiModelEndpoint,
) -> None:
    """Two models with different answers: callers of one never get the other's."""
    with_target = ("h1", endpoint.platform.write_flat("h1", multiplying_model(20)), "cats.tar.gz")
    with_name = ("cats.tar.gz", endpoint.platform.write_flat("h2", multiplying_model(25)), "dogs.tar.gz")
    for first, second, y in (
        (with_target, with_name, [20, 40]),
        (with_name, with_target, [25, 50]),
    ):
        endpoint.load_successfully(*first)
        response = endpoint.load(*second)
        assert (response.status_code, response.json()["code"]) == (409, "conflict")
        assert endpoint.infer_y("cats.tar.gz") == y
        assert endpoint.unload(first[0]).status_code == 200
        assert endpoint.invoke("cats.tar.gz").status_code == 404


@pytest.mark.parametrize("name", [".", "..", "a/b", "/", "a\nb", "a\0b", "\x7f", "x" * 257])
def test_an_invalid_model_name_is_a_400(endpoint: MultiModelEndpoint, name: str) -> None:
    response = endpoint.load(name, endpoint.platform.write_flat("h1"))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert endpoint.names() == []


@pytest.mark.parametrize("file", ["config.pbtxt", "1/model.py", "code/client.py", "code/inference.py"])
def test_a_pipe_or_an_outside_link_in_an_archive_is_a_400_at_once(
    endpoint: MultiModelEndpoint, file: str
) -> None:
    """Without the check a pipe would hang the load, /dev/zero fill the memory, and /etc/passwd be quoted."""
    for target in (None, "/dev/zero", "/etc/passwd"):
        url = Path(endpoint.platform.write_flat("odd", multiplying_model(2), helper=""))
        (url / file).unlink(missing_ok=True)
        if target:
            (url / file).symlink_to(target)
        else:
            os.mkfifo(url / file)
        body = {"model_name": "odd", "url": str(url)}
        response = requests.post(f"{endpoint.url}/models", json=body, timeout=10)
        assert (response.status_code, response.json()["code"]) == (400, "bad_input")
        assert "root:" not in response.text
    # The name is free again: a load of it is refused for its own reason, not with a 409.
    (url / "config.pbtxt").unlink(missing_ok=True)
    assert endpoint.load("odd", str(url / "1")).status_code == 400


def loading_until(release_file: Path, model: Model) -> Model:
    """Return the model with a load that does not end before the file ``release_file`` exists."""
    head = f"{model.head}        while not os.path.exists({str(release_file)!r}):\n            time.sleep(0.02)\n"
    return replace(model, head=head)


def test_a_long_load_does_not_delay_ping_or_other_models(
    endpoint: MultiModelEndpoint, tmp_path: Path
) -> None:
    """The slow model is loaded only when the test releases it, so nothing here waited for it."""
    endpoint.load_successfully("quick", endpoint.platform.write_flat("quick", multiplying_model(2)))
    release_file = tmp_path / "go-on"
    url = endpoint.platform.write_flat("slow", loading_until(release_file, multiplying_model(3)))
    with ThreadPoolExecutor(1) as pool:
        pending_load = pool.submit(endpoint.load, "slow", url)
        try:
            endpoint.wait_until_load_begins("slow", pending_load)
            body = json.dumps(ECHO_REQUEST).encode()
            with Load(endpoint.box.port, body, path="/models/quick/invoke").start(callers=4) as load:
                wait_until(lambda: load.outcomes["200"] >= 20, description="invocations beside the load")
                for _ in range(10):
                    assert endpoint.box.ping()[0] == 200
                    assert endpoint.names() == ["quick"]
                assert endpoint.unload("slow").status_code == 409
                endpoint.load_successfully(
                    "third", endpoint.platform.write_flat("third", multiplying_model(5))
                )
                assert endpoint.infer_y("third") == [5, 10]
                assert endpoint.unload("third").status_code == 200
                assert not pending_load.done()
            assert set(load.outcomes) == {"200"}
        finally:
            release_file.touch()
        assert pending_load.result().status_code == 200
    assert endpoint.infer_y("slow") == [3, 6]


def more_of_each(loads: list[Load], outcome: str) -> Callable[[], bool]:
    """Return a condition: each of the loads has had an outcome since."""
    before = [load.outcomes[outcome] for load in loads]
    return lambda: all(load.outcomes[outcome] > was for load, was in zip(loads, before, strict=True))


@pytest.mark.exhaustive
def test_models_loaded_and_unloaded_under_load_answer_correctly_or_404_and_never_500(
    endpoint: MultiModelEndpoint,
) -> None:
    """The risk is a client that is constructed while its archive is unloaded."""
    base, write = multiplying_model(2), endpoint.platform.write_nested
    client = CLIENT_SOURCE.replace('model, payload = "model"', 'model, payload = "whole"')
    code = {"client": client, "helper": "import time\ntime.sleep(0.05)\nNAME = 1"}
    url = write("client", {"base": base, "whole": chain_config("base", "base")}, **code)
    bodies = [json.dumps(body).encode() for body in (ECHO_REQUEST, {"payload": {"x": [1, 2]}})]
    loads = [
        Load(endpoint.box.port, body, path="/models/client/invoke", retry_delay_s=0.05) for body in bodies
    ]
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load.start(callers=2))
        # Unloaded before, during and after the construction of its client, and once it has answered.
        for pause_s in (0.0, 0.02, 0.05, 0.1, 0.2, None, None):
            endpoint.load_successfully("client", url)
            if pause_s is None:
                wait_until(more_of_each(loads, "200"), description="answers of both")
            else:
                time.sleep(pause_s)
            assert endpoint.unload("client").status_code == 200
            wait_until(more_of_each(loads, "404"), description="refusals of both")
    for load in loads:
        assert set(load.outcomes) <= {"200", "404", "503"}, load.outcomes
        for body in map(json.loads, load.bodies):
            assert (body["outputs"][0]["data"] if "outputs" in body else body["result"][-1]) == [4, 8]


def test_an_unload_lets_running_requests_finish_and_waits_for_no_unread_stream(
    endpoint: MultiModelEndpoint, tmp_path: Path
) -> None:
    doubling_model, started_file = multiplying_model(2), tmp_path / "begun"
    answer = f"open({str(started_file)!r}, 'w').close()\ntime.sleep(2)\n{doubling_model.answer}"
    slow_model = replace(doubling_model, answer=answer)
    endpoint.load_successfully("slow", endpoint.platform.write_flat("slow", slow_model))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(endpoint.invoke, "slow")
        wait_until(started_file.exists, description="the request's beginning")
        assert endpoint.unload("slow").status_code == 200
        assert pending.result().json()["outputs"][0]["data"] == [2, 4]
    endpoint.load_successfully("torrent", endpoint.platform.write_flat("torrent", MODELS["torrent"]))
    stream_url, body = f"{endpoint.url}/v2/models/torrent/generate_stream", {"seconds": 300, "size": 100_000}
    with requests.post(stream_url, json=body, stream=True, timeout=60) as response:
        assert response.ok
        # The stream alone would take minutes; a request waits two for its answer.
        assert endpoint.unload("torrent").status_code == 200


def test_all_models_are_served_again_after_a_process_is_killed(endpoint: MultiModelEndpoint) -> None:
    """Each in turn; the test of a restarted Triton kills that."""
    client = {"client": CLIENT_SOURCE, "helper": "NAME = 'kept'"}
    endpoint.load_successfully("one", endpoint.platform.write_flat("one", multiplying_model(2), **client))
    steps = {"pre": multiplying_model(3), "whole": chain_config("pre")}
    endpoint.load_successfully("two", endpoint.platform.write_nested("two", steps))
    workers = endpoint.box.workers()
    for process in ("worker", "data", "control"):
        if process == "worker":
            os.kill(workers[0], signal.SIGKILL)
            wait_until(
                lambda: len(set(endpoint.box.workers()) - {workers[0]}) == len(workers),
                description="a new worker",
            )
        else:
            endpoint.box.kill_and_wait_for_restart(process)
        endpoint.box.wait_ready()
        retry_until_ok(lambda: endpoint.invoke("one"))
        assert endpoint.names() == ["one", "two"], process
        assert (endpoint.infer_y("one"), endpoint.infer_y("two")) == ([2, 4], [3, 6]), process
        for _ in range(4):
            response = endpoint.invoke("one", {"payload": {"x": [1, 2]}})
            assert response.json()["result"] == ["kept", "kept", [2, 4]], process


def test_a_model_whose_process_was_killed_can_be_unloaded_at_once(endpoint: MultiModelEndpoint) -> None:
    """Triton itself would wait for the dead process for ever."""
    endpoint.load_successfully("one", endpoint.platform.write_flat("one", multiplying_model(2)))
    endpoint.load_successfully("two", endpoint.platform.write_flat("two", multiplying_model(3)))
    process = endpoint.box.pid("/models/one/1/model.py")
    os.kill(process, signal.SIGKILL)
    # The box may be loading it again at this moment.
    wait_until(lambda: endpoint.unload("one").status_code == 200, description="the unload")
    assert (endpoint.names(), endpoint.infer_y("two")) == (["two"], [3, 6])
    endpoint.load_successfully("one", endpoint.platform.write_flat("one", multiplying_model(4)))
    assert endpoint.infer_y("one") == [4, 8]


def test_a_restarted_triton_serves_what_was_loaded_and_not_a_model_whose_archive_is_gone(
    endpoint: MultiModelEndpoint,
) -> None:
    """The box works on a copy: an archive that has changed since its load changes nothing."""
    client = {"client": CLIENT_SOURCE, "helper": "NAME = 'kept'"}
    changed = endpoint.platform.write_flat("one", multiplying_model(2), **client)
    gone = endpoint.platform.write_flat("two", multiplying_model(3))
    endpoint.load_successfully("one", changed)
    endpoint.load_successfully("two", gone)
    multiplying_model(5).write(Path(changed) / "other")
    (Path(changed) / "other" / "1" / "model.py").replace(Path(changed) / "1" / "model.py")
    Path(gone).rename(f"{gone}.away")
    endpoint.box.kill_and_wait_for_restart("triton")
    endpoint.box.wait_ready()
    assert endpoint.infer_y("one") == [2, 4]
    assert endpoint.invoke("one", {"payload": {"x": [1, 2]}}).json()["result"] == ["kept", "kept", [2, 4]]
    assert endpoint.invoke("two").status_code == 404
    Path(f"{gone}.away").rename(gone)
    endpoint.load_successfully("two", gone)
    assert endpoint.infer_y("two") == [3, 6]


@pytest.mark.parametrize(("killed", "statuses"), [("control", (502, 503)), ("triton", (503,))])
def test_a_process_killed_during_a_load_is_a_503_and_leaves_nothing_of_it(
    endpoint: MultiModelEndpoint, tmp_path: Path, killed: str, statuses: tuple[int, ...]
) -> None:
    release_file = tmp_path / "go-on"
    url = endpoint.platform.write_flat("half", loading_until(release_file, multiplying_model(2)))
    with ThreadPoolExecutor(1) as pool:
        pending_load = pool.submit(endpoint.load, "half", url)
        try:
            endpoint.wait_until_load_begins("half", pending_load)
            endpoint.box.kill_and_wait_for_restart(killed)
            response = pending_load.result()
        finally:
            release_file.touch()
    assert response.status_code in statuses
    assert response.status_code == 502 or response.json()["code"] == "not_ready"
    endpoint.box.wait_ready()
    assert endpoint.names() == []
    retry_until_ok(lambda: endpoint.load("half", url))
    assert endpoint.infer_y("half") == [2, 4]


def test_an_archive_that_changes_during_its_load_is_loaded_or_refused_and_never_hangs(
    endpoint: MultiModelEndpoint,
) -> None:
    """Triton itself would wait for ever for a model.py that is gone."""
    url = Path(endpoint.platform.write_flat("moving", multiplying_model(2)))
    (url / "labels.txt").write_text("cat")
    stop = threading.Event()

    def move_files() -> None:
        while not stop.is_set():
            for file in (url / "labels.txt", url / "1" / "model.py"):
                file.rename(url.parent / "away")
                time.sleep(0.02)
                (url.parent / "away").rename(file)
                time.sleep(0.005)

    mover = threading.Thread(target=move_files)
    mover.start()
    statuses: list[int] = []
    try:
        while len(statuses) < 5 or 400 not in statuses:
            response = endpoint.load("moving", str(url))
            statuses.append(response.status_code)
            assert response.status_code in (200, 400), response.text
            if response.status_code == 200:
                assert endpoint.infer_y("moving") == [2, 4]
                assert endpoint.unload("moving").status_code == 200
    finally:
        stop.set()
        mover.join()
    endpoint.load_successfully("moving", str(url))
    assert endpoint.infer_y("moving") == [2, 4]

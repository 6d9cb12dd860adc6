"""A box from its start to its stop: models in an odd folder, a read-only file system, engines of its own choice."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.support.box_fixture import Boxes, write_models
from tests.support.boxes import RunningBox, descendants, memory_field, wait_until
from tests.support.memory import proportional_bytes
from tests.support.model_archives import chain_config, leave_config_to_triton, multiplying_model
from tests.support.pages import README, code_block
from tests.support.sm_command import run_sm
from tests.support.tritons import ECHO_REQUEST
from trireme_extensions.convert.onnx_cpu.engines import Wanted, candidates, processor_flags, versions

MODELS = ("resnet", "yolov5", "bert_base")
#: Memory limit in bytes for the three demo models with one worker; the platform's largest has twice that.
MAX_MEMORY = 3 * 2**30
#: Runs a command in a namespace where / is read-only and /tmp is writable.
WITH_READ_ONLY_ROOT = (
    "unshare -rm sh -c 'mount --bind /tmp /tmp && mount -o remount,bind,ro / && exec \"$@\"' sh"
)


def is_read_only_possible() -> bool:
    command = [*shlex.split(WITH_READ_ONLY_ROOT), "touch", "/written"]
    return "Read-only" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.fixture(scope="module")
def box(boxes: Boxes, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box that has just been started."""
    # Triton starts a Python model's process through a shell and does not quote the path.
    repository = tmp_path_factory.mktemp("models") / "Größere Modelle (neu)"
    shutil.copytree(demo, repository)
    models = dict.fromkeys(("pre", "post"), multiplying_model(2))
    write_models({**models, "whole": chain_config("pre", "post")}, repository)
    leave_config_to_triton(repository / "pre")  # as the official container's users may
    for folder in ("code", ".ipynb_checkpoints"):  # Triton would take them for models
        (repository / folder).mkdir(exist_ok=True)
        (repository / folder / "notes.txt").write_text("notes")
    with boxes.own(
        repository,
        ({"hello/client.py": code_block(README, "python", "class Hello")},),
        command_prefix=WITH_READ_ONLY_ROOT if is_read_only_possible() else "",
        ready_within_s=0,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_SESSIONS_PATH="/opt/cannot/be/made",
        TRIREME_CACHE=str(tmp_path_factory.mktemp("cache")),
        TRIREME_DRAIN_SECONDS="3600",
        TRIREME_PRECISION="auto",
    ) as started:
        yield started


def test_a_start_answers_503_with_the_reason_until_its_models_are_ready(box: RunningBox, cat: bytes) -> None:
    def first_ping() -> tuple[int, str] | None:
        status, reason = box.ping()
        return (status, reason) if status else None

    status, reason = wait_until(first_ping, description="an answer to /ping")
    assert (status, bool(json.loads(reason)["error"])) == (503, True)
    response = box.invoke("resnet", {})
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    assert response.headers["Retry-After"]
    box.wait_ready(120)
    assert box.send(cat, "image/png", params={"modelname": "hello"}).json()["result"]["cat"] > 0.5


def test_a_healthy_start_without_a_gpu_logs_no_error(box: RunningBox) -> None:
    response = requests.post(f"{box.url}/v2/models/whole/infer", json=ECHO_REQUEST, timeout=30)
    assert response.json()["outputs"][0]["data"] == [4.0, 8.0], response.text
    lines = [json.loads(line) for line in box.log.read_text().splitlines()]
    # The test before asks too early, and nginx may not change its groups in a namespace.
    others = [line for line in lines if line.get("status") != 503 and line["process"] != "nginx"]
    assert {line["level"] for line in others}.isdisjoint({"warning", "error", "critical"})


def test_a_box_on_a_read_only_file_system_serves_with_one_worker_in_3_gb(box: RunningBox, cat: bytes) -> None:
    if not is_read_only_possible():
        pytest.skip("this machine makes no read-only file system")
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    assert box.invoke("bert_base", {"text": "Paris is the [MASK] of France."}).status_code == 200
    large = b"\x89PNG" + b" " * (20 * 2**20)
    assert box.send(large, "image/png", params={"modelname": "resnet"}).status_code == 400
    header = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    assert box.send(b'{"requestType":"NEW_SESSION"}', headers=header).status_code == 200
    assert proportional_bytes(box) < MAX_MEMORY
    # Where ONNX Runtime cannot write to its home, it warned of its telemetry in colour.
    assert "\\u001b" not in box.log.read_text()


def choice(box: RunningBox, model: str) -> dict[str, Any]:
    (found,) = requests.get(f"{box.url}/models/{model}", timeout=10).json()["engines"]
    return dict(found)


@pytest.mark.parametrize("model", MODELS)
def test_each_model_says_which_engine_it_chose(box: RunningBox, model: str) -> None:
    chosen, possible = choice(box, model), candidates(Wanted(), processor_flags(), versions())
    name = f"{chosen['engine']} {chosen['precision']}"
    assert name in {str(each) for each in possible}
    labels = {key: chosen[key] for key in ("model", "version", "engine", "precision")}
    assert box.metric("trireme_model_engine_info", **labels) == 1
    rows = wait_until(lambda: requests.get(f"{box.url}/dashboard/data", timeout=10).json()["box"]["models"])
    assert {row["name"]: row["engine"] for row in rows}[model] == name


def scores(rows: list[Any]) -> dict[str, float]:
    """Return the scores of labels, or of words."""
    if isinstance(rows[0], dict):
        return {row["token"]: row["score"] for row in rows}
    return {label: float(score) for score, _, label in (row.partition(":") for row in rows)}


@pytest.mark.parametrize(("model", "rel", "absolute"), [("resnet", 0.01, None), ("bert_base", None, 0.01)])
def test_answers_are_the_same_within_the_tolerance(
    box: RunningBox, model: str, rel: float | None, absolute: float | None
) -> None:
    """As the golden ones, which are ONNX Runtime's in fp32."""
    sample = HERE / "clients" / model / "sample"
    answer = box.invoke(model, json.loads((sample / "payload.json").read_text())).json()["result"]
    golden = scores(json.loads((sample / "golden.json").read_text()))
    assert scores(answer) == pytest.approx(golden, rel, absolute)


def test_a_model_keeps_no_memory_of_its_load(box: RunningBox) -> None:
    """ResNet's weights have 102 MB. Unless they are mapped and given back, its process holds 100 MB more."""
    allowed_mb = 180 if choice(box, "resnet")["precision"] == "bf16" else 340
    pids = box.pids("resnet_0_")
    assert pids
    assert all(memory_field(pid, "Pss:") < allowed_mb * 2**20 for pid in pids)


def test_more_masks_than_bf16_can_count_are_all_filled(box: RunningBox) -> None:
    payload = {"text": "[MASK]" * 300}
    rows = box.invoke("bert_base", payload, parameters={"top": 2}).json()["result"]
    assert len(rows) == 2
    assert all("[MASK]" not in row["token"] for row in rows)


def test_a_drained_box_serves_on_and_an_idle_one_stops_at_once_with_ctrl_c(box: RunningBox) -> None:
    """The last test of this box. ``stop`` waits far less than the drain that running invocations would get."""
    command = ("drain", "--pid", box.process.pid, "--seconds", "0.1")
    with requests.Session() as session:

        def answer() -> requests.Response:
            body = {"modelname": "bert_base", "payload": {"text": "a [MASK]"}}
            return session.post(f"{box.url}/invocations", json=body, timeout=30)

        assert answer().headers["Connection"] == "keep-alive"
        assert run_sm(*command, environment=box.environment).returncode == 0
        assert box.ping()[0] == 503
        drained = answer()
        assert (drained.status_code, drained.headers["Connection"]) == (200, "close")
    box_id, folder, processes = box.box_id(), box.run_folder(), descendants(box.process.pid)
    assert box.stop(signal.SIGINT) == 0
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert not list(Path("/dev/shm").glob(f"*{box_id}*"))
    assert not folder.exists()
    assert run_sm(*command, environment=box.environment).returncode == 1

"""What dies or stalls is replaced, and no caller notices: requests wait for it and are sent again."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.faults.attack import (
    DEADLINE_S,
    RESTARTS,
    Fault,
    all_processes,
    attack,
    make_kill,
    make_small_repository,
    make_stall,
    model_pids,
    small_samples,
    triton,
)
from tests.support.faults.inputs import Sample, v2_numbers, with_golden_answers
from tests.support.tritons import MODELS

#: Its process dies of a negative number.
FRAGILE = replace(
    MODELS["echo"],
    answer='if tensor(request, "x").min() < 0:\n    os.abort()\nreturn {"y": tensor(request, "x")}',
)


@pytest.fixture(scope="module")
def box(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """``echo`` has one instance, ``pair`` two, and the others die of a request or are broken by a test."""
    repository = make_small_repository(tmp_path_factory.mktemp("trouble") / "Größere Modelle (neu)")
    for name, model in {"fragile": FRAGILE, "broken": MODELS["echo"]}.items():
        model.write(repository / name)
    with boxes.own(
        repository,
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(DEADLINE_S),
        TRIREME_RESTARTS=str(RESTARTS),
        TRIREME_WAIT_SECONDS="12",
    ) as started:
        yield started


@pytest.fixture(scope="module")
def samples(box: RunningBox) -> list[Sample]:
    return small_samples(box)


def reloads(box: RunningBox, model: str) -> float:
    return box.metric("trireme_model_reloads_total", model=model)


def check(box: RunningBox, samples: list[Sample], fault: Fault) -> None:
    row = attack(box, samples, fault)
    assert not row.misses(), row


def test_no_request_fails_while_a_model_is_loaded_again(box: RunningBox, samples: list[Sample]) -> None:
    before, reloaded = triton(box), reloads(box, "echo")
    repeats = box.metric("trireme_repeated_calls_total", model="echo")
    kill = make_kill(partial(model_pids, model="echo"))
    check(box, samples, Fault("killed", kill, "echo", unnoticed=True))
    assert box.metric("trireme_repeated_calls_total", model="echo") > repeats
    assert (triton(box), reloads(box, "echo")) == (before, reloaded + 1)


def test_a_process_that_stands_still_is_not_replaced(box: RunningBox, samples: list[Sample]) -> None:
    before = sorted(model_pids(box)), triton(box)
    stall = make_stall(partial(model_pids, model="echo"), 3.0)
    check(box, samples, Fault("stopped for 3 s", stall, "echo", 3.0, unnoticed=True))
    assert (sorted(model_pids(box)), triton(box)) == before


def test_no_request_fails_while_one_of_two_instances_is_gone(box: RunningBox, samples: list[Sample]) -> None:
    first = model_pids(box, "pair")[0]
    kill = make_kill(lambda _: [first])
    check(box, samples, Fault("killed", kill, "pair", unnoticed=True))
    wait_until(lambda: len([pid for pid in model_pids(box, "pair") if pid != first]) >= 2)


def test_a_short_pause_of_the_whole_box_replaces_nothing(box: RunningBox, samples: list[Sample]) -> None:
    box.wait_ready()
    before = sorted(model_pids(box)), triton(box)
    row = attack(box, samples, Fault("0.6 s", make_stall(all_processes, 0.6, every=True), seconds=0.6))
    assert row.is_sound, row
    assert (sorted(model_pids(box)), triton(box)) == before


def test_a_request_that_crashes_its_model_ends_alone(box: RunningBox) -> None:
    """Its model's process dies twice, and the requests beside it get their answers."""
    numbers = [v2_numbers("fragile", [1000.0 * number, 1.0]) for number in range(1, 33)]
    samples = with_golden_answers(numbers, box.port)
    deadly, answers = v2_numbers("fragile", [-1.0, 1.0]), list[requests.Response]()

    def send(box: RunningBox) -> None:
        headers = {"Content-Type": deadly.content_type}
        answers.append(requests.post(f"{box.url}{deadly.path}", deadly.body, headers=headers, timeout=60))

    check(box, samples, Fault("crash", send, unnoticed=True))
    assert (answers[0].status_code, answers[0].json()["code"]) == (500, "model_crashed")
    assert reloads(box, "fragile") == 2


def send_number(box: RunningBox, model: str, timeout: float) -> requests.Response:
    sample = v2_numbers(model, [1.0])
    return requests.post(f"{box.url}{sample.path}", sample.body, timeout=timeout)


def test_a_model_that_stays_away_is_named_to_its_callers_and_by_ping(box: RunningBox) -> None:
    script = Path(box.environment["TRIREME_MODEL_REPOSITORY"]) / "broken" / "1" / "model.py"
    source = script.read_text()
    script.write_text("raise RuntimeError('no')\n")
    os.kill(model_pids(box, "broken")[0], signal.SIGKILL)
    with pytest.raises(requests.Timeout):
        send_number(box, "broken", 0.5)
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the wait of who hung up")
    answer = send_number(box, "broken", 30)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    _, text = wait_until(lambda: (answer := box.ping())[0] == 503 and answer)
    assert "broken" in text
    assert send_number(box, "echo", 30).status_code == 200
    script.write_text(source)
    wait_until(lambda: box.ping()[0] == 200, description="/ping 200 again")


def test_the_python_backends_shared_memory_is_private_to_the_boxs_user(box: RunningBox) -> None:
    regions = list(Path("/dev/shm").glob(f"trireme-{box.box_id()}-py*"))
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}


def test_a_box_that_stops_without_its_triton_makes_nobody_wait(box: RunningBox) -> None:
    """The last test of this box."""
    processes, box_id, server = all_processes(box), box.box_id(), triton(box)[0]
    with ThreadPoolExecutor(1) as callers:
        os.kill(server, signal.SIGSTOP)
        answer = callers.submit(send_number, box, "echo", 30)
        wait_until(lambda: box.metric("trireme_in_flight") == 1, description="the request")
        box.process.send_signal(signal.SIGTERM)
        wait_until(lambda: box.state()["draining"], description="the stop")
        os.kill(server, signal.SIGKILL)
        assert answer.result().json()["code"] == "not_ready"
    assert box.process.wait(30) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
    assert not list(Path("/dev/shm").glob(f"*{box_id}*"))

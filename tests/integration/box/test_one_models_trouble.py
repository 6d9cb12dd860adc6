"""What dies or stalls is replaced, and no caller notices: requests wait for it and are sent again."""

from __future__ import annotations

import os
import signal
import stat
import time
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
    Fault,
    all_processes,
    attack,
    attacked_box,
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
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with three models: ``echo`` has one instance, ``pair`` two, and ``fragile`` dies of a request."""
    folder = tmp_path_factory.mktemp("trouble")
    repository = make_small_repository(folder)
    FRAGILE.write(repository / "fragile")
    with attacked_box(folder, repository) as started:
        yield started


@pytest.fixture(scope="module")
def samples(box: RunningBox) -> list[Sample]:
    return small_samples(box)


def test_no_request_fails_while_a_model_is_loaded_again(box: RunningBox, samples: list[Sample]) -> None:
    before = triton(box), box.metric("trireme_model_reloads_total", model="echo")
    repeats = box.metric("trireme_repeated_calls_total", model="echo")
    row = attack(
        box, samples, Fault("killed", make_kill(partial(model_pids, model="echo")), "echo", unnoticed=True)
    )
    assert not row.misses(), row
    assert box.metric("trireme_repeated_calls_total", model="echo") > repeats
    assert triton(box) == before[0]
    assert box.metric("trireme_model_reloads_total", model="echo") == before[1] + 1


def test_a_process_that_stands_still_is_not_replaced(box: RunningBox, samples: list[Sample]) -> None:
    before = sorted(model_pids(box)), triton(box)
    stall = make_stall(partial(model_pids, model="echo"), 3.0)
    row = attack(box, samples, Fault("stopped for 3 s", stall, "echo", 3.0, unnoticed=True))
    assert not row.misses(), row
    assert (sorted(model_pids(box)), triton(box)) == before


def test_no_request_fails_while_one_of_two_instances_is_gone(box: RunningBox, samples: list[Sample]) -> None:
    first = model_pids(box, "pair")[0]
    row = attack(
        box, samples, Fault("killed", lambda _: os.kill(first, signal.SIGKILL), "pair", unnoticed=True)
    )
    assert not row.misses(), row
    wait_until(lambda: len([pid for pid in model_pids(box, "pair") if pid != first]) >= 2)


def test_a_short_pause_of_the_whole_box_replaces_nothing(box: RunningBox, samples: list[Sample]) -> None:
    box.wait_ready()
    before = sorted(model_pids(box)), triton(box)
    row = attack(box, samples, Fault("0.6 s", make_stall(all_processes, 0.6, every=True), seconds=0.6))
    assert row.is_sound, row
    assert (sorted(model_pids(box)), triton(box)) == before


def test_a_request_that_crashes_its_model_ends_alone(box: RunningBox) -> None:
    """Its model's process dies twice, and the requests beside it get their answers."""
    samples = with_golden_answers(
        [v2_numbers("fragile", [1000.0 * number, 1.0]) for number in range(1, 33)], box.port
    )
    deadly, answers = v2_numbers("fragile", [-1.0, 1.0]), list[requests.Response]()

    def send(box: RunningBox) -> None:
        headers = {"Content-Type": deadly.content_type}
        answers.append(requests.post(f"{box.url}{deadly.path}", deadly.body, headers=headers, timeout=60))

    row = attack(box, samples, Fault("crash", send, unnoticed=True))
    assert not row.misses(), row
    assert (answers[0].status_code, answers[0].json()["code"]) == (500, "model_crashed")
    assert box.metric("trireme_model_reloads_total", model="fragile") == 2


@pytest.fixture(scope="module")
def impatient_box(boxes: Boxes) -> Iterator[RunningBox]:
    with boxes.own(dict.fromkeys(("echo", "broken"), MODELS["echo"]), TRIREME_WAIT_SECONDS="2") as started:
        yield started


def send(box: RunningBox, model: str, timeout: float) -> requests.Response:
    sample = v2_numbers(model, [1.0])
    return requests.post(f"{box.url}{sample.path}", sample.body, timeout=timeout)


def test_a_model_that_stays_away_is_named_to_its_callers_and_by_ping(impatient_box: RunningBox) -> None:
    box = impatient_box
    script = Path(box.environment["TRIREME_MODEL_REPOSITORY"]) / "broken" / "1" / "model.py"
    source = script.read_text()
    script.write_text("raise RuntimeError('no')\n")
    os.kill(model_pids(box, "broken")[0], signal.SIGKILL)
    answer = send(box, "broken", 30)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    # Hanging up ends a wait.
    with pytest.raises(requests.Timeout):
        send(box, "broken", 0.5)
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the wait")
    _, text = wait_until(lambda: (answer := box.ping())[0] == 503 and answer)
    assert "broken" in text
    assert send(box, "echo", 30).status_code == 200
    script.write_text(source)
    wait_until(lambda: box.ping()[0] == 200, description="/ping 200 again")


def test_a_box_that_stops_without_its_triton_makes_nobody_wait(impatient_box: RunningBox) -> None:
    """The last test of this box."""
    box = impatient_box
    with ThreadPoolExecutor(1) as callers:
        os.kill(triton(box)[0], signal.SIGSTOP)
        answer = callers.submit(send, box, "echo", 30)
        wait_until(lambda: box.metric("trireme_in_flight") == 1, description="the request")
        box.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        os.kill(triton(box)[0], signal.SIGKILL)
        assert answer.result().json()["code"] == "not_ready"
    assert box.process.wait(30) == 0


def test_the_python_backends_shared_memory_is_private_to_the_boxs_user(box: RunningBox) -> None:
    regions = list(Path("/dev/shm").glob(f"trireme-{box.box_id()}-py*"))
    assert regions
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}

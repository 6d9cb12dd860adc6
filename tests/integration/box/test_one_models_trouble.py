"""A Python model whose process dies or stalls is loaded again, and the other models answer throughout."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import requests

from sm.triton.inference_plan import REQUEST_TOKEN
from tests.support.boxes import RunningBox, command_line, running_box, wait_until
from tests.support.faults.attack import Fault, attack, make_kill, make_stall
from tests.support.faults.boxes import all_processes, attacked_box, stubs, triton
from tests.support.faults.inputs import Sample, v2_numbers, with_golden_answers
from tests.support.tritons import MODELS

#: Calls its model through the worker, so that the answers may have tokens. ``/v2`` does not change requests.
CLIENT = """
import numpy as np
from sm.client import TensorClient, TextPayload

class Numbers(TensorClient):
    model, payload = "numbers", TextPayload

    def preprocess(self, payload):
        return {"x": np.array([float(word) for word in payload.text.split()], np.float32)}

    def postprocess(self, outputs, payload):
        return outputs["y"].tolist()
"""
TWO = "instance_group [{count: 2, kind: KIND_CPU}]\n"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with two models: ``echo`` has one instance, ``pair`` two."""
    folder = tmp_path_factory.mktemp("trouble")
    for name in ("echo", "pair"):
        MODELS["echo"].write(folder / "model" / name)
    config = folder / "model" / "pair" / "config.pbtxt"
    config.write_text(config.read_text() + TWO)
    with attacked_box(folder, folder / "model") as started:
        yield started


@pytest.fixture(scope="module")
def samples(box: RunningBox) -> list[Sample]:
    numbers = [
        v2_numbers(model, [1000.0 * number, 1.0]) for model in ("echo", "pair") for number in range(1, 33)
    ]
    return with_golden_answers(numbers, box.port)


@pytest.mark.parametrize(
    ("name", "make"),
    [("killed", make_kill), ("stopped", lambda find: make_stall(find, 3.0))],
    ids=["killed", "stopped for 3 s"],
)
def test_the_other_model_answers_while_one_is_loaded_again(
    box: RunningBox,
    samples: list[Sample],
    name: str,
    make: Callable[[Callable[[RunningBox], list[int]]], Callable[[RunningBox], None]],
) -> None:
    before = triton(box), box.metric("trireme_model_reloads_total", model="echo")
    row = attack(box, samples, Fault(name, make(partial(stubs, model="echo")), focus="echo", alone=True))
    assert row.wrong == row.hangs == row.neighbours == 0, row
    assert row.recovery_s is not None
    assert triton(box) == before[0]
    assert box.metric("trireme_model_reloads_total", model="echo") == before[1] + 1


def test_the_other_instance_answers_while_one_is_gone(box: RunningBox, samples: list[Sample]) -> None:
    """Also to a model without tokens: an answer of the process that is left is its own."""
    first = stubs(box, "pair")[0]

    def statuses() -> list[int]:
        sample = next(sample for sample in samples if sample.model == "pair")
        return [
            requests.post(
                f"{box.url}{sample.path}",
                sample.body,
                headers={"Content-Type": sample.content_type},
                timeout=30,
            ).status_code
            for _ in range(20)
        ]

    os.kill(first, signal.SIGKILL)
    found = statuses()
    assert 200 in found
    assert set(found) <= {200, 503}
    wait_until(lambda: len([pid for pid in stubs(box, "pair") if pid != first]) >= 2)
    wait_until(lambda: set(statuses()) == {200}, description="right answers alone")


def test_a_short_pause_of_the_whole_box_replaces_nothing(box: RunningBox, samples: list[Sample]) -> None:
    box.wait_ready()
    before = sorted(stubs(box)), triton(box)
    row = attack(box, samples, Fault("0.6 s", make_stall(all_processes, 0.6, every=True), seconds=0.6))
    assert row.wrong == row.hangs == 0, row
    assert (sorted(stubs(box)), triton(box)) == before


def test_ping_names_a_model_that_stays_away(tmp_path: Path) -> None:
    for name in ("echo", "broken"):
        MODELS["echo"].write(tmp_path / "model" / name)
    with running_box(
        tmp_path, tmp_path / "model", clients=(), wait_until_ready=True, TRIREME_MODEL_AWAY_SECONDS="0.5"
    ) as box:
        script = tmp_path / "model" / "broken" / "1" / "model.py"
        source = script.read_text()
        script.write_text("raise RuntimeError('no')\n")
        os.kill(stubs(box, "broken")[0], signal.SIGKILL)
        status, text = wait_until(lambda: (answer := box.ping())[0] == 503 and answer)
        assert status == 503
        assert "being loaded again: broken" in text
        sample = v2_numbers("echo", [1.0])
        answer = requests.post(f"{box.url}{sample.path}", sample.body, timeout=30)
        assert answer.status_code == 200
        script.write_text(source)
        wait_until(lambda: box.ping()[0] == 200, description="/ping 200 again")


def test_a_wrapped_model_answers_with_tokens_that_callers_never_see(tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "model" / "numbers")
    MODELS["counts"].write(tmp_path / "model" / "counts")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "numbers.py").write_text(CLIENT)
    script = tmp_path / "model" / "numbers" / "1" / "model.py"
    original = script.read_text()
    with running_box(
        tmp_path,
        tmp_path / "model",
        clients=(tmp_path / "clients",),
        wait_until_ready=True,
        TRIREME_REQUEST_TOKENS="true",
    ) as box:
        assert box.invoke("numbers", {"text": "1 2"}).json().get("result") == [1.0, 2.0]
        words = command_line(triton(box)[0]).split()
        port = next(word.partition("=")[2] for word in words if word.startswith("--http-port="))
        for model in ("numbers", "counts"):
            # Triton itself knows the output, callers of the box do not.
            assert (
                REQUEST_TOKEN in requests.get(f"http://127.0.0.1:{port}/v2/models/{model}", timeout=10).text
            )
            assert REQUEST_TOKEN not in requests.get(f"{box.url}/v2/models/{model}", timeout=10).text
        # The right token needs no heartbeat of the supervisor.
        os.kill(box.process.pid, signal.SIGSTOP)
        try:
            assert box.invoke("numbers", {"text": "3"}).json()["result"] == [3.0]
        finally:
            os.kill(box.process.pid, signal.SIGCONT)
    assert script.read_text() == original

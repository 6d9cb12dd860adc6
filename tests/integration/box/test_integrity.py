"""No caller gets another caller's answer, even when processes of a real box stall."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import requests
import tritonclient.http as triton_http

from sm.triton.inference_plan import REQUEST_TOKEN
from tests.support.boxes import RunningBox
from tests.support.faults.attack import Fault, attack, make_stall
from tests.support.faults.boxes import all_processes, attacked_box, make_repository, stubs
from tests.support.faults.inputs import Sample, demo_samples, v2_numbers, with_golden_answers
from tests.support.tritons import Model

#: Long enough that Triton gives up on a stopped process and has another request for it when it continues.
STALL_S = 3.0
#: Returns no request token, and is slow enough that requests queue.
SLOW_ECHO = Model(
    'time.sleep(0.05)\nreturn {"y": tensor(request, "x")}', {"x": ("FP32", [1, -1])}, {"y": ("FP32", [1, -1])}
)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box of this module's own: the demo models, and a Python model that returns no token."""
    folder = tmp_path_factory.mktemp("integrity")
    repository = make_repository(folder)
    SLOW_ECHO.write(repository / "slow_echo")
    with attacked_box(folder, repository) as started:
        yield started


@pytest.fixture(scope="module")
def samples(box: RunningBox) -> list[Sample]:
    numbers = [v2_numbers("slow_echo", [1000.0 * number]) for number in range(32)]
    return with_golden_answers([*demo_samples(), *numbers], box.port)


@pytest.mark.parametrize(
    ("model", "find_pids"),
    [
        ("resnet", partial(stubs, model="resnet")),
        ("slow_echo", partial(stubs, model="slow_echo")),
        ("slow_echo", all_processes),
    ],
    ids=["one process of ResNet", "one process without tokens", "the whole box"],
)
def test_a_stall_gives_no_caller_another_callers_answer(
    box: RunningBox, samples: list[Sample], model: str, find_pids: Callable[[RunningBox], list[int]]
) -> None:
    fault = Fault(
        model, make_stall(find_pids, STALL_S, every=find_pids is all_processes), focus=model, seconds=STALL_S
    )
    outcome = attack(box, [sample for sample in samples if sample.model == model], fault)
    assert outcome.wrong == 0, outcome.details
    assert outcome.hangs == 0
    assert outcome.recovery_s is not None
    assert not outcome.details


def test_a_stopped_supervisor_does_not_hold_back_answers_with_a_request_token(
    box: RunningBox, samples: list[Sample]
) -> None:
    sample = next(sample for sample in samples if sample.model == "resnet")
    os.kill(box.process.pid, signal.SIGSTOP)
    try:
        response = requests.post(
            f"{box.url}{sample.path}",
            data=sample.body,
            headers={"Content-Type": sample.content_type},
            timeout=30,
        )
    finally:
        os.kill(box.process.pid, signal.SIGCONT)
    assert response.status_code == 200
    assert sample.differences(response.content) == []
    box.wait_ready()


def test_callers_never_see_the_request_token(box: RunningBox) -> None:
    box.wait_ready()
    for path in ("/v2/models/resnet", "/v2/models/resnet/config", "/v2/models/resnet/versions/1"):
        response = requests.get(f"{box.url}{path}", timeout=10)
        assert response.status_code == 200
        assert REQUEST_TOKEN not in response.text
    with triton_http.InferenceServerClient(f"127.0.0.1:{box.port}") as client:
        outputs = client.get_model_metadata("bert_base")["outputs"]
        assert outputs
    assert REQUEST_TOKEN not in json.dumps(outputs)


def test_the_python_backends_shared_memory_is_private_to_the_boxs_user(box: RunningBox) -> None:
    regions = list(Path("/dev/shm").glob(f"trireme-{box.box_id()}-py*"))
    assert regions
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}

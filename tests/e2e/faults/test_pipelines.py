"""Ensembles, models that call others, batches and decoupled models: a stall mixes up no answers.

These models send no token back, so only the supervisor and the workers can notice a late answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.faults.attack import (
    DEADLINE_S,
    RESTARTS,
    Fault,
    all_processes,
    attack,
    make_stall,
    model_pids,
)
from tests.support.faults.inputs import JSON, Sample, v2_numbers, with_golden_answers
from tests.support.load import dispatch_body
from tests.support.model_archives import chain_config
from tests.support.tritons import DecoupledModel, Model

#: Triton gives up on the stopped process within this time, and has another request for it when it continues.
STALL_S = 3.0
#: Slow enough that requests wait in Triton's queue, batch after batch.
ECHO = 'time.sleep(0.05)\nreturn {"y": tensor(request, "x")}'
CALL_ANOTHER = """
inputs = [pb.Tensor("x", tensor(request, "x"))]
response = pb.InferenceRequest(model_name="echo", requested_output_names=["y"], inputs=inputs).exec()
if response.has_error():
    raise pb.TritonModelException(response.error().message())
return {"y": pb.get_output_tensor_by_name(response, "y").as_numpy() + 1}
"""
SEND_PARTS = """
for part in range(3):
    time.sleep(0.005)
    yield {"y": tensor(request, "x") + part}
"""
TENSORS = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("pipelines")
    repository = folder / "repository"
    # With a batch dimension: Triton joins the requests of several callers.
    Model(ECHO, *TENSORS, max_batch_size=8).write(repository / "echo")
    Model(CALL_ANOTHER, *TENSORS, max_batch_size=8).write(repository / "relay")
    DecoupledModel(SEND_PARTS, *TENSORS).write(repository / "parts")
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(chain_config("echo", "relay"))
    variables: Any = {"SAGEMAKER_MODEL_SERVER_TIMEOUT": str(DEADLINE_S), "TRIREME_RESTARTS": str(RESTARTS)}
    with running_box(folder, repository, clients=(CLIENT_FOLDERS / "faults",), **variables) as started:
        yield started


@pytest.fixture(scope="module")
def samples(box: RunningBox) -> list[Sample]:
    samples = []
    for number in range(24):
        row = [float(number * 1000 + place) for place in range(4)]
        samples += [v2_numbers(model, row) for model in ("echo", "relay", "chain")]
        body = dispatch_body("joined", {"numbers": row})
        samples.append(Sample(f"joined {row[0]:g}", "joined", "/invocations", JSON, body))
    return with_golden_answers(samples, box.port)


@pytest.mark.parametrize("stopped", ["echo", "relay", "parts", "all model processes", "the whole box"])
def test_a_stall_gives_nobody_anothers_answer(box: RunningBox, samples: list[Sample], stopped: str) -> None:
    every = {"all model processes": model_pids, "the whole box": all_processes}
    find = every.get(stopped) or partial(model_pids, model=stopped)
    stall = make_stall(find, STALL_S, every=stopped in every)
    result = attack(box, samples, Fault(stopped, stall, "chain" if stopped in every else stopped, STALL_S))
    assert result.is_sound, result
    assert not result.details

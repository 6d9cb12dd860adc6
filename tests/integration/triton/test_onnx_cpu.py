"""The model that runs ONNX graphs in a real Triton joins requests into batches, and each fails on its own."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sm.errors import BadInput
from sm.repository.cache import Cache
from sm.run_state import Box
from sm.server.supervisor import ports
from sm.triton.transport import Transport
from tests.support.onnx_graphs import write_graph
from tests.support.tritons import SETTINGS, TritonProcess
from trireme_tools.prepare.cpu_repository import CpuRepository

#: ``at`` picks one of four rows. An index over 3 fails inside ONNX Runtime. ``twice`` is 2 * ``at``.
TENSORS = """
input [ { name: "at" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "row" data_type: TYPE_FP32 dims: [ 1, 3 ] }, { name: "twice" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
#: Half a second is enough to join eight callers into one batch.
BATCHED = (
    "max_batch_size: 8\ndynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 500000 }\n"
)
TWO_INSTANCES = (
    'instance_group [ { count: 2 } ]\nparameters [ { key: "threads" value: { string_value: "1" } } ]\n'
)


PICK = """(int64[{b}1] at) => (float[{b}1,3] row, int64[{b}1] twice)
<float[4,3] rows = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, int64[1] two = {{2}}> {{
    row = Gather(rows, at)
    twice = Mul(at, two)
}}"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A Triton whose repository was assembled as the set-up does it."""
    folder = tmp_path_factory.mktemp("onnx")
    cache, built = Cache(folder / "cache"), {}
    cache.root.mkdir()
    for name, options in {"batched": BATCHED, "single": "", "threaded": BATCHED + TWO_INSTANCES}.items():
        built[name] = folder / "built" / name
        built[name].mkdir(parents=True)
        write_graph(built[name] / "model.onnx", PICK.format(b="b," if options else ""))
        (folder / "model" / name).mkdir(parents=True)
        (folder / "model" / name / "config.pbtxt").write_text(f'name: "{name}"\n{options}{TENSORS}')
    repository = CpuRepository(cache, folder / "model")
    repository.assemble(built)
    (folder / "run").mkdir()
    box = Box(
        f"test{os.urandom(4).hex()}",
        folder / "run",
        repository.path,
        *ports.choose_ports(SETTINGS),
        "nginx",
        2**24,
    )
    triton = TritonProcess(box)
    try:
        triton.start()
        yield triton
    finally:
        triton.stop()


@pytest.fixture
def transport(serving: TritonProcess) -> Iterator[Transport]:
    connected = Transport(SETTINGS, serving.box)
    yield connected
    connected.close()


def pick(transport: Transport, *at: int, model: str = "batched") -> Any:
    return transport.infer(model, {"at": np.array(at, np.int64).reshape(-1, 1)}, outputs=["row"])["row"]


def execution_count(serving: TritonProcess, model: str) -> int:
    url = f"http://127.0.0.1:{serving.box.http_port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=5) as response:
        return int(json.load(response)["model_stats"][0]["execution_count"])


def test_waiting_requests_run_as_one_batch_and_each_gets_its_own_answer(
    transport: Transport, serving: TritonProcess
) -> None:
    executions_before = execution_count(serving, "batched")
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda at: pick(transport, at % 4), range(8)))
    for at, answer in enumerate(answers):
        assert answer.tolist() == [[[3.0 * (at % 4) + column for column in range(3)]]]
    assert execution_count(serving, "batched") - executions_before < 8


def test_a_request_that_fails_does_not_fail_the_others_of_its_batch(transport: Transport) -> None:
    def value_or_error(at: int) -> object:
        try:
            return pick(transport, at)[0, 0, 0]
        except BadInput as error:
            return error.sentence

    with ThreadPoolExecutor(8) as callers:
        outcomes = list(callers.map(value_or_error, [0, 1, 99, 2, 3, 0, 1, 2]))
    assert [value for value in outcomes if not isinstance(value, str)] == [0, 3, 6, 9, 0, 3, 6]
    assert isinstance(outcomes[2], str)


def test_a_model_without_batches_is_run_request_by_request(transport: Transport) -> None:
    def infer_twice(at: int) -> Any:
        return transport.infer("single", {"at": np.array([at], np.int64)})["twice"].tolist()

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(infer_twice, range(4))) == [[0], [2], [4], [6]]


def test_a_configuration_may_set_more_instances_with_fewer_threads(
    serving: TritonProcess, transport: Transport
) -> None:
    """Triton's log names each instance that it starts."""
    log = (serving.box.run / "triton.log").read_text()
    assert "threaded_0_0" in log
    assert "threaded_0_1" in log
    assert pick(transport, 2, model="threaded").tolist() == [[[6, 7, 8]]]

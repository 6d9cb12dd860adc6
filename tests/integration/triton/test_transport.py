"""The transport moves tensors to and from a real Triton: large ones by shared memory, small ones in the message."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.errors import BadInput, ModelFailed, NotReady, UnknownModel
from sm.invocation import Invocation, running
from sm.metrics import TENSORS
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SharedGeneration
from sm.settings import Settings
from sm.triton import server
from sm.triton.calls import Calls
from sm.triton.transport import Transport
from tests.support.other_triton import has, needs
from tests.support.series import value
from tests.support.tritons import TritonProcess, prepare_triton

pytestmark = pytest.mark.core


class TensorCounter:
    """Counts the requests by the way of their tensors, since its creation."""

    def __init__(self) -> None:
        self._start = (0.0, 0.0)
        self._start = (self.by_shared_memory, self.by_message)

    @property
    def by_shared_memory(self) -> float:
        return value(TENSORS.labels("shared_memory")) - self._start[0]

    @property
    def by_message(self) -> float:
        return value(TENSORS.labels("grpc")) - self._start[1]


@pytest.fixture
def tensor_counter() -> TensorCounter:
    return TensorCounter()


def numbers(size: int, start: float = 0) -> Any:
    return np.arange(start, start + size, dtype=np.float32)[None]


def test_large_tensors_go_through_shared_memory(transport: Transport, tensor_counter: TensorCounter) -> None:
    x = np.random.default_rng(0).random((2, 100_000), dtype=np.float32)
    y = transport.infer("fixed", {"x": x})["y"]
    assert np.array_equal(y, x * 2)
    assert (tensor_counter.by_shared_memory, tensor_counter.by_message) == (1, 0)


def test_small_tensors_go_in_the_message(
    transport: Transport, triton: TritonProcess, tensor_counter: TensorCounter
) -> None:
    assert np.array_equal(transport.infer("echo", {"x": numbers(4)})["y"], numbers(4))
    assert (tensor_counter.by_shared_memory, tensor_counter.by_message) == (0, 1)
    assert triton.shared_memory_files() == []


def test_a_region_is_reused(transport: Transport, triton: TritonProcess) -> None:
    for number in range(20):
        x = numbers(100_000, number)
        assert np.array_equal(transport.infer("fixed", {"x": x})["y"], x * 2)
    assert len(triton.shared_memory_files()) == 1


def test_an_answer_does_not_change_while_it_is_referenced(transport: Transport) -> None:
    first = transport.infer("fixed", {"x": numbers(100_000)})["y"][0, 10:20].reshape(2, 5).T
    for _ in range(5):
        transport.infer("fixed", {"x": numbers(100_000, 1e6)})
    assert np.array_equal(first, (numbers(100_000) * 2)[0, 10:20].reshape(2, 5).T)


def test_answers_are_writable_whichever_way_they_came(transport: Transport) -> None:
    for model, size in (("echo", 4), ("fixed", 100_000)):
        y = transport.infer(model, {"x": numbers(size)})["y"]
        y *= 3
        assert y[0, 1] in (3, 6)


def test_an_output_of_open_size_uses_shared_memory_from_its_second_time(
    transport: Transport, tensor_counter: TensorCounter
) -> None:
    x = numbers(50_000)
    for _ in range(3):
        assert np.array_equal(transport.infer("echo", {"x": x})["y"], x)
    kind = transport._plan(None, "echo", {"x": x}, "", None).kind
    assert kind.predict(transport.metadata("echo"), 1) == {"y": 200_000}
    assert tensor_counter.by_shared_memory == 3  # The first has its output in the message.


def test_an_output_that_outgrows_its_region_is_complete(
    transport: Transport, tensor_counter: TensorCounter
) -> None:
    for size in (100_000, 100_000, 150_000, 150_000, 400_000, 100_000, 500_000, 3):
        y = transport.infer("ones", {"size": np.array([size])})["y"]
        assert y.shape == (size,)
        assert (y == 1).all()
    assert tensor_counter.by_shared_memory > 0


def test_strided_byte_swapped_and_empty_inputs_arrive_unchanged(transport: Transport) -> None:
    wide = np.random.default_rng(0).random((2, 200_000), dtype=np.float32)
    assert np.array_equal(transport.infer("fixed", {"x": wide[:, ::2]})["y"], wide[:, ::2] * 2)
    swapped = wide[:, :100_000].astype(">f4")
    assert np.array_equal(transport.infer("fixed", {"x": swapped})["y"], wide[:, :100_000] * 2)
    assert transport.infer("echo", {"x": np.zeros((1, 0), np.float32)})["y"].shape == (1, 0)


def test_strings_go_in_the_message(transport: Transport, tensor_counter: TensorCounter) -> None:
    words = np.array(["ä" * 70_000, "b", ""], dtype=object)
    if has("strings"):
        y = transport.infer("words", {"x": words})["y"]
        assert [word.decode() for word in y] == ["Ä" * 70_000, "B", ""]
        assert (tensor_counter.by_shared_memory, tensor_counter.by_message) == (0, 1)
    else:
        with pytest.raises(ModelFailed, match="strings"):
            transport.infer("words", {"x": words})


def test_metadata_has_a_models_inputs_outputs_and_versions(transport: Transport) -> None:
    metadata = transport.metadata("fixed")
    assert (metadata.max_batch_size, metadata.versions) == (4, ("1",))
    assert metadata.inputs["x"].shape == (100_000,)
    assert metadata.outputs["y"].datatype == "FP32"
    assert transport.metadata("ones").inputs["size"].shape == (1,)
    assert transport.ready_models()["echo"] == ("1",)


@pytest.mark.parametrize(("model", "version"), [("unknown", ""), ("echo", "9"), ("echo", "first")])
def test_an_unknown_model_or_version_is_named(transport: Transport, model: str, version: str) -> None:
    with pytest.raises(UnknownModel, match=version or model):
        transport.infer(model, {"x": numbers(4)}, version=version)


@pytest.mark.parametrize(
    "x", [numbers(5), np.zeros((5, 100_000), np.float32), np.zeros((1, 100_000), np.int32), numbers(100_001)]
)
def test_an_input_of_the_wrong_shape_or_type_is_bad_input(transport: Transport, x: Any) -> None:
    with pytest.raises(BadInput):
        transport.infer("fixed", {"x": x})
    assert np.array_equal(transport.infer("fixed", {"x": numbers(100_000)})["y"], numbers(100_000) * 2)


def test_an_array_without_a_triton_datatype_is_refused(transport: Transport) -> None:
    with pytest.raises(BadInput, match="complex"):
        transport.infer("echo", {"x": np.zeros((1, 3), complex)})


def test_a_model_that_raises_is_named_without_its_traceback(transport: Transport) -> None:
    with pytest.raises(ModelFailed) as excinfo:
        transport.infer("raises", {"x": np.zeros(3, np.float32)})
    assert excinfo.value.sentence == "model 'raises' failed: ValueError: no such luck"


def test_a_call_whose_region_triton_has_lost_is_sent_again(
    triton: TritonProcess, tensor_counter: TensorCounter, tmp_path: Path
) -> None:
    guard = AnswerGuard(SharedGeneration.create(tmp_path / "generation"))
    calls = Calls(guard, has_state=lambda _: True, seconds=10, folder=tmp_path)
    transport = Transport(triton.settings, triton.box, calls=calls)
    with running(Invocation(time.monotonic() + 10)) as invocation:
        transport.infer("fixed", {"x": numbers(100_000)})
        for region in triton.shared_memory_files():
            server.unregister(triton.box.http_port, region)
        assert np.array_equal(transport.infer("fixed", {"x": numbers(100_000)})["y"], numbers(100_000) * 2)
    transport.close()
    assert (tensor_counter.by_shared_memory, tensor_counter.by_message, invocation.repeats) == (2, 0, 0)


def test_thousands_of_requests_leave_no_files_and_no_regions(triton: TritonProcess) -> None:
    transport = Transport(triton.settings, triton.box)
    outputs = []

    def infer_number(number: int) -> None:
        y = transport.infer("echo", {"x": numbers(20_000 + 1000 * (number % 7) if number % 4 == 0 else 8)})[
            "y"
        ]
        if number % 100 == 0:
            outputs.append(y)

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(infer_number, range(3000)):
            pass
    assert triton.shared_memory_files()
    transport.close()
    assert triton.shared_memory_files() == []
    assert all(np.array_equal(y, numbers(y.shape[1])) for y in outputs)
    assert not [name for name in server.regions(triton.box.http_port) if f"-{os.getpid()}-" in name]


def test_over_the_budget_tensors_go_in_the_message(
    triton: TritonProcess, tensor_counter: TensorCounter, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Transport(triton.settings, replace(triton.box, shared_bytes=1_000_000))
    outputs = [transport.infer("fixed", {"x": numbers(100_000, n)})["y"] for n in range(4)]
    assert all(np.array_equal(y, numbers(100_000, n) * 2) for n, y in enumerate(outputs))
    assert (tensor_counter.by_shared_memory, tensor_counter.by_message) == (1, 3)
    assert len([record for record in caplog.records if "instead of shared memory" in record.message]) == 1
    del outputs
    gc.collect()
    transport.infer("fixed", {"x": numbers(100_000)})
    assert tensor_counter.by_shared_memory == 2
    transport.close()


def test_an_idle_region_makes_room_for_a_larger_one(
    triton: TritonProcess, tensor_counter: TensorCounter
) -> None:
    transport = Transport(triton.settings, replace(triton.box, shared_bytes=2_500_000))
    for size in (20_000, 20_000, 100_000, 100_000, 200_000, 200_000):
        assert np.array_equal(transport.infer("echo", {"x": numbers(size)})["y"], numbers(size))
    assert tensor_counter.by_message == 0
    total_bytes = sum((Path("/dev/shm") / name).stat().st_size for name in triton.shared_memory_files())
    assert total_bytes <= 2_500_000
    transport.close()


def test_shared_memory_can_be_turned_off(triton: TritonProcess, tensor_counter: TensorCounter) -> None:
    transport = Transport(triton.settings, replace(triton.box, shared_bytes=0))
    assert np.array_equal(transport.infer("fixed", {"x": numbers(100_000)})["y"], numbers(100_000) * 2)
    transport.close()
    assert (tensor_counter.by_shared_memory, tensor_counter.by_message) == (0, 1)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, as /dev/shm when it is nearly full."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_on_a_full_file_system_tensors_go_in_the_message(
    triton: TritonProcess,
    small_file_system: Path,
    tensor_counter: TensorCounter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = Transport(triton.settings, triton.box, small_file_system)
    x = np.ones((4, 100_000), np.float32)
    assert np.array_equal(transport.infer("fixed", {"x": x})["y"], x * 2)
    assert tensor_counter.by_message == 1
    assert "No space left" in caplog.text
    assert list(small_file_system.iterdir()) == []
    transport.close()


def test_with_a_region_that_triton_refuses_tensors_go_in_the_message(
    triton: TritonProcess, tmp_path: Path, tensor_counter: TensorCounter, caplog: pytest.LogCaptureFixture
) -> None:
    # Triton looks for the file in /dev/shm, and it is not there.
    transport = Transport(triton.settings, triton.box, tmp_path)
    for _ in range(3):
        assert np.array_equal(transport.infer("fixed", {"x": numbers(100_000)})["y"], numbers(100_000) * 2)
    assert tensor_counter.by_message == 3
    assert "Unable to open shared memory region" in caplog.text
    assert list(tmp_path.iterdir()) == []
    transport.close()


def test_without_triton_calls_are_not_ready(tmp_path: Path) -> None:
    transport = Transport(Settings.read({}), prepare_triton(tmp_path, []).box)
    with pytest.raises(NotReady):
        transport.infer("echo", {"x": numbers(4)})
    with pytest.raises(NotReady):
        transport.ready_models()
    transport.close()


@needs("strings")
def test_triton_gets_the_invocations_request_id(transport: Transport) -> None:
    inputs = {"x": np.zeros(1, np.float32)}
    with running(Invocation(time.monotonic() + 10, request_id="mine-17")):
        assert transport.infer("identity", inputs)["y"].tolist() == [b"mine-17"]
    assert transport.infer("identity", inputs)["y"].tolist() == [b""]

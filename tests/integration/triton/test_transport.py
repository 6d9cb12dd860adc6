"""The transport moves tensors to and from a real Triton: large ones by shared memory, small ones in the message."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.errors import BadInput
from sm.invocation import Invocation, running
from sm.metrics import TENSORS
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SharedGeneration
from sm.run_state import SHARED_MEMORY
from sm.triton import server
from sm.triton.calls import Calls
from sm.triton.tensors import DTYPES
from sm.triton.transport import Transport
from tests.support.other_triton import needs
from tests.support.series import value
from tests.support.tritons import TritonProcess

#: How many requests went through shared memory, and how many in the message.
Ways = Callable[[], tuple[float, float]]


@pytest.fixture
def ways() -> Ways:
    """Counts since the begin of the test."""

    def count() -> tuple[float, float]:
        return value(TENSORS.labels("shared_memory")), value(TENSORS.labels("grpc"))

    begin = count()
    return lambda: (count()[0] - begin[0], count()[1] - begin[1])


def numbers(size: int, start: float = 0) -> Any:
    return np.arange(start, start + size, dtype=np.float32)[None]


def check_echo(transport: Transport, *sizes: int) -> None:
    for size in sizes:
        assert np.array_equal(transport.infer("echo", {"x": numbers(size)})["y"], numbers(size))


def check_doubled(transport: Transport, start: float = 0) -> None:
    x = numbers(100_000, start)
    y = transport.infer("fixed", {"x": x})["y"]
    y /= 2  # an answer is writable
    assert np.array_equal(y, x)


def with_budget(triton: TritonProcess, shared_bytes: int, folder: Path = SHARED_MEMORY) -> Any:
    return closing(Transport(triton.settings, replace(triton.box, shared_bytes=shared_bytes), folder))


def test_large_tensors_go_through_one_region_that_is_reused(
    transport: Transport, triton: TritonProcess, ways: Ways
) -> None:
    for number in range(20):
        check_doubled(transport, number)
    assert ways() == (20, 0)
    assert len(triton.shared_memory_files()) == 1


def test_small_tensors_go_in_the_message(transport: Transport, triton: TritonProcess, ways: Ways) -> None:
    check_echo(transport, 4)
    assert ways() == (0, 1)
    assert triton.shared_memory_files() == []


def test_an_output_that_outgrows_its_region_is_complete(transport: Transport, ways: Ways) -> None:
    for size in (100_000, 100_000, 150_000, 150_000, 400_000, 100_000, 500_000, 3):
        y = transport.infer("ones", {"size": np.array([size])})["y"]
        assert y.shape == (size,)
        assert (y == 1).all()
    assert ways()[0] > 0


def test_what_may_not_run_twice_has_its_outputs_in_the_message(transport: Transport, ways: Ways) -> None:
    with running(Invocation(time.monotonic() + 60)) as invocation:
        invocation.repeatable = False
        for size in (100_000, 100_000, 400_000):
            assert transport.infer("ones", {"size": np.array([size])})["y"].shape == (size,)
    assert ways()[0] == 0


def test_strided_byte_swapped_and_empty_inputs_arrive_unchanged(transport: Transport) -> None:
    wide = np.random.default_rng(0).random((2, 200_000), dtype=np.float32)
    for x in (wide[:, ::2], wide[:, :100_000].astype(">f4")):
        assert np.array_equal(transport.infer("fixed", {"x": x})["y"], x * 2)
    check_echo(transport, 0)


@needs("strings")
def test_strings_go_in_the_message(transport: Transport, ways: Ways) -> None:
    words = np.array(["ä" * 70_000, "b", ""], dtype=object)
    y = transport.infer("words", {"x": words})["y"]
    assert [word.decode() for word in y] == ["Ä" * 70_000, "B", ""]
    assert ways() == (0, 1)


@pytest.mark.parametrize(
    "x", [numbers(5), np.zeros((5, 100_000), np.float32), np.zeros((1, 100_000), np.int32), numbers(100_001)]
)
def test_an_input_of_the_wrong_shape_or_type_is_bad_input(transport: Transport, x: Any) -> None:
    with pytest.raises(BadInput):
        transport.infer("fixed", {"x": x})
    check_doubled(transport)


def test_a_call_whose_region_triton_has_lost_is_sent_again(
    triton: TritonProcess, ways: Ways, tmp_path: Path
) -> None:
    guard = AnswerGuard(SharedGeneration.create(tmp_path / "generation"))
    calls = Calls(guard, has_state=lambda _: True, seconds=10, folder=tmp_path)
    transport = Transport(triton.settings, triton.box, calls=calls)
    with running(Invocation(time.monotonic() + 10)) as invocation:
        check_doubled(transport)
        for region in triton.shared_memory_files():
            server.unregister(triton.box.http_port, region)
        check_doubled(transport)
    transport.close()
    assert (*ways(), invocation.repeats) == (2, 0, 0)


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


@pytest.mark.parametrize(
    ("folder", "shared_bytes"), [("small_file_system", 2**28), ("tmp_path", 2**28), ("tmp_path", 0)]
)
def test_on_a_full_file_system_tensors_go_in_the_message(
    triton: TritonProcess, request: pytest.FixtureRequest, ways: Ways, folder: str, shared_bytes: int
) -> None:
    """So they do without shared memory, and if Triton refuses a region: it looks for its file in /dev/shm."""
    shared_memory: Path = request.getfixturevalue(folder)
    x = np.ones((4, 100_000), np.float32)
    with with_budget(triton, shared_bytes, shared_memory) as transport:
        for _ in range(3):
            assert np.array_equal(transport.infer("fixed", {"x": x})["y"], x * 2)
        assert ways() == (0, 3)
        assert list(shared_memory.iterdir()) == []


@needs("strings")
def test_triton_gets_the_invocations_request_id(transport: Transport) -> None:
    inputs = {"x": np.zeros(1, np.float32)}
    with running(Invocation(time.monotonic() + 10, request_id="mine-17")):
        assert transport.infer("identity", inputs)["y"].tolist() == [b"mine-17"]
    assert transport.infer("identity", inputs)["y"].tolist() == [b""]


def test_every_datatype_of_a_python_model_arrives_unchanged_at_any_size(transport: Transport) -> None:
    for size in (5, 70_001, 0):
        inputs = {name: (np.arange(size) % 100).astype(dtype) for name, dtype in DTYPES.items()}
        outputs = transport.infer("typed", inputs)
        for name, x in inputs.items():
            assert outputs[f"of_{name}"].dtype == x.dtype
            assert np.array_equal(outputs[f"of_{name}"], x[::-1]), (name, size)

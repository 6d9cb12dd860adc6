"""Candidates run in processes of their own, and OpenVINO answers nothing that ONNX Runtime would refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.onnx_graphs import write_graph
from trireme_extensions.convert.onnx_cpu import engines
from trireme_extensions.convert.onnx_cpu.engines import (
    FP32,
    GRAPH,
    WEIGHTS,
    Candidate,
    Choice,
    Chooser,
    Wanted,
)
from trireme_tools.build import golden_data

OPENVINO = Candidate("openvino", "fp32")
INSTALLED = {"onnxruntime": "1", "openvino": "1"}
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
ADDED = 0.5 * np.arange(15, dtype=np.float32).reshape(5, 3)


def numbers(array: Any) -> str:
    return ", ".join(map(str, array.ravel().tolist()))


def write_pick(folder: Path) -> None:
    """``at`` [batch, length] picks rows of a table; only lengths of 5 and 1 fit what is added. ``twice`` is 2 * n."""
    graph = write_graph(
        folder / GRAPH,
        f"""(int64[batch,length] at, int64[batch,1] n) => (float[batch,length,3] y, int64[batch,1] twice)
        <float[4,3] rows = {{{numbers(TABLE)}}}, float[1,5,3] added = {{{numbers(ADDED)}}}, int64[1] two = {{2}}> {{
            picked = Gather(rows, at)
            sum = Add(picked, added)
            y = Relu(sum)
            twice = Mul(n, two)
        }}""",
    )
    golden_data.from_random_inputs(graph, [{"length": 5}], folder)


def feed(*at: int, n: int = 1) -> dict[str, Any]:
    return {"at": np.array([at], np.int64), "n": np.array([[n]], np.int64)}


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    write_pick(tmp_path)
    engine, choice = engines.open_engine(Choice(*OPENVINO), tmp_path / GRAPH, 1)
    assert isinstance(engine, engines.Guarded)
    assert choice.candidate == OPENVINO
    return engine


def expected(*at: int) -> list[Any]:
    return [(TABLE[list(at)] + ADDED).tolist()]


def test_the_answer_after_a_failed_request_is_its_own(guarded: Any) -> None:
    """OpenVINO 2026.4 answers with the outputs of an earlier request, or with the error again."""
    assert guarded.run(["y"], feed(0, 1, 2, 3, 0))[0].tolist() == expected(0, 1, 2, 3, 0)
    with pytest.raises(Exception, match="broadcast"):
        guarded.run(["y"], feed(0, 1, 2, 3, 0, 1, 2))
    assert guarded.run(["y"], feed(3, 3, 3, 1, 1))[0].tolist() == expected(3, 3, 3, 1, 1)
    assert guarded.run(["twice"], feed(0, 0, 0, 0, 0, n=2**40))[0].tolist() == [[2**41]]


@pytest.mark.parametrize("index", [4, -5, 2**33])
def test_an_index_beyond_the_table_is_refused_as_onnx_runtime_does(guarded: Any, index: int) -> None:
    with pytest.raises(Exception) as error:
        guarded.run(["y"], feed(0, 1, index, 3, 0))
    assert type(error.value).__name__ == "InvalidArgument"


def choose(folder: Path) -> Choice:
    wanted = Wanted(engine="openvino", precision="fp32")
    return Chooser(folder, wanted, folder / "cache", set(), INSTALLED).choose()


def test_a_candidate_that_kills_its_process_is_left_out_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pick(tmp_path)
    broken = tmp_path / "packages" / "openvino.py"
    broken.parent.mkdir()
    broken.write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(broken.parent)
    choice = choose(tmp_path)
    assert (choice.candidate, len(choice.faults)) == (FP32, 1)
    broken.unlink()
    assert choose(tmp_path) == choice


def test_a_graph_that_openvino_cannot_read_stays_on_onnx_runtime(tmp_path: Path) -> None:
    write_pick(tmp_path)
    graph = onnx.load(tmp_path / GRAPH)
    (relu,) = (node for node in graph.graph.node if node.op_type == "Relu")
    relu.op_type, relu.domain = "Binarizer", "ai.onnx.ml"
    graph.opset_import.add(domain="ai.onnx.ml", version=1)
    onnx.save(graph, tmp_path / GRAPH)
    choice = choose(tmp_path)
    assert (choice.candidate, len(choice.faults)) == (FP32, 1)


def test_an_output_keeps_its_name_whatever_openvino_calls_its_tensor(tmp_path: Path) -> None:
    write_graph(
        tmp_path / GRAPH, "(float[batch,4] x) => (float[batch,4] y) { before = Relu(x) y = Identity(before) }"
    )
    engine = engines.load(OPENVINO, tmp_path / GRAPH, 1)
    assert engine.outputs == ["y"]
    assert engine.run(["y"], {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[1, 1, 1, 1]]


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """A convolution that adds up neighbours."""
    text = f"float[1,1,3,3] kernel = {{{numbers(np.ones(9))}}}"
    return write_graph(
        tmp_path / GRAPH,
        f"(float[batch,1,4,4] x) => (float[batch,1,4,4] y) <{text}> {{ y = Conv<pads = [1, 1, 1, 1]>(x, kernel) }}",
    ).path


@pytest.mark.parametrize("records", [1, 3])
def test_a_graph_for_one_record_answers_batches_of_any_size(sums: Path, records: int) -> None:
    engine = engines.load(OPENVINO, sums, 1, True)
    pictures = np.arange(16 * records, dtype=np.float32).reshape(records, 1, 4, 4)
    (answer,) = engine.run(["y"], {"x": pictures})
    assert answer.shape == pictures.shape
    assert answer[-1, 0, 1, 1] == pictures[-1, 0, :3, :3].sum()


def test_links_to_a_graph_and_its_weights_are_followed(sums: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    onnx.save(onnx.load(sums), sums, save_as_external_data=True, location=WEIGHTS, size_threshold=0)
    for name in (GRAPH, WEIGHTS):
        (links / name).symlink_to(tmp_path / name)
    for candidate in (OPENVINO, FP32):
        (answer,) = engines.load(candidate, links / GRAPH, 1).run(
            ["y"], {"x": np.ones((1, 1, 4, 4), np.float32)}
        )
        assert answer[0, 0, 1, 1] == 9

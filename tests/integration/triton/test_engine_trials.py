"""Candidates run in processes of their own, and OpenVINO answers nothing that ONNX Runtime would refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sm.build import samples
from sm.build.onnx_graph import Graph
from sm.triton.onnx_cpu import engines
from sm.triton.onnx_cpu.engines import FP32, GRAPH, WEIGHTS, Candidate, Choice, Chooser, Wanted

OPENVINO = Candidate("openvino", "fp32")
INSTALLED = {"onnxruntime": "1", "openvino": "1"}


def write_graph(folder: Path, operator: str = "Relu", domain: str = "") -> None:
    """``at`` [batch, length] picks rows of a table; only lengths of 5 and 1 fit what is added. ``twice`` is 2 * at."""
    tensors = [
        helper.make_tensor("rows", TensorProto.FLOAT, [4, 3], [float(value) for value in range(12)]),
        helper.make_tensor("added", TensorProto.FLOAT, [1, 5, 3], [0.5 * value for value in range(15)]),
        helper.make_tensor("two", TensorProto.INT64, [1], [2]),
    ]
    nodes = [
        helper.make_node("Gather", ["rows", "at"], ["picked"]),
        helper.make_node("Add", ["picked", "added"], ["sum"]),
        helper.make_node(operator, ["sum"], ["y"], domain=domain),
        helper.make_node("Mul", ["n", "two"], ["twice"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pick",
        [
            helper.make_tensor_value_info("at", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("n", TensorProto.INT64, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", 3]),
            helper.make_tensor_value_info("twice", TensorProto.INT64, ["batch", 1]),
        ],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / GRAPH)
    samples.from_random_inputs(Graph.read(folder / GRAPH), [{"length": 5}], folder)


def feed(*at: int, n: int = 1) -> dict[str, Any]:
    return {"at": np.array([at], np.int64), "n": np.array([[n]], np.int64)}


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    write_graph(tmp_path)
    engine, choice = engines.open_engine(Choice(*OPENVINO), tmp_path / GRAPH, 1)
    assert isinstance(engine, engines.Guarded)
    assert choice.candidate == OPENVINO
    return engine


def expected(*at: int) -> list[Any]:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    added = 0.5 * np.arange(15, dtype=np.float32).reshape(5, 3)
    return [[row.tolist() for row in table[list(at)] + added]]


class TestGuarded:
    def test_the_answer_after_a_failed_request_is_its_own(self, guarded: Any) -> None:
        """OpenVINO 2026.4 answers with the outputs of an earlier request, or with the error again."""
        assert guarded.run(["y"], feed(0, 1, 2, 3, 0))[0].tolist() == expected(0, 1, 2, 3, 0)
        with pytest.raises(Exception, match="broadcast"):
            guarded.run(["y"], feed(0, 1, 2, 3, 0, 1, 2))
        assert guarded.run(["y"], feed(3, 3, 3, 1, 1))[0].tolist() == expected(3, 3, 3, 1, 1)

    def test_openvino_is_used_again_after_a_while(
        self, guarded: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(Exception, match="broadcast"):
            guarded.run(["y"], feed(0, 1, 2, 3, 0, 1, 2))
        assert guarded._engine is None
        guarded._retry_at = 0
        assert guarded.run(["y"], feed(3, 3, 3, 1, 1))[0].tolist() == expected(3, 3, 3, 1, 1)
        assert guarded._engine is not None

    @pytest.mark.parametrize("index", [4, -5, 2**33])
    def test_an_index_beyond_the_table_is_refused_as_onnx_runtime_does(
        self, guarded: Any, index: int
    ) -> None:
        with pytest.raises(Exception, match="out of data bounds") as error:
            guarded.run(["y"], feed(0, 1, index, 3, 0))
        assert type(error.value).__name__ == "InvalidArgument"
        assert guarded._engine is not None

    def test_whole_numbers_keep_their_64_bits(self, guarded: Any) -> None:
        assert guarded.run(["twice"], feed(0, 0, 0, 0, 0, n=2**40))[0].tolist() == [[2**41]]


class TestTrials:
    def choose(self, folder: Path) -> Choice:
        wanted = Wanted(engine="openvino", precision="fp32")
        return Chooser(folder, wanted, folder / "cache", set(), INSTALLED).choose()

    def test_a_candidate_within_the_tolerance_is_taken(self, tmp_path: Path) -> None:
        write_graph(tmp_path)
        choice = self.choose(tmp_path)
        assert (choice.candidate, choice.faults) == (OPENVINO, ())
        assert choice.difference == pytest.approx(0, abs=1e-5)

    def test_a_candidate_that_kills_its_process_is_left_out_and_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_graph(tmp_path)
        broken = tmp_path / "packages" / "openvino.py"
        broken.parent.mkdir()
        broken.write_text("import os\nos.abort()\n")
        monkeypatch.syspath_prepend(broken.parent)
        choice = self.choose(tmp_path)
        assert choice.candidate == FP32
        assert choice.faults == ("not openvino fp32: the process that tried it ended with -6",)
        broken.unlink()
        assert self.choose(tmp_path) == choice

    def test_a_graph_that_openvino_cannot_read_stays_on_onnx_runtime(self, tmp_path: Path) -> None:
        write_graph(tmp_path, "Binarizer", "ai.onnx.ml")
        choice = self.choose(tmp_path)
        assert choice.candidate == FP32
        assert choice.faults[0].startswith("not openvino fp32: ")


def test_an_output_keeps_its_name_whatever_openvino_calls_its_tensor(tmp_path: Path) -> None:
    shape: list[str | int | None] = ["batch", 4]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["before"]), helper.make_node("Identity", ["before"], ["y"])],
        "named",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / GRAPH
    )
    engine = engines.load(OPENVINO, tmp_path / GRAPH, 1)
    assert engine.outputs == ["y"]
    assert engine.run(["y"], {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[1, 1, 1, 1]]


class TestRecordByRecord:
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Any:
        """A convolution [batch, 1, 4, 4] → [batch, 1, 4, 4] that adds up neighbours."""
        kernel = helper.make_tensor("kernel", TensorProto.FLOAT, [1, 1, 3, 3], [1.0] * 9)
        shape: list[str | int | None] = ["batch", 1, 4, 4]
        graph = helper.make_graph(
            [helper.make_node("Conv", ["x", "kernel"], ["y"], pads=[1, 1, 1, 1])],
            "sums",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [kernel],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / GRAPH)
        return engines.load(OPENVINO, tmp_path / GRAPH, 1, True)

    @pytest.mark.parametrize("records", [1, 3])
    def test_a_graph_for_one_record_answers_batches_of_any_size(self, engine: Any, records: int) -> None:
        assert engine.compiled.inputs[0].partial_shape.is_static
        pictures = np.arange(16 * records, dtype=np.float32).reshape(records, 1, 4, 4)
        (sums,) = engine.run(["y"], {"x": pictures})
        assert sums.shape == pictures.shape
        assert sums[-1, 0, 1, 1] == pictures[-1, 0, :3, :3].sum()

    def test_links_to_a_graph_and_its_weights_are_followed(self, engine: Any, tmp_path: Path) -> None:
        links = tmp_path / "links"
        links.mkdir()
        graph = onnx.load(tmp_path / GRAPH)
        onnx.save(graph, tmp_path / GRAPH, save_as_external_data=True, location=WEIGHTS, size_threshold=0)
        for name in (GRAPH, WEIGHTS):
            (links / name).symlink_to(tmp_path / name)
        pictures = np.ones((1, 1, 4, 4), np.float32)
        for candidate in (OPENVINO, FP32):
            (sums,) = engines.load(candidate, links / GRAPH, 1).run(["y"], {"x": pictures})
            assert sums[0, 0, 1, 1] == 9

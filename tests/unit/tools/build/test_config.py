"""``config.pbtxt``: read by Triton's own protobuf, joined with the target's lines, and true of the graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2

from sm.errors import StartError
from sm.settings import HERE
from sm.tools.build import model_config
from sm.tools.build.onnx_graph import Graph

PLAIN = """
name: "model"
max_batch_size: 4
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ -1, 10 ] } ]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "model" / "config.pbtxt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def graph(folder: Path, ids: int = TensorProto.INT64) -> Path:
    """ids [b, s] to scores [b, s, 10]; only what the graph says of itself matters here."""
    given = helper.make_tensor_value_info("ids", ids, ["b", "s"])
    taken = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["b", "s", 10])
    made = helper.make_graph([], "g", [given], [taken])
    onnx.save(helper.make_model(made), folder / "model.onnx")
    return folder / "model.onnx"


def test_the_cpu_target_adds_its_backend_and_one_instance(tmp_path: Path) -> None:
    merged = model_config.for_target(model_config.read(written(tmp_path, PLAIN)), "cpu")
    assert merged.backend == "python"
    assert [(g.kind, g.count) for g in merged.instance_group] == [
        (model_config_pb2.ModelInstanceGroup.KIND_CPU, 1)
    ]


def test_instances_and_parameters_of_the_model_stay(tmp_path: Path) -> None:
    more = 'instance_group [ { count: 3 } ]\nparameters [ { key: "threads" value: { string_value: "1" } } ]\n'
    merged = model_config.for_target(model_config.read(written(tmp_path, PLAIN + more)), "cpu")
    assert [group.count for group in merged.instance_group] == [3]
    assert merged.parameters["threads"].string_value == "1"


def test_nothing_that_git_says_is_lost(tmp_path: Path) -> None:
    said = model_config.read(
        written(tmp_path, PLAIN + "dynamic_batching { max_queue_delay_microseconds: 7 }\n")
    )
    merged = text_format.Parse(
        model_config.text(model_config.for_target(said, "cpu")), model_config_pb2.ModelConfig()
    )
    merged.ClearField("backend")
    merged.ClearField("instance_group")
    assert merged == said


def test_a_part_that_is_only_opened_takes_nothing_away(tmp_path: Path) -> None:
    generated = model_config.from_graph(Graph.read(graph(tmp_path)), "model", 8, preferred=4)
    opened = text_format.Parse("dynamic_batching { }", model_config_pb2.ModelConfig())
    assert model_config.merge(generated, opened) == generated
    other = text_format.Parse("dynamic_batching { preferred_batch_size: 2 }", model_config_pb2.ModelConfig())
    assert list(model_config.merge(generated, other).dynamic_batching.preferred_batch_size) == [2]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('backend: "python"', "sets 'backend', which belongs to the target"),
        ('platform: "tensorrt_plan"', "sets 'platform'"),
        ("max_batch_sise: 8", r'no field named "max_batch_sise"'),
        ("max_batch_size: lots", "is no Triton configuration"),
        ("}", "is no Triton configuration"),
    ],
)
def test_a_wrong_line_is_named_with_its_file(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(StartError, match=sentence) as caught:
        model_config.read(written(tmp_path, f"{PLAIN}{line}\n"))
    assert "config.pbtxt" in str(caught.value)


def test_the_name_is_the_folders(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="names the model 'other'; its folder is 'model'"):
        model_config.read(written(tmp_path, PLAIN.replace('"model"', '"other"')))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"config\.pbtxt is missing"):
        model_config.read(tmp_path / "config.pbtxt")


def test_a_graph_that_agrees_passes(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    model_config.check(model_config.read(path), graph(tmp_path), path)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"ids"', '"words"', r"says words INT64 \[-1, -1\] of its inputs; the model has ids INT64"),
        ("TYPE_INT64", "TYPE_INT32", "says ids INT32 .*; the model has ids INT64"),
        ("[ -1, 10 ]", "[ 10 ]", r"says scores FP32 \[-1, 10\] of its outputs; .* FP32 \[-1, -1, 10\]"),
        ("[ -1, 10 ]", "[ -1, 11 ]", r"says scores FP32 \[-1, -1, 11\]"),
        ("max_batch_size: 4", "", r"says ids INT64 \[-1\] of its inputs"),
    ],
)
def test_a_graph_that_differs_is_a_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = written(tmp_path, PLAIN.replace(old, new))
    with pytest.raises(StartError, match=sentence):
        model_config.check(model_config.read(path), graph(tmp_path), path)


def test_an_element_type_that_triton_lacks_is_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    with pytest.raises(StartError, match="the model has ids INVALID"):
        model_config.check(model_config.read(path), graph(tmp_path, ids=TensorProto.COMPLEX64), path)


@pytest.mark.parametrize(
    "path", sorted((HERE / "model").glob("*/config.pbtxt")), ids=lambda path: path.parent.name
)
def test_the_demos_own_files_can_be_read(path: Path) -> None:
    said = model_config.read(path)
    assert said.max_batch_size == 8
    assert said.HasField("dynamic_batching")

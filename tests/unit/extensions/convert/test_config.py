"""``config.pbtxt`` is read with Triton's protobuf, merged with the target's lines, and checked against the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.errors import CommandError
from sm.repository import models
from tests.support.onnx_graphs import write_graph
from trireme_extensions.convert import model_config
from trireme_extensions.convert.onnx_graph import Graph

CONFIG = """
name: "model"
max_batch_size: 4
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ -1, 10 ] } ]
"""


def write_config(folder: Path, text: str) -> Path:
    path = folder / "model" / "config.pbtxt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def graph(folder: Path) -> Graph:
    """A graph of which only the inputs and outputs matter."""
    text = "(int64[b,s] ids) => (float[b,s,10] scores) { scores = Identity(ids) }"
    return write_graph(folder / "model.onnx", text)


def test_merging_with_a_target_loses_nothing(tmp_path: Path) -> None:
    config = model_config.read(
        write_config(tmp_path, CONFIG + "dynamic_batching { max_queue_delay_microseconds: 7 }\n")
    )
    merged = text_format.Parse(
        models.write_config(model_config.for_target(config, "cpu")), model_config_pb2.ModelConfig()
    )
    merged.ClearField("backend")
    merged.ClearField("instance_group")
    assert merged == config


def test_an_empty_section_keeps_the_generated_values(tmp_path: Path) -> None:
    generated = model_config.from_graph(graph(tmp_path), "model", 8, preferred=4)
    empty_section = text_format.Parse("dynamic_batching { }", model_config_pb2.ModelConfig())
    assert model_config.merge(generated, empty_section) == generated
    preferred_2 = text_format.Parse(
        "dynamic_batching { preferred_batch_size: 2 }", model_config_pb2.ModelConfig()
    )
    assert list(model_config.merge(generated, preferred_2).dynamic_batching.preferred_batch_size) == [2]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("\nmax", '\nbackend: "python"\nmax', "'backend'"),
        ("\nmax", '\nplatform: "tensorrt_plan"\nmax', "'platform'"),
        ("max_batch_size", "max_batch_sise", "'max_batch_size'"),
        (": 4", ": lots", "line"),
        (": 4", ": 4 }", "line"),
        ('"model"', '"other"', "'other'"),
        # What does not fit the graph.
        ('"ids"', '"words"', "words"),
        ("TYPE_INT64", "TYPE_INT32", "INT32"),
        ("[ -1, 10 ]", "[ 10 ]", r"\[-1, 10\]"),
        ("[ -1, 10 ]", "[ -1, 11 ]", r"\[-1, -1, 11\]"),
        ("max_batch_size: 4", "", r"\[-1\]"),
        (CONFIG, None, ""),
    ],
)
def test_a_wrong_configuration_is_refused_by_what_differs(
    tmp_path: Path, old: str, new: str | None, named: str
) -> None:
    path = tmp_path / "model" / "config.pbtxt"
    if new is not None:
        write_config(tmp_path, CONFIG.replace(old, new))
    with pytest.raises(CommandError, match=rf"config\.pbtxt.*{named}"):
        model_config.check(model_config.read(path), graph(tmp_path).path, path)

"""A build request: its options, batch and shapes become sizes; what does not fit the graph is refused."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sm import cli
from sm.errors import CommandError
from sm.settings import HERE
from tests.support.onnx_graphs import embedding, plus_one
from trireme_extensions.convert import build_arguments, build_request
from trireme_extensions.convert.build_command import find_builder, wanted
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.model_builder import ModelBuilder
from trireme_extensions.convert.onnx_cpu.engines import Wanted
from trireme_tools.desk_builder import DeskBuilder


def test_every_option_is_documented() -> None:
    names = ("engines", "cpu-engines", "gpu-engines", "less-to-send")
    page = "".join((HERE / "docs" / "run" / f"{name}.md").read_text() for name in names)
    command = argparse.ArgumentParser(add_help=False)
    build_arguments.add_arguments(command)
    options = set(re.findall(r"--[a-z][\w-]+", command.format_help()))
    assert "--precision" in options
    assert [option for option in sorted(options) if option not in page] == []


def test_the_command_line_wins_over_a_models_own_options() -> None:
    model_options = (HERE / "model" / "bert_base" / "tensorrt.options").read_text().split()
    arguments = cli.parser(["build-model"]).parse_args(
        ["build-model", "bert_base", *model_options, "--precision", "fp32"]
    )
    assert dict(arguments.shapes) == {"input_ids": ((1, 128), (16, 128), (128, 128))}
    assert arguments.precision == "fp32"


@pytest.mark.parametrize(
    ("precision", "tolerance", "named"),
    [("fp16", 0.01, "--precision fp16"), ("int8", 0.01, "--calibration"), ("auto", 1.5, "--tolerance 1.5")],
)
def test_what_the_cpu_target_cannot_do_is_refused(precision: str, tolerance: float, named: str) -> None:
    with pytest.raises(CommandError, match=named):
        wanted("auto", precision, tolerance)
    with pytest.raises(CommandError, match="--engine onnxruntime"):
        wanted("onnxruntime", "int8", 0.01, Path("inputs"))


def build_request_with(**fields: Any) -> BuildRequest:
    return BuildRequest("tiny", "tensorrt", Path("out"), **fields)


ONNX: dict[str, Any] = {"source": Path("tiny.onnx")}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "the recipe of tiny"),
        ({"source": "torchvision:resnet18"}, "torchvision:resnet18, a model of PyTorch,"),
        ({**ONNX, "precision": "int8"}, "--precision int8"),
        ({**ONNX, "wanted": Wanted(precision="int8")}, "--precision int8"),
        ({**ONNX, "wanted": Wanted(precision="bf16")}, "--precision bf16"),
        ({**ONNX, "wanted": Wanted(engine="openvino", precision="fp32")}, "--engine openvino"),
        ({**ONNX, "calibration": Path("inputs")}, "--calibration"),
        ({**ONNX, "measured": True}, "--engine fastest"),
        ({**ONNX, "changes": ("uint8", "nms")}, "--uint8 --nms"),
    ],
)
def test_what_only_the_tools_can_do_is_refused_without_them(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], named: str
) -> None:
    request = build_request_with(**fields)
    assert issubclass(find_builder(request, request.changes, print), DeskBuilder)
    monkeypatch.setitem(sys.modules, "trireme_tools.desk_builder", None)
    with pytest.raises(CommandError, match=f"{named} needs the tools"):
        find_builder(request, request.changes, print)


def test_a_plain_file_needs_no_tools_and_a_models_own_changes_are_left_out_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trireme_tools.desk_builder", None)
    said: list[str] = []
    for plain in ({"precision": "fp16"}, {"wanted": Wanted(precision="fp32")}, {}):
        assert find_builder(build_request_with(**ONNX, **plain), (), said.append) is ModelBuilder
    assert said == []
    assert find_builder(build_request_with(**ONNX, changes=("masks",)), (), said.append) is ModelBuilder
    assert "build.options" in said[0]


@pytest.mark.parametrize(
    ("read", "text", "value", "wrong"),
    [
        (build_arguments.batch, "1:4:8", (1, 4, 8), "4 1:2 8:4:1 0:1:2 a:b:c 1:2:3:4"),
        (build_arguments.shapes, "x=1x2,3x2,3x2", ("x", ((1, 2), (3, 2), (3, 2))), "1x2,1x2 x=1x2,1x2 x=2x2,1x2,3x2 x=0x2,1x2,3x2 x=1,1x2,1x2"),
    ],
)  # fmt: skip
def test_an_option_has_three_growing_sizes_or_shapes(read: Any, text: str, value: Any, wrong: str) -> None:
    assert read(text) == value
    for other in wrong.split():
        with pytest.raises(ValueError):
            read(other)


def test_the_shapes_of_one_input_apply_to_all_that_share_its_sizes(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    request = build_request_with(shapes=dict([build_arguments.shapes("ids=1x128,16x128,128x128")]))
    ranges = build_request.ranges(request, graph, 8)
    assert ranges == {"b": (1, 16, 128), "s": (128, 128, 128)}
    assert build_request.fixed(graph, ranges) == ["a s of 128 alone"]
    (profile,) = build_request.profiles(graph, ranges)
    assert (profile.minimum, profile.optimum, profile.maximum) == ((1, 128), (16, 128), (128, 128))


@pytest.mark.parametrize(
    ("batch", "fields", "named"),
    [
        ("b", {"shapes": "y=1x4,1x4,1x4"}, "--shapes .*'y'.* x"),
        ("b", {"shapes": "x=1,1,1"}, "--shapes .*x 1 .* 2"),
        ("b", {"shapes": "x=1x5,1x5,1x5"}, "--shapes .*x .*5 .*4"),
        (1, {"batch": (1, 2, 4)}, "--batch"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(tmp_path: Path, batch: Any, fields: Any, named: str) -> None:
    if "shapes" in fields:
        fields = {"shapes": dict([build_arguments.shapes(fields["shapes"])])}
    with pytest.raises(CommandError, match=named):
        build_request.ranges(build_request_with(**fields), plus_one(tmp_path / "m.onnx", batch), 8)


def test_a_free_length_without_a_range_is_refused_with_an_example(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    with pytest.raises(CommandError, match="'s'.*--shapes ids=1x128,16x128,"):
        build_request.profiles(graph, build_request.ranges(build_request_with(), graph, 8))


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "a/b"])
def test_a_name_that_triton_cannot_serve_is_refused(name: str) -> None:
    with pytest.raises(CommandError):
        BuildRequest(name, "cpu", Path("out"))

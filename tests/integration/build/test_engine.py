"""``sm build-model`` builds a complete model or nothing, and never overwrites a person's configuration."""

from __future__ import annotations

import importlib.metadata
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.errors import CommandError
from sm.repository.machine import Machine
from sm.repository.manifest import Manifest
from sm.settings import Settings
from tests.support.client_environments import python_with
from tests.support.onnx_graphs import convolution, plus_one, write_graph
from tests.support.plans import certain_problems
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.model_config import GENERATED_MARK
from trireme_extensions.convert.onnx_cpu import engines
from trireme_extensions.convert.onnx_cpu.engines import GOLDEN, INT8_GRAPH, Candidate, Wanted
from trireme_tools.build.accuracy_report import REPORT
from trireme_tools.build.golden_answers import Golden
from trireme_tools.build.int8_cost import Quantized
from trireme_tools.desk_builder import DeskBuilder
from trireme_tools.progress import Progress
from trireme_tools.tune.tune_command import order_engines
from trireme_tools.tune.tuning_box import TunedModel

InstanceGroup = model_config_pb2.ModelInstanceGroup


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return plus_one(tmp_path / "source" / "tiny.onnx").path


@pytest.fixture
def builder(tmp_path: Path, said: io.StringIO) -> DeskBuilder:
    (tmp_path / "model").mkdir(exist_ok=True)
    return DeskBuilder(tmp_path / "cache", tmp_path / "model", Progress(said))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def read_config(folder: Path) -> Any:
    """The model's config.pbtxt, parsed with Triton's own protobuf."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def write_config(builder: DeskBuilder, text: str, name: str = "tiny") -> None:
    """Write the configuration that a person keeps in git for a model."""
    (builder.models / name).mkdir(exist_ok=True)
    (builder.models / name / "config.pbtxt").write_text(text)


RUNNER = [
    "batching.py",
    "engines.py",
    "manifest.json",
    "model.onnx",
    "model.py",
    "request_token.py",
]


def test_each_target_gets_its_files_and_its_backend_and_the_same_names_types_and_sizes(
    builder: DeskBuilder, source: Path, out: Path
) -> None:
    configs = []
    for target, backend, kind, files in (
        ("cpu", "python", InstanceGroup.KIND_CPU, RUNNER),
        ("onnxruntime", "onnxruntime", InstanceGroup.KIND_AUTO, ["manifest.json", "model.onnx"]),
    ):
        folder = builder.build(BuildRequest("tiny", target, out / target, source))  # type: ignore[arg-type]
        configs.append(read_config(folder))
        assert sorted(path.name for path in (folder / "1").iterdir()) == files
        assert (configs[-1].backend, configs[-1].instance_group[0].kind) == (backend, kind)
        # Checked as on a machine with a GPU, because this one may not have one.
        assert certain_problems(out / target, Machine(gpu=True)) == []
    for field in ("name", "max_batch_size", "input", "output", "model_warmup", "dynamic_batching"):
        assert getattr(configs[0], field) == getattr(configs[1], field), field
    assert (configs[0].max_batch_size, list(configs[0].input[0].dims)) == (8, [4])


def test_random_inputs_are_golden_data_only_if_compared_for_a_precision_that_the_team_named(
    builder: DeskBuilder, source: Path, out: Path
) -> None:
    named = Wanted(precision="bf16")
    for number, (options, has_golden) in enumerate(
        (({}, False), ({"wanted": named, "compare": False}, False), ({"wanted": named}, True))
    ):
        folder = builder.build(BuildRequest("tiny", "cpu", out / str(number), source, **options))  # type: ignore[arg-type]
        beside = (
            GOLDEN,
            "golden_answers.py",
            "exactness.py",
            "openvino_engine.py",
        )  # OpenVINO is not taken without these
        assert [(folder / "1" / name).exists() for name in beside] == [has_golden] * 4, options
    golden = Golden.read(folder / "1" / GOLDEN)
    for feed, answer in zip(golden.feeds, golden.answers, strict=True):
        assert answer["y"] == pytest.approx(feed["x"] + 1, abs=1e-6, nan_ok=True)


def calibrated(folder: Path, out: Path) -> BuildRequest:
    """A build of a graph with convolutions, and inputs for it."""
    inputs = folder / "inputs"
    inputs.mkdir()
    pictures = np.random.default_rng(1).random((6, 1, 1, 4, 4), np.float32)
    for number, picture in enumerate(pictures):
        np.save(inputs / f"{number}.npy", picture)
    source = convolution(folder / "conv.onnx").path
    return BuildRequest("tiny", "cpu", out, source, calibration=inputs)


def test_inputs_of_a_team_become_golden_data_and_a_report(
    builder: DeskBuilder, tmp_path: Path, out: Path
) -> None:
    """Its engines are ordered by their times where a team asks for it; nothing is quantized unasked."""
    folder = builder.build(calibrated(tmp_path, out))
    version, config = folder / "1", read_config(folder)
    *given, equal, spoilt = Golden.read(version / GOLDEN).feeds
    assert len(given) == 6
    assert np.array_equal(equal["x"], given[0]["x"].round())
    assert np.isnan(spoilt["x"]).sum() == 1
    assert not (version / INT8_GRAPH).exists()
    rows = (folder / REPORT).read_text().splitlines()
    assert any(row.startswith("| onnxruntime fp32 | – | 0.00 % | 0.00 % |") for row in rows)
    model = TunedModel("tiny", "tiny", tmp_path, out, ("tiny",), "", config, b"")
    order_engines(model, Settings.read({}), apply=False)
    assert engines.read_measured(version) == ()
    order_engines(model, Settings.read({}), apply=True)
    order = engines.read_measured(version)
    fastest = order[: order.index(str(engines.FP32)) + 1]  # that needs no trial, so it ends the search
    assert [str(each) for each in engines.Chooser(version, Wanted()).candidates] == [*fastest]


@pytest.fixture
def nncf(monkeypatch: pytest.MonkeyPatch) -> None:
    """NNCF, from an environment of its own with this one's versions of what both have."""
    both = [f"{name}=={importlib.metadata.version(name)}" for name in ("openvino", "numpy")]
    home = python_with("nncf==3.4.0", "pycocotools==2.0.11", *both).parents[1]
    monkeypatch.setattr(sys, "path", [*sys.path, *map(str, home.glob("lib/python3*/site-packages"))])


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("default")  # of NNCF's dependencies
def test_int8_says_what_it_costs_and_is_what_a_start_takes(
    builder: DeskBuilder, tmp_path: Path, out: Path, nncf: None
) -> None:
    request = replace(
        calibrated(tmp_path, out), wanted=Wanted(precision="int8"), max_drop=0.05, measured=True
    )
    folder = builder.build(request)
    version, config = folder / "1", read_config(folder)
    made = Manifest.read(version)
    assert made is not None
    cost = Quantized.model_validate(made.quantized)
    assert (cost.calibrated, cost.held_out, cost.data) == (4, 2, "inputs")
    assert cost.before - cost.after <= 0.05
    assert cost.unquantized == ()
    assert "| held out | 2 |" in (folder / REPORT).read_text()
    values = {name: {"string_value": value.string_value} for name, value in config.parameters.items()}
    wanted = Wanted.read({"parameters": values, "max_batch_size": config.max_batch_size}, {})
    assert wanted.precision == "int8"
    assert "openvino int8" in made.engines  # by their times here
    (version / "manifest.json").write_text(made.model_copy(update={"engines": ()}).model_dump_json())
    assert engines.Chooser(version, wanted).choose().candidate == Candidate("openvino", "int8")


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("default")
def test_int8_that_loses_more_than_is_allowed_is_not_built(
    builder: DeskBuilder, tmp_path: Path, out: Path, nncf: None
) -> None:
    request = replace(calibrated(tmp_path, out), wanted=Wanted(precision="int8"), max_drop=0.0)
    with pytest.raises(CommandError, match="--max-drop"):
        builder.build(request)
    assert not (out / "tiny").exists()


def test_int8_without_nncf_names_what_installs_it(
    builder: DeskBuilder, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(CommandError, match=r"trireme-tools\[int8\]"):
        builder.build(replace(calibrated(tmp_path, out), wanted=Wanted(precision="int8")))


@pytest.mark.parametrize(
    ("outputs", "row"),
    [
        ("int64[n,1,4,1] y", "| onnxruntime fp32 | 100.0 % | – | – |"),
        ("int64[n,1,4,1] y, float[n,1,4,4] z", "| onnxruntime fp32 | 100.0 % | 0.00 % | 0.00 % |"),
        ("bool[n,1,4,4] over", "| onnxruntime fp32 | 100.0 % | – | – |"),
    ],
)
def test_whole_numbers_are_compared_as_best_answers(
    builder: DeskBuilder, tmp_path: Path, out: Path, outputs: str, row: str
) -> None:
    request = calibrated(tmp_path, out)
    kernel = ", ".join(str(value / 9) for value in range(9))
    write_graph(
        tmp_path / "conv.onnx",
        f"""(float[n,1,4,4] x) => ({outputs})
        <float[1,1,3,3] kernel = {{{kernel}}}, float[1] two = {{2.0}}> {{
            z = Conv<pads = [1, 1, 1, 1]>(x, kernel) y = ArgMax<axis = 3>(z) over = Greater(z, two)
        }}""",
    )
    folder = builder.build(request)
    assert row in (folder / REPORT).read_text()


@pytest.mark.parametrize(
    ("target", "batching", "is_batched"),
    [
        ("cpu", "", False),
        ("cpu", "dynamic_batching { }", False),
        ("cpu", "dynamic_batching { preferred_batch_size: 4 }", True),
        ("onnxruntime", "dynamic_batching { }", True),
    ],
)
def test_convolutions_on_processors_are_not_batched_unless_the_config_prefers_a_size(
    builder: DeskBuilder, tmp_path: Path, out: Path, target: Any, batching: str, is_batched: bool
) -> None:
    graph = convolution(tmp_path / "pixels.onnx")
    tensor = "data_type: TYPE_FP32 dims: [ 1, 4, 4 ]"
    tensors = f'input {{ name: "x" {tensor} }} output {{ name: "y" {tensor} }}'
    write_config(builder, f'name: "pixels" max_batch_size: 8 {batching} {tensors}', "pixels")
    config = read_config(builder.build(BuildRequest("pixels", target, out, graph.path)))
    assert config.max_batch_size == 8
    assert config.HasField("dynamic_batching") == is_batched
    assert config.instance_group[0].count == (2 if target == "cpu" else 1)


def test_an_edited_config_in_the_repository_is_kept_unchanged_and_the_difference_shown(
    builder: DeskBuilder, source: Path, out: Path, said: io.StringIO
) -> None:
    path = builder.build(BuildRequest("tiny", "cpu", out, source)) / "config.pbtxt"
    edited = path.read_text().removeprefix(GENERATED_MARK).replace("count: 1", "count: 5  # a remark")
    path.write_text(edited)
    builder.build(BuildRequest("tiny", "cpu", out, source))
    assert path.read_text() == edited
    assert "+  count: 5" in said.getvalue().splitlines()
    path.write_text(GENERATED_MARK + edited)
    builder.build(BuildRequest("tiny", "cpu", out, source))
    assert "count: 5" not in path.read_text()

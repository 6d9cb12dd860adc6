"""``sm build-model`` builds a complete model or nothing, and never overwrites a person's configuration."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.build import accuracy
from sm.build.build_request import BuildRequest
from sm.build.model_builder import ModelBuilder
from sm.build.model_config import GENERATED_MARK
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository import problems
from sm.repository.cache import Cache
from sm.repository.machine import Machine
from sm.repository.manifest import Manifest
from sm.settings import Settings
from sm.triton.onnx_cpu import engines
from sm.triton.onnx_cpu.engines import GOLDEN, INT8_GRAPH, Golden, Wanted
from tests.integration.build.package_registry import FakeRegistry
from tests.support.onnx_graphs import batch_sum, convolution, embedding, plus_one
from trireme_tools.tune import backends
from trireme_tools.tune.tune_command import order_engines
from trireme_tools.tune.tuning_box import TunedModel

InstanceGroup = model_config_pb2.ModelInstanceGroup


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return plus_one(tmp_path / "source" / "tiny.onnx").path


@pytest.fixture
def builder(tmp_path: Path, said: io.StringIO) -> ModelBuilder:
    (tmp_path / "model").mkdir(exist_ok=True)
    return ModelBuilder(Cache(tmp_path / "cache"), tmp_path / "model", Progress(said))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def read_config(folder: Path) -> Any:
    """The model's config.pbtxt, parsed with Triton's own protobuf."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def write_config(builder: ModelBuilder, text: str) -> None:
    """Write the configuration that a person keeps in git for the model ``tiny``."""
    (builder.models / "tiny").mkdir(exist_ok=True)
    (builder.models / "tiny" / "config.pbtxt").write_text(text)


RUNNER = ["batching.py", "engines.py", "manifest.json", "model.onnx", "model.py", "request_token.py"]


def test_each_target_gets_its_files_and_its_backend_and_the_same_names_types_and_sizes(
    builder: ModelBuilder, source: Path, out: Path
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
        assert problems.find_problems(out / target, Machine(gpu=True)) == []
    for field in ("name", "max_batch_size", "input", "output", "model_warmup", "dynamic_batching"):
        assert getattr(configs[0], field) == getattr(configs[1], field), field
    assert (configs[0].max_batch_size, list(configs[0].input[0].dims)) == (8, [4])


def test_random_inputs_are_golden_data_only_if_compared_for_a_precision_that_the_team_named(
    builder: ModelBuilder, source: Path, out: Path
) -> None:
    named = Wanted(precision="bf16")
    for number, options in enumerate(({}, {"wanted": named, "compare": False})):
        folder = builder.build(BuildRequest("tiny", "cpu", out / str(number), source, **options))  # type: ignore[arg-type]
        assert not (folder / "1" / GOLDEN).exists(), options
    folder = builder.build(BuildRequest("tiny", "cpu", out / "named", source, wanted=named))
    golden = Golden.read(folder / "1" / GOLDEN)
    assert golden.feeds
    for feed, answer in zip(golden.feeds, golden.answers, strict=True):
        assert answer["y"] - feed["x"] == pytest.approx(1, abs=1e-6)
    assert golden.kinds == {}


def test_what_may_run_the_model_is_in_the_configuration(
    builder: ModelBuilder, source: Path, out: Path
) -> None:
    allowed = Wanted("openvino", "bf16", 0.02)
    config = read_config(builder.build(BuildRequest("tiny", "cpu", out, source, wanted=allowed)))
    assert {name: value.string_value for name, value in config.parameters.items()} == {
        "engine": "openvino",
        "precision": "bf16",
        "tolerance": "0.02",
    }


def calibrated(folder: Path, out: Path) -> BuildRequest:
    """A build of a graph with convolutions, and inputs for it."""
    inputs = folder / "inputs"
    inputs.mkdir()
    pictures = np.random.default_rng(1).random((6, 1, 1, 4, 4), np.float32)
    for number, picture in enumerate(pictures):
        np.save(inputs / f"{number}.npy", picture)
    source = convolution(folder / "conv.onnx").path
    return BuildRequest("tiny", "cpu", out, source, calibration=inputs)


def test_inputs_of_a_team_become_golden_data_a_quantized_graph_and_a_report(
    builder: ModelBuilder, tmp_path: Path, out: Path
) -> None:
    folder = builder.build(calibrated(tmp_path, out))
    assert len(Golden.read(folder / "1" / GOLDEN).feeds) == 6
    nodes = {node.op_type for node in onnx.load(folder / "1" / INT8_GRAPH).graph.node}
    assert "QuantizeLinear" in nodes
    report = (folder / accuracy.REPORT).read_text()
    assert "| onnxruntime fp32 | – | 0.00 % | 0.00 % |" in report
    assert "6 inputs" in report


def test_the_engines_of_a_built_model_are_ordered_by_their_times_where_a_team_asks_for_it(
    builder: ModelBuilder, tmp_path: Path, out: Path
) -> None:
    folder = builder.build(calibrated(tmp_path, out))
    version, config = folder / "1", read_config(folder)
    model = TunedModel("tiny", "tiny", tmp_path, out, ("tiny",), "", config, b"")
    order_engines(model, Settings.read({}), apply=False)
    assert engines.read_measured(version) == ()
    order_engines(model, Settings.read({}), apply=True)
    order = engines.read_measured(version)
    chosen = engines.Chooser(version, Wanted())
    fastest = order[: order.index(str(engines.FP32)) + 1]  # that needs no trial, so it ends the search
    assert [str(each) for each in chosen.candidates] == [*fastest]


def test_tritons_own_backend_takes_a_graph_whose_way_to_a_process_costs_more_than_its_run(
    builder: ModelBuilder, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.read(os.environ)
    if missing := backends.why_not(Machine.find(settings)):
        pytest.skip(missing)
    folder = builder.build(calibrated(tmp_path, out))
    text, config = (folder / "config.pbtxt").read_text(), read_config(folder)
    model = TunedModel("tiny", "tiny", tmp_path, out, ("tiny",), text, config, b"")
    order_engines(model, settings, apply=True)
    assert capsys.readouterr().err.count(" MiB") == 2  # both were measured
    assert read_config(folder).backend == "onnxruntime"
    manifest = Manifest.read(folder / "1")
    assert manifest is not None
    assert (manifest.target, engines.read_measured(folder / "1")) == ("onnxruntime", manifest.engines)
    assert not [*problems.find(out, Machine.find(settings))]


def test_engines_are_not_ordered_without_inputs_to_compare_them_on(
    builder: ModelBuilder, tmp_path: Path, source: Path, out: Path
) -> None:
    folder = builder.build(BuildRequest("tiny", "cpu", out, source))
    model = TunedModel("tiny", "tiny", tmp_path, out, ("tiny",), "", read_config(folder), b"")
    with pytest.raises(CommandError, match="--calibration"):
        order_engines(model, Settings.read({}), apply=True)


def test_inputs_that_the_graph_does_not_take_end_the_build_with_a_sentence(
    builder: ModelBuilder, tmp_path: Path, out: Path
) -> None:
    request = calibrated(tmp_path, out)
    np.save(tmp_path / "inputs" / "other.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(CommandError, match="inputs"):
        builder.build(request)
    assert not (out / "tiny").exists()


def test_a_quantized_graph_that_agrees_too_little_is_not_kept(
    builder: ModelBuilder, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "MIN_AGREEMENT", 1.1)
    # A processor that has int8, whatever this one has: the engines compute it everywhere.
    monkeypatch.setattr(engines, "processor_flags", lambda: frozenset({"avx512_vnni"}))
    folder = builder.build(calibrated(tmp_path, out))
    assert not (folder / "1" / INT8_GRAPH).exists()
    assert "int8 fails" in (folder / accuracy.REPORT).read_text()


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
    builder: ModelBuilder, tmp_path: Path, out: Path, target: Any, batching: str, is_batched: bool
) -> None:
    graph = convolution(tmp_path / "pixels.onnx")
    config_file = builder.models / "pixels" / "config.pbtxt"
    config_file.parent.mkdir(parents=True)
    tensor = "data_type: TYPE_FP32 dims: [ 1, 4, 4 ]"
    config_file.write_text(
        f'name: "pixels" max_batch_size: 8 {batching} input {{ name: "x" {tensor} }} output {{ name: "y" {tensor} }}'
    )
    config = read_config(builder.build(BuildRequest("pixels", target, out, graph.path)))
    assert config.max_batch_size == 8
    assert config.HasField("dynamic_batching") == is_batched
    assert config.instance_group[0].count == (2 if target == "cpu" else 1)


def test_a_model_with_a_free_length_is_warmed_up_at_length_16(
    builder: ModelBuilder, tmp_path: Path, out: Path
) -> None:
    graph = embedding(tmp_path / "words.onnx")
    (sample,) = read_config(builder.build(BuildRequest("words", "cpu", out, graph.path))).model_warmup
    assert list(sample.inputs["ids"].dims) == [16]
    assert sample.inputs["ids"].zero_data


def test_the_manifest_records_what_was_compared(builder: ModelBuilder, source: Path, out: Path) -> None:
    manifest = Manifest.read(builder.build(BuildRequest("tiny", "cpu", out, source)) / "1")
    assert manifest is not None
    assert manifest.source.name == "tiny.onnx"
    assert manifest.accuracy is not None
    assert (manifest.accuracy.max_error, manifest.accuracy.sizes) == (0, ("1", "3", "8"))


def test_a_graph_with_wrong_batched_results_is_refused_and_leaves_nothing(
    builder: ModelBuilder, tmp_path: Path, out: Path
) -> None:
    with pytest.raises(CommandError, match=r"\by\b"):
        builder.build(BuildRequest("tiny", "cpu", out, batch_sum(tmp_path / "bad.onnx").path))
    assert list(out.iterdir()) == []


def test_a_handwritten_config_is_merged_over_ours_and_the_difference_shown(
    builder: ModelBuilder, source: Path, out: Path, said: io.StringIO
) -> None:
    write_config(builder, 'name: "tiny"\nmax_batch_size: 2\ninstance_group [ { count: 3 } ]\n')
    config = read_config(builder.build(BuildRequest("tiny", "cpu", out, source)))
    assert (config.max_batch_size, config.instance_group[0].count, config.input[0].name) == (2, 3, "x")
    assert "+  count: 3" in said.getvalue().splitlines()


def test_an_edited_config_in_the_repository_is_kept_unchanged(
    builder: ModelBuilder, source: Path, out: Path, said: io.StringIO
) -> None:
    path = builder.build(BuildRequest("tiny", "cpu", out, source)) / "config.pbtxt"
    edited = path.read_text().removeprefix(GENERATED_MARK).replace("count: 1", "count: 5  # a remark")
    path.write_text(edited)
    builder.build(BuildRequest("tiny", "cpu", out, source))
    assert path.read_text() == edited
    assert "+  count: 5" in said.getvalue().splitlines()


def test_a_generated_config_is_generated_again(builder: ModelBuilder, source: Path, out: Path) -> None:
    builder.build(BuildRequest("tiny", "cpu", out, source))
    folder = builder.build(BuildRequest("tiny", "onnxruntime", out, source, (1, 1, 2)))
    assert (read_config(folder).backend, read_config(folder).max_batch_size) == ("onnxruntime", 2)
    assert not (folder / "1" / "model.py").exists()


@pytest.mark.parametrize(
    ("change", "batch", "named"),
    [
        (('backend: "python"', 'backend: "tensorrt"'), None, "'tensorrt'"),
        (("dims: 4", "dims: 5"), None, r"x FP32 \[-1, 5\].* x FP32 \[-1, 4\]"),
        (("", ""), (1, 2, 4), "max_batch_size 8,.* 4 "),
    ],
)
def test_a_config_that_contradicts_the_build_stops_it_and_stays(
    builder: ModelBuilder,
    source: Path,
    out: Path,
    change: tuple[str, str],
    batch: tuple[int, int, int] | None,
    named: str,
) -> None:
    path = builder.build(BuildRequest("tiny", "cpu", out, source)) / "config.pbtxt"
    path.write_text(edited := path.read_text().removeprefix(GENERATED_MARK).replace(*change))
    with pytest.raises(CommandError, match=named):
        builder.build(BuildRequest("tiny", "cpu", out, source, batch))
    assert path.read_text() == edited


def test_a_built_recipe_has_its_labels_and_the_teams_files(
    models: Path, registry: FakeRegistry, said: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    builder = ModelBuilder(Cache(tmp_path / "cache"), models, Progress(said))
    folder = builder.build(BuildRequest("tiny", "onnxruntime", tmp_path / "out"))
    assert {path.name for path in folder.iterdir()} == {"1", "config.pbtxt", "labels.txt", "preprocess.json"}
    manifest = Manifest.read(folder / "1")
    assert manifest is not None
    assert manifest.source.name.startswith("model/tiny/recipe, ")


def test_without_a_recipe_a_source_is_required(builder: ModelBuilder, out: Path) -> None:
    with pytest.raises(CommandError, match="--source"):
        builder.build(BuildRequest("nothing", "cpu", out))

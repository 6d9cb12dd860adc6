"""``build-model``: a graph becomes a model in a repository, whole or not at all, and nobody's work is lost."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.cache import Cache
from sm.errors import StartError
from sm.inspection import problems
from sm.inspection.machine import Machine
from sm.repository.manifest import Manifest
from sm.tools.build.build_request import BuildRequest
from sm.tools.build.configuring import GENERATED_MARK
from sm.tools.build.model_builder import ModelBuilder, default_out
from sm.tools.progress import Progress
from tests.support.onnx_graphs import convolution, one_size, plus_one, words
from tests.support.package_registry import StandIn

GROUPS = model_config_pb2.ModelInstanceGroup


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return plus_one(tmp_path / "source" / "tiny.onnx").path


@pytest.fixture
def engine(tmp_path: Path, said: io.StringIO) -> ModelBuilder:
    (tmp_path / "model").mkdir(exist_ok=True)
    return ModelBuilder(Cache(tmp_path / "cache"), tmp_path / "model", Progress(said))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def configuration(folder: Path) -> Any:
    """By Triton's own protobuf."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def handwritten(engine: ModelBuilder, text: str) -> None:
    (engine.models / "tiny").mkdir(exist_ok=True)
    (engine.models / "tiny" / "config.pbtxt").write_text(text)


@pytest.mark.parametrize(
    ("target", "backend", "kind", "files"),
    [
        (
            "cpu",
            "python",
            GROUPS.KIND_CPU,
            ["manifest.json", "model.onnx", "model.py", "request_token.py"],
        ),
        ("onnxruntime", "onnxruntime", GROUPS.KIND_AUTO, ["manifest.json", "model.onnx"]),
    ],
)
def test_a_target_gets_its_files_and_its_backend(
    engine: ModelBuilder, source: Path, out: Path, target: Any, backend: str, kind: int, files: list[str]
) -> None:
    folder = engine.build(BuildRequest("tiny", target, out, source))
    made = configuration(folder)
    assert sorted(path.name for path in (folder / "1").iterdir()) == files
    assert (made.backend, made.instance_group[0].kind) == (backend, kind)
    assert problems.find_problems(out, Machine(gpu=True)) == []  # this machine may lack what runs it


def test_names_types_and_sizes_are_the_same_on_every_target(
    engine: ModelBuilder, source: Path, out: Path
) -> None:
    made = [
        configuration(engine.build(BuildRequest("tiny", target, out / target, source)))
        for target in ("cpu", "onnxruntime")
    ]
    for field in ("name", "max_batch_size", "input", "output", "model_warmup", "dynamic_batching"):
        assert getattr(made[0], field) == getattr(made[1], field), field
    assert (made[0].max_batch_size, list(made[0].input[0].dims)) == (8, [4])


@pytest.mark.parametrize(
    ("target", "batching", "joined"),
    [
        ("cpu", "", False),
        ("cpu", "dynamic_batching { }", False),
        ("cpu", "dynamic_batching { preferred_batch_size: 4 }", True),
        ("onnxruntime", "dynamic_batching { }", True),
    ],
)
def test_processors_run_convolutions_one_by_one_unless_batching_is_described(
    engine: ModelBuilder, tmp_path: Path, out: Path, target: Any, batching: str, joined: bool
) -> None:
    graph = convolution(tmp_path / "pixels.onnx")
    written = engine.models / "pixels" / "config.pbtxt"
    written.parent.mkdir(parents=True)
    tensor = "data_type: TYPE_FP32 dims: [ 1, 4, 4 ]"
    written.write_text(
        f'name: "pixels" max_batch_size: 8 {batching} input {{ name: "x" {tensor} }} output {{ name: "y" {tensor} }}'
    )
    made = configuration(engine.build(BuildRequest("pixels", target, out, graph.path)))
    assert made.max_batch_size == 8
    assert made.HasField("dynamic_batching") == joined
    assert made.instance_group[0].count == (2 if target == "cpu" else 1)


def test_a_free_length_is_warmed_up_at_some_length(engine: ModelBuilder, tmp_path: Path, out: Path) -> None:
    graph = words(tmp_path / "words.onnx")
    (sample,) = configuration(engine.build(BuildRequest("words", "cpu", out, graph.path))).model_warmup
    assert list(sample.inputs["ids"].dims) == [16]
    assert sample.inputs["ids"].zero_data


def test_the_manifest_says_what_was_compared(engine: ModelBuilder, source: Path, out: Path) -> None:
    manifest = Manifest.read(engine.build(BuildRequest("tiny", "cpu", out, source)) / "1")
    assert manifest is not None
    assert manifest.source.name == "tiny.onnx"
    assert manifest.accuracy is not None
    assert (manifest.accuracy.max_error, manifest.accuracy.sizes) == (0, ("1", "3", "8"))


def test_a_batch_that_is_ordered_is_the_largest(engine: ModelBuilder, source: Path, out: Path) -> None:
    assert (
        configuration(engine.build(BuildRequest("tiny", "cpu", out, source, (1, 2, 4)))).max_batch_size == 4
    )


def test_a_graph_that_is_wrong_in_batches_leaves_nothing_behind(
    engine: ModelBuilder, tmp_path: Path, out: Path
) -> None:
    with pytest.raises(StartError, match="y differs from its source"):
        engine.build(BuildRequest("tiny", "cpu", out, one_size(tmp_path / "bad.onnx").path))
    assert list(out.iterdir()) == []


def test_what_a_person_wrote_is_merged_over_and_shown(
    engine: ModelBuilder, source: Path, out: Path, said: io.StringIO
) -> None:
    handwritten(engine, 'name: "tiny"\nmax_batch_size: 2\ninstance_group [ { count: 3 } ]\n')
    made = configuration(engine.build(BuildRequest("tiny", "cpu", out, source)))
    assert (made.max_batch_size, made.instance_group[0].count, made.input[0].name) == (2, 3, "x")
    assert "+  count: 3" in said.getvalue().splitlines()


def test_the_repositorys_own_configuration_is_kept_to_the_letter(
    engine: ModelBuilder, source: Path, out: Path, said: io.StringIO
) -> None:
    path = engine.build(BuildRequest("tiny", "cpu", out, source)) / "config.pbtxt"
    own = path.read_text().removeprefix(GENERATED_MARK).replace("count: 1", "count: 5  # a remark")
    path.write_text(own)
    engine.build(BuildRequest("tiny", "cpu", out, source))
    assert path.read_text() == own
    assert "+  count: 5" in said.getvalue().splitlines()


def test_a_configuration_of_ours_is_written_anew(engine: ModelBuilder, source: Path, out: Path) -> None:
    engine.build(BuildRequest("tiny", "cpu", out, source))
    folder = engine.build(BuildRequest("tiny", "onnxruntime", out, source, (1, 1, 2)))
    assert (configuration(folder).backend, configuration(folder).max_batch_size) == ("onnxruntime", 2)
    assert not (folder / "1" / "model.py").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('backend: "python"', 'backend: "tensorrt"'), "has the backend 'tensorrt' where cpu wants 'python'"),
        (("dims: 4", "dims: 5"), r"says x FP32 \[-1, 5\] of its inputs; the model has x FP32 \[-1, 4\]"),
    ],
)
def test_one_that_does_not_fit_stops_the_build_and_stays(
    engine: ModelBuilder, source: Path, out: Path, change: tuple[str, str], sentence: str
) -> None:
    path = engine.build(BuildRequest("tiny", "cpu", out, source)) / "config.pbtxt"
    path.write_text(own := path.read_text().removeprefix(GENERATED_MARK).replace(*change))
    with pytest.raises(StartError, match=sentence):
        engine.build(BuildRequest("tiny", "cpu", out, source))
    assert path.read_text() == own


def test_more_than_a_persons_largest_batch_is_refused(engine: ModelBuilder, source: Path, out: Path) -> None:
    path = engine.build(BuildRequest("tiny", "cpu", out, source)) / "config.pbtxt"
    path.write_text(path.read_text().removeprefix(GENERATED_MARK))
    with pytest.raises(StartError, match="has max_batch_size 8, which is more than the 4 asked for"):
        engine.build(BuildRequest("tiny", "cpu", out, source, (1, 2, 4)))


def test_a_recipe_brings_its_labels_and_what_the_team_wrote(
    models: Path, registry: StandIn, said: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    engine = ModelBuilder(Cache(tmp_path / "cache"), models, Progress(said))
    folder = engine.build(BuildRequest("tiny", "onnxruntime", tmp_path / "out"))
    assert {path.name for path in folder.iterdir()} == {"1", "config.pbtxt", "labels.txt", "preprocess.json"}
    manifest = Manifest.read(folder / "1")
    assert manifest is not None
    assert manifest.source.name.startswith("model/tiny/recipe, ")


def test_without_a_recipe_a_source_is_asked_for(engine: ModelBuilder, out: Path) -> None:
    with pytest.raises(StartError, match="has no recipe: name an ONNX file or a hub id with --source"):
        engine.build(BuildRequest("nothing", "cpu", out))


def test_a_repository_whose_place_is_a_file_is_a_sentence(
    engine: ModelBuilder, source: Path, out: Path
) -> None:
    out.write_text("")
    with pytest.raises(StartError, match="cannot be written .*: name another folder with --out"):
        engine.build(BuildRequest("tiny", "cpu", out, source))


def test_targets_do_not_share_a_default_folder() -> None:
    assert default_out(Path("/c"), "cpu") == Path("/c/built/cpu")

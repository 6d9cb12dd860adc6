"""A box fetches its models before it serves: from every kind of source, and through every fault."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.integration.server.hub import running_hub
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port, wait_until
from tests.support.download_hosts import https_site
from tests.support.pages import code_blocks
from tests.support.s3 import aws, s3_url, upload
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.tritons import MODELS

__all__ = ["aws", "s3_url"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    return tmp_path / "model"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TcpProxy]:
    """An HTTPS server of the folder, behind a proxy that can stop."""
    with https_site(tmp_path, tmp_path) as port, tcp_proxy(port) as proxy:
        yield proxy


def archive_at(proxy: TcpProxy) -> str:
    return f"https://localhost:{proxy.port}/model.tar.gz"


def pack(repository: Path, padding: int = 0) -> str:
    """Write an archive beside the repository, with bytes that gzip cannot make smaller; return its digest."""
    (repository / "echo" / "padding").write_bytes(os.urandom(padding))
    path = repository.parent / "model.tar.gz"
    subprocess.run(["tar", "czf", path, "-C", repository, "."], check=True)
    return hashlib.sha256(path.read_bytes()).hexdigest()


COMMANDS = code_blocks("run/models.md")[0].splitlines()


# In every run the one whose source no other test serves: test_fetch.py of the container has s3://, and
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
    digest = pack(repository)
    upload(s3_url, repository, "models")
    shutil.copytree(repository, tmp_path / "hub/team/models")
    shutil.copy(tmp_path / "model.tar.gz", tmp_path / "models.tar.gz")
    port = free_port()
    with https_site(tmp_path, tmp_path) as https, running_hub(tmp_path / "hub") as hub:
        for words, value in {
            "/srv/models": str(repository),
            "s3://bucket": "s3://inputs",
            "models.example": f"localhost:{https}",
            "sha256=…": f"sha256={digest}",
            "owner/name": "team/models",
        }.items():
            command = command.replace(words, value)
        variables = {
            **os.environ,
            "SAGEMAKER_BIND_TO_PORT": str(port),
            "TRIREME_CACHE": str(tmp_path / "cache"),
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


def test_a_start_after_an_end_in_the_middle_fetches_what_is_left(
    boxes: Boxes, s3_url: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_downloads.py has this within one file, and other ends."""
    pack(repository, padding=2**17)
    upload(s3_url, repository, "killed")
    cache, source = tmp_path / "cache", "s3://inputs/killed"
    objects, folders = (cache / "sources" / name for name in ("objects", "folders"))

    def whole() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in objects.glob("*") if "." not in path.name}

    def progress(box: RunningBox) -> bool:
        status, text = box.ping()
        return status == 503 and "MB left" in json.loads(text)["error"]

    with tcp_proxy(s3_url) as proxy:
        proxy.slow_from_byte = 2**15
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with start_fetch(source, cache / "sources") as fetch:
            wait_until(whole, description="an object")
            fetch.kill()
        assert list(folders.iterdir()) == []
        before = whole()
        # The progress is told when something has come: the padding takes long.
        (repository / "echo" / "labels.txt").write_text("cat")
        upload(s3_url, repository, "killed")
        variables: Any = {"TRIREME_CACHE": str(cache), "TRIREME_MODEL_POLL": "0"}
        with boxes.own(arguments=source, ready_within_s=0, **variables) as box:
            wait_until(lambda: progress(box), description="the progress in /ping")
            proxy.slow_from_byte = None
            box.wait_ready()
            assert "echo" in requests.get(f"{box.url}/models", timeout=10).text
            size = sum(file.stat().st_size for file in repository.rglob("*") if file.is_file())
            assert 2**17 <= box.metric("trireme_fetch_bytes") < size
            assert box.metric("trireme_fetch_seconds") > 0
            # A new version comes from the same source.
            (repository / "echo" / "labels.txt").write_text("new")
            upload(s3_url, repository, "killed")
            pushed = requests.post(f"{box.url}/models/echo/versions", timeout=60)
            assert pushed.json() == {"modelName": "echo", "state": "serves"}
    assert before.items() < whole().items()


def start_fetch(source: str, cache: Path, **variables: Any) -> subprocess.Popen[str]:
    """Run what a start runs before it serves."""
    command = [sys.executable, "-m", "sm.models.fetch.model_cache", source, str(cache)]
    environment = {**os.environ, "PYTHONPATH": str(HERE), **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_source_that_does_not_answer_or_stops_ends_the_fetch(
    s3_url: str, site: TcpProxy, repository: Path, tmp_path: Path
) -> None:
    """All at once: they only wait."""
    pack(repository, padding=2**20)
    site.budget, site.keeps_open = 2**19, True
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        variables: Any = {"AWS_ENDPOINT_URL": f"http://{host}", "HF_ENDPOINT": f"http://{host}"}
        sources = ("s3://inputs/models/", f"https://{host}/model.tar.gz", "hf://team/mood", archive_at(site))
        fetches = [
            start_fetch(
                f"{source}?signature=secret" if "https" in source else source,
                tmp_path / str(number),
                **variables,
            )
            for number, source in enumerate(sources)
        ]
        for number, (fetch, source) in enumerate(zip(fetches, sources, strict=True)):
            said = fetch.communicate(timeout=120)[0]
            assert fetch.returncode == 1
            assert source in said.splitlines()[-1]
            assert "secret" not in said
            assert not [
                path for path in (tmp_path / str(number) / "objects").iterdir() if "." not in path.name
            ]


def test_two_boxes_that_start_on_one_cache_fetch_once(
    site: TcpProxy, repository: Path, tmp_path: Path
) -> None:
    source = f"{archive_at(site)}#sha256={pack(repository, padding=2**20)}"
    fetches = [start_fetch(source, tmp_path / "cache") for _ in range(2)]
    results = [json.loads(fetch.communicate(timeout=60)[0].splitlines()[-1]) for fetch in fetches]
    assert results[0]["repository"] == results[1]["repository"]
    assert sorted(result["bytes"] > 0 for result in results) == [False, True]

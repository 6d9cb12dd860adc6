"""``code/requirements.txt`` is installed inside the image, whose environment has no pip."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.containers import CLIENT_SOURCE, PYTHON, podman, running_container, write_team_repository
from tests.support.wheels import write_wheel

#: A client that returns a number of a package that the image does not have.
NEEDS_TINY = f"import trireme_tiny\n{CLIENT_SOURCE}".replace("len(text.text)", "trireme_tiny.NUMBER")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The echo model, and a client that imports ``trireme_tiny``."""
    folder = write_team_repository(tmp_path / "repository", NEEDS_TINY)
    (folder / "code" / "requirements.txt").write_text("trireme-tiny>=1\n")
    return folder


def test_wheels_beside_the_code_are_installed_in_a_read_only_container(image: str, repository: Path) -> None:
    write_wheel(repository / "code" / "wheels", "trireme_tiny", text="NUMBER = 17\n")
    flags = ("-e", "TRIREME_INSTALL_REQUIREMENTS=true", "--read-only", "--tmpfs", "/tmp")
    with running_container(image, repository, *flags) as box:
        answer = box.send(b'{"modelname": "team", "payload": {"text": "any"}}')
    assert answer.json()["result"] == [17.0, 17.0, 17.0]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on loopback that has ``trireme-tiny``."""
    write_wheel(tmp_path / "simple" / "trireme-tiny", "trireme_tiny", text="NUMBER = 18\n")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def test_packages_are_installed_from_pips_configured_index(image: str, repository: Path, index: str) -> None:
    code = (
        "import pathlib, tempfile; from sm.plugins.toolkit.code_imports import install_or_check\n"
        "run = pathlib.Path(tempfile.mkdtemp())\n"
        "install_or_check(pathlib.Path('/opt/ml/model/code'), run / 'cache', run, install=True)\n"
        "import trireme_tiny; print(trireme_tiny.NUMBER)"
    )
    flags = ["--network", "host", "-e", f"PIP_INDEX_URL={index}", "-v", f"{repository}:/opt/ml/model:ro"]
    assert podman("run", "--rm", *flags, "--entrypoint", PYTHON, image, "-c", code) == "18"

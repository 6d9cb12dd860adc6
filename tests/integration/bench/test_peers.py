"""Peers differ only in their server, give right responses and leave no process behind."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from bench import tree
from bench.contestant import FORMS, MODELS
from bench.contestants import CONTESTANTS, PEERS
from bench.contestants.peers import Peer
from bench.running import free_port, running
from sm.settings import HERE, Settings

REQUIREMENTS = HERE / "bench" / "contestants"
#: The libraries that do the work in every peer.
COMMON_LIBRARIES = ("onnxruntime", "numpy", "opencv-python-headless", "pillow", "tokenizers")
#: Peers that accept a picture or a text as the raw body.
ACCEPTS_RAW_BODY = {"fastapi", "bentoml"}


@pytest.mark.parametrize("name", [path.stem for path in REQUIREMENTS.glob("*.txt")])
def test_each_peer_uses_the_same_library_versions_as_the_box(name: str) -> None:
    assert pinned_versions(REQUIREMENTS / f"{name}.txt") == pinned_versions(HERE / "requirements.lock")


def pinned_versions(requirements: Path) -> set[str]:
    """The lines that pin :data:`COMMON_LIBRARIES`, with their Python version markers, here or in included files."""
    lines = requirements.read_text().splitlines()
    included = (requirements.parent / line.removeprefix("-r ") for line in lines if line.startswith("-r "))
    lines += [line for file in included for line in file.read_text().splitlines()]
    return {line.removesuffix(" \\") for line in lines if line.split("==")[0] in COMMON_LIBRARIES}


@pytest.mark.parametrize("name", PEERS)
def test_each_peer_responds_correctly_and_leaves_no_process(
    name: str, tmp_path: Path, contestant_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer_class = CONTESTANTS[name]
    assert issubclass(peer_class, Peer)
    packages = peer_class.packages or name
    requirements = REQUIREMENTS / f"{packages}.txt"
    installed = Settings.read(os.environ).cache / "bench" / packages / "installed.txt"
    if not installed.is_file() or installed.read_bytes() != requirements.read_bytes():
        pytest.skip(
            f"the packages of {name} are not installed; make bench ARGS='--contestants {name}' does it"
        )
    contestant = peer_class(free_port(), "instant", tmp_path, contestant_files)
    forms = set()
    with running(contestant) as root:
        assert root
        for model in MODELS:
            for form in FORMS:
                request = contestant.request(model, form)
                if request is None:
                    continue
                url = f"http://127.0.0.1:{contestant.port}{request.path}"
                http_request = urllib.request.Request(url, request.body, dict(request.headers))
                with urllib.request.urlopen(http_request, timeout=30) as response:
                    assert request.expected in response.read()
                forms.add(form)
        pids = tree.pids(root)
    assert forms == ({"json", "raw"} if name in ACCEPTS_RAW_BODY else {"json"})
    assert not pids & tree.pids(os.getpid())
    assert "left" not in capsys.readouterr().out

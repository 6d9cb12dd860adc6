"""Peers differ in their server alone, answer right, and leave nothing behind."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from bench import tree
from bench.contestant import FORMS, MODELS
from bench.contestants import PEERS, find
from bench.contestants.peer import Peer
from bench.running import free_port, running
from sm.settings import HERE, Settings

REQUIREMENTS = HERE / "bench" / "contestants"
#: What they work with besides their server.
COMMON = ("onnxruntime", "numpy", "opencv-python-headless", "pillow", "tokenizers")
#: Those that take a picture or a text as the whole body.
RAW = {"fastapi", "bentoml", "rayserve"}


@pytest.mark.parametrize("name", [path.stem for path in REQUIREMENTS.glob("*.txt")])
def test_the_work_is_done_by_the_same_versions(name: str) -> None:
    assert common(REQUIREMENTS / f"{name}.txt") == common(HERE / "requirements.lock")


def common(requirements: Path) -> set[str]:
    """The lines of :data:`COMMON`, each version with its Pythons."""
    lines = requirements.read_text().splitlines()
    return {line for line in lines if line.split("==")[0] in COMMON}


@pytest.mark.parametrize("name", PEERS)
def test_each_answers_right_and_ends(
    name: str, tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = find(name)
    assert issubclass(kind, Peer)
    packages = kind.packages or name
    wanted = REQUIREMENTS / f"{packages}.txt"
    mark = Settings.read(os.environ).cache / "bench" / packages / "installed.txt"
    if not mark.is_file() or mark.read_bytes() != wanted.read_bytes():
        pytest.skip(
            f"the packages of {name} are not installed; make bench ARGS='--contestants {name}' does it"
        )
    contestant = kind(free_port(), "instant", tmp_path, shared)
    forms = set()
    with running(contestant) as root:
        assert root
        for model in MODELS:
            for form in FORMS:
                request = contestant.request(model, form)
                if request is None:
                    continue
                url = f"http://127.0.0.1:{contestant.port}{request.path}"
                asked = urllib.request.Request(url, request.body, dict(request.headers))
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    assert request.expected in answer.read()
                forms.add(form)
        below = tree.pids(root)
    assert forms == ({"json", "raw"} if name in RAW else {"json"})
    assert not below & tree.pids(os.getpid())
    assert "left" not in capsys.readouterr().out

"""Small repositories to pack, and a look into what they became."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.settings import HERE
from tests.support.model_archives import chain_config, multiplying_model


def repository(folder: Path, *names: str) -> Path:
    """Models that double."""
    for name in names:
        multiplying_model(2).write(folder / name)
    return folder


def chain(folder: Path, whole: str, *steps: str) -> Path:
    """An ensemble of models that double."""
    repository(folder, *steps)
    (folder / whole / "1").mkdir(parents=True)
    (folder / whole / "config.pbtxt").write_text(chain_config(*steps))
    return folder


def package(*words: object, cwd: Path, through: str = "") -> subprocess.CompletedProcess[str]:
    """As one types it. ``through``: a command line that becomes it in the end."""
    line = [*through.split(), sys.executable, "-m", "sm.cli", "package", *map(str, words)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE)}
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, env=environment)


def packed(*words: object, cwd: Path) -> str:
    done = package(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as opened:
        return opened.getnames()


def unpacked(archive: Path, folder: Path) -> Path:
    """With the tar that everybody has."""
    folder.mkdir(parents=True)
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True, capture_output=True)
    return folder


def config(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())

"""Write small model repositories, run ``sm package`` on them and read the archives."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.support.model_archives import chain_config, multiplying_model
from tests.support.sm_command import run_sm, run_sm_here


def write_repository(folder: Path, *names: str) -> Path:
    """Write a repository of models that double their input, and return its folder."""
    for name in names:
        multiplying_model(2).write(folder / name)
    return folder


def write_chain(folder: Path, ensemble_name: str, *steps: str) -> Path:
    """Write an ensemble of models that double their input, and return the repository's folder."""
    write_repository(folder, *steps)
    (folder / ensemble_name / "1").mkdir(parents=True)
    (folder / ensemble_name / "config.pbtxt").write_text(chain_config(*steps))
    return folder


def write_client(file: Path, model: str) -> None:
    """Write a client that calls ``model``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "from sm.client import Client\n\n\n"
        f"class Own(Client):\n    models = ({model!r},)\n\n"
        "    def inference(self, payload):\n        return 1\n"
    )


def run_package(*arguments: object, cwd: Path, command_prefix: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``sm package``, in this process or by a command that ends by running it in its place."""
    if command_prefix:
        return run_sm("package", *arguments, cwd=cwd, prefix=command_prefix)
    return run_sm_here("package", *arguments, cwd=cwd)


def package_successfully(*arguments: object, cwd: Path) -> str:
    completed = run_package(*arguments, cwd=cwd)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def archive_names(archive: Path) -> list[str]:
    with tarfile.open(archive) as opened:
        return opened.getnames()


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive with the ``tar`` command, and return the folder."""
    folder.mkdir(parents=True)
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True, capture_output=True)
    return folder


def read_config(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())

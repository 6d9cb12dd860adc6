"""An image that starts as root, as AWS asks for, serves as an ordinary user, or stays root and says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.containers import running_container, write_team_repository

#: Prints the users of all processes but the one that looks.
USERS = """
import os, pathlib, re
statuses = [path.read_text() for path in pathlib.Path('/proc').glob('[0-9]*/status') if path.parent.name != str(os.getpid())]
print(sorted({int(re.search(r'Uid:\\t(\\d+)', status)[1]) for status in statuses}))
"""
#: The same as the build argument RUN_AS=0:0, with which build_and_push.sh builds for SageMaker.
AS_ROOT = ("--user", "0:0")
ORDINARY = 1000
LINE = "started as root"


def lines(log: str) -> list[str]:
    """Return what a log says about root."""
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [record["message"] for record in records if record["message"].startswith(LINE)]


@pytest.mark.parametrize("flags", [(), ("--read-only", "--tmpfs", "/tmp")], ids=["plain", "read-only"])
def test_every_process_is_an_ordinary_users(image: str, tmp_path: Path, flags: tuple[str, ...]) -> None:
    repository = write_team_repository(tmp_path / "model")
    with running_container(image, repository, *AS_ROOT, *flags) as box:
        assert box.send(b"four", "text/plain", "team").json()["result"] == [4, 4, 4]
        assert box.python(USERS) == f"[{ORDINARY}]"
        (line,) = lines(box.logs())
        assert str(ORDINARY) in line
        assert box.stop() == 0


def test_models_that_only_root_may_read_are_served_by_root(image: str, tmp_path: Path) -> None:
    repository = write_team_repository(tmp_path / "model")
    (repository / "echo" / "config.pbtxt").chmod(0o600)
    with running_container(image, repository, *AS_ROOT) as box:
        assert box.send(b"four", "text/plain", "team").ok
        assert box.python(USERS) == "[0]"
        (line,) = lines(box.logs())
        assert "/opt/ml/model/echo/config.pbtxt" in line


def private_file(folder: Path) -> tuple[str, ...]:
    (folder / "key").write_text("")
    (folder / "key").chmod(0o600)
    return "-v", f"{folder}/key:/keys:ro", "-e", "TRIREME_API_KEYS_FILE=/keys"


def private_cache(folder: Path) -> tuple[str, ...]:
    (folder / "cache").mkdir(mode=0o755)
    return "-v", f"{folder}/cache:/cache", "-e", "TRIREME_CACHE=/cache"


#: What the ordinary user lacks, by the path that the log names.
LACKS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "/keys": private_file,
    "/cache": private_cache,
    "/dev/shm": lambda _: ("--mount", "type=tmpfs,dst=/dev/shm,tmpfs-mode=0755"),
    "port 80": lambda _: (
        "-e",
        "SAGEMAKER_BIND_TO_PORT=80",
        "--sysctl",
        "net.ipv4.ip_unprivileged_port_start=1024",
    ),
    "become user": lambda _: ("--cap-drop", "ALL"),
}


@pytest.mark.parametrize("named", LACKS)
def test_a_box_that_needs_root_stays_root(image: str, tmp_path: Path, named: str) -> None:
    repository = write_team_repository(tmp_path / "model")
    flags = (*AS_ROOT, *LACKS[named](tmp_path))
    with running_container(image, repository, *flags, wait_until_ready=False) as box:
        box.wait_log(LINE)
        (line,) = lines(box.logs())
        assert named in line and "stays root" in line

"""Serverless: nothing can be written but /tmp, 3 GB of memory, one worker; and no network at all."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.boxes import RunningBox, descendants, running_box

#: Of the three demo models with one worker, in bytes; the platform's largest has twice that.
MEMORY = 3 * 2**30
#: A namespace of its own, in which / cannot be written to, but /tmp can.
READ_ONLY = "unshare -rm sh -c 'mount --bind /tmp /tmp && mount -o remount,bind,ro / && exec \"$@\"' sh"


def memory(box: RunningBox) -> int:
    """What all processes of the box have in memory, pages that they share counted once, in bytes."""
    total = 0
    for pid in (box.process.pid, *descendants(box.process.pid)):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        total += int(found[1]) * 1024 if found else 0
    return total


def test_a_box_on_a_read_only_file_system_serves_with_one_worker_in_3_gb(
    demo: Path, tmp_path: Path, cat: bytes
) -> None:
    refused = subprocess.run(
        [*shlex.split(READ_ONLY), "touch", "/written"], capture_output=True, text=True, check=False
    )
    if "Read-only file system" not in refused.stderr:
        pytest.skip(f"this machine makes no read-only file system: {refused.stderr.strip()}")
    with running_box(
        tmp_path,
        demo,
        command_prefix=READ_ONLY,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_SESSIONS_PATH="/opt/cannot/be/made",
    ) as box:
        response = box.send(cat, "image/png", params={"modelname": "resnet"})
        assert response.status_code == 200, response.text
        assert box.invoke("bert_base", {"text": "Paris is the [MASK] of France."}).status_code == 200
        large = b"\x89PNG" + b" " * (20 * 2**20)
        assert box.send(large, "image/png", params={"modelname": "resnet"}).status_code == 400
        header = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
        assert box.send(b'{"requestType":"NEW_SESSION"}', headers=header).status_code == 200
        assert memory(box) < MEMORY
    assert box.process.returncode == 0


#: Started in a namespace of its own, whose loopback has to be switched on first.
ALONE = """
import fcntl, socket, struct, sys, tempfile
from pathlib import Path
from tests.support.boxes import running
UP = 0x8914, struct.pack("16sh", b"lo", 1)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, *UP)
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
    sys.exit("there is a network")
except OSError:
    pass
cat = Path("clients/resnet/sample/cat.png").read_bytes()
with tempfile.TemporaryDirectory() as folder, running(Path(folder), Path(sys.argv[1])) as box:
    answer = box.send(cat, "image/png", params={"modelname": "resnet"})
    assert answer.status_code == 200, answer.text
    assert box.invoke("bert_base", {"text": "Paris is the [MASK] of France."}).status_code == 200
print("served")
"""


def test_a_box_with_no_network_at_all_serves(demo: Path) -> None:
    refused = subprocess.run(["unshare", "-rn", "true"], capture_output=True, text=True, check=False)
    if refused.returncode:
        pytest.skip(f"this machine makes no network of its own: {refused.stderr.strip()}")
    completed = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", ALONE, str(demo)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout == "served\n", completed.stderr

"""Serverless endpoints: only /tmp is writable, one worker, 3 GB of memory; and a box without any network."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.memory import proportional_bytes

#: Memory limit in bytes for the three demo models with one worker; the platform's largest has twice that.
MAX_MEMORY = 3 * 2**30
#: Runs a command in a namespace where / is read-only and /tmp is writable.
WITH_READ_ONLY_ROOT = (
    "unshare -rm sh -c 'mount --bind /tmp /tmp && mount -o remount,bind,ro / && exec \"$@\"' sh"
)


@pytest.mark.exhaustive
def test_a_box_on_a_read_only_file_system_serves_with_one_worker_in_3_gb(
    boxes: Boxes, demo: Path, cat: bytes
) -> None:
    probe = subprocess.run(
        [*shlex.split(WITH_READ_ONLY_ROOT), "touch", "/written"], capture_output=True, text=True, check=False
    )
    if "Read-only file system" not in probe.stderr:
        pytest.skip(f"this machine makes no read-only file system: {probe.stderr.strip()}")
    with boxes.own(
        demo,
        command_prefix=WITH_READ_ONLY_ROOT,
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
        assert proportional_bytes(box) < MAX_MEMORY
    assert box.process.returncode == 0
    log = box.log.read_text()
    # Where ONNX Runtime cannot write to its home, it warned of its telemetry in colour.
    assert "telemetry" not in log
    assert "\\u001b" not in log


#: Runs in a network namespace of its own, whose loopback has to be switched on first.
SERVE_WITHOUT_NETWORK = """
import fcntl, socket, struct, sys, tempfile
from pathlib import Path
from tests.support.boxes import running_box
UP = 0x8914, struct.pack("16sh", b"lo", 1)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, *UP)
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
    sys.exit("there is a network")
except OSError:
    pass
cat = Path("clients/resnet/sample/cat.png").read_bytes()
with tempfile.TemporaryDirectory() as folder, running_box(Path(folder), Path(sys.argv[1])) as box:
    response = box.send(cat, "image/png", params={"modelname": "resnet"})
    assert response.status_code == 200, response.text
    assert box.invoke("bert_base", {"text": "Paris is the [MASK] of France."}).status_code == 200
print("served")
"""


@pytest.mark.exhaustive
def test_a_box_with_no_network_at_all_serves(demo: Path) -> None:
    probe = subprocess.run(["unshare", "-rn", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this machine makes no network of its own: {probe.stderr.strip()}")
    completed = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", SERVE_WITHOUT_NETWORK, str(demo)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout == "served\n", completed.stderr

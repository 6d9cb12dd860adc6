"""What a model.py that means harm can do in the image: docs/run/security.md states each row.

Models are trusted, and run as the box's one user. The rows say what that user still cannot do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from sm.settings import HERE
from tests.support.containers import Container, running_container
from tests.support.tritons import Model

PAGE = (HERE / "docs/run/security.md").read_text()
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
#: Each attempt is an expression that raises OSError if it is refused.
ATTEMPTS = {
    "change the router's code": "open(sm.__file__, 'a')",
    "change the models": "open('/opt/ml/model/hostile/config.pbtxt', 'a')",
    "change a file of the system": "open('/etc/passwd', 'a')",
    "become root": "os.setuid(0)",
    "get rights from another program": "check(no_new_privileges())",
    "mount a file system": "check(libc.mount(b'none', b'/mnt', b'tmpfs', 0, None) == 0)",
    "open a port below 1024": "socket.socket().bind(('0.0.0.0', 80)) if ports() else check(False)",
    "change the box's run folder": "open(run_folder() / 'box.json', 'a')",
    "read other models' tensors": "[open(path, 'rb') for path in pathlib.Path('/dev/shm').iterdir() if path.is_file()]",
    "end the supervisor": "os.kill(1, 0)",
    "read the router's memory": "open('/proc/1/mem', 'rb')",
    "read the router's environment": "open('/proc/1/environ', 'rb').read()",
}
MODEL = Model(
    answer=f"""
outcome = {{}}
for name, attempt in {ATTEMPTS!r}.items():
    try:
        eval(attempt)
        outcome[name] = "can"
    except OSError:
        outcome[name] = "cannot"
return {{"y": np.array([json.dumps(outcome).encode()], np.object_)}}
""",
    inputs={"x": ("FP32", [1])},
    outputs={"y": ("STRING", [1])},
    head="""
import ctypes, json, os, pathlib, socket
import numpy as np
import triton_python_backend_utils as utils
import sm

libc = ctypes.CDLL(None, use_errno=True)


def check(done):
    if not done:
        raise OSError("refused")


def no_new_privileges():
    return "NoNewPrivs:\\t0" in open("/proc/self/status").read()


def ports():
    return int(open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read()) > 80


def run_folder():
    return next(path.parent for path in pathlib.Path("/tmp").glob("trireme-*/box.json"))


def tensor(request, name):
    return utils.get_input_tensor_by_name(request, name).as_numpy()


def response(outputs):
    return utils.InferenceResponse([utils.Tensor(name, array) for name, array in outputs.items()])


class TritonPythonModel:
""",
)


@pytest.fixture(scope="module")
def box(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("hostile")
    MODEL.write(folder / "model" / "hostile")
    for path in (folder, folder / "model"):
        path.chmod(0o755)
    with running_container(image, folder / "model", *HARDENED) as started:
        yield started


def test_the_page_says_what_a_hostile_model_can_do(box: Container) -> None:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    answer = box.send(json.dumps(request).encode(), "application/json", "hostile")
    assert answer.ok, answer.text
    outcome = json.loads(answer.json()["outputs"][0]["data"][0])
    rows = dict(re.findall(r"^\| (.+?) \| (can|cannot) \|", PAGE, re.MULTILINE))
    assert outcome == rows

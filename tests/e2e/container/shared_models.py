"""The models and clients of the container that several tests share."""

from __future__ import annotations

from pathlib import Path

from tests.support.containers import CLIENT_SOURCE, write_team_repository
from tests.support.tritons import Model
from tests.support.wheels import write_wheel

#: A client that sends 12 MB to the model, gets 12 MB back and returns two of the numbers.
LARGE = CLIENT_SOURCE.replace("np.full(3,", "np.full(3_000_000,").replace(
    '["y"].tolist()', '["y"][[0, -1]].tolist()'
)
#: A client that returns a number of a package that the image does not have.
TINY = f"import trireme_tiny\n{CLIENT_SOURCE}".replace("len(text.text)", "trireme_tiny.NUMBER")
#: Each attempt of the hostile model is an expression that raises OSError if it is refused.
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
HOSTILE = Model(
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


def write_shared_models(folder: Path) -> Path:
    """Write the echo model with three clients, of which one needs a wheel, and the hostile model."""
    repository = write_team_repository(folder / "repository")
    HOSTILE.write(repository / "hostile")
    code = repository / "code"
    (code / "large.py").write_text(LARGE.replace("class Team", "class Large"))
    (code / "tiny.py").write_text(TINY.replace("class Team", "class Tiny"))
    (code / "requirements.txt").write_text("trireme-tiny>=1\n")
    write_wheel(code / "wheels", "trireme_tiny", text="NUMBER = 17\n")
    return repository

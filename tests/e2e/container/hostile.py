"""A model.py that means harm: docs/run/security.md says what it can do in the image."""

from __future__ import annotations

from tests.support.tritons import Model

#: Each attempt is an expression that raises OSError if it is refused.
ATTEMPTS = {
    "change the router's code": "open(sm.__file__, 'a')",
    "change the models": "open('/opt/ml/model/hostile/config.pbtxt', 'a')",
    "change a file of the system": "open('/etc/passwd', 'a')",
    "become root": "os.setuid(0)",
    "get rights from another program": "check('NoNewPrivs:\\t0' in open('/proc/self/status').read())",
    "mount a file system": "check(libc.mount(b'none', b'/mnt', b'tmpfs', 0, None) == 0)",
    "open a port below 1024": "socket.socket().bind(('0.0.0.0', 80)) if first_port() > 80 else check(False)",
    "change the box's run folder": "open(next(pathlib.Path('/tmp').glob('trireme-*/box.json')), 'a')",
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
return {{"y": np.frombuffer(json.dumps(outcome).encode(), np.uint8)}}
""",
    inputs={"x": ("FP32", [1])},
    outputs={"y": ("UINT8", [-1])},
    head="""
import ctypes, json, os, pathlib, socket
import numpy as np
import triton_python_backend_utils as pb
import sm

libc = ctypes.CDLL(None, use_errno=True)


def check(done):
    if not done:
        raise OSError("refused")


def first_port():
    return int(open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read())


def response(outputs):
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in outputs.items()])


class TritonPythonModel:
""",
)

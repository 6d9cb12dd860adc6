"""Start a gateway, its Tritons and its bucket in a fake S3, and what callers send it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from PIL import Image

from sm.run_state import Box
from sm.server.supervisor import ports
from sm.settings import HERE, Settings
from tests.support.aws import ENVIRONMENT, REGION, aws_client
from tests.support.boxes import WAIT_TIMEOUT_S, free_port, wait_until
from tests.support.hostile_pictures import encode
from tests.support.tritons import SETTINGS, Model, TritonProcess

KEY = "the-key-of-a-test-which-is-no-secret"
#: `printf %s "$KEY" | sha256sum`
KEY_SHA256 = "634c0feb42f6a1158e95a9e672d17f66ddf22c411bee8277b2f034eeaf8ce95c"
BUCKET = "trireme-test"
LABELS = ["tabby", "beagle", "teapot", "volcano", "espresso", "comic book"]
PREPROCESS = {"resize": 8, "crop": 8, "channels": "RGB", "scale": 1 / 255}

#: A model that classifies a picture by the mean of each channel: a red one is a tabby.
CLASSIFYING_MODEL = """
means = tensor(request, "input").mean(axis=(2, 3))
return {"logits": np.concatenate([means, 0.5 * means], axis=1).astype(np.float32)}
"""
#: A model that returns the id of its process.
PROCESS_ID_MODEL = 'return {"y": np.array([os.getpid()])}'
#: A model that returns its words in capitals, after as many seconds as the first word says.
WORDS = """
words = [word.decode() for word in tensor(request, "x").ravel()]
time.sleep(float(words[0]) if words[0].isdigit() else 0)
return {"y": np.array([word.upper() for word in words], dtype=object)}
"""

PICTURE: dict[str, tuple[str, list[int]]] = {"input": ("FP32", [3, 8, 8])}
LOGITS: dict[str, tuple[str, list[int]]] = {"logits": ("FP32", [6])}
ONE: dict[str, tuple[str, list[int]]] = {"x": ("FP32", [1])}

MODELS = {
    # Served by the built-in client.
    "resnet": Model(CLASSIFYING_MODEL, PICTURE, LOGITS, max_batch_size=4),
    # No client serves these.
    "colours": Model(CLASSIFYING_MODEL, PICTURE, LOGITS, max_batch_size=4),
    # Without ``max_batch_size``: the batch is the first dimension.
    "explicit": Model(CLASSIFYING_MODEL, {"input": ("FP32", [1, 3, 8, 8])}, {"logits": ("FP32", [1, 6])}),
    "who": Model(PROCESS_ID_MODEL, ONE, {"y": ("INT64", [1])}),
    "words": Model(WORDS, {"x": ("STRING", [-1])}, {"y": ("STRING", [-1])}),
}
MODELS_WITH_LABELS = ("resnet", "colours", "explicit")


@dataclass
class FakeBucket:
    """A bucket with models in moto's fake S3."""

    address: str
    s3: Any = field(init=False)

    def __post_init__(self) -> None:
        self.s3 = aws_client("s3", f"http://{self.address}")
        self.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    def put_model(self, name: str, folder: Path, model: Model) -> None:
        model.write(folder / name)
        for path in sorted(path for path in (folder / name).rglob("*") if path.is_file()):
            self.s3.upload_file(str(path), BUCKET, f"models/{path.relative_to(folder)}")
        if name in MODELS_WITH_LABELS:
            self.put(f"models/{name}/labels.txt", "\n".join(LABELS).encode())
            self.put(f"models/{name}/preprocess.json", json.dumps(PREPROCESS).encode())

    def put(self, key: str, body: bytes, **options: str) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=body, **options)

    def get(self, key: str) -> Any:
        return json.loads(self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def environment(cloud: str, tritons: str, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "AWS_ENDPOINT_URL": f"http://{cloud}",
        **{name: value for name, value in ENVIRONMENT.items() if name != "AWS_MAX_ATTEMPTS"},
        "NO_PROXY": "127.0.0.1",
        "TRIREME_GATEWAY_BUCKET": BUCKET,
        "TRIREME_GATEWAY_TRITON": tritons,
        "TRIREME_GATEWAY_KEYS": f"somebody:{'0' * 64},tests:{KEY_SHA256}",
        **more,
    }


@dataclass
class Gateway:
    """A running gateway and its log."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def request(self, method: str, path: str, key: str | None = KEY, **options: Any) -> requests.Response:
        headers = {**({"x-api-key": key} if key is not None else {}), **options.pop("headers", {})}
        url = f"http://127.0.0.1:{self.port}{path}"
        return requests.request(method, url, headers=headers, timeout=60, **options)

    def infer(self, model: str, body: object, **options: Any) -> requests.Response:
        return self.request("POST", f"/infer/{model}", json=body, **options)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            self.request("GET", "/nothing")
        except requests.ConnectionError:
            return False
        return True


@contextmanager
def running_gateway(command: list[str], folder: Path, log: Path, env: dict[str, str]) -> Iterator[Gateway]:
    """Run a command, to which ``--port`` is added, until the block ends."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)], cwd=folder, env=env, stdout=output, stderr=output
        )
    gateway = Gateway(port, log, process)
    try:
        wait_until(gateway.answers, description="the gateway")
        yield gateway
    finally:
        process.terminate()
        try:
            process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def running_chalice_local(log: Path, env: dict[str, str]) -> AbstractContextManager[Gateway]:
    """Run the gateway with ``chalice local``, as a developer does."""
    chalice = str(Path(sys.executable).with_name("chalice"))
    return running_gateway([chalice, "local", "--no-autoreload"], HERE / "gateway", log, env)


def running_gateway_server(log: Path, env: dict[str, str]) -> AbstractContextManager[Gateway]:
    """Run the gateway with ``python -m gateway.serve``, as a team without Lambda does."""
    return running_gateway([sys.executable, "-m", "gateway.serve"], HERE, log, env)


def addresses_of(*tritons: TritonProcess) -> str:
    return ",".join(f"127.0.0.1:{triton.box.grpc_port}" for triton in tritons)


def short_name(name: str, inputs: str = "data", outputs: str = "pixels", side: int = 224) -> dict[str, Any]:
    """A short name's description, as the reference gateway has them."""
    return {"name": name, "input_name": inputs, "output_name": outputs, "input_shape": [1, 3, side, side]}


def prepare_empty_triton(folder: Path, repository: Path, settings: Settings = SETTINGS) -> TritonProcess:
    """Prepare a Triton without models that loads models on request; the caller starts it."""
    folder.mkdir()
    repository.mkdir(exist_ok=True)
    name, chosen = f"test{os.urandom(4).hex()}", ports.choose_ports(SETTINGS)
    return TritonProcess(Box(name, folder, repository, *chosen, "nginx", 0, multi_model=True), settings)


def picture(colour: str, kind: str = "png") -> bytes:
    return encode(Image.new("RGB", (20, 16), colour), kind)


RED, BLUE = picture("red"), picture("blue")


def api_gateway_event(method: str, path: str) -> dict[str, Any]:
    """The event with which API Gateway calls the Lambda function."""
    return {
        "requestContext": {"httpMethod": method, "resourcePath": path},
        "headers": {},
        "pathParameters": {},
        "stageVariables": {},
        "multiValueQueryStringParameters": None,
        "body": None,
    }

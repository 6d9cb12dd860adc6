"""What choices of an endpoint change, on the played platform (docs/deploy/endpoint-life.md).

    .venv/bin/python -m tests.support.played_aws .venv/bin/python -m bench.endpoint routing
    .venv/bin/python -m tests.support.played_aws .venv/bin/python -m bench.endpoint start --gb 1

``routing``: the times of requests at two instances, of which one in ten is slow. ``start``: a large
repository as an archive and as files. docs/deploy/sagemaker.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from botocore.config import Config

from trireme_tools.invoke.load_test import quantile

CONFIG = """backend: "python"
input { name: "SECONDS" data_type: TYPE_FP32 dims: 1 }
output { name: "SECONDS" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = """import time
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb.get_input_tensor_by_name(request, "SECONDS") for request in requests]
        for tensor in tensors:
            time.sleep(float(tensor.as_numpy()[0]))
        return [pb.InferenceResponse([tensor]) for tensor in tensors]
"""
#: Seconds of a quick and of a slow request, and requests a second: 60 % of what two instances can do.
QUICK_S, SLOW_S, RATE = 0.1, 2.0, 4.0


def deploy(repository: Path, *options: str) -> float:
    """Run ``sm deploy``, and return its seconds."""
    role, image = (
        "arn:aws:iam::111122223333:role/serving",
        "111122223333.dkr.ecr.eu-west-1.amazonaws.com/box:1",
    )
    words = (
        "--image",
        image,
        "--role",
        role,
        "--instance-type",
        "ml.c5.xlarge",
        "--model-data",
        str(repository),
    )
    began = time.monotonic()
    subprocess.run(
        [str(Path(sys.executable).with_name("sm")), "deploy", "sleepy", *words, *options], check=True
    )
    return time.monotonic() - began


def measure(seconds: float) -> tuple[list[float], list[float]]:
    """Send requests at :data:`RATE` for so long, and return the times of the quick and of the slow ones."""
    runtime = boto3.client("sagemaker-runtime", config=Config(max_pool_connections=100, read_timeout=60))
    drawn = random.Random(1)
    times: tuple[list[float], list[float]] = ([], [])

    def ask(is_slow: bool) -> None:
        data = [SLOW_S if is_slow else QUICK_S]
        body = json.dumps({"inputs": [{"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": data}]})
        began = time.monotonic()
        answer = runtime.invoke_endpoint(EndpointName="sleepy", ContentType="application/json", Body=body)
        answer["Body"].read()
        times[is_slow].append(time.monotonic() - began)

    end = time.monotonic() + seconds
    with ThreadPoolExecutor(100) as pool:
        while time.monotonic() < end:
            pool.submit(ask, drawn.random() < 0.1)
            time.sleep(drawn.expovariate(RATE))
    return times


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    command.add_argument("what", choices=("routing", "start"))
    command.add_argument("--gb", type=float, default=1.0)
    command.add_argument("--seconds", type=float, default=60.0)
    options = command.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        version = Path(folder) / "repository/sleepy/1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        repository = version.parents[1]
        if options.what == "start":
            for number in range(8):
                (version / f"weight-{number}").write_bytes(random.randbytes(int(options.gb * 1e9 / 8)))
            print(f"archive: {deploy(repository, '--archive'):.1f} s")
            print(f"files: {deploy(repository):.1f} s")
            (version / "weight-0").write_bytes(random.randbytes(int(options.gb * 1e9 / 8)))
            print(f"files, one of eight changed: {deploy(repository):.1f} s")
            (version / "weight-1").write_bytes(random.randbytes(int(options.gb * 1e9 / 8)))
            print(f"archive, one of eight changed: {deploy(repository, '--archive'):.1f} s")
            return
        for strategy in ("RANDOM", "LEAST_OUTSTANDING_REQUESTS"):
            field = f"ProductionVariants[0].RoutingConfig.RoutingStrategy={strategy}"
            deploy(repository, "--count", "2", "--set", field)
            for kind, times in zip(("quick", "slow"), map(sorted, measure(options.seconds)), strict=True):
                p50, p99 = (quantile(times, share) * 1000 for share in (0.5, 0.99))
                print(f"{strategy}, {len(times)} {kind}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")


if __name__ == "__main__":
    main()

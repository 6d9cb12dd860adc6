"""Multi-model mode: memory over cycles of load, invoke and unload, and invocations beside many models.

    python bench/multi_model.py [--cycles 500] [--models 200] [--processes]

Each cycle loads an archive under a new name, with a client, asks it twice and unloads it. With --processes
its model is a Python one, a process of its own (about 3 s a cycle); without, it has no model of Triton.
Memory is the resident set of each part of the box in MB, without the stubs of Python models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import requests

from tests.support.boxes import RunningBox, command_line, descendants, running_box
from tests.support.model_archives import ArchiveFolder, multiplying_model

CLIENT = """
import numpy as np
from sm.client.base import Payload, TensorClient

class Times(TensorClient):
    model = "model"
    class payload(Payload):
        x: list[float]
    def preprocess(self, payload):
        return {"x": np.float32(payload.x)}
    def postprocess(self, outputs, payload):
        return outputs["y"]
"""
CLIENT_ALONE = """
from sm.client.base import Client, Payload

class Times(Client):
    class payload(Payload):
        x: list[float]
    def inference(self, payload):
        return [2 * value for value in payload.x]
"""
CALL = {"payload": {"x": [1, 2]}}
X = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
PARTS = {
    "sm.server.worker control": "control plane",
    "sm.server.worker data": "router",
    "tritonserver --": "Triton",
}


def megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def memory(box: RunningBox) -> dict[str, float]:
    """Return the resident set of each part, summed over its processes."""
    sizes = dict.fromkeys(PARTS.values(), 0.0)
    for pid in descendants(box.process.pid):
        for words, part in PARTS.items():
            if words in command_line(pid) and "stub" not in command_line(pid).split()[0]:
                sizes[part] += megabytes(pid)
    return sizes


def load(box: RunningBox, name: str, url: str) -> None:
    answer = requests.post(f"{box.url}/models", json={"model_name": name, "url": url}, timeout=300)
    assert answer.status_code == 200, answer.text


def cycle(box: RunningBox, platform: ArchiveFolder, name: str, processes: bool) -> None:
    if processes:
        url = platform.write_flat(name, multiplying_model(2), client=CLIENT)
    else:
        url = platform.write_nested(name, {}, client=CLIENT_ALONE)
    load(box, name, url)
    for body in (CALL, X) if processes else (CALL, CALL):
        answer = requests.post(f"{box.url}/models/{name}/invoke", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
    assert requests.delete(f"{box.url}/models/{name}", timeout=300).status_code == 200


def milliseconds(box: RunningBox, name: str, body: object, times: int = 300) -> float:
    """Return the median time of an invocation with one caller."""
    session, data = requests.Session(), json.dumps(body).encode()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        answer = session.post(
            f"{box.url}/models/{name}/invoke", data=data, headers={"Content-Type": "application/json"}
        )
        seconds.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
    return statistics.median(seconds) * 1000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--cycles", type=int, default=500)
    arguments.add_argument("--models", type=int, default=200)
    arguments.add_argument("--processes", action="store_true")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        platform = ArchiveFolder(Path(folder) / "models")
        with running_box(
            Path(folder),
            None,
            SAGEMAKER_MULTI_MODEL="true",
            TRIREME_MODEL_ARCHIVES=str(platform.home),
            SAGEMAKER_MODEL_SERVER_WORKERS="1",
        ) as box:
            over_cycles(box, platform, options.cycles, options.processes)
            beside_many(box, platform, options.models)


def over_cycles(box: RunningBox, platform: ArchiveFolder, cycles: int, processes: bool) -> None:
    print(f"{'cycles':>8} " + " ".join(f"{part:>14}" for part in PARTS.values()))
    for count in range(1, cycles + 1):
        cycle(box, platform, f"cycle{count}", processes)
        if count in (1, 10, 50) or count % 100 == 0:
            time.sleep(1)
            print(f"{count:>8} " + " ".join(f"{value:>14.1f}" for value in memory(box).values()), flush=True)


def beside_many(box: RunningBox, platform: ArchiveFolder, models: int) -> None:
    for index in range(models):
        name = f"many{index}"
        if index:
            load(box, name, platform.write_nested(name, {}, client=CLIENT_ALONE))
        else:
            load(box, name, platform.write_flat(name, multiplying_model(2), client=CLIENT))
        if index in (0, models - 1):
            for kind, body in {"v2": X, "a client": CALL}.items():
                milliseconds(box, "many0", body, 50)
                print(f"{index + 1:>8} models: {milliseconds(box, 'many0', body):.2f} ms with {kind}")
    began = time.perf_counter()
    for _ in range(20):
        requests.get(f"{box.url}/models", params={"limit": 1000}, timeout=10)
    print(f"the list of {models}: {(time.perf_counter() - began) / 20 * 1000:.1f} ms")


if __name__ == "__main__":
    main()

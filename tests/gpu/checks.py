"""Checks on a running box: answers, metrics, instances, faults, memory, probes."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import requests
from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput, model_config_pb2

from sm.inspection.machine import Machine
from sm.run_state import Box
from sm.settings import HERE
from sm.tools.golden import differences
from sm.triton.tensors import datatype
from tests.gpu.building import MODELS
from tests.gpu.recording import thinned
from tests.gpu.stages import Check, Context, Result
from tests.gpu.unpacking import WEIGHTS
from tests.support.boxes import RunningBox, command_line, descendants, running_box, wait_until
from tests.support.load import Load

#: Allowed difference from the golden tensors, as a share of the largest number.
TOLERANCE = {"fp32": 1e-3, "fp16": 3e-2}
#: Seconds in which a model whose process was killed has to answer again, and /ping has to answer always.
RECOVERY_S, PING_S = 120.0, 2.0
#: Growth that is no leak: caches of allocators and kernels.
MAX_GROWTH, MAX_GROWTH_BYTES = 0.05, 64 * 2**20
STUB = "triton_python_backend_stub"


@contextmanager
def box(context: Context, repository: Path, **variables: str) -> Iterator[RunningBox]:
    """A box of the models, in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(dir=context.work) as folder,
        running_box(
            Path(folder), repository, wait_until_ready=False, clients=(), TRIREME_QUEUE="128", **variables
        ) as started,
    ):
        started.wait_ready(180)
        yield started


def serving(context: Context) -> Result:
    """Everything that one box with one instance of each model can show."""
    result = Result(figures={})
    with box(context, context.repository) as started:
        for model in MODELS:
            result.checks += golden(context, started, model, context.repository, context.precision)
        result.checks.append(gpu_metrics(context, started))
        result.checks.append(ping_under_load(started, 8 if context.short else 30))
        result.checks.append(flat_memory(context, started, result.figures))
        result.checks.append(killed_process(started))  # last: it may leave the box without a model
    return result


def served_plans(context: Context) -> Result:
    """Serve the TensorRT plans that were built, if this Triton can, and compare them as the programs."""
    name, repository = "the TensorRT plans served", context.work / "plans"
    plans = [model for model in MODELS if (repository / model / "1" / "model.plan").is_file()]
    if not plans:
        return Result([Check(name, "not applicable", "no plan was built")])
    if not Machine.of_this_host().has_backend("tensorrt", ()):
        detail = "this Triton has no TensorRT backend; sm build-model compared each plan with its source"
        return Result([Check(name, "not applicable", detail)])
    with box(context, repository) as started:
        checks = [check for model in plans for check in golden(context, started, model, repository, "fp16")]
    return Result([replace(check, name=f"{check.name}, TensorRT plan") for check in checks])


def golden(
    context: Context, started: RunningBox, model: str, repository: Path, precision: str
) -> Iterator[Check]:
    """Compare the served tensors with those of the same weights on ONNX Runtime, and the answer itself."""
    folder = context.bundle / WEIGHTS / model
    kind = json.loads((folder / "about.json").read_text())["weights"]
    with np.load(folder / "golden.npz") as kept:
        inputs = {name[6:]: kept[name] for name in kept.files if name.startswith("input.")}
        golden_outputs = {name[7:]: kept[name] for name in kept.files if name.startswith("output.")}
    served = [output.name for output in _config(repository / model).output]
    expected = {name: array for name, array in golden_outputs.items() if name in served}
    if expected:
        outputs = infer(started, model, inputs, list(expected))
        if repository == context.repository:
            record(context, model, inputs, outputs)
        worst = max(_distance(_thinned(outputs[name], len(array)), array) for name, array in expected.items())
        allowed = TOLERANCE[precision]
        yield Check(
            f"{model}: golden tensors",
            "passed" if worst <= allowed else "failed",
            f"largest difference {worst:.2g} of the largest number; {allowed:g} is allowed; weights: {kind}",
        )
    else:
        detail = f"it has other outputs ({', '.join(served)}) than the golden graph"
        yield Check(f"{model}: golden tensors", "not applicable", detail)
    name = f"{model}: golden answer"
    payload = json.loads((HERE / "clients" / model / "sample" / "payload.json").read_bytes())
    response = started.invoke(model, payload)
    if response.status_code != 200:
        yield Check(name, "failed", f"{response.status_code}: {response.text[:300]}")
    elif kind == "random":
        yield Check(name, "not applicable", "answered 200; the answer of random weights means nothing")
    else:
        wrong = list(
            differences(response.json()["result"], json.loads((folder / "golden-answer.json").read_bytes()))
        )
        yield Check(
            name, "failed" if wrong else "passed", "; ".join(wrong)[:300] or "equal within the tolerance"
        )


def infer(started: RunningBox, model: str, inputs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Ask the box's own Triton."""
    tensors = []
    for name, array in inputs.items():
        tensor = InferInput(name, list(array.shape), datatype(array))
        tensors.append(tensor.set_data_from_numpy(array))
    port = Box.load(started.run_folder()).grpc_port
    with InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer(model, tensors, outputs=[InferRequestedOutput(name) for name in names])
    return {name: answer.as_numpy(name) for name in names}


def record(context: Context, model: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Keep the tensors for the callers of the bare Triton."""
    for part, tensors in (("inputs", inputs), ("outputs", outputs)):
        folder = context.files / "box" / part
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{model}.npz", **tensors)


def gpu_metrics(context: Context, started: RunningBox) -> Check:
    name = "GPU metrics in /metrics"
    if not context.has_gpu:
        return Check(name, "not applicable", "there is no GPU")
    wanted = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes")

    def lines() -> list[str]:
        text = requests.get(f"{started.url}/metrics", timeout=10).text
        return [line for line in text.splitlines() if line.startswith(wanted)]

    try:
        found = wait_until(lambda: lines() if len(lines()) >= len(wanted) else None, 15, "GPU metrics")
    except AssertionError:
        return Check(name, "failed", f"found {lines()}")
    return Check(name, "passed", "; ".join(found)[:300])


def ping_under_load(started: RunningBox, seconds: float) -> Check:
    """Every /ping of a busy box, as a platform asks it."""
    load = Load(started.port, _body("resnet"), retry_delay_s=0.2).start(32)
    slowest, asked, wrong = 0.0, 0, 0
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            wrong += started.ping()[0] != 200
            slowest, asked = max(slowest, time.monotonic() - began), asked + 1
            time.sleep(0.1)
    finally:
        load.stop()
    good = not wrong and slowest < PING_S and load.outcomes["200"] > 0
    return Check(
        "/ping under load",
        "passed" if good else "failed",
        f"{asked} asked beside 32 callers, {wrong} not 200, slowest {slowest * 1000:.0f} ms; callers got "
        f"{dict(load.outcomes)}",
    )


def killed_process(started: RunningBox) -> Check:
    """Kill the processes of one model; the box has to answer right again, and never wrongly."""
    name = "a killed model process"
    payload = json.loads((HERE / "clients" / "resnet" / "sample" / "payload.json").read_bytes())
    before = started.invoke("resnet", payload).json()["result"]
    victims = [pid for pid in started.pids(STUB) if "/resnet/" in command_line(pid)]
    if not victims:
        return Check(name, "failed", "no model process was found")
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    began, statuses = time.monotonic(), []
    while time.monotonic() - began < RECOVERY_S:
        response = started.invoke("resnet", payload)
        statuses.append(response.status_code)
        if response.status_code == 200:
            wrong = list(differences(response.json()["result"], before))
            ready = wait_until(lambda: started.ping()[0] == 200, RECOVERY_S, "/ping 200")
            seconds = time.monotonic() - began
            return Check(
                name,
                "passed" if ready and not wrong else "failed",
                f"{len(victims)} killed; right again after {seconds:.1f} s, statuses until then {statuses[-20:]}",
            )
        time.sleep(0.2)
    return Check(name, "failed", f"no answer in {RECOVERY_S:g} s: {statuses[-20:]}")


def flat_memory(context: Context, started: RunningBox, figures: dict[str, Any]) -> Check:
    """Memory of all processes, and of the GPU, before and after many requests."""
    total = 200 if context.short else 10_000
    bodies = [_body(model) for model in ("resnet", "bert_base")]
    # Threads, pools and allocators grow with the first requests.
    _send(started, bodies, max(400, total // 5))
    before, gpu_before = _resident(started), _gpu_used()
    outcomes = _send(started, bodies, total)
    after, gpu_after = _resident(started), _gpu_used()
    figures["memory"] = {"before": before, "after": after, "gpu_before": gpu_before, "gpu_after": gpu_after}
    allowed = max(MAX_GROWTH * before, MAX_GROWTH_BYTES)
    gpu_allowed = max(MAX_GROWTH * gpu_before, MAX_GROWTH_BYTES)
    flat = after - before <= allowed and gpu_after - gpu_before <= gpu_allowed
    return Check(
        f"memory flat over {total} requests",
        "passed" if flat and set(outcomes) == {"200"} else "failed",
        f"{before / 2**20:.0f} to {after / 2**20:.0f} MiB, GPU {gpu_before / 2**20:.0f} to "
        f"{gpu_after / 2**20:.0f} MiB; {outcomes}",
    )


def instances(context: Context) -> Result:
    """Two instances of a model side by side."""
    name, repository = "two instances", context.work / "two"
    (repository / "resnet").mkdir(parents=True, exist_ok=True)
    for path in (context.repository / "resnet").iterdir():
        link = repository / "resnet" / path.name
        if path.name != "config.pbtxt" and not link.exists():
            link.symlink_to(path)
    config = _config(context.repository / "resnet")
    config.instance_group[0].count = 2
    (repository / "resnet" / "config.pbtxt").write_text(text_format.MessageToString(config))
    with box(context, repository) as started:
        stubs = len(started.pids(STUB))
        outcomes = _send(started, [_body("resnet")], 40 if context.short else 1000)
        good = stubs == 2 and set(outcomes) == {"200"}
        return Result([Check(name, "passed" if good else "failed", f"{stubs} processes; {outcomes}")])


def load_limit(context: Context) -> Result:
    """In multi-model mode a load is refused while the GPU's memory is fuller than the limit."""
    name = "the GPU memory limit for loading (507)"
    if not context.has_gpu:
        return Result([Check(name, "not applicable", "there is no GPU; the tests show it with a stand-in")])
    with (
        tempfile.TemporaryDirectory(dir=context.work) as folder,
        running_box(
            Path(folder),
            None,
            clients=(),
            SAGEMAKER_MULTI_MODEL="true",
            SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT="0.000001",
            TRIREME_MODEL_REPOSITORY=folder,
        ) as started,
    ):
        body = {"model_name": "resnet", "url": str(context.repository)}
        response = requests.post(f"{started.url}/models", json=body, timeout=60)
        good = response.status_code == 507
        return Result(
            [Check(name, "passed" if good else "failed", f"{response.status_code}: {response.text[:200]}")]
        )


def cuda_graphs(context: Context) -> Result:
    """ResNet with and without CUDA graphs, called by the program itself."""
    name = "CUDA graphs"
    if not context.has_gpu:
        return Result([Check(name, "not applicable", "there is no GPU")])
    import torch
    from torch.export.passes import move_to_device_pass

    device = torch.device("cuda", 0)
    path = context.repository / "resnet" / "1" / "model.pt2"
    program = move_to_device_pass(torch.export.load(path), device).module()
    rows = {}
    with torch.inference_mode():
        for size in (1, 8):
            tensor = torch.zeros([size, 3, 224, 224], dtype=torch.uint8, device=device)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    program(tensor)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                program(tensor)
            rows[size] = {
                "plain_ms": _milliseconds(functools.partial(program, tensor)),
                "graph_ms": _milliseconds(graph.replay),
            }
    return Result([Check(name, "passed", json.dumps(rows))], rows)


def _milliseconds(call: Any, count: int = 100) -> float:
    import torch

    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return round((time.monotonic() - began) / count * 1000, 3)


def _send(started: RunningBox, bodies: list[bytes], total: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for body in bodies:
        load = Load(started.port, body, retry_delay_s=0.1).start(8, total // len(bodies) // 8).join()
        for outcome, count in load.outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts


def _body(model: str) -> bytes:
    payload = json.loads((HERE / "clients" / model / "sample" / "payload.json").read_bytes())
    return json.dumps({"modelname": model, "payload": payload}).encode()


def _resident(started: RunningBox) -> int:
    total = 0
    for pid in [started.process.pid, *descendants(started.process.pid)]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return total


def _gpu_used() -> int:
    command = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        return sum(int(line) for line in text.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _config(model: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def _thinned(array: Any, count: int) -> Any:
    return thinned(array)[:count]


def _distance(actual: Any, expected: Any) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    largest = max(1e-6, float(np.abs(expected).max()))
    return float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()) / largest

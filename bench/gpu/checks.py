"""Checks on a running box: answers, metrics, instances, faults, memory and probes."""

from __future__ import annotations

import functools
import json
import os
import signal
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

from bench.contestant import MODELS
from bench.gpu.building import ask_gpu
from bench.gpu.stages import Check, Context, Result
from bench.gpu.unpacking import WEIGHTS
from bench.gpu.weights import sample_evenly
from bench.tree import memory
from sm.commands.golden import differences
from sm.repository.machine import Machine
from sm.run_state import Box
from sm.settings import HERE
from sm.triton.tensors import datatype
from tests.support.boxes import RunningBox, command_line, running_box, wait_until
from tests.support.load import Load

#: The allowed difference from the golden tensors, as a share of the largest number.
TOLERANCE = {"fp32": 1e-3, "fp16": 3e-2}
#: The limits for a model to answer again after its process was killed, and for every /ping.
RECOVERY_S, PING_LIMIT_S = 120.0, 2.0
#: Growth that is not a leak: caches of allocators and kernels.
MAX_GROWTH_SHARE, MAX_GROWTH_BYTES = 0.05, 64 * 2**20
STUB_PROGRAM = "triton_python_backend_stub"


@contextmanager
def start_box(context: Context, repository: Path, **variables: str) -> Iterator[RunningBox]:
    """Start a box with these models in a temporary folder."""
    with (
        tempfile.TemporaryDirectory(dir=context.work) as folder,
        running_box(
            Path(folder), repository, wait_until_ready=False, clients=(), TRIREME_QUEUE="128", **variables
        ) as box,
    ):
        box.wait_ready(180)
        yield box


def serving(context: Context) -> Result:
    """All checks that need one box with one instance of each model."""
    result = Result(figures={})
    with start_box(context, context.repository) as box:
        for model in MODELS:
            result.checks += compare_with_golden(context, box, model, context.repository, context.precision)
        result.checks.append(check_gpu_metrics(context, box))
        result.checks.append(check_ping_under_load(box, 8 if context.short else 30))
        result.checks.append(check_memory_growth(context, box, result.figures))
        result.checks.append(check_killed_process(box))  # last, as it may leave the box without a model
    return result


def served_plans(context: Context) -> Result:
    """Serve the built TensorRT plans, if this Triton can, and compare them with the golden tensors."""
    name, repository = "the TensorRT plans served", context.work / "plans"
    plans = [model for model in MODELS if (repository / model / "1" / "model.plan").is_file()]
    if not plans:
        return Result([Check(name, "not applicable", "no plan was built")])
    if not Machine.of_this_host().has_backend("tensorrt", ()):
        detail = "this Triton has no TensorRT backend; sm build-model compared each plan with its source"
        return Result([Check(name, "not applicable", detail)])
    with start_box(context, repository) as box:
        checks = [
            check for model in plans for check in compare_with_golden(context, box, model, repository, "fp16")
        ]
    return Result([replace(check, name=f"{check.name}, TensorRT plan") for check in checks])


def compare_with_golden(
    context: Context, box: RunningBox, model: str, repository: Path, precision: str
) -> Iterator[Check]:
    """Compare the served tensors and the answer with those of the same weights on ONNX Runtime."""
    folder = context.bundle / WEIGHTS / model
    kind = json.loads((folder / "about.json").read_text())["weights"]
    with np.load(folder / "golden.npz") as arrays:
        inputs = {name[6:]: arrays[name] for name in arrays.files if name.startswith("input.")}
        golden_outputs = {name[7:]: arrays[name] for name in arrays.files if name.startswith("output.")}
    served = [output.name for output in _config(repository / model).output]
    expected = {name: array for name, array in golden_outputs.items() if name in served}
    if expected:
        outputs = infer(box, model, inputs, list(expected))
        if repository == context.repository:
            save_tensors(context, model, inputs, outputs)
        worst = max(
            _distance(_sample_like(outputs[name], len(array)), array) for name, array in expected.items()
        )
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
    response = box.invoke(model, payload)
    if response.status_code != 200:
        yield Check(name, "failed", f"{response.status_code}: {response.text[:300]}")
    elif kind == "random":
        yield Check(name, "not applicable", "answered 200; the answer of random weights means nothing")
    else:
        mismatches = list(
            differences(response.json()["result"], json.loads((folder / "golden-answer.json").read_bytes()))
        )
        yield Check(
            name,
            "failed" if mismatches else "passed",
            "; ".join(mismatches)[:300] or "equal within the tolerance",
        )


def infer(box: RunningBox, model: str, inputs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Call the box's own Triton."""
    tensors = []
    for name, array in inputs.items():
        tensor = InferInput(name, list(array.shape), datatype(array))
        tensors.append(tensor.set_data_from_numpy(array))
    port = Box.load(box.run_folder()).grpc_port
    with InferenceServerClient(f"127.0.0.1:{port}") as client:
        response = client.infer(model, tensors, outputs=[InferRequestedOutput(name) for name in names])
    return {name: response.as_numpy(name) for name in names}


def save_tensors(context: Context, model: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Save the tensors for the benchmark's callers of the bare Triton."""
    for part, tensors in (("inputs", inputs), ("outputs", outputs)):
        folder = context.files / "box" / part
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{model}.npz", **tensors)


def check_gpu_metrics(context: Context, box: RunningBox) -> Check:
    name = "GPU metrics in /metrics"
    if not context.has_gpu:
        return Check(name, "not applicable", "there is no GPU")
    expected_series = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes")

    def read_metric_lines() -> list[str]:
        text = requests.get(f"{box.url}/metrics", timeout=10).text
        return [line for line in text.splitlines() if line.startswith(expected_series)]

    try:
        metric_lines = wait_until(
            lambda: read_metric_lines() if len(read_metric_lines()) >= len(expected_series) else None,
            15,
            "GPU metrics",
        )
    except AssertionError:
        return Check(name, "failed", f"found {read_metric_lines()}")
    return Check(name, "passed", "; ".join(metric_lines)[:300])


def check_ping_under_load(box: RunningBox, seconds: float) -> Check:
    """Whether every /ping of a busy box is a 200 within the platform's limit."""
    load = Load(box.port, _dispatch_body("resnet"), retry_delay_s=0.2).start(32)
    slowest_s, pings, failures = 0.0, 0, 0
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            start = time.monotonic()
            failures += box.ping()[0] != 200
            slowest_s, pings = max(slowest_s, time.monotonic() - start), pings + 1
            time.sleep(0.1)
    finally:
        load.stop()
    is_good = not failures and slowest_s < PING_LIMIT_S and load.outcomes["200"] > 0
    return Check(
        "/ping under load",
        "passed" if is_good else "failed",
        f"{pings} asked beside 32 callers, {failures} not 200, slowest {slowest_s * 1000:.0f} ms; callers got "
        f"{dict(load.outcomes)}",
    )


def check_killed_process(box: RunningBox) -> Check:
    """Kill the processes of one model. The box must recover and never give a wrong answer."""
    name = "a killed model process"
    payload = json.loads((HERE / "clients" / "resnet" / "sample" / "payload.json").read_bytes())
    expected = box.invoke("resnet", payload).json()["result"]
    killed_pids = [pid for pid in box.pids(STUB_PROGRAM) if "/resnet/" in command_line(pid)]
    if not killed_pids:
        return Check(name, "failed", "no model process was found")
    for pid in killed_pids:
        os.kill(pid, signal.SIGKILL)
    start, statuses = time.monotonic(), []
    while time.monotonic() - start < RECOVERY_S:
        response = box.invoke("resnet", payload)
        statuses.append(response.status_code)
        if response.status_code == 200:
            mismatches = list(differences(response.json()["result"], expected))
            ready = wait_until(lambda: box.ping()[0] == 200, RECOVERY_S, "/ping 200")
            seconds = time.monotonic() - start
            return Check(
                name,
                "passed" if ready and not mismatches else "failed",
                f"{len(killed_pids)} killed; right again after {seconds:.1f} s, statuses until then {statuses[-20:]}",
            )
        time.sleep(0.2)
    return Check(name, "failed", f"no answer in {RECOVERY_S:g} s: {statuses[-20:]}")


def check_memory_growth(context: Context, box: RunningBox, figures: dict[str, Any]) -> Check:
    """Compare the memory of all processes and of the GPU before and after many requests."""
    total = 200 if context.short else 10_000
    bodies = [_dispatch_body(model) for model in ("resnet", "bert_base")]
    # Threads, pools and allocators grow with the first requests.
    _send_requests(box, bodies, max(400, total // 5))
    before, gpu_before = memory([box.process.pid])[0], _gpu_memory_used()
    outcomes = _send_requests(box, bodies, total)
    after, gpu_after = memory([box.process.pid])[0], _gpu_memory_used()
    figures["memory"] = {"before": before, "after": after, "gpu_before": gpu_before, "gpu_after": gpu_after}
    allowed = max(MAX_GROWTH_SHARE * before, MAX_GROWTH_BYTES)
    gpu_allowed = max(MAX_GROWTH_SHARE * gpu_before, MAX_GROWTH_BYTES)
    is_flat = after - before <= allowed and gpu_after - gpu_before <= gpu_allowed
    return Check(
        f"memory flat over {total} requests",
        "passed" if is_flat and set(outcomes) == {"200"} else "failed",
        f"{before / 2**20:.0f} to {after / 2**20:.0f} MiB, GPU {gpu_before / 2**20:.0f} to "
        f"{gpu_after / 2**20:.0f} MiB; {outcomes}",
    )


def instances(context: Context) -> Result:
    """Serve a model with two instances."""
    name, repository = "two instances", context.work / "two"
    (repository / "resnet").mkdir(parents=True, exist_ok=True)
    for path in (context.repository / "resnet").iterdir():
        link = repository / "resnet" / path.name
        if path.name != "config.pbtxt" and not link.exists():
            link.symlink_to(path)
    config = _config(context.repository / "resnet")
    config.instance_group[0].count = 2
    (repository / "resnet" / "config.pbtxt").write_text(text_format.MessageToString(config))
    with start_box(context, repository) as box:
        stubs = len(box.pids(STUB_PROGRAM))
        outcomes = _send_requests(box, [_dispatch_body("resnet")], 40 if context.short else 1000)
        is_good = stubs == 2 and set(outcomes) == {"200"}
        return Result([Check(name, "passed" if is_good else "failed", f"{stubs} processes; {outcomes}")])


def load_limit(context: Context) -> Result:
    """In multi-model mode a load is refused while more of the GPU's memory is used than the limit allows."""
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
        ) as box,
    ):
        body = {"model_name": "resnet", "url": str(context.repository)}
        response = requests.post(f"{box.url}/models", json=body, timeout=60)
        is_good = response.status_code == 507
        return Result(
            [Check(name, "passed" if is_good else "failed", f"{response.status_code}: {response.text[:200]}")]
        )


def cuda_graphs(context: Context) -> Result:
    """Measure ResNet's program with and without CUDA graphs."""
    name = "CUDA graphs"
    if not context.has_gpu:
        return Result([Check(name, "not applicable", "there is no GPU")])
    import torch
    from torch.export.passes import move_to_device_pass

    device = torch.device("cuda", 0)
    path = context.repository / "resnet" / "1" / "model.pt2"
    program = move_to_device_pass(torch.export.load(path), device).module()
    milliseconds = {}
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
            milliseconds[size] = {
                "plain_ms": _mean_ms(functools.partial(program, tensor)),
                "graph_ms": _mean_ms(graph.replay),
            }
    return Result([Check(name, "passed", json.dumps(milliseconds))], milliseconds)


def _mean_ms(call: Any, count: int = 100) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.monotonic()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return round((time.monotonic() - start) / count * 1000, 3)


def _send_requests(box: RunningBox, bodies: list[bytes], total: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for body in bodies:
        load = Load(box.port, body, retry_delay_s=0.1).start(8, total // len(bodies) // 8).join()
        for outcome, count in load.outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts


def _dispatch_body(model: str) -> bytes:
    payload = json.loads((HERE / "clients" / model / "sample" / "payload.json").read_bytes())
    return json.dumps({"modelname": model, "payload": payload}).encode()


def _gpu_memory_used() -> int:
    return sum(int(word) for word in ask_gpu("memory.used").split() if word.isdigit()) * 2**20


def _config(model: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def _sample_like(array: Any, count: int) -> Any:
    return sample_evenly(array)[:count]


def _distance(actual: Any, expected: Any) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    largest = max(1e-6, float(np.abs(expected).max()))
    return float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()) / largest

"""The stages of the command. Each prints its results and appends them to gpu.jsonl at once."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import requests
import torch

from bench import tree
from bench.driver import Load, Request, wrk
from bench.gpu.rows import write_row
from bench.photos import jpeg
from bench.running import free_port, stop
from sm.run_state import Box
from sm.settings import HERE
from tests.support.boxes import RunningBox, command_line, running_box
from tests.support.load import Load as Callers
from tests.support.load import dispatch_body

GIB, MIB = 2**30, 2**20
PACKAGES = (
    "torch",
    "numpy",
    "nvidia-pytriton",
    "tritonclient",
    "fastapi",
    "uvicorn",
    "gunicorn",
    "cuda-bindings",
)
#: The models of a box, and which file and configuration each has.
CLASSIFIER = """backend: "python"
max_batch_size: {batch}
input [ {{ name: "input" data_type: TYPE_UINT8 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" }} ]
instance_group [ {{ kind: KIND_{kind} count: {count} }} ]
{batching}
"""
FAULTY = """backend: "python"
input [ { name: "command" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "answer" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_GPU } ]
"""
MODELS = {
    "resnet": (
        "resnet50.py",
        CLASSIFIER.format(batch=32, kind="GPU", count=1, batching="dynamic_batching { }"),
    ),
    "resnet_two": (
        "resnet50.py",
        CLASSIFIER.format(batch=32, kind="GPU", count=2, batching="dynamic_batching { }"),
    ),
    "resnet_single": ("resnet50.py", CLASSIFIER.format(batch=1, kind="GPU", count=1, batching="")),
    "resnet_cpu": ("resnet50.py", CLASSIFIER.format(batch=1, kind="CPU", count=1, batching="")),
    "faulty": ("faulty.py", FAULTY),
}
PREPROCESSING = {"resize": 256, "crop": 224, "channels": "RGB", "layout": "CHW"}
CLIENT = HERE / "clients" / "resnet"
SMALL_PICTURE = CLIENT / "sample" / "coffee.jpg"
#: Of the largest logit, between fp16 on the GPU and fp32 on the CPU.
ALLOWED_DIFFERENCE = 1e-2
STUB_PROGRAM = "triton_python_backend_stub"
CALLERS = (1, 8, 32, 128)
#: Threads of a router's workers are not its own part: by the words of a command line, the first that matches.
PARTS = {
    "nginx": "nginx",
    "triton": "tritonserver",
    "model": STUB_PROGRAM,
    "workers": "sm.server.worker",
}


@dataclass
class Service:
    """What is measured: a server on a port, its processes, and how it takes a picture."""

    name: str
    root: int
    port: int
    ask: Callable[[bytes, str], Request]
    #: Triton's counts of the model: answers, batches, nanoseconds in the queue and in the model.
    counts: Callable[[], tuple[int, int, int, int]] | None = None


class Stage:
    """One run of a stage. Each method is a stage of its own process."""

    def __init__(self, name: str, work: Path, out: Path, seconds: float, patience: float) -> None:
        self.name, self.work, self.out, self.seconds, self.patience = name, work, out, seconds, patience
        self.has_gpu = torch.cuda.is_available()
        self.picture = SMALL_PICTURE.read_bytes()

    def write(self, row: str, **values: Any) -> None:
        write_row(self.out, self.name, row, **values)

    def attempt(self, row: str, check: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Write what a check finds, or how it failed: then the next one runs."""
        try:
            found = check(*arguments)
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[-1500:]}
        self.write(row, **found)
        return found

    # The machine

    def machine(self) -> None:
        """Describe the machine: what a later reader wants to know of these figures."""
        versions = {}
        for name in PACKAGES:
            with suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        self.write(
            "system",
            date=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            python=sys.version.split()[0],
            packages=versions,
            cuda=torch.version.cuda,
            gpu=self.has_gpu,
            kernel=platform.release(),
            glibc=platform.libc_ver()[1],
            cores=len(os.sched_getaffinity(0)),
            processor=_first(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()),
            memory=_first(r"MemTotal: *(.*)", Path("/proc/meminfo").read_text()),
            shared_memory_gib=round(shutil.disk_usage("/dev/shm").total / GIB, 1),
            files=_run("sh", "-c", "ulimit -n"),
        )
        self.write("nvidia-smi", text=_run("nvidia-smi"))
        if self.has_gpu:
            self.attempt(
                "torch on the GPU",
                lambda: {
                    "device": torch.cuda.get_device_name(),
                    "sum": float(torch.ones(1000, device="cuda").sum()),
                },
            )
        self.attempt("nvml", lambda: {"sample": Sampler().read()})

    # Answers and metrics

    def answers(self) -> None:
        """Start the box; look for the GPU in its processes, its metrics and its answers."""
        with self.box("resnet", "resnet_cpu") as box:
            self.attempt("processes on the GPU", lambda: self.find_processes(box))
            for form in ("json", "raw"):
                self.attempt(f"answers: {form}", self.compare, box, form)
            self.attempt("metrics", lambda: _find_gpu_metrics(box))

    def find_processes(self, box: RunningBox) -> dict[str, Any]:
        """Find which models' processes use the GPU, by the driver."""
        on_gpu = _processes_on_gpu()
        return {
            name: {
                "pids": pids,
                "on_gpu": [pid for pid in pids if pid in on_gpu],
                "bytes": [on_gpu.get(pid) for pid in pids],
            }
            for name in ("resnet", "resnet_cpu")
            if (pids := _stubs(box, name))
        } | {"all_on_gpu": on_gpu}

    def compare(self, box: RunningBox, form: str) -> dict[str, Any]:
        """Compare all scores of the GPU's model with those of the CPU's, through the ResNet client."""
        scores: dict[str, Any] = {}
        for model in ("resnet", "resnet_cpu"):
            request = _ask(model, self.picture, form, top=1000)
            response = requests.post(
                f"{box.url}{request.path}", request.body, headers=dict(request.headers), timeout=60
            )
            response.raise_for_status()
            rows = [row.split(":") for row in response.json()["result"]]
            scores[model] = np.array([float(row[0]) for row in sorted(rows, key=lambda row: int(row[1]))])
            scores[f"{model} best"] = [row[1] for row in rows[:5]]
        largest = float(np.abs(scores["resnet_cpu"]).max())
        difference = float(np.abs(scores["resnet"] - scores["resnet_cpu"]).max()) / largest
        return {
            "scores": len(scores["resnet"]),
            "largest_logit": round(largest, 3),
            "difference": difference,
            "passed": difference <= ALLOWED_DIFFERENCE,
            "best": [scores["resnet best"], scores["resnet_cpu best"]],
        }

    # Memory and faults

    def memory(self) -> None:
        """A model that takes all memory, a killed process, and an error that CUDA keeps. Others must go on."""
        with self.box("resnet", "faulty") as box:
            body = dispatch_body("resnet", {"image": base64.b64encode(self.picture).decode()})
            with Callers(box.port, body).start(4) as others:
                for row, check in (
                    ("healthy", lambda: {"answer": _command(box, 0)}),
                    (
                        "a tensor larger than the memory",
                        lambda: {"answer": _command(box, 1000), "then": _command(box, 0)},
                    ),
                    (
                        "a model takes all memory",
                        lambda: {
                            "answer": _command(box, -1),
                            "one_more_gib": _command(box, 1),
                            "used": _gpu_memory(),
                        },
                    ),
                    ("its process is killed", lambda: self.kill(box)),
                    ("an assertion in a kernel", lambda: self.stick(box)),
                    ("an assertion, and the process ends itself", lambda: self.end_itself(box)),
                ):
                    before = dict(others.outcomes)
                    found = self.attempt(row, check)
                    time.sleep(1)
                    self.write(
                        f"{row}: the others meanwhile",
                        answers={key: count - before.get(key, 0) for key, count in others.outcomes.items()},
                        ping=box.ping(),
                        used=_gpu_memory(),
                        failed="failed" in found,
                    )
                self.write("slowest of the others", seconds=round(others.slowest_s, 3))

    def kill(self, box: RunningBox) -> dict[str, Any]:
        """Kill the process that holds the memory. Returns when the memory was free and the model right again."""
        before, pids, start = _gpu_memory(), _stubs(box, "faulty"), time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        while before - _gpu_memory() < GIB and time.monotonic() - start < 10:
            time.sleep(0.02)
        freed_s = time.monotonic() - start
        return {
            "freed_s": round(freed_s, 2),
            **self.wait_right(box, start),
            "used": [before, _gpu_memory()],
            "pids": [pids, _stubs(box, "faulty")],
        }

    def stick(self, box: RunningBox) -> dict[str, Any]:
        """Let a kernel assert: the process is of no use until somebody ends it, here the kernel's killer."""
        answer = _command(box, -2)
        stuck = self.wait_right(box, time.monotonic(), 5)
        for pid in _stubs(box, "faulty"):
            os.kill(pid, signal.SIGKILL)
        return {"answer": answer, "stuck": stuck, "killed": self.wait_right(box, time.monotonic())}

    def end_itself(self, box: RunningBox) -> dict[str, Any]:
        """The same with a model that ends its process after the error."""
        return {"answer": _command(box, -3), **self.wait_right(box, time.monotonic())}

    def wait_right(self, box: RunningBox, start: float, seconds: float = 30) -> dict[str, Any]:
        """Ask until the model answers rightly. Returns when that was, and the statuses until then."""
        statuses: list[Any] = []
        while time.monotonic() - start < seconds:
            statuses.append(_command(box, 0)[0])
            if statuses[-1] == 200:
                break
            time.sleep(0.2)
        right = bool(statuses) and statuses[-1] == 200
        return {
            "right_again_s": round(time.monotonic() - start, 2) if right else None,
            "statuses": _shorten(statuses),
        }

    # Speed

    def figures(self) -> None:
        """The box and FastAPI in the same minutes: each is idle while the other one is measured."""
        large = jpeg(4032, 3024)
        with (
            self.box("resnet", "resnet_single", "resnet_two", TRIREME_QUEUE="128") as box,
            self.fastapi(len(os.sched_getaffinity(0))) as fastapi,
        ):
            services = [
                self.measured_box(box, "resnet", "box, dynamic batches"),
                fastapi,
                self.measured_box(box, "resnet_single", "box, batch 1"),
                self.measured_box(box, "resnet_two", "box, dynamic batches, 2 instances"),
            ]
            self.write(
                "workers",
                box=len(box.workers()),
                fastapi=len(tree.pids(fastapi.root)),
                large_bytes=len(large),
                small_bytes=len(self.picture),
            )
            samples = (
                ("small raw", self.picture, "raw"),
                ("12 MP raw", large, "raw"),
                ("small json", self.picture, "json"),
            )
            for label, picture, form in samples:
                for callers in CALLERS:
                    for service in services:
                        request = service.ask(picture, form)
                        row = f"{label}, {callers} callers, {service.name}"
                        self.attempt(row, self.measure, service, request, callers)

    def measured_box(self, box: RunningBox, model: str, name: str) -> Service:
        port = Box.load(box.run_folder()).grpc_port
        return Service(
            name,
            box.process.pid,
            box.port,
            lambda picture, form: _ask(model, picture, form),
            lambda: _counts(port, model),
        )

    def measure(self, service: Service, request: Request, callers: int) -> dict[str, Any]:
        """Send for some seconds, after a second of warm-up, and see what GPU and processors do meanwhile."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            self.send(service, request, callers, 1, Path(folder))
            before, counts = _parts(service.root), service.counts() if service.counts else None
            with Sampler() as gpu:
                load = self.send(service, request, callers, self.seconds, Path(folder))
            after = _parts(service.root)
        answers = max(1, load.answers)
        row = {
            "answers_a_second": round(load.rate, 1),
            "p50_ms": round(1000 * load.p50, 2),
            "p99_ms": round(1000 * load.p99, 2),
            "wrong": load.wrong,
            "lost": load.lost,
            "gpu_percent": gpu.mean(),
            "cpu_ms_an_answer": {
                part: round(1000 * (after[part] - before.get(part, 0.0)) / answers, 3) for part in after
            },
            "cores_busy": round((sum(after.values()) - sum(before.values())) / load.seconds, 2),
        }
        if service.counts and counts:
            inferences, batches, queued, computed = (
                now - then for now, then in zip(service.counts(), counts, strict=True)
            )
            row |= {
                "mean_batch": round(inferences / max(1, batches), 2),
                "queue_ms": round(queued / 1e6 / max(1, inferences), 2),
                "model_busy": round(computed / 1e9 / load.seconds, 3),
            }
        return row

    def send(self, service: Service, request: Request, callers: int, seconds: float, folder: Path) -> Load:
        command = wrk(request, service.port, callers, seconds, folder)
        return Load.read(
            subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60).stdout
        )

    # Services

    @contextmanager
    def box(self, *models: str, **variables: str) -> Iterator[RunningBox]:
        """Start a box with these models, and say how long that took."""
        with tempfile.TemporaryDirectory(dir=self.work, ignore_cleanup_errors=True) as folder:
            start = time.monotonic()
            settings = {"TRIREME_CLIENTS": str(self.clients(*models)), **variables}
            with running_box(
                Path(folder), self.repository(*models), wait_until_ready=False, clients=(), **settings
            ) as box:
                try:
                    box.wait_ready(60 * self.patience)
                    self.write("the box is ready", seconds=round(time.monotonic() - start, 1), models=models)
                    yield box
                finally:
                    shutil.copy(box.log, self.work / "logs" / f"box-{self.name}.log")

    @contextmanager
    def fastapi(self, workers: int) -> Iterator[Service]:
        """Start FastAPI on uvicorn. Each worker has the network on the GPU."""
        port = free_port()
        command = (
            sys.executable,
            "-m",
            "uvicorn",
            "--factory",
            "bench.gpu.fastapi_service:create",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        )
        with (self.work / "logs" / f"fastapi-{workers}.log").open("wb") as log:
            process = subprocess.Popen(
                (
                    sys.executable,
                    "-m",
                    "bench.tree",
                    *command,
                    "--workers",
                    str(workers),
                    "--no-access-log",
                    "--log-level",
                    "warning",
                ),
                env={**os.environ, "GPU_MODEL": str(self.repository("resnet") / "resnet")},
                stdout=log,
                stderr=log,
            )
        try:
            until = time.monotonic() + 60 * self.patience
            while time.monotonic() < until:
                with suppress(OSError):
                    if requests.get(f"http://127.0.0.1:{port}/ping", timeout=2).ok:
                        break
                time.sleep(0.2)
            yield Service(f"FastAPI, {workers} workers", process.pid, port, _ask_fastapi)
        finally:
            stop(process)

    def clients(self, *models: str) -> Path:
        """Write the ResNet client for each of the models: its source under another name."""
        folder = self.work / "-".join(("clients", *models))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in models:
            if name.startswith("resnet"):
                shutil.copytree(CLIENT, folder / name)
                text = (CLIENT / "client.py").read_text()
                (folder / name / "client.py").write_text(
                    text.replace('model = "resnet"', f'model = "{name}"')
                )
        return folder

    def repository(self, *models: str) -> Path:
        """Write a model repository."""
        folder = self.work / "-".join(("repository", *models))
        shutil.rmtree(folder, ignore_errors=True)
        for name in models:
            file, config = MODELS[name]
            (folder / name / "1").mkdir(parents=True)
            shutil.copy(Path(__file__).with_name(file), folder / name / "1" / "model.py")
            (folder / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
            if name.startswith("resnet"):
                from bench.gpu.resnet50 import DEVIATION, MEAN

                preprocessing = {**PREPROCESSING, "mean": MEAN, "std": DEVIATION}
                (folder / name / "preprocess.json").write_text(json.dumps(preprocessing))
                (folder / name / "labels.txt").write_text(
                    "".join(f"class {index}\n" for index in range(1000))
                )
        return folder


class Sampler:
    """Reads the GPU's utilisation by NVML ten times a second while its block runs."""

    def __init__(self) -> None:
        self._samples: list[dict[str, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def read(self) -> dict[str, float]:
        import pynvml  # type: ignore[import-not-found]  # in packages.txt

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        return {
            "percent": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "used": used,
            "watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        }

    def _watch(self) -> None:
        with suppress(Exception):  # without a GPU there is nothing to read
            while not self._ended.wait(0.1):
                self._samples.append(self.read())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def mean(self) -> float | None:
        # The driver's figure is of the last part of a second: the first samples are from before.
        samples = self._samples[len(self._samples) // 3 :]
        return round(sum(sample["percent"] for sample in samples) / len(samples), 1) if samples else None


def _ask(model: str, picture: bytes, form: str, **parameters: int) -> Request:
    """Return the box's request with a picture."""
    if form == "raw":
        return Request(
            f"/invocations?{urlencode({'modelname': model, **parameters})}",
            {"Content-Type": "image/jpeg"},
            picture,
            b"class",
        )
    document = {
        "modelname": model,
        "payload": {"image": base64.b64encode(picture).decode()},
        "parameters": parameters,
    }
    return Request(
        "/invocations", {"Content-Type": "application/json"}, json.dumps(document).encode(), b"class"
    )


def _ask_fastapi(picture: bytes, form: str) -> Request:
    if form == "raw":
        return Request("/resnet/raw", {"Content-Type": "image/jpeg"}, picture, b"class")
    return Request(
        "/resnet",
        {"Content-Type": "application/json"},
        json.dumps({"image": base64.b64encode(picture).decode()}).encode(),
        b"class",
    )


def _command(box: RunningBox, command: int) -> tuple[int, str]:
    """Tell the faulty model what to do. Returns the status, and the answer or the start of the error."""
    document = {"inputs": [{"name": "command", "shape": [1], "datatype": "INT32", "data": [command]}]}
    try:
        response = requests.post(f"{box.url}/v2/models/faulty/infer", json=document, timeout=30)
    except requests.RequestException as error:
        return 0, str(error)[:200]
    return response.status_code, str(response.json()["outputs"][0]["data"]) if response.ok else response.text[
        :400
    ]


def _counts(port: int, model: str) -> tuple[int, int, int, int]:
    """Ask Triton for a model's counts."""
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(f"127.0.0.1:{port}") as client:
        statistics = client.get_inference_statistics(model).model_stats[0]
    times = statistics.inference_stats
    batches = sum(batch.compute_infer.ns for batch in statistics.batch_stats)
    return statistics.inference_count, statistics.execution_count, times.queue.ns, batches


def _find_gpu_metrics(box: RunningBox) -> dict[str, Any]:
    """Find the GPU in /metrics and in the dashboard's data."""
    time.sleep(6)  # both are read every few seconds
    series = [line for line in box.scrape().splitlines() if line.startswith("nv_gpu_")]
    data = requests.get(f"{box.url}/dashboard/data", timeout=10).json()
    return {"series": series, "dashboard": {key: value for key, value in data["box"].items() if "gpu" in key}}


def _parts(root: int) -> dict[str, float]:
    """Return the processor seconds of a service's processes, by part."""
    seconds: dict[str, float] = {}
    for pid in tree.pids(root):
        words = command_line(pid)
        part = next((part for part, word in PARTS.items() if word in words), "rest")
        seconds[part] = seconds.get(part, 0.0) + tree.seconds_of(pid)
    return seconds


def _stubs(box: RunningBox, model: str) -> list[int]:
    return [pid for pid in box.pids(STUB_PROGRAM) if f"/{model}/" in command_line(pid)]


def _processes_on_gpu() -> dict[int, Any]:
    """Return the bytes of each process that the driver lists."""
    listing = _run("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    rows = (line.split(", ") for line in listing.splitlines() if ", " in line)
    return {int(pid): used for pid, used in rows if pid.isdigit()}


def _gpu_memory() -> int:
    """Return the bytes in use on the first GPU; 0 without one."""
    with suppress(Exception):
        return int(Sampler().read()["used"])
    return 0


def _shorten(values: list[Any]) -> list[Any]:
    """Return runs of equal values as one: [value, times]."""
    runs: list[list[Any]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs[:12]


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1].strip() if match else ""


def _run(*command: str) -> str:
    """Return what a program prints; empty where there is none."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    return ""

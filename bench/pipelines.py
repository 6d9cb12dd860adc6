"""Three ways to call two models one after the other, in one run on one Triton.

    .venv/bin/python -m bench.pipelines [ROUNDS]

Both models are Python models that hand their input on as it is, so what is timed is the way between them:
an ensemble, a client's two calls from a worker's own transport, a Python model that asks both (BLS). The
ways take turns in each round; a ratio is the median of the rounds' own ratios to the ensemble.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sm.client.base import Array
from sm.settings import Settings
from sm.triton.transport import Transport
from tests.support.tritons import Model, TritonProcess, prepare_triton

TENSOR = ("FP32", [-1])
ASK = """
def ask(model, tensor):
    asked = pb.InferenceRequest(model_name=model, requested_output_names=["y"], inputs=[tensor]).exec()
    if asked.has_error():
        raise pb.TritonModelException(asked.error().message())
    return pb.get_output_tensor_by_name(asked, "y")

between = ask("first", pb.get_input_tensor_by_name(request, "x"))
return {"y": ask("second", pb.Tensor.from_dlpack("x", between.to_dlpack())).as_numpy()}
"""
STEP = Model('return {"y": tensor(request, "x")}', {"x": TENSOR}, {"y": TENSOR}, max_batch_size=8)
MODELS = {
    "first": STEP,
    "second": STEP,
    "bls": Model(ASK, STEP.inputs, STEP.outputs, max_batch_size=8),
}
MAPS = 'input_map {{ key: "x" value: "{}" }} output_map {{ key: "y" value: "{}" }}'
ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: -1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: -1 }}
ensemble_scheduling {{
  step {{ model_name: "first" model_version: -1 {MAPS.format("x", "between")} }}
  step {{ model_name: "second" model_version: -1 {MAPS.format("between", "y")} }}
}}
"""
SIZES = {"1 KB": 256, "4.9 MB": 3 * 640 * 640}
SECONDS = 1.0


@dataclass(frozen=True)
class Ways:
    """The three, each from ``x`` to ``y``."""

    transport: Transport

    def ensemble(self, x: Array) -> Array:
        return self.transport.infer("ensemble", {"x": x})["y"]

    def client(self, x: Array) -> Array:
        between = self.transport.infer("first", {"x": x})["y"]
        return self.transport.infer("second", {"x": between})["y"]

    def bls(self, x: Array) -> Array:
        return self.transport.infer("bls", {"x": x})["y"]


@contextmanager
def serving() -> Iterator[TritonProcess]:
    with tempfile.TemporaryDirectory() as folder:
        started = prepare_triton(Path(folder), [])
        repository = started.box.repository
        for name, model in MODELS.items():
            model.write(repository / name)
        (repository / "ensemble" / "1").mkdir(parents=True)
        (repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
        started.start()
        try:
            yield started
        finally:
            started.stop()


def milliseconds(way: Callable[[Array], Array], x: Array, callers: int) -> float:
    """Return the median milliseconds of an answer, with ``callers`` at once."""
    end = time.perf_counter() + SECONDS

    def call(_: int) -> list[float]:
        seconds = []
        while time.perf_counter() < end:
            began = time.perf_counter()
            way(x)
            seconds.append(time.perf_counter() - began)
        return seconds

    with ThreadPoolExecutor(callers) as pool:
        return 1e3 * statistics.median(
            second for seconds in pool.map(call, range(callers)) for second in seconds
        )


def main(rounds: int) -> None:
    with serving() as triton:
        transport = Transport(Settings.read({}), triton.box)
        ways = Ways(transport)
        named = {"ensemble": ways.ensemble, "client": ways.client, "bls": ways.bls}
        for size, count in SIZES.items():
            x = np.arange(count, dtype=np.float32)[np.newaxis]
            for way in named.values():
                assert np.array_equal(way(x), x)
            for callers in (1, 8):
                results = [
                    {name: milliseconds(way, x, callers) for name, way in named.items()}
                    for _ in range(rounds)
                ]
                for name in named:
                    median_ms = statistics.median(result[name] for result in results)
                    ratio = statistics.median(result[name] / result["ensemble"] for result in results)
                    print(
                        f"{size}, {callers} callers, {name}: {median_ms:.2f} ms, {ratio:.2f} of the ensemble"
                    )
        transport.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)

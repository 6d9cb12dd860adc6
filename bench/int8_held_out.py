"""Compare a model in int8 with its fp32 on inputs that its build did not see, and time both on OpenVINO.

``python -m bench.int8_held_out MODEL REPOSITORY INPUTS``, of what ``sm build-model --precision int8``
made in ``REPOSITORY``. ``ONEDNN_MAX_CPU_ISA=AVX2`` shows a processor without VNNI.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from sm.repository.manifest import Change
from sm.settings import HERE
from trireme_extensions.convert.onnx_cpu.engines import GRAPH, INT8_GRAPH
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build import int8, right_answers, samples
from trireme_tools.build.measure import Input, Measure

#: Runs of each side, in turn, and times in each of them.
TURNS, RUNS = 3, 9


def main(model: str, repository: Path, folder: Path) -> None:
    version = repository / model / "1"
    graph = Graph.read((version / GRAPH).resolve())
    feeds = [feed for _, feed in samples.client_feeds(graph, HERE / "clients" / model, repository, folder)]
    names = {value.name for value in graph.outputs}
    changes: dict[str, Change] = {"objects": "nms", "word_ids": "masks"}
    applied = [change for name, change in changes.items() if name in names]
    measure = Measure(*samples.kinds(graph, applied), has_labels=False)
    sides = [compile_graph(version / name, feeds[0]) for name in (GRAPH, INT8_GRAPH)]
    judged, unequal = list[float](), 0
    for feed in (right_answers.with_low_threshold(folder, feed) for feed in feeds):
        expected, actual = (int8.answer_of(side, feed) for side in sides)
        found = measure.judge(Input(feed, expected), actual)
        judged, unequal = judged + found, unequal + (min(found, default=1) < 1)
    times = [[processor_ms(side, feeds[0]) for side in sides] for _ in range(TURNS)]
    fp32, quantized = np.median(times, 0)
    print(
        f"{model}: {sum(judged):.0f} of {len(judged)} agree, {unequal} of {len(feeds)} inputs differ; "
        f"{fp32:.1f} -> {quantized:.1f} ms ({fp32 / quantized:.2f} x)"
    )


def compile_graph(path: Path, feed: Any) -> Any:
    core = openvino.Core()
    source = core.read_model(str(path.resolve()))
    source.reshape({name: array.shape for name, array in feed.items()})
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(source, "CPU", settings)


def processor_ms(side: Any, feed: Any) -> float:
    times = []
    for _ in range(RUNS):
        before = time.process_time()
        side(dict(feed))
        times.append(1000 * (time.process_time() - before))
    return float(np.median(times))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

"""FastAPI that runs the torch target's programs in its own workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import work
from bench.peers import fastapi_service
from bench.work import Array, Outputs, Run
from sm.repository import models


def create() -> Any:
    """Called once in each worker. As the benchmark's service, with programs instead of graphs."""
    work.runner = load_program
    return fastapi_service.create()


def load_program(graph: Path, threads: int) -> Run:
    """Load the model's program onto the GPU, if there is one."""
    import torch
    from torch.export.passes import move_to_device_pass

    torch.set_num_threads(threads)
    model = Path(os.environ["GPU_PLAIN"]) / graph.parent.name
    config = models.read_config(model / "config.pbtxt")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    program = torch.export.load(model / "1" / "model.pt2")
    module = (move_to_device_pass(program, device) if device.type == "cuda" else program).module()
    inputs, outputs = ([tensor.name for tensor in part] for part in (config.input, config.output))

    def run(feed: Mapping[str, Array]) -> Outputs:
        with torch.inference_mode():
            tensors = [torch.from_numpy(feed[name]).to(device) for name in inputs]
            return {
                name: answer.cpu().numpy() for name, answer in zip(outputs, module(*tensors), strict=True)
            }

    return run

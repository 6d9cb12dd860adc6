"""Build a plan again for the GPU of this box, from the files beside the old plan.

``serve`` starts it as a process if ``TRIREME_BUILD_ENGINES=missing``. It needs no ONNX library: the graph
beside a plan is the one from which the plan was built, with its precision.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sm import hardware
from sm.errors import StartError
from sm.repository import manifest
from sm.repository.manifest import Manifest, Tool
from sm.tensorrt.plan_builder import build_plan
from sm.tensorrt.plans import LOG, PLAN, Plan

GRAPH = "model.onnx"


def rebuild(version: Path, out: Path, timing_cache: Path) -> None:
    """Build a plan again.

    Args:
        version: The version folder of the old plan, with its graph and manifest.
        out: Where to write plan, log and manifest.
        timing_cache: TensorRT's measurements, from earlier builds and for later ones.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    old = Manifest.read(version)
    if old is None or not (version / GRAPH).is_file():
        raise StartError(
            f"{version} has no {GRAPH} and manifest.json to build a plan from: sm build-model "
            f"{version.parent.name} --target tensorrt puts them there."
        )
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    plan = Plan(
        model=version.parent.name,
        graph=version / GRAPH,
        file=out / PLAN,
        log=out / LOG,
        profiles=old.profiles,
        precision=old.precision,
        timing_cache=timing_cache,
        strongly_typed=old.strongly_typed,
    )
    tool = Tool(name="TensorRT", version=build_plan(plan))
    gpus = hardware.gpus()
    old.model_copy(
        update={
            "tool": tool,
            "gpu": manifest.gpu_part(gpus[0]) if gpus else None,
            "seconds": round(time.monotonic() - started, 1),
            "built": manifest.now(),
        }
    ).write(out)


def main(arguments: list[str]) -> int:
    version, out, timing_cache = map(Path, arguments)
    try:
        rebuild(version, out, timing_cache)
    except (StartError, ValueError, OSError) as error:
        print(error)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

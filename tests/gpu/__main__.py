"""Prove this box on a machine with a GPU, with nothing fetched.

    python -m tests.gpu --bundle build/gpu-bundle --out gpu-results

It needs Python 3.12 with torch, onnx, onnxruntime, OpenCV and NumPy, and the folder of ``make gpu-bundle``. It writes
gpu.json and gpu.md. The same command goes on where the last one stopped; so it fits into calls of ten minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.gpu.stages import RESULTS, Context, Results, Stage, run_all, write_result
from tests.gpu.unpacking import unpack

#: Set once the bundle's packages are on the path.
UNPACKED = "TRIREME_GPU_UNPACKED"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.splitlines()[0])
    made.add_argument("--bundle", type=Path, required=True, help="the folder that make gpu-bundle made")
    made.add_argument("--out", type=Path, default=Path("gpu-results"), help="where gpu.json and gpu.md go")
    made.add_argument(
        "--work", type=Path, default=Path("/tmp/trireme-gpu"), help="for what is unpacked and built"
    )
    made.add_argument(
        "--minutes", type=float, default=9.5, help="time of this call; what is left is for the next"
    )
    made.add_argument("--seconds", type=float, default=3.0, help="of each measurement of the benchmark")
    made.add_argument("--short", action="store_true", help="fewer requests: to see that it runs")
    made.add_argument("--precision", choices=("fp16", "fp32"), help="default: fp16 on a GPU, else fp32")
    made.add_argument("--only", nargs="+", metavar="STAGE", help="these stages alone, again if they are done")
    made.add_argument("--stage", help=argparse.SUPPRESS)  # a process of the command's own
    return made


def stages() -> tuple[Stage, ...]:
    from tests.gpu import building, checks, speed

    return (
        Stage("machine", building.machine, 60),
        Stage("graphs", building.graphs, 60, "files/models/bert_base"),
        Stage("programs", building.programs, 500, "plain/bert_base/1/manifest.json"),
        Stage("serving", checks.serving, 400, "files/box/outputs/bert_base.npz"),
        Stage("instances", checks.instances, 120),
        Stage("load-limit", checks.load_limit, 90),
        Stage("cuda-graphs", checks.cuda_graphs, 60),
        Stage("speed-trireme", speed.speed("trireme"), 200),
        Stage("speed-reference", speed.speed("reference"), 200),
        Stage("speed-fastapi", speed.speed("fastapi"), 200),
        Stage("speed-triton", speed.speed("triton"), 120),
        Stage("mix", speed.mix, 200),
        Stage("plans", building.plans, 540),
        Stage("served-plans", checks.served_plans, 240),
    )


def main(words: list[str]) -> int:
    began = time.monotonic()
    options = parser().parse_args(words)
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    bundle, work, out = (path.absolute() for path in (options.bundle, options.work, options.out))
    if not bundle.is_dir():
        print(f"{bundle} is not there: make it with make gpu-bundle", file=sys.stderr)
        return 2
    if UNPACKED not in os.environ:
        os.environ.update(unpack(bundle, work), **{UNPACKED: "1", "TRIREME_CACHE": str(work / "cache")})
        # A fresh start, so that each import sees the bundle's packages.
        os.execv(sys.executable, [sys.executable, "-m", "tests.gpu", *words])
    import torch

    has_gpu = torch.cuda.is_available()
    precision = options.precision or ("fp16" if has_gpu else "fp32")
    context = Context(bundle, work, out, options.short, options.seconds, precision, has_gpu)
    every = stages()
    if options.stage:
        stage = next(stage for stage in every if stage.name == options.stage)
        write_result(stage.name, stage.run(context), work)
        return 0
    return run(every, options, context, words, began)


def run(
    every: tuple[Stage, ...], options: argparse.Namespace, context: Context, words: list[str], began: float
) -> int:
    unknown = set(options.only or ()) - {stage.name for stage in every}
    if unknown:
        print(
            f"no stage {min(unknown)}; there are {', '.join(stage.name for stage in every)}", file=sys.stderr
        )
        return 2
    results = Results(context.out / RESULTS)
    chosen = [stage for stage in every if not options.only or stage.name in options.only]
    if options.only:
        for stage in chosen:
            results.stages.pop(stage.name, None)
    whole = run_all(chosen, results, context.work, words, began + options.minutes * 60)
    outcomes = [check["outcome"] for check in results.checks]
    print(
        f"{outcomes.count('passed')} passed, {outcomes.count('failed')} failed, "
        f"{outcomes.count('not applicable')} not applicable; {'done' if whole else 'not done'}: {context.out}"
    )
    return 0 if whole and "failed" not in outcomes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

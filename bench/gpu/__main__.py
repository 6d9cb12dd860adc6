"""Check and measure this box on a machine with a GPU, without downloads.

    python -m bench.gpu --bundle build/gpu-bundle --out gpu-results

It needs Python 3.12 with torch, onnx, onnxruntime, OpenCV and NumPy, and the folder of ``make gpu-bundle``. It writes
gpu.json and gpu.md. Run again, it continues where the last run stopped, so that it fits into calls of ten minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from bench.gpu.stages import RESULTS, Context, Results, Stage, run_all, write_result
from bench.gpu.unpacking import unpack

#: Set once the bundle's packages are on the path.
UNPACKED = "TRIREME_GPU_UNPACKED"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="the folder that make gpu-bundle made")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="where gpu.json and gpu.md go")
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/trireme-gpu"), help="folder for unpacked and built files"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="time for this run; the next run does the rest"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="length of each measurement of the benchmark"
    )
    parser.add_argument("--short", action="store_true", help="fewer requests, to see that the command works")
    parser.add_argument("--precision", choices=("fp16", "fp32"), help="default: fp16 on a GPU, else fp32")
    parser.add_argument(
        "--only", nargs="+", metavar="STAGE", help="run these stages only, even if they are done"
    )
    parser.add_argument("--stage", help=argparse.SUPPRESS)  # for the process of one stage
    return parser


def stages() -> tuple[Stage, ...]:
    from bench.gpu import building, checks, speed

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


def main(arguments: list[str]) -> int:
    start = time.monotonic()
    options = make_parser().parse_args(arguments)
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    bundle, work, out = (path.absolute() for path in (options.bundle, options.work, options.out))
    if not bundle.is_dir():
        print(f"{bundle} is not there: make it with make gpu-bundle", file=sys.stderr)
        return 2
    if UNPACKED not in os.environ:
        os.environ.update(unpack(bundle, work), **{UNPACKED: "1", "TRIREME_CACHE": str(work / "cache")})
        # Start again, so that every import finds the bundle's packages.
        os.execv(sys.executable, [sys.executable, "-m", "bench.gpu", *arguments])
    import torch

    has_gpu = torch.cuda.is_available()
    precision = options.precision or ("fp16" if has_gpu else "fp32")
    context = Context(bundle, work, out, options.short, options.seconds, precision, has_gpu)
    all_stages = stages()
    if options.stage:
        stage = next(stage for stage in all_stages if stage.name == options.stage)
        write_result(stage.name, stage.run(context), work)
        return 0
    return run(all_stages, options, context, arguments, start)


def run(
    all_stages: tuple[Stage, ...],
    options: argparse.Namespace,
    context: Context,
    arguments: list[str],
    start: float,
) -> int:
    unknown = set(options.only or ()) - {stage.name for stage in all_stages}
    if unknown:
        print(
            f"no stage {min(unknown)}; there are {', '.join(stage.name for stage in all_stages)}",
            file=sys.stderr,
        )
        return 2
    results = Results(context.out / RESULTS)
    chosen = [stage for stage in all_stages if not options.only or stage.name in options.only]
    if options.only:
        for stage in chosen:
            results.stages.pop(stage.name, None)
    is_complete = run_all(chosen, results, context.work, arguments, start + options.minutes * 60)
    outcomes = [check["outcome"] for check in results.checks]
    print(
        f"{outcomes.count('passed')} passed, {outcomes.count('failed')} failed, "
        f"{outcomes.count('not applicable')} not applicable; {'done' if is_complete else 'not done'}: {context.out}"
    )
    return 0 if is_complete and "failed" not in outcomes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

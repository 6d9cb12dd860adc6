"""``sm``: the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sm import settings as variables
from sm.errors import StartError
from sm.settings import Settings
from sm.tools import new_key as api_keys
from sm.tools.check import check_client as checking
from sm.tools.cost import cost_arguments as cost_options
from sm.tools.deploy import deploy_arguments as deploying
from sm.tools.environments import pack_env_arguments as environments
from sm.tools.invoke import invoke_arguments as invoking
from sm.tools.package import package_arguments as packaging
from sm.tools.scaffold import new_client as scaffolding
from sm.tools.templates import template_arguments as templates


def show_settings(options: argparse.Namespace) -> int:
    """Every variable with its value and where that came from."""
    rows = variables.table({} if options.markdown else os.environ)
    if options.markdown:
        print(*variables.markdown(rows), sep="\n")
        return 0
    width = max(len(row["name"].split()[0]) for row in rows)
    for row in rows:
        first, *others = row["name"].split()
        source = "(default)" if row["source"] == "default" else f"(environment: {row['source']})"
        also = f" Also: {', '.join(others)}." if others else ""
        print(f"{first:<{width}}  {row['value'] or '-':<24} {source}")
        print(f"{'':<{width}}  {row['help']}{also}")
    return 0


def prepare(options: argparse.Namespace) -> int:
    """Fetch the demo's weights, convert them, build the CPU repository."""
    # Set-up's own modules are not loaded by the other commands.
    from sm.tools.build import system_packages
    from sm.tools.build.prepare import prepare as build
    from sm.tools.progress import Progress

    system_packages.provide(Progress(sys.stderr))
    settings = Settings.read(os.environ)
    if options.examples:
        from sm.tools.build import example_repositories

        example_repositories.prepare(settings)
    else:
        build(settings, options.models or None)
    return 0


def build_model(options: argparse.Namespace) -> int:
    """Build a model for one target, from its recipe or an ONNX file, into a model repository."""
    from sm.cache import Cache
    from sm.tools.build.build_request import BuildRequest
    from sm.tools.build.changes import OPTIONS, Changes
    from sm.tools.build.changes import options as words
    from sm.tools.build.exporting import is_torch
    from sm.tools.build.model_builder import ModelBuilder, default_out
    from sm.tools.progress import Progress

    folder, target = variables.HERE / "model" / options.name, options.target
    files = [folder / OPTIONS, *([folder / "tensorrt.options"] if target == "tensorrt" else [])]
    usual = [word for file in files for word in words(file)]
    if usual:
        # Before the words of the command line, which win.
        options = parser().parse_args(["build-model", *usual, *sys.argv[2:]])
    settings = Settings.read(os.environ)
    out = (options.out or default_out(settings.cache, options.target)).absolute()
    source = Path(options.source) if options.source and not is_torch(options.source) else options.source
    wanted = BuildRequest(
        model=options.name,
        target=options.target,
        out=out,
        source=source,
        batch=options.batch,
        precision=options.precision,
        # No plan has an output whose size depends on what is in the inputs.
        changes=Changes(options.uint8, options.nms, options.masks and target != "tensorrt"),
        shapes=dict(options.shapes),
        workspace=options.workspace,
        timing_cache=options.timing_cache,
        calibration=options.calibration,
        strongly_typed=options.strongly_typed,
    )
    progress = Progress(sys.stderr)
    progress.say(
        f"built {ModelBuilder(Cache(settings.cache), variables.HERE / 'model', progress).build(wanted)}"
    )
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Show what a model repository holds, and every problem that a start would meet."""
    from sm.tools.inspect import inspection_report, svg

    found = inspection_report.report(options.repository)
    if options.json:
        print(json.dumps(found, indent=2))
        return int(bool(found["problems"]))
    if options.graph:
        svg.save(options.repository, options.graph)
    elif found["models"]:
        print(*inspection_report.table(found["models"]), sep="\n")
    for sentence in found["warnings"]:
        print(f"warning: {sentence}", file=sys.stderr)
    for sentence in found["problems"]:
        print(f"problem: {sentence}", file=sys.stderr)
    return int(bool(found["problems"]))


def package(options: argparse.Namespace) -> int:
    """Pack a model repository for S3: one archive, or one for each model."""
    from sm.tools.package import package_command as command

    return command.run(options)


def new_client(options: argparse.Namespace) -> int:
    """Write what a client begins with, and an identity model that it passes check-client with."""
    return scaffolding.run(options)


def check_client(options: argparse.Namespace) -> int:
    """The contract test of a client: golden answer, bad payloads, threads, memory, time per stage."""
    return checking.run(options)


def pack_env(options: argparse.Namespace) -> int:
    """Make an environment of its own for a Python model."""
    from sm.tools.environments import pack_env as command

    return command.run(options)


def invoke(options: argparse.Namespace) -> int:
    """Ask an endpoint, a URL or the local box, once or many times."""
    from sm.tools.invoke import invoke_command as command

    return command.run(options)


def cost(options: argparse.Namespace) -> int:
    """What models cost a month: each on its own endpoint, and all on one."""
    from sm.tools.cost import cost_command as command

    return command.run(options)


def template(options: argparse.Namespace) -> int:
    """Print a deployment as CloudFormation, Terraform or a KServe InferenceService."""
    from sm.tools.templates import template_commands as command

    return command.template(options)


def iam(options: argparse.Namespace) -> int:
    """Print the least policies that a deployment, or the gateway, needs."""
    from sm.tools.templates import template_commands as command

    return command.iam(options)


def new_key(options: argparse.Namespace) -> int:
    """Make an API key for callers of the box: the key is shown once, the box keeps a hash."""
    return api_keys.run(options)


def test(options: argparse.Namespace) -> int:
    """Send each client's sample to a box and compare with its golden answer."""
    from sm.tools import selftest

    return selftest.run(Settings.read(os.environ), options.url)


def serve(options: argparse.Namespace) -> int:
    """Start the box."""
    from sm.server.supervisor.start import main as start

    return start([f"--{word}" for word in ("demo", "examples", "reload") if getattr(options, word)])


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="sm", description="Trireme's command line.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    named: dict[str, Callable[[argparse.Namespace], int]] = {
        "settings": show_settings,
        "prepare": prepare,
        "build-model": build_model,
        "inspect": inspect,
        "package": package,
        "pack-env": pack_env,
        "new-client": new_client,
        "check-client": check_client,
        "invoke": invoke,
        "cost": cost,
        "template": template,
        "iam": iam,
        "new-key": new_key,
        "test": test,
        "serve": serve,
        **deploying.COMMANDS,
    }
    taken: dict[str, Callable[[argparse.ArgumentParser], None]] = {
        "settings": showing,
        "prepare": preparing,
        "build-model": building,
        "inspect": inspecting,
        "package": packaging.take,
        "pack-env": environments.take,
        "new-client": scaffolding.options,
        "check-client": checking.options,
        "invoke": invoking.take,
        "cost": cost_options.take,
        "template": templates.template,
        "iam": templates.iam,
        "new-key": api_keys.options,
        "test": testing,
        "serve": serving,
        **deploying.TAKEN,
    }
    for name, run in named.items():
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        taken[name](command)
    return top


def showing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--markdown", action="store_true", help="the table of docs/run/settings.md")


def preparing(command: argparse.ArgumentParser) -> None:
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these (all of model/ if none)")
    command.add_argument("--examples", action="store_true", help="all of them, and the examples")


def inspecting(command: argparse.ArgumentParser) -> None:
    command.add_argument("repository", type=Path, metavar="REPO", help="Triton's model repository")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument(
        "--graph", nargs="?", const="-", metavar="FILE.svg", help="draw its ensembles (to standard output)"
    )


def testing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", help="a box that runs; else one is started for as long as it takes")


def serving(command: argparse.ArgumentParser) -> None:
    command.add_argument("--demo", action="store_true", help="serve the demo's models")
    command.add_argument("--examples", action="store_true", help="serve these and the examples")
    command.add_argument(
        "--reload", action="store_true", help="development: a client that is edited is live at once"
    )


#: What a build may change in a graph.
CHANGES = {
    "uint8": "the input is a picture's bytes; what preprocess.json does with them goes into the graph",
    "nms": "YOLOv5: boxes are suppressed in the graph, which gives objects instead of all rows",
    "masks": "a masked language model gives the best words of its masks alone (not on tensorrt)",
}


def building(command: argparse.ArgumentParser) -> None:
    """What build-model takes."""
    command.add_argument(
        "name", metavar="NAME", help="the model's name, a folder of model/ if it has a recipe"
    )
    command.add_argument("--target", choices=("cpu", "onnxruntime", "tensorrt"), default="cpu")
    command.add_argument("--batch", type=ordered("batch"), metavar="MIN:OPT:MAX", help="batch sizes")
    command.add_argument(
        "--shapes",
        type=ordered("shapes"),
        action="append",
        default=[],
        metavar="INPUT=MIN,OPT,MAX",
        help="an input's shapes, such as input_ids=1x128,16x128,128x128; once for each input that needs it",
    )
    command.add_argument("--precision", choices=("fp32", "fp16", "bf16", "int8"), default="fp32")
    for change, said in CHANGES.items():
        command.add_argument(f"--{change}", action=argparse.BooleanOptionalAction, default=False, help=said)
    command.add_argument("--calibration", type=Path, metavar="FOLDER", help="typical inputs, for int8")
    command.add_argument("--workspace", type=int, metavar="MIB", help="what TensorRT may use while building")
    command.add_argument("--timing-cache", type=Path, metavar="FILE", help="measurements to use and to keep")
    command.add_argument(
        "--strongly-typed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take types from the graph, as TensorRT 11 always does; else TensorRT 10 picks them",
    )
    command.add_argument(
        "--source",
        metavar="FILE|PACKAGE|HUB-ID",
        help="an ONNX file, torchvision:NAME, or a transformers hub id or folder (default: its recipe)",
    )
    command.add_argument("--out", type=Path, metavar="REPO", help="the model repository to build into")


def ordered(reader: str) -> Callable[[str], Any]:
    """A reader of :mod:`sm.tools.build.build_request`, loaded with its option: PID 1 must not load ONNX."""

    def read(text: str) -> Any:
        from sm.tools.build import build_request

        return getattr(build_request, reader)(text)

    read.__name__ = reader  # argparse's complaint names it
    return read


def main() -> int:
    options = parser().parse_args()
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except StartError as error:
        print(f"sm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who read it, head for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())

"""``sm``: the command line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sm import NO_TELEMETRY, __version__
from sm.errors import StartError


class Command(NamedTuple):
    """A command of ``sm``. Its two functions are ``module:function``, and imported when it is called."""

    help: str
    #: Adds its arguments to a parser.
    arguments: str
    #: Takes the parsed arguments and returns the exit status.
    run: str

    @property
    def is_shipped(self) -> bool:
        """True if the command's code is installed: the image has only the code that a container needs."""
        modules = (path.partition(":")[0].split(".")[1:] for path in (self.arguments, self.run))
        return all(Path(__file__).parent.joinpath(*names).with_suffix(".py").is_file() for names in modules)


#: The name of the package on the index. ``trireme`` there is another project.
DISTRIBUTION = "trireme-serving"
#: The extra that installs a module which only some commands need.
EXTRAS = {"boto3": "deploy", "matplotlib": "tune", "onnx": "cpu", "onnxruntime": "cpu"}

#: Every command of ``sm``, in the order of its help.
COMMANDS = {
    "settings": Command(
        "Show every setting, its value and the source of the value.",
        "sm.tools.show_settings:add_arguments",
        "sm.tools.show_settings:run",
    ),
    "prepare": Command(
        "Fetch the demo's weights, convert them and build the model repository for the CPU.",
        "sm.tools.build.prepare_command:add_arguments",
        "sm.tools.build.prepare_command:run",
    ),
    "demo": Command(
        "Set up everything and serve the demo's models: 'sm prepare', then 'sm serve --demo'.",
        "sm.tools.build.demo_command:add_arguments",
        "sm.tools.build.demo_command:run",
    ),
    "build-model": Command(
        "Build a model for one target, from its recipe or an ONNX file, into a model repository.",
        "sm.tools.build.build_arguments:add_arguments",
        "sm.tools.build.build_command:run",
    ),
    "clean": Command(
        "Show what the cache of downloads and built models holds, and free it.",
        "sm.tools.clean_cache:add_arguments",
        "sm.tools.clean_cache:run",
    ),
    "inspect": Command(
        "Show the contents of a model repository and every problem that would stop a start.",
        "sm.tools.inspect.inspect_arguments:add_arguments",
        "sm.tools.inspect.inspect_command:run",
    ),
    "package": Command(
        "Pack a model repository for S3: one archive, or one archive per model.",
        "sm.tools.package.package_arguments:add_arguments",
        "sm.tools.package.package_command:run",
    ),
    "pack-env": Command(
        "Build a Python environment for one Python model.",
        "sm.tools.environments.pack_env_arguments:add_arguments",
        "sm.tools.environments.pack_env:run",
    ),
    "new-client": Command(
        "Write the files of a new client, and an identity model with which it passes check-client.",
        "sm.tools.scaffold.new_client:add_arguments",
        "sm.tools.scaffold.new_client:run",
    ),
    "check-client": Command(
        "Test a client: golden answer, bad payloads, threads, memory, and time per stage.",
        "sm.tools.check.check_client:add_arguments",
        "sm.tools.check.check_client:run",
    ),
    "invoke": Command(
        "Send requests to an endpoint, a URL or the local box, once or many times.",
        "sm.tools.invoke.invoke_arguments:add_arguments",
        "sm.tools.invoke.invoke_command:run",
    ),
    "top": Command(
        "Show a running box: its models, rates, times, queues, processes and memory.",
        "sm.tools.top.top_arguments:add_arguments",
        "sm.tools.top.top_command:run",
    ),
    "tune": Command(
        "Find a model's best instance count and dynamic batching by measuring them on this machine.",
        "sm.tools.tune.tune_arguments:add_arguments",
        "sm.tools.tune.tune_command:run",
    ),
    "cost": Command(
        "Show the monthly cost of models: each on its own endpoint, and all on one.",
        "sm.tools.cost.cost_arguments:add_arguments",
        "sm.tools.cost.cost_command:run",
    ),
    "template": Command(
        "Print a deployment for CloudFormation, Terraform, Kubernetes, Helm or KServe.",
        "sm.tools.templates.template_arguments:add_template_arguments",
        "sm.tools.templates.template_commands:template",
    ),
    "iam": Command(
        "Print the smallest IAM policies that a deployment or the gateway needs.",
        "sm.tools.templates.template_arguments:add_iam_arguments",
        "sm.tools.templates.template_commands:iam",
    ),
    "new-key": Command(
        "Create an API key for callers of the box. The key is shown once; the box keeps a hash.",
        "sm.tools.new_key:add_arguments",
        "sm.tools.new_key:run",
    ),
    "test": Command(
        "Send each client's sample to a box and compare the answer with the golden one.",
        "sm.tools.selftest:add_arguments",
        "sm.tools.selftest:main",
    ),
    "serve": Command("Start the box.", "sm.cli:add_serve_arguments", "sm.cli:serve"),
    "drain": Command(
        "Let callers leave the box here before it is stopped: /ping is 503, connections are closed.",
        "sm.tools.drain:add_arguments",
        "sm.tools.drain:run",
    ),
    "deploy": Command(
        "Create or update a SageMaker endpoint, and compare its answers with the golden ones.",
        "sm.tools.deploy.deploy_arguments:add_deploy_arguments",
        "sm.tools.deploy.deploy_commands:deploy",
    ),
    "status": Command(
        "Show a SageMaker endpoint: its configuration, its models and its state.",
        "sm.tools.deploy.deploy_arguments:add_status_arguments",
        "sm.tools.deploy.deploy_commands:show_status",
    ),
    "logs": Command(
        "Show the log of a SageMaker endpoint's containers, or with --local of a box here, and filter it.",
        "sm.tools.logs.logs_arguments:add_logs_arguments",
        "sm.tools.logs.logs_command:show_logs",
    ),
    "delete": Command(
        "Delete a SageMaker endpoint and everything that was created for it.",
        "sm.tools.deploy.deploy_arguments:add_delete_arguments",
        "sm.tools.deploy.deploy_commands:delete",
    ),
    "images": Command(
        "List AWS's prebuilt Triton images by Region.",
        "sm.tools.deploy.deploy_arguments:add_images_arguments",
        "sm.tools.deploy.deploy_commands:show_images",
    ),
}


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser. Only the command that ``arguments`` names adds its options and is imported."""
    absent = [name for name, command in COMMANDS.items() if not command.is_shipped]
    root = argparse.ArgumentParser(
        prog="sm",
        description="Trireme's command line.",
        epilog=f"Not in this image: {', '.join(absent)}. {DEVELOPER_MACHINE}" if absent else None,
    )
    root.add_argument("--version", action="version", version=f"{DISTRIBUTION} {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if name in absent:
            continue
        command_parser = commands.add_parser(name, help=command.help, description=command.help)
        if arguments and name == arguments[0]:
            load(command.arguments)(command_parser)
            command_parser.set_defaults(run=load(command.run))
    return root


#: Where to run a command that the image does not have.
DEVELOPER_MACHINE = (
    f"Run it on a developer's machine: 'pipx install {DISTRIBUTION}' installs it, and so does 'make serve' "
    "in a checkout."
)


def load(path: str) -> Any:
    """Import the function that ``module:function`` names."""
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for both installers."""
    package = f"'{DISTRIBUTION}[{extra}]'"
    return f"pip install {package}, or: pipx install --force {package}"


def add_serve_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--demo", action="store_true", help="serve the demo's models")
    command.add_argument("--examples", action="store_true", help="serve the demo's models and the examples")
    command.add_argument(
        "--reload", action="store_true", help="development: load clients again when you edit them"
    )


def serve(options: argparse.Namespace) -> int:
    from sm.server.supervisor.start import main as start

    return start([f"--{flag}" for flag in ("demo", "examples", "reload") if getattr(options, flag)])


def main() -> int:
    arguments = sys.argv[1:]
    os.environ.update({**NO_TELEMETRY, **os.environ})
    try:
        if arguments and arguments[0] in COMMANDS and not COMMANDS[arguments[0]].is_shipped:
            raise StartError(f"'sm {arguments[0]}' is not in this image. {DEVELOPER_MACHINE}")
        options = parser(arguments).parse_args(arguments)
        status: int = options.run(options)
        return status
    except StartError as error:
        sys.stderr.write(f"sm: {error}\n")
        return 1
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        sys.stderr.write(f"sm: 'sm {arguments[0]}' needs {error.name}: {install_command(extra)}.\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())

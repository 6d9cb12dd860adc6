"""``sm``: the command line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill, wrap
from typing import Any, NamedTuple, NoReturn

from sm import NO_TELEMETRY, __version__
from sm.errors import StartError


class Command(NamedTuple):
    """A command of ``sm``. Its two functions are ``module:function``, and imported when it is called."""

    help: str
    #: Adds its arguments to a parser.
    arguments: str
    #: Takes the parsed arguments and returns the exit status.
    run: str
    #: What follows ``sm`` in two typical calls.
    examples: tuple[str, str]
    #: The command that does the same, for an old name.
    same_as: str = ""
    #: A function that it calls besides; empty for none.
    needs: str = ""

    @property
    def is_shipped(self) -> bool:
        """True if the command's code is installed: the image has only the code that a container needs."""
        paths = filter(None, (self.arguments, self.run, self.needs))
        modules = (path.partition(":")[0].split(".")[1:] for path in paths)
        return all(Path(__file__).parent.joinpath(*names).with_suffix(".py").is_file() for names in modules)


#: The name of the package on the index. ``trireme`` there is another project.
DISTRIBUTION = "trireme-serving"
#: The extra that installs a module which only some commands need.
EXTRAS = {"boto3": "deploy", "botocore": "deploy", "matplotlib": "tune", "onnx": "cpu", "onnxruntime": "cpu"}

#: An image in the examples.
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:1"
#: Every command of ``sm``, in groups and in the order of the help.
GROUPS = {
    "Build models and clients": {
        "build-model": Command(
            "Build a model for one target, from its recipe or an ONNX file, into a model repository.",
            "sm.tools.build.build_arguments:add_arguments",
            "sm.tools.build.build_command:run",
            ("build-model pets --source pets.onnx --out model", "build-model resnet --target onnxruntime"),
        ),
        "new-client": Command(
            "Write the files of a new client: for the model in model/NAME, or with an identity model.",
            "sm.tools.scaffold.new_client:add_arguments",
            "sm.tools.scaffold.new_client:run",
            ("new-client pets", "new-client review --kind text"),
        ),
        "pack-env": Command(
            "Build a Python environment for one Python model.",
            "sm.tools.environments.pack_env_arguments:add_arguments",
            "sm.tools.environments.pack_env:run",
            (
                "pack-env sentiment --requirements requirements.txt",
                "pack-env sentiment --conda environment.yml -o model/sentiment/env.tar.gz",
            ),
        ),
        "package": Command(
            "Pack a model repository for S3: one archive, or one archive per model.",
            "sm.tools.package.package_arguments:add_arguments",
            "sm.tools.package.package_command:run",
            ("package model --clients clients", "package model --mme --out archives"),
        ),
        "clean": Command(
            "Show what the cache of downloads and built models holds, and free it.",
            "sm.tools.clean_cache:add_arguments",
            "sm.tools.clean_cache:run",
            ("clean", "clean --all"),
        ),
    },
    "Check them": {
        "inspect": Command(
            "Show the contents of a model repository and every problem that would stop a start.",
            "sm.tools.inspect.inspect_arguments:add_arguments",
            "sm.tools.inspect.inspect_command:run",
            ("inspect model", "inspect model --graph pipeline.mmd"),
        ),
        "check-client": Command(
            "Test a client: golden answer, bad payloads, threads, memory, and time per stage.",
            "sm.tools.check.check_client:add_arguments",
            "sm.tools.check.check_client:run",
            ("check-client pets", "check-client --all --url http://localhost:8080"),
        ),
        "test": Command(
            "Send each client's sample to a box and compare the answer with the golden one.",
            "sm.tools.selftest:add_arguments",
            "sm.tools.selftest:main",
            ("test", "test --url http://localhost:8080"),
            same_as="check-client --all",
        ),
        "invoke": Command(
            "Send requests to an endpoint, a URL or the local box, once or many times.",
            "sm.tools.invoke.invoke_arguments:add_arguments",
            "sm.tools.invoke.invoke_command:run",
            (
                "invoke --model resnet --image cat.jpg",
                "invoke my-endpoint --json request.json -n 100 -c 8",
            ),
        ),
        "tune": Command(
            "Find a model's best instance count and dynamic batching by measuring them on this machine.",
            "sm.tools.tune.tune_arguments:add_arguments",
            "sm.tools.tune.tune_command:run",
            ("tune resnet --p99 200ms", "tune resnet --from tune-resnet/sweep.json --apply"),
        ),
    },
    "Run a box": {
        "serve": Command(
            "Start the box; with --demo or --examples, set up what is missing first.",
            "sm.cli:add_serve_arguments",
            "sm.cli:serve",
            ("serve", "serve --demo --reload"),
        ),
        "drain": Command(
            "Let callers leave the box here before it is stopped: /ping is 503, connections are closed.",
            "sm.tools.drain:add_arguments",
            "sm.tools.drain:run",
            ("drain --seconds 5", "drain --pid 1"),
        ),
        "demo": Command(
            "Set up everything and serve the demo's models.",
            "sm.cli:add_demo_arguments",
            "sm.cli:serve",
            ("demo", "demo --examples"),
            same_as="serve --demo",
            needs="sm.tools.build.prepare_command:set_up",
        ),
        "prepare": Command(
            "Fetch the demo's weights, convert them and build the model repository for the CPU.",
            "sm.tools.build.prepare_command:add_arguments",
            "sm.tools.build.prepare_command:run",
            ("prepare resnet", "prepare --triton"),
            same_as="serve --prepare",
        ),
        "top": Command(
            "Show a running box: its models, rates, times, queues, processes and memory.",
            "sm.tools.top.top_arguments:add_arguments",
            "sm.tools.top.top_command:run",
            ("top", "top --url http://localhost:8080 --json"),
        ),
        "logs": Command(
            "Show and filter the log of a SageMaker endpoint's containers, or with --local of a box here.",
            "sm.tools.logs.logs_arguments:add_logs_arguments",
            "sm.tools.logs.logs_command:show_logs",
            ("logs --local --status 5xx", "logs pets -f"),
        ),
        "settings": Command(
            "Show every setting, its value and the source of the value.",
            "sm.tools.show_settings:add_arguments",
            "sm.tools.show_settings:run",
            ("settings", "settings --markdown"),
        ),
        "new-key": Command(
            "Create an API key for callers of the box. The key is shown once; the box keeps a hash.",
            "sm.tools.new_key:add_arguments",
            "sm.tools.new_key:run",
            ("new-key shop --file keys.txt", "new-key shop --rate 5"),
        ),
    },
    "Deploy": {
        "deploy": Command(
            "Create or update a SageMaker endpoint, and compare its answers with the golden ones.",
            "sm.tools.deploy.deploy_arguments:add_deploy_arguments",
            "sm.tools.deploy.deploy_commands:deploy",
            (
                f"deploy pets --image {IMAGE} --model-data model",
                "deploy pets --rollback",
            ),
        ),
        "status": Command(
            "Show a SageMaker endpoint: its configuration, its models and its state.",
            "sm.tools.deploy.deploy_arguments:add_status_arguments",
            "sm.tools.deploy.deploy_commands:show_status",
            ("status pets", "status pets --region eu-west-1"),
        ),
        "delete": Command(
            "Delete a SageMaker endpoint and everything that was created for it.",
            "sm.tools.deploy.deploy_arguments:add_delete_arguments",
            "sm.tools.deploy.deploy_commands:delete",
            ("delete pets", "delete pets --yes"),
        ),
        "template": Command(
            "Print a deployment for CloudFormation, Terraform, Kubernetes, Helm or KServe.",
            "sm.tools.templates.template_arguments:add_template_arguments",
            "sm.tools.templates.template_commands:template",
            (
                "template pets --format kubernetes --image registry.example/pets:1",
                f"template pets --image {IMAGE} --model-data s3://models/pets.tar.gz",
            ),
        ),
        "iam": Command(
            "Print the smallest IAM policies that a deployment or the gateway needs.",
            "sm.tools.templates.template_arguments:add_iam_arguments",
            "sm.tools.templates.template_commands:iam",
            (
                "iam pets",
                f"iam pets --image {IMAGE} --model-data model",
            ),
        ),
        "images": Command(
            "List AWS's prebuilt Triton images by Region.",
            "sm.tools.deploy.deploy_arguments:add_images_arguments",
            "sm.tools.deploy.triton_images:show_images",
            ("images", "images --region eu-west-1"),
        ),
        "cost": Command(
            "Show the monthly cost of models: each on its own endpoint, and all on one.",
            "sm.tools.cost.cost_arguments:add_arguments",
            "sm.tools.cost.cost_command:run",
            ("cost", "cost --plan plan.json --live"),
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about an unknown option names the one that was probably meant."""

    def suggest(self, unknown: Sequence[str]) -> NoReturn:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0], options)}")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a question that names the choice that is most like ``word``; empty if none is."""
    similar = get_close_matches(word.partition("=")[0], choices, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser. Only the command that ``arguments`` names adds its options."""
    root = Parser(
        prog="sm",
        usage="sm COMMAND [ARGUMENT ...]",
        description="Trireme's command line.",
        epilog="\n".join(overview()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"{DISTRIBUTION} {__version__}")
    commands = root.add_subparsers(prog="sm", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, command in COMMANDS.items():
        if command.is_shipped and arguments and name == arguments[0]:
            same = f"\n\nThe same as 'sm {command.same_as}'." if command.same_as else ""
            examples = "".join(f"\n  sm {example}" for example in command.examples)
            command_parser = commands.add_parser(
                name,
                description=fill(command.help, 100) + same,
                epilog=f"examples:{examples}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            load(command.arguments)(command_parser)
            command_parser.set_defaults(parser=command_parser)
    return root


def overview() -> Iterator[str]:
    """Yield the commands in their groups, and those that the image lacks."""
    for title, group in GROUPS.items():
        shipped = {name: command for name, command in group.items() if command.is_shipped}
        listed = {name: c for name, c in shipped.items() if c.same_as.partition(" ")[0] not in shipped}
        if listed:
            yield f"{title}:"
        for name, command in listed.items():
            others = [f"'{old}'" for old, c in shipped.items() if c.same_as.partition(" ")[0] == name]
            also = f" (Old names: {', '.join(others)}.)" if others else ""
            lines = wrap(command.help + also, 100 - NAME_WIDTH)
            yield f"  {name:<{NAME_WIDTH}}{lines[0]}"
            yield from (f"  {'':<{NAME_WIDTH}}{line}" for line in lines[1:])
        if listed:
            yield ""
    yield "'sm COMMAND --help' has the options and two examples."
    absent = [name for name, command in COMMANDS.items() if not command.is_shipped]
    if absent:
        yield fill(f"Not in this image: {', '.join(absent)}. {DEVELOPER_MACHINE}", 100)


#: Columns of a command's name in the overview.
NAME_WIDTH = 14
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
    add_demo_arguments(command)
    command.add_argument(
        "--prepare",
        action="store_true",
        help="set up what is missing for the demo or the examples; start nothing",
    )
    command.set_defaults(demo=False)


def add_demo_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--examples", action="store_true", help="serve the demo's models and the examples")
    command.add_argument(
        "--reload", action="store_true", help="development: load clients again when you edit them"
    )
    command.set_defaults(demo=True, prepare=False)


def serve(options: argparse.Namespace) -> int:
    """Set up the demo's models if they are asked for and it can be done here, then start the box."""
    has_models = options.demo or options.examples or options.prepare
    flags = [f"--{flag}" for flag in ("demo", "examples", "reload") if getattr(options, flag)]
    if options.prepare:
        check_name(["prepare"])
    if has_models and COMMANDS["prepare"].is_shipped:
        from sm.tools.build import prepare_command

        prepare_command.set_up(examples=options.examples)
        if options.prepare:
            return 0
        sys.stdout.flush()
        # A new program: the set-up has loaded libraries that the supervisor must not hold for its whole life.
        os.execv(sys.executable, [sys.executable, "-m", "sm.server.supervisor.start", *flags])  # noqa: S606
    from sm.server.supervisor.start import main as start

    return start(flags)


def check_name(arguments: Sequence[str]) -> None:
    """Raise :class:`StartError` for a command that does not exist, or not in this image."""
    name = arguments[0]
    if name in COMMANDS and not COMMANDS[name].is_shipped:
        raise StartError(f"'sm {name}' is not in this image. {DEVELOPER_MACHINE}")
    if name not in COMMANDS and not name.startswith("-"):
        shipped = [known for known, command in COMMANDS.items() if command.is_shipped]
        raise UnknownCommand(
            f"there is no command {name!r}{did_you_mean(name, shipped) or '.'} 'sm --help' lists them."
        )


class UnknownCommand(StartError):
    """There is no such command."""


def main() -> int:
    arguments = sys.argv[1:]
    os.environ.update({**NO_TELEMETRY, **os.environ})
    try:
        if not arguments:
            parser(arguments).print_help(sys.stderr)
            return 2
        check_name(arguments)
        options, unknown = parser(arguments).parse_known_args(arguments)
        if unknown:
            options.parser.suggest(unknown)
        status: int = load(COMMANDS[arguments[0]].run)(options)
        return status
    except UnknownCommand as error:
        sys.stderr.write(f"sm: {error}\n")
        return 2
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

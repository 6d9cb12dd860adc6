"""``sm``: the command line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from textwrap import fill, wrap
from typing import Any, NoReturn

from sm import NO_TELEMETRY, __version__
from sm.commands import DEVELOPER_MACHINE, DISTRIBUTION, Command
from sm.entry_points import INSTALL_EXTENSIONS
from sm.entry_points import load as load_rows
from sm.errors import CommandError

#: The extra that installs a module which only some commands need.
EXTRAS = {"boto3": "tools", "botocore": "tools", "matplotlib": "tune", "onnx": "cpu", "onnxruntime": "cpu"}
EXTRAS |= {"transformers": "tasks"}

#: The runtime's commands, in groups and in the order of the help.
GROUPS = {
    "Build models and clients": {},  # they are in the extensions and the tools
    "Check them": {
        "inspect": Command(
            "Show the contents of a model repository and every problem that would stop a start.",
            "sm.commands.inspect_command",
            ("inspect model", "inspect model --graph pipeline.mmd"),
        ),
        "test": Command(
            "Send each client's sample to a box and compare the answer with the golden one.",
            "sm.commands.selftest",
            ("test", "test --url http://localhost:8080"),
        ),
    },
    "Run a box": {
        "serve": Command(
            "Start the box; with --demo or --examples, set up what is missing first.",
            "sm.cli:add_serve_arguments sm.cli:serve",
            ("serve s3://bucket/models/", "serve --demo --reload"),
        ),
        "drain": Command(
            "Let callers leave the box here before it is stopped: /ping is 503, connections are closed.",
            "sm.commands.local_boxes",
            ("drain --seconds 5", "drain --pid 1"),
        ),
        "settings": Command(
            "Show every setting, its value and the source of the value.",
            "sm.commands.show_settings",
            ("settings",),
        ),
        "new-key": Command(
            "Create an API key for callers of the box. The key is shown once; the box keeps a hash.",
            "sm.commands.api_keys",
            ("new-key shop --file keys.txt", "new-key shop --rate 5"),
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
#: The commands of the distribution ``trireme-extensions``.
EXTENSIONS = ("build-model",)
#: The commands of the distribution ``trireme-tools``.
TOOLS = (
    *("new-model", "eject", "new-client", "pack-env", "package", "clean", "check-client", "invoke", "tune"),
    *("push", "demo", "prepare", "logs", "deploy", "status", "delete", "template", "iam", "images", "cost"),
)
#: The commands of other distributions, and the sentence that says how to get them.
ELSEWHERE = ((EXTENSIONS, f"{INSTALL_EXTENSIONS} installs it."), (TOOLS, DEVELOPER_MACHINE))


@cache
def groups() -> dict[str, dict[str, Command]]:
    """Return every installed command by its group: the runtime's, and those of other distributions.

    An entry point ``sm.commands`` names a table like :data:`GROUPS`.
    """
    merged = {title: dict(group) for title, group in GROUPS.items()}
    for table in load_rows("sm.commands"):
        for title, group in table.items():
            merged.setdefault(title, {}).update(group)
    return merged


def installed() -> dict[str, Command]:
    """Return every installed command by its name."""
    return {name: command for group in groups().values() for name, command in group.items()}


def find(name: str) -> Command | None:
    """Return a command; None if it is not installed."""
    return COMMANDS.get(name) or installed().get(name)


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
    name = arguments[0] if arguments else ""
    command = find(name)
    root = Parser(
        prog="sm",
        usage="sm COMMAND [ARGUMENT ...]",
        description="Trireme's command line.",
        epilog=None if command else "\n".join(overview()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"{DISTRIBUTION} {__version__}")
    commands = root.add_subparsers(prog="sm", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    if command:
        examples = "".join(f"\n  sm {example}" for example in command.examples)
        command_parser = commands.add_parser(
            name,
            description=fill(command.help, 100),
            epilog=f"examples:{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        load(command.arguments)(command_parser)
        command_parser.set_defaults(parser=command_parser, function=command.run)
    return root


def overview() -> Iterator[str]:
    """Yield the commands in their groups, and those of the tools if they are not installed."""
    known = installed()
    for title, group in groups().items():
        if group:
            yield f"{title}:"
        for name, command in group.items():
            lines = wrap(command.help, 100 - NAME_WIDTH)
            yield f"  {name:<{NAME_WIDTH}}{lines[0]}"
            yield from (f"  {'':<{NAME_WIDTH}}{line}" for line in lines[1:])
        if group:
            yield ""
    yield "'sm COMMAND --help' has the options and examples."
    for names, remedy in ELSEWHERE:
        absent = [name for name in names if name not in known]
        if absent:
            yield fill(f"Not installed here: {', '.join(absent)}. {remedy}", 100)


#: Columns of a command's name in the overview.
NAME_WIDTH = 14


def load(path: str) -> Any:
    """Import the function that ``module:function`` names."""
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for both installers."""
    package = f"'{DISTRIBUTION}[{extra}]'"
    return f"pip install {package}, or: pipx install --force {package}"


def add_serve_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source",
        nargs="?",
        help="the model repository: a folder, an archive, or s3:// and https:// addresses (default: "
        "TRIREME_MODEL_REPOSITORY)",
    )
    command.add_argument("--demo", action="store_true", help="serve the demo's models")
    command.add_argument("--examples", action="store_true", help="serve the demo's models and the examples")
    command.add_argument(
        "--reload", action="store_true", help="development: load clients again when you edit them"
    )


def serve(options: argparse.Namespace) -> int:
    """Start the box; for the demo the tools, where they are installed, set up its models first."""
    if (options.demo or options.examples) and (demo := find("demo")):
        return int(load(demo.run)(options))
    flags = [f"--{flag}" for flag in ("demo", "examples", "reload") if getattr(options, flag)]
    flags += [options.source] if options.source else []
    from sm.server.supervisor.start import main as start

    return start(flags)


def check_name(name: str) -> None:
    """Raise :class:`CommandError` for a command that does not exist, or is not installed."""
    if name.startswith("-") or find(name):
        return
    for names, remedy in ELSEWHERE:
        if name in names:
            raise CommandError(f"'sm {name}' is not installed here. {remedy}")
    suggestion = did_you_mean(name, [*installed(), *EXTENSIONS, *TOOLS])
    raise UnknownCommand(f"there is no command {name!r}{suggestion or '.'} 'sm --help' lists them.")


class UnknownCommand(CommandError):
    """There is no such command."""


def main() -> int:
    arguments = sys.argv[1:]
    os.environ.update({**NO_TELEMETRY, **os.environ})
    try:
        if not arguments:
            parser(arguments).print_help(sys.stderr)
            return 2
        check_name(arguments[0])
        options, unknown = parser(arguments).parse_known_args(arguments)
        if unknown:
            options.parser.suggest(unknown)
        status: int = load(options.function)(options)
        return status
    except UnknownCommand as error:
        sys.stderr.write(f"sm: {error}\n")
        return 2
    except CommandError as error:
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

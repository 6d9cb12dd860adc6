"""``trireme.toml``: a project's endpoint and the options of ``sm deploy``, in the folder where ``sm`` is run.

A key is the name of an option, without its hyphens in front; ``endpoint`` is NAME. The command line comes
first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomllib

from sm.cli import did_you_mean
from sm.errors import CommandError
from sm.run_state import write_atomically

FILE = Path("trireme.toml")
ENDPOINT = "endpoint"
#: The ends of the names of variables that are secrets.
SECRET = re.compile(r"(?i).*(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CREDENTIALS?)")
#: Values of a switch, of an option that may be given several times, and of any other.
Value = bool | int | float | str | list[Any] | dict[str, Any]


def add_defaults(command: argparse.ArgumentParser, described: argparse.ArgumentParser) -> None:
    """Make the file's values the defaults of a parser that has at least the options of ``described``.

    Raises:
        CommandError: The file has an unknown key, a value that the option does not take, or a secret.
    """
    actions = _actions(described)
    values = read(actions)
    of_file = {actions[key].dest: _parse(key, actions[key], values[key]) for key in actions if key in values}
    command.set_defaults(name=values.get(ENDPOINT), of_file=of_file, **of_file)


def drop(options: argparse.Namespace, described: argparse.ArgumentParser, keep: Collection[str]) -> None:
    """Take away what came from the file, for a command that changes what serves; not what ``keep`` names."""
    for action in _actions(described).values():
        if action.dest in options.of_file and action.dest not in keep:
            value, of_file = getattr(options, action.dest), options.of_file[action.dest]
            if isinstance(value, list):  # the file's come first
                setattr(options, action.dest, value[len(of_file) :])
            elif value == of_file:
                setattr(options, action.dest, action.default)


def read(actions: Iterable[str]) -> dict[str, Value]:
    """Return the file's values, with known keys only; empty if there is no file."""
    try:
        document = tomllib.loads(FILE.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise CommandError(f"{FILE} cannot be read: {error}. Correct it, or remove it.") from None
    known = [ENDPOINT, *actions]
    for key in document:
        if key not in known:
            raise CommandError(f"{FILE}: there is no key {key!r}{did_you_mean(key, known) or '.'}")
    if not isinstance(document.get(ENDPOINT, ""), str):
        raise CommandError(f"{FILE}: {ENDPOINT} is a text, the endpoint's name.")
    _check_secrets(document)
    return document


def complete(options: argparse.Namespace, described: argparse.ArgumentParser, name: str = "name") -> None:
    """Take from the file what was not given: the endpoint's name, the Region and the profile."""
    found = read(_actions(described))
    if getattr(options, name) is None and ENDPOINT in found:
        setattr(options, name, found[ENDPOINT])
        sys.stderr.write(f"endpoint {found[ENDPOINT]}, from {FILE}\n")
    for key in ("region", "profile"):
        setattr(options, key, getattr(options, key) or found.get(key))


def save(options: argparse.Namespace, described: argparse.ArgumentParser) -> None:
    """Write the file, with the options that are not the defaults."""
    write_atomically(FILE, _to_toml(describe(options, described)))
    sys.stderr.write(f"{FILE} is written: 'sm deploy', 'sm status' and so on need no NAME here\n")


def describe(options: argparse.Namespace, described: argparse.ArgumentParser) -> dict[str, Value]:
    """Return what the file would have. Raises :class:`CommandError` for a secret."""
    document: dict[str, Value] = {ENDPOINT: options.name}
    for key, action in _actions(described).items():
        value = getattr(options, action.dest)
        if value != action.default:
            document[key] = _to_value(value)
    _check_secrets(document)
    return document


def _actions(described: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options by their keys."""
    return {
        option.removeprefix("--"): action
        for action in described._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }


def _parse(key: str, action: argparse.Action, value: Value) -> Any:
    """Return what the option would be on the command line."""
    if action.nargs == 0:  # a switch
        if isinstance(value, bool):
            return value
        raise CommandError(f"{FILE}: {key} is true or false.")
    if action.nargs == "?" and value is True:  # an option that may go without a value
        return action.const
    several = isinstance(action.default, list)
    if isinstance(value, dict) and several:
        value = [f"{name}={_text(content)}" for name, content in value.items()]
    values = value if isinstance(value, list) and several else [value]
    if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values):
        form = "a table, or a list of texts" if several else "a text or a number"
        raise CommandError(f"{FILE}: {key} is {form}.")
    kind: Any = action.type or str
    try:
        parsed = [kind(str(each)) for each in values]
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise CommandError(f"{FILE}: {key}: {error}.") from None
    return parsed if several else parsed[0]


def _text(content: object) -> str:
    """Return a value of a table as it is written after ``K=``: a text as it is, anything else in JSON."""
    return content if isinstance(content, str) else json.dumps(content, default=str)


def _to_value(value: Any) -> Value:
    """Return a parsed option as :func:`_parse` reads it."""
    if dataclasses.is_dataclass(value):  # the limits of --alarms
        value = dataclasses.astuple(value)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return ":".join(f"{part:g}" for part in value)
    if isinstance(value, list) and all(isinstance(each, tuple) for each in value):
        return dict(value)
    return value if isinstance(value, bool | int | float | list) else str(value)


def _check_secrets(document: Mapping[str, Any]) -> None:
    names = [name for key in ("env", "set") for name in _variables(key, document.get(key, {}))]
    if secret := next((name for name in names if SECRET.fullmatch(name)), None):
        raise CommandError(
            f"{FILE} is no place for a secret such as {secret}: give it as --env {secret}=… with each "
            "'sm deploy', and leave it out of the file and of the run with --save."
        )


def _variables(key: str, rows: object) -> Iterator[str]:
    """Yield the names of the variables in ``env``, and of those that ``set`` gives to a container."""
    if isinstance(rows, dict):
        rows = [f"{name}={_text(content)}" for name, content in rows.items()]
    for row in rows if isinstance(rows, list) else ():
        path, _, value = str(row).partition("=")
        if key == "env":
            yield path
        elif "Environment" in path:
            yield path.rpartition(".")[2]
            yield from re.findall(r'"([^"]+)"\s*:', value)


def _to_toml(document: Mapping[str, Value]) -> str:
    """Write texts, numbers, lists and tables of texts: TOML's are JSON's, but for DEL."""
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = ["# Options of 'sm deploy', which --save has written. The command line comes first."]
    lines += [f"{key} = {_json(value)}" for key, value in document.items() if key not in tables]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{_json(name)} = {_json(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Fields of SageMaker's API that have no option of ours, checked against botocore's model of it.

``--set ProductionVariants[0].EnableSSMAccess=true`` and ``--extra FILE.json`` give values to fields of the
calls in :data:`CALLS`. Each becomes an :class:`Assignment`, which is made after our own values.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm.errors import CommandError

if TYPE_CHECKING:
    from botocore.model import ServiceModel

MODEL, CONFIGURATION, COMPONENT, UPDATE = (
    "CreateModel",
    "CreateEndpointConfig",
    "CreateInferenceComponent",
    "UpdateEndpoint",
)
#: The calls that take fields. A field of several is the first's, unless its path begins with a call's name.
CALLS = (MODEL, CONFIGURATION, COMPONENT, UPDATE)
#: Fields by which resources are found: a run could not find them again under other names.
OURS = {"ModelName", "EndpointConfigName", "EndpointName", "InferenceComponentName", "VariantName", "Tags"}
#: The types of values in JSON, by botocore's types.
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    **dict.fromkeys(("integer", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("structure", "map"), (dict,)),
    "list": (list,),
}
#: How the text of ``--set`` becomes a value, where it is not JSON.
READERS: dict[str, Callable[[str], Any]] = {"string": str}
#: Removes a field, as null does in JSON's merge patch (RFC 7396).
NULL = "null"

Step = str | int


@dataclass(frozen=True)
class Assignment:
    """A value for one field of a call; None removes the field."""

    call: str
    steps: tuple[Step, ...]
    value: Any

    @property
    def path(self) -> str:
        """The field as it is written: ``ProductionVariants[0].InstanceType``."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)[1:]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        dest="fields",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of SageMaker's API, such as ProductionVariants[0].EnableSSMAccess=true",
    )
    command.add_argument(
        "--extra", type=Path, metavar="FILE.json", help="fields of SageMaker's API, as a JSON object"
    )


def read(options: argparse.Namespace) -> tuple[Assignment, ...]:
    """Read ``--extra``, then ``--set``. :class:`CommandError` names the nearest of a wrong name."""
    of_file = _of_file(options.extra) if options.extra else ()
    return (*of_file, *(assignment for text in options.fields for assignment in _of_text(text)))


def apply(call: str, arguments: Mapping[str, Any], assignments: Sequence[Assignment]) -> dict[str, Any]:
    """Return a call's arguments with its assignments. Raises :class:`CommandError` for a gap in a list."""
    own = [assignment for assignment in assignments if assignment.call == call]
    changed = copy.deepcopy(dict(arguments))
    for assignment in own:
        _assign(changed, assignment)
    return changed


def can_check() -> bool:
    """True if botocore is here, whose model has the limits. A template is written without it."""
    try:
        import botocore  # noqa: F401
    except ImportError:
        return False
    return True


def check(call: str, arguments: Mapping[str, Any]) -> None:
    """Raise :class:`CommandError` if botocore or SageMaker would refuse the call's arguments."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(dict(arguments), _input(call))
    if report.has_errors():
        raise CommandError(f"{call}: {' '.join(report.generate_report().split())}")
    check_values(call, arguments)


def check_values(call: str, arguments: Mapping[str, Any]) -> None:
    """Raise :class:`CommandError` for a value outside of the limits in botocore's model, which it does not
    check itself: the lengths and patterns of texts, the members of lists and maps, the range of numbers.
    """
    for fault in _faults(call, _input(call), arguments):
        raise CommandError(f"{fault} That is SageMaker's limit.")


#: Fields whose length AWS counts in bytes, see botocore's description of ContainerDefinition.
IN_BYTES = {"EnvironmentKey", "EnvironmentValue"}
#: Letters, spaces and digits of all scripts, in the words of Java's patterns and in Python's nearest.
JAVA_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\w", r"\p{Z}": r"\s"}


def _faults(path: str, shape: Any, value: Any) -> Iterator[str]:
    """Yield what is wrong with a value and its members. A text may be a secret: it is not repeated."""
    limits = shape.metadata
    least, most = limits.get("min", -math.inf), limits.get("max", math.inf)
    if shape.type_name == "string" and isinstance(value, str):
        unit = "bytes" if shape.name in IN_BYTES else "characters"
        length = len(value.encode() if shape.name in IN_BYTES else value)
        if not least <= length <= most:
            yield f"{path} has {length} {unit}, of {int(least)} to {most}."
        elif (pattern := limits.get("pattern")) and not re.fullmatch(_python(pattern), value):
            yield f"{path} does not match {pattern}."
    elif shape.type_name in ("integer", "long", "float", "double"):
        if not least <= value <= most:
            yield f"{path} is {value}, and may be {least} to {most}."
    elif isinstance(value, dict | list | tuple):
        if shape.type_name in ("map", "list") and not least <= len(value) <= most:
            yield f"{path} has {len(value)} members, of at most {most}."
        yield from _faults_of_members(path, shape, value)


def _faults_of_members(path: str, shape: Any, value: Any) -> Iterator[str]:
    if shape.type_name == "structure":
        for name, member in value.items():
            yield from _faults(f"{path}.{name}", shape.members[name], member)
    elif shape.type_name == "map":
        for name, member in value.items():
            yield from _faults(f"the name {name[:80]!r} in {path}", shape.key, name)
            yield from _faults(f"{path}.{name}", shape.value, member)
    else:
        for index, member in enumerate(value):
            yield from _faults(f"{path}[{index}]", shape.member, member)


def _python(pattern: str) -> str:
    for java, python in JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    return pattern


@cache
def _service() -> ServiceModel:
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel

    return ServiceModel(create_loader().load_service_model("sagemaker", "service-2"))


def _input(call: str) -> Any:
    return _service().operation_model(call).input_shape


def members(call: str, field: str = "") -> set[str]:
    """Return the fields that a call takes, or that are in one of its fields."""
    shape = _input(call).members[field] if field else _input(call)
    return set(shape.members)


def given(call: str, described: Mapping[str, Any], field: str = "") -> dict[str, Any]:
    """Return what a call was made with, from what describes its result and has other and empty members."""
    known = members(call, field) - OURS
    return {name: value for name, value in described.items() if name in known and value}


def _of_text(text: str) -> Iterator[Assignment]:
    path, equals, value = text.partition("=")
    steps: list[Step] = []
    for part in path.split("."):
        if not (match := re.fullmatch(r"([^\[\]]+)((?:\[\d+\])*)", part)):
            raise CommandError(
                f"--set {text!r}: write PATH=VALUE, as in ProductionVariants[0].InstanceType=T."
            )
        steps += [match[1], *map(int, re.findall(r"\d+", match[2]))]
    if not equals:
        raise CommandError(f"--set {text!r} has no value: write {path}=VALUE, or {path}={NULL} to remove it.")
    call, steps = _split(steps)
    shape = _shape(call, steps)
    try:
        parsed = None if value == NULL else READERS.get(shape.type_name, json.loads)(value)
    except ValueError:
        raise CommandError(f"{path} takes {shape.type_name}, and {value!r} is not one.") from None
    yield from _assignments(call, steps, parsed)


def _of_file(file: Path) -> Iterator[Assignment]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise CommandError(f"--extra {file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CommandError(f"--extra {file} is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise CommandError(f"--extra {file} is not a JSON object, with fields of SageMaker's API.")
    for name, value in document.items():
        call, steps = _split([name])
        yield from _assignments(call, steps, value)


def _assignments(call: str, steps: Sequence[Step], value: Any) -> Iterator[Assignment]:
    """Yield an assignment for each leaf of a value; an empty object or list is a leaf, too."""
    pairs: list[tuple[Step, Any]] = []
    if isinstance(value, dict | list):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    for step, member in pairs:
        yield from _assignments(call, (*steps, step), member)
    if not pairs and steps:
        assignment = Assignment(call, tuple(steps), value)
        _check_value(assignment.path, _shape(call, steps), value)
        yield assignment


def _split(steps: list[Step]) -> tuple[str, list[Step]]:
    """Return the call of a path, and the path in it."""
    first = str(steps[0])
    if first in CALLS:
        return first, steps[1:]
    for call in CALLS:
        if first in members(call):
            return call, steps
    known = [*CALLS, *(name for call in CALLS for name in members(call))]
    raise CommandError(f"SageMaker's API has no field {first}{_nearest(first, known)}")


def _shape(call: str, steps: Sequence[Step]) -> Any:
    """Return the API's description of a field. Raises :class:`CommandError` if it has no such field."""
    shape, done = _input(call), ""
    for step in steps:
        if step in OURS:
            raise CommandError(f"{step} is what 'sm deploy' finds its resources by: it cannot be set.")
        kind = shape.type_name
        if (kind == "list") != isinstance(step, int) or kind not in ("list", "structure", "map"):
            wanted = {"list": "is a list: give an index, as in [0]"}.get(kind, f"is a {kind}")
            raise CommandError(f"{done or call} {wanted}, and has no {step}.")
        if kind == "structure" and step not in shape.members:
            raise CommandError(f"{done or call} has no field {step}{_nearest(str(step), shape.members)}")
        if kind == "structure":
            shape = shape.members[step]
        else:
            shape = shape.member if kind == "list" else shape.value
        done = f"{done}[{step}]" if kind == "list" else f"{done}.{step}" if done else str(step)
    return shape


def _check_value(path: str, shape: Any, value: Any) -> None:
    """Raise :class:`CommandError` for a value of another type, or another than those that the API lists."""
    if value is None:
        return
    if not isinstance(value, TYPES[shape.type_name]) or isinstance(value, bool) != (
        shape.type_name == "boolean"
    ):
        raise CommandError(f"{path} takes {shape.type_name}, and {json.dumps(value)} is not one.")
    values = shape.metadata.get("enum")
    if values and value not in values:
        raise CommandError(
            f"{path} has no value {value}{_nearest(str(value), values)} A newer boto3 may know more."
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence with the nearest right name, or with all if they are few."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f"; the nearest is {lower[near[0]]}."
    return f": it has {', '.join(sorted(lower.values()))}." if len(lower) <= 20 else "."


def _assign(arguments: dict[str, Any], assignment: Assignment) -> None:
    place: Any = arguments
    *parents, last = assignment.steps
    for step, after in zip(parents, assignment.steps[1:], strict=True):
        empty: Any = [] if isinstance(after, int) else {}
        if isinstance(step, int):
            _fill(place, step, assignment)
            if step == len(place):
                place.append(empty)
        elif place.get(step) is None:
            place[step] = empty
        place = place[step]
    if isinstance(last, int):
        _fill(place, last, assignment)
        place[last : last + 1] = [] if assignment.value is None else [assignment.value]
    elif assignment.value is None:
        place.pop(last, None)
    else:
        place[last] = assignment.value


def _fill(place: list[Any], index: int, assignment: Assignment) -> None:
    if index > len(place):
        raise CommandError(f"{assignment.path} leaves a gap: the list has {len(place)} members.")

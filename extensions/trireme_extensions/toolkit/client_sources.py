"""The sources of clients: scripts of the SageMaker toolkit, and files of other systems."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sm.plugins.sources import (
    ClientClass,
    ClientSource,
    SourceKind,
    derive,
    find_class,
    import_file,
    name_of,
    own_clients,
)
from sm.repository.models import CodeFolder
from trireme_extensions.toolkit.functions import FUNCTIONS

#: The ``modelname`` under which a script is served.
SCRIPT_NAME = "model"
#: Used in place of the toolkit if that is not installed.
STAND_IN = str(Path(__file__).parent / "stand_in")


class Scripts(SourceKind):
    """The program of a code folder, if it is a script; the files beside it are its modules."""

    name = "script"
    takes_folder = True

    def find(self, code: CodeFolder) -> Iterator[ClientSource]:
        if has_script(code):
            modules = frozenset(code.folder.glob("*.py"))
            yield ClientSource(SCRIPT_NAME, code.file, self.name, code.folder, modules)

    def imports_beside(self, source: ClientSource) -> bool:  # noqa: ARG002  # all do
        return True

    def client_class(self, source: ClientSource) -> ClientClass:
        from trireme_extensions.toolkit.scripts import ToolkitClient  # the control plane makes no client

        offer_stand_in()
        return derive(ToolkitClient, module=module_of(source))


class Ported(SourceKind):
    """Files with the article's class, or with Multi Model Server's ``handle``."""

    name = "ported"

    def find(self, code: CodeFolder) -> Iterator[ClientSource]:
        files = [file for file in code.files() if is_ported(file)]
        beside = [file for file in files if file.parent == code.folder]
        imported = frozenset(code.folder / f"{name}.py" for name in imported_by(beside))
        for file in files:
            if file not in imported and not (file in beside and has_script(code)):
                yield ClientSource(name_of(file, code), file, self.name, modules=imported)

    def imports_beside(self, source: ClientSource) -> bool:  # noqa: ARG002  # all do
        return True

    def client_class(self, source: ClientSource) -> ClientClass:
        from trireme_extensions.toolkit import ported

        offer_stand_in()
        module = import_file(source)
        # The name of a base does not tell: a task's class, and whatever ``import … as`` calls one.
        return find_class(module) if own_clients(module) else ported.adapt(module)


SCRIPTS, PORTED = Scripts(), Ported()


def module_of(source: ClientSource) -> str:
    """Return a script's name to ``import``."""
    return ".".join(source.file.relative_to(source.home).with_suffix("").parts)


def offer_stand_in() -> None:
    """Let scripts import the toolkit: what is installed goes first."""
    sys.path[:] = [*(entry for entry in sys.path if entry != STAND_IN), STAND_IN]


def has_script(code: CodeFolder) -> bool:
    """True if the program of a code folder is a script."""
    return code.file.is_file() and is_script(code.file)


def is_script(file: Path) -> bool:
    """True if a file has functions of the toolkit and no client class.

    A file with neither counts as a script: the defaults are enough for a TorchScript model, and without a
    class or ``handle(data, context)`` a file cannot be a client.
    """
    module = _parse(file)
    if module is None:
        return True
    names = {name for statement in module.body for name in _defined_names(statement)}
    if names & {*FUNCTIONS, "*"}:
        return not any(_has_base(statement, "Client") for statement in module.body)
    return "handle" not in names and not any(isinstance(node, ast.ClassDef) for node in ast.walk(module))


def _parse(file: Path) -> ast.Module | None:
    """Parse a file; None for one of which the import says what is wrong."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defined_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a module defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _has_base(statement: ast.stmt, end: str) -> bool:
    """True for a class with a base whose name ends so."""
    return isinstance(statement, ast.ClassDef) and any(
        ast.unparse(base).endswith(end) for base in statement.bases
    )


def is_ported(file: Path) -> bool:
    """True if a file has ``handle(data, context)`` or a class with ``inference``, and no client."""
    module = _parse(file)
    if module is None or any(_has_base(statement, "Client") for statement in module.body):
        return False
    # TorchServe's classes have an ``inference`` too, as one step of several.
    classes = [
        node for node in module.body if isinstance(node, ast.ClassDef) and not _has_base(node, "Handler")
    ]
    methods = [node.name for each in classes for node in each.body if isinstance(node, ast.FunctionDef)]
    functions = [
        (node.name, len(node.args.args)) for node in module.body if isinstance(node, ast.FunctionDef)
    ]
    return "inference" in methods or ("handle", 2) in functions


def imported_by(files: Iterable[Path]) -> set[str]:
    """Return the names that ported files import: such a file beside them is not a client."""
    names = set[str]()
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return names

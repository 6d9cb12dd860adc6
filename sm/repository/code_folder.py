"""A user's code folder and the toolkit script in it. Files are only read, never executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.settings import PROGRAM, Settings

#: The ``modelname`` under which a script is served.
SCRIPT_NAME = "model"
#: Functions that a script may define.
FUNCTIONS = {
    "model_fn",
    "input_fn",
    "predict_fn",
    "output_fn",
    "transform_fn",
    "pre_model_fn",
    "model_warmup_fn",
}


@dataclass(frozen=True)
class CodeFolder:
    """``code/`` of a model archive. ``program`` is the script's file in it."""

    folder: Path
    program: str = PROGRAM

    @classmethod
    def of(cls, settings: Settings, repository: Path) -> CodeFolder:
        """Return the folder that the toolkit's variables name if it exists, else ``code/`` beside the models.

        Raises:
            StartError: The folder does not have the script that ``SAGEMAKER_PROGRAM`` names.
        """
        submitted = settings.submit_directory
        code = cls(submitted if submitted and submitted.is_dir() else repository / "code", settings.program)
        if code.program != PROGRAM and code.folder.is_dir() and not code.file.is_file():
            raise StartError(f"SAGEMAKER_PROGRAM={code.program!r} is not in {code.folder}.")
        return code

    @property
    def module(self) -> str:
        """The script's name to ``import``."""
        return self.program.removesuffix(".py")

    @property
    def file(self) -> Path:
        return self.folder / f"{self.module.replace('.', '/')}.py"

    @property
    def script(self) -> Path | None:
        """The script; None if there is none, or if the file is a client."""
        return self.file if self.file.is_file() and is_script(self.file) else None

    @property
    def serves(self) -> bool:
        """True if the folder has a client: a script, a file, or a folder with a ``client.py``."""
        return any(any(self.folder.glob(pattern)) for pattern in ("*.py", "*/client.py")) or bool(self.script)


def is_script(file: Path) -> bool:
    """True if a file has functions of the toolkit and no client class.

    A file with neither counts as a script: the defaults are enough for a TorchScript model, and without a
    class or ``handle(data, context)`` a file cannot be a client.
    """
    try:
        module = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # The import reports the line of the syntax error.
        return True
    names = {name for statement in module.body for name in _defined_names(statement)}
    if names & (FUNCTIONS | {"*"}):
        return not any(map(_is_client, module.body))
    return "handle" not in names and not any(isinstance(node, ast.ClassDef) for node in ast.walk(module))


def _defined_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a module defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _is_client(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ClassDef) and any(
        ast.unparse(base).endswith("Client") for base in statement.bases
    )

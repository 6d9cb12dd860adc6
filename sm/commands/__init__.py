"""The commands of ``sm`` that a container has. Other distributions add theirs: see :func:`sm.cli.groups`."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from sm.errors import CommandError

#: The name of the package on the index. ``trireme`` there is another project.
DISTRIBUTION = "trireme-serving"
#: Where to run what is not installed.
DEVELOPER_MACHINE = (
    f"Run it on a developer's machine: pip install '{DISTRIBUTION}[tools]' installs it, "
    "and so does 'make serve' in a checkout."
)


class Command(NamedTuple):
    """A command of ``sm``. Its two functions are imported when it is called."""

    help: str
    #: The module with the functions ``add_arguments`` and ``run``, or both functions as ``module:function``.
    functions: str
    #: The words after ``sm`` in typical calls.
    examples: tuple[str, ...]

    @property
    def arguments(self) -> str:
        """``module:function`` of what adds its arguments to a parser."""
        return self.functions.split()[0] if ":" in self.functions else f"{self.functions}:add_arguments"

    @property
    def run(self) -> str:
        """``module:function`` of what takes the parsed arguments and returns the exit status."""
        return self.functions.split()[1] if ":" in self.functions else f"{self.functions}:run"


def part_of_tools(module: str, what: str) -> Any:
    """Import a module of the tools that a command uses where they are installed.

    Raises :class:`CommandError` with ``what``, the words for its part, if they are not.
    """
    try:
        return importlib.import_module(f"trireme_tools.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("trireme_tools"):
            raise
        reason = f"{what} needs the tools, which are not installed here. {DEVELOPER_MACHINE}"
        raise CommandError(reason) from None

"""The commands of ``sm`` that a container has. Other distributions add theirs: see :func:`sm.cli.groups`."""

from __future__ import annotations

from typing import NamedTuple


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

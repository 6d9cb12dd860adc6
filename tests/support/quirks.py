"""Faults of the Triton that the CPU image pins, and the modules that work around them.

For an upgrade go through the list: run the test of each fault without its workaround, and delete what is not
needed any more. ``tests/unit/triton/test_quirks.py`` fails until :data:`WHEEL` names the new version.
"""

from __future__ import annotations

from typing import NamedTuple

#: The ``nvidia-pytriton`` that requirements.lock pins, and the Triton in it (release 24.10).
WHEEL, VERSION = "0.7.0", (2, 51)


class Quirk(NamedTuple):
    """A fault of Triton, and how to find out whether a new version still has it."""

    fault: str
    #: The module that works around it. Its comment there names the version too.
    module: str
    #: The release of which NVIDIA says that it has no such fault, such as 25.07; empty: of none.
    goes_with: str
    #: The test that fails without the workaround, below ``tests/``.
    test: str


#: The bulletins behind ``goes_with`` are listed in docs/inside/known-holes.md.
QUIRKS = (
    Quirk(
        "a huge shape or deep nesting in a small JSON body ends the process",
        "sm.triton.http_proxy",
        "25.07",
        "unit/triton/test_bodies.py",
    ),
    Quirk(
        "a stream that is cancelled right after its error never finishes",
        "sm.triton.channel",
        "25.07",
        "integration/triton/test_streams.py",
    ),
    Quirk(
        "a header of 8,192 characters ends the connection without an answer",
        "sm.triton.http_proxy",
        "",
        "integration/box/test_v2.py",
    ),
    Quirk(
        "the load of a Python model whose process dies never ends",
        "sm.model_processes.search",
        "",
        "unit/model_processes/test_search.py",
    ),
    Quirk(
        "a model whose process died is reported as ready, and its requests fail",
        "sm.model_processes.reloads",
        "",
        "integration/models/test_reloads.py",
    ),
    Quirk(
        "Triton keeps running without a model's process, or crashes when one of two dies in its warm-up",
        "sm.server.supervisor.process_manager",
        "",
        "unit/server/supervisor/test_process_manager.py",
    ),
    Quirk(
        "the shell splits a repository's path that has spaces",
        "sm.repository.overlay",
        "",
        "integration/box/test_start.py",
    ),
    Quirk(
        "a model's name, and other parts of its configuration, are a shell's words",
        "sm.repository.models",
        "",
        "unit/repository/test_names.py",
    ),
    Quirk(
        "a Python model's process ignores PYTHONPATH",
        "sm.triton.borrowed_packages",
        "",
        "unit/triton/test_borrowed_packages.py",
    ),
)

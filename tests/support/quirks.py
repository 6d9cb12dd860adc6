"""Faults of the Triton that the CPU image pins, the modules that work around them, and the tests that show them.

For an upgrade go through the list: run the test of each fault without its workaround, and delete what is not
needed any more. ``tests/unit/triton/test_quirks.py`` fails until :data:`WHEEL` names the new version. NVIDIA says of
the first two and of release 25.07 that it has no such fault; the bulletins are in docs/inside/known-holes.md.
"""

from __future__ import annotations

#: The ``nvidia-pytriton`` that requirements.lock pins, and the Triton in it (release 24.10).
WHEEL, VERSION = "0.7.0", (2, 51)
#: A fault, the module that works around it (a comment there names the version too), and its test below ``tests/``.
QUIRKS = (
    ("a huge shape or deep nesting in a small JSON body ends the process", "sm.triton.http_proxy", "unit/triton/test_bodies.py"),
    ("a stream that is cancelled right after its error never finishes", "sm.triton.channel", "integration/triton/test_streams.py"),
    ("a header of 8,192 characters ends the connection without an answer", "sm.triton.http_proxy", "integration/box/test_v2.py"),
    ("the load of a Python model whose process dies never ends", "sm.model_processes.search", "unit/model_processes/test_search.py"),
    ("a model whose process died is reported as ready", "sm.model_processes.reloads", "integration/models/test_reloads.py"),
    (
        "Triton keeps running without a model's process, or crashes when one of two dies in its warm-up",
        "sm.server.supervisor.process_manager",
        "unit/server/supervisor/test_process_manager.py",
    ),
    ("the shell splits a repository's path that has spaces", "sm.repository.overlay", "integration/box/test_start.py"),
    ("parts of a configuration are a shell's words", "sm.repository.models", "unit/repository/test_names.py"),
    ("a Python model's process ignores PYTHONPATH", "sm.triton.borrowed_packages", "unit/triton/test_borrowed_packages.py"),
)  # fmt: skip

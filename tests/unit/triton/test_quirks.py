"""Each workaround of the pinned Triton is listed, and a new version makes somebody go through the list.

For an upgrade run the test of each fault without its workaround, and delete what is not needed any more. NVIDIA says
of the first two and of release 25.07 that it has no such fault; the bulletins are in docs/inside/known-holes.md.
"""

from __future__ import annotations

import re

from sm.settings import HERE
from trireme_tools.prepare import servers

#: The ``nvidia-pytriton`` that locks/requirements.lock pins, and the Triton in it (release 24.10).
WHEEL, VERSION = "0.7.0", r"2\.51"
#: A fault, the module that works around it (a comment there names the version too), and its test below ``tests/``.
QUIRKS = (
    ("some small JSON bodies end the process", "sm.triton.http_proxy", "unit/triton/test_bodies.py"),
    ("classes of an output without numbers end the process", "sm.triton.v2_body", "integration/box/test_known_holes.py"),
    ("a stream with an error may never finish", "sm.triton.channel", "integration/triton/test_streams.py"),
    ("a header that is too long gets no answer", "sm.triton.http_proxy", "integration/box/test_v2.py"),
    ("the load of a Python model whose process dies never ends", "sm.model_processes.search", "unit/model_processes/test_search.py"),
    ("a model whose process died is reported as ready", "sm.model_processes.reloads", "integration/models/test_reloads.py"),
    (
        "Triton keeps running without a model's process, or ends with one",
        "sm.server.supervisor.process_manager",
        "unit/server/supervisor/test_process_manager.py",
    ),
    ("no Python model starts in a repository whose path has spaces", "sm.repository.overlay", "integration/box/test_start.py"),
    ("some names start no Python model", "sm.repository.models", "unit/repository/test_names.py"),
    ("the response cache keeps a failure as an answer", "sm.repository.response_cache", "integration/triton/test_response_cache.py"),
    ("a numeric CORRID takes a text by its length", "sm.triton.sequence_ids", "integration/models/test_sequence_ids.py"),
    ("a Python model's process ignores PYTHONPATH", "sm.triton.borrowed_packages", "unit/triton/test_borrowed_packages.py"),
)  # fmt: skip


def test_a_new_triton_makes_somebody_try_each_workaround() -> None:
    assert servers.WHEEL.version == WHEEL, "the pinned Triton changed: go through QUIRKS"
    assert f"\n{servers.WHEEL.name}=={WHEEL} \\\n" in (HERE / "locks/requirements.lock").read_text()


def test_every_workaround_in_the_code_is_listed_and_the_test_of_its_fault_exists() -> None:
    files = [
        path for path in (HERE / "sm").rglob("*.py") if re.search(rf"Triton {VERSION}\b", path.read_text())
    ]
    modules = {".".join(path.relative_to(HERE).with_suffix("").parts) for path in files}
    assert modules == {module for _, module, _ in QUIRKS}
    assert [test for _, _, test in QUIRKS if not (HERE / "tests" / test).is_file()] == []

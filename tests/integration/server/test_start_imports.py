"""What the processes of the box import at start: no developer tool, nothing that only builds or deploys."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sm.settings import HERE

#: Top-level packages that no process of the box may import before a client or a request asks for them.
NOT_AT_START = {
    "boto3",
    "botocore",
    "hypothesis",
    "onnx",
    "onnxruntime",
    "opentelemetry",
    "pip",
    "pytest",
    "requests",
    "setuptools",
    "tensorrt",
    "tokenizers",
    "torch",
    "transformers",
    "urllib3",
}
#: The modules that each process starts with, and what it may not import beside.
PROCESSES = {
    "serve": ("import sm.cli, sm.server.supervisor.start", {"cv2", "flask", "grpc", "gunicorn", "numpy"}),
    "a worker": ("import sm.server.worker, sm.server.thread_worker, sm.server.error_responses", set()),
    "the control plane": (
        "import sm.server.worker, sm.server.control_plane, sm.server.error_responses",
        set(),
    ),
    "the built-in clients": (
        "import sm.server.worker\n"
        "from sm.plugins import loading\n"
        "for found in loading.discover((HERE / 'clients',)): loading._import(found)",
        {"tokenizers"},
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_of_the_box_imports_no_tool_and_nothing_that_only_builds(process: str) -> None:
    code, others = PROCESSES[process]
    unwanted = NOT_AT_START ^ others
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom sm.settings import HERE\n{code}\nprint(*sys.modules)"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names = set(done.stdout.split())
    assert "sm.settings" in names
    assert not {name for name in names if name.split(".")[0] in unwanted}
    assert not {name for name in names if name.startswith("sm.tools")}

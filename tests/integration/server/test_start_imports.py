"""The box's processes import no developer tool at start, and no package that only builds or deploys."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sm.settings import HERE

pytestmark = pytest.mark.core

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
#: The imports with which each process starts, and the packages that it may not import.
PROCESSES = {
    "serve": (
        "import sm.cli, sm.server.supervisor.start",
        NOT_AT_START | {"cv2", "flask", "grpc", "gunicorn", "numpy"},
    ),
    "a worker": ("import sm.server.worker, sm.server.thread_worker", NOT_AT_START),
    "the control plane": (
        "import sm.server.worker, sm.control.app, sm.server.thread_worker",
        NOT_AT_START,
    ),
    "the built-in clients": (
        "import sm.server.worker\n"
        "from sm.plugins import loading\n"
        "for found in loading.discover((HERE / 'clients',)): loading._import(found)",
        NOT_AT_START - {"tokenizers"},
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_of_the_box_imports_no_developer_tool_and_no_build_package(process: str) -> None:
    code, unwanted = PROCESSES[process]
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom sm.settings import HERE\n{code}\nprint(*sys.modules)"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    modules = set(completed.stdout.split())
    assert "sm.settings" in modules
    assert not {name for name in modules if name.split(".")[0] in unwanted}
    assert not {name for name in modules if name.startswith(("sm.commands.", "trireme_tools"))}

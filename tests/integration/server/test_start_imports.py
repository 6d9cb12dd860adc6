"""The box's processes import no developer tool at start, and no package that only builds or deploys."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sm.settings import HERE

pytestmark = pytest.mark.core

#: Packages that no process of the box may import before a client or a request asks for them.
NOT_AT_START = {
    *("boto3", "botocore", "hypothesis", "onnx", "onnxruntime", "opentelemetry", "pip", "pytest", "requests"),
    *("setuptools", "tensorrt", "tokenizers", "torch", "transformers", "trireme_tools", "urllib3"),
}
WORKER = "import sm.server.worker, sm.server.thread_worker"
CONTROL = "import sm.server.control_plane, sm.server.thread_worker"
CLIENTS = """
from sm.plugins import sources
for found in sources.discover((HERE / 'clients',)): sources.import_file(found)
"""
#: What a worker reads of the distributions beside the core.
DOORS = """
from sm import entry_points
assert all(map(entry_points.load, ('sm.forms', 'sm.client_sources', 'sm.observers')))
"""
#: What the supervisor reads of them.
OBSERVERS = """
from sm.server import observers
assert observers.load()
"""
SERVE = "import sm.cli, sm.server.supervisor.start"
NOT_IN_SERVE = NOT_AT_START | {"cv2", "flask", "grpc", "gunicorn", "numpy"}
#: The imports with which each process starts, and the packages that it may not import.
PROCESSES = {
    "serve": (SERVE, NOT_IN_SERVE),
    "serve with what watches the box": (f"{SERVE}{OBSERVERS}", NOT_IN_SERVE),
    "a worker": (WORKER, NOT_AT_START),
    "the control plane": (CONTROL, NOT_AT_START | {"cv2"}),
    "a worker with the extensions": (f"{WORKER}{DOORS}", NOT_AT_START),
    "the built-in clients": (f"{WORKER}{CLIENTS}", NOT_AT_START - {"tokenizers"}),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_of_the_box_imports_no_developer_tool_and_no_build_package(process: str) -> None:
    code, unwanted = PROCESSES[process]
    program = f"import sys\nfrom sm.settings import HERE\n{code}\nprint(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", program], cwd=HERE, text=True).split()
    assert "sm.settings" in modules
    assert not {name for name in modules if name.split(".")[0] in unwanted or name.startswith("sm.commands.")}

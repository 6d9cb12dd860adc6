"""The GPU flavour and the CPU flavour with its Triton, on a stand-in for NVIDIA's image; nothing runs on a GPU.

A build takes five minutes of a processor. Every line of the Dockerfile but those for a base with Triton is in the CPU
flavour too, which the other tests of this folder build and start.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containers import Container, build_image, podman, running_container, write_team_repository
from tests.support.tritons import HEAD, Model
from trireme_extensions.convert.onnx_cpu.engines import Wanted, candidates, processor_flags, versions

pytestmark = pytest.mark.exhaustive
#: A user that /etc/passwd does not list, on a file system that is read-only but for /tmp.
NOBODY = ("--read-only", "--tmpfs", "/tmp", "--user", "12345:12345", "--cap-drop", "ALL")
START_TIMEOUT_S = 280
CPU_TRITON = "localhost/trireme-test:cpu-triton"
#: The stand-in's distribution, as ubuntu:24.04 is that of NVIDIA's image.
CPU_BASE = "docker.io/library/debian:bookworm-slim"
#: A team's model that uses an engine of the box, the system's NumPy, and a module beside it. The box has a package
#: of that name, too.
BORROWING = Model(
    answer="""
facts = {
    "engine": metadata.version("onnxruntime") == onnxruntime.__version__,
    "numpy": np.__file__,
    "flask": flask.WHOSE,
}
return {"y": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
""",
    inputs={"x": ("FP32", [1])},
    outputs={"y": ("UINT8", [-1])},
    head=HEAD.replace(
        "import os, time", "import json, os, time\nfrom importlib import metadata\nimport flask, onnxruntime"
    ),
)


@pytest.fixture(scope="module")
def demo_container(gpu_image: str, demo: Path) -> Iterator[Container]:
    """Two of the demo's models, which the CPU target wrote, for a user without a home."""
    mounts = [
        part for name in ("bert_base", "resnet") for part in ("-v", f"{demo / name}:/opt/ml/model/{name}:ro")
    ]
    with running_container(gpu_image, None, *NOBODY, *mounts, wait_until_ready=False) as box:
        box.wait_ready(START_TIMEOUT_S)
        yield box


def test_models_of_the_cpu_target_answer_for_any_user_also_after_a_killed_triton(
    demo_container: Container, cat: bytes
) -> None:
    expected = demo_container.send(cat, "image/png", "resnet").json()["result"]
    assert "cat" in expected[0]
    masked = json.dumps({"modelname": "bert_base", "payload": {"text": "The world has [MASK] people."}})
    assert len(demo_container.send(masked.encode()).json()["result"]) == 5
    demo_container.python(
        "import os, pathlib, signal\n"
        "[os.kill(int(path.parent.name), signal.SIGKILL) for path in pathlib.Path('/proc').glob('[0-9]*/comm')"
        " if path.read_text().strip() == 'tritonserver']"
    )
    demo_container.wait_ready(100)
    assert demo_container.send(cat, "image/png", "resnet").json()["result"] == expected


def test_the_start_keeps_its_choices_of_engines_and_says_which_cuda(demo_container: Container) -> None:
    code = "import pathlib; print(len(list(pathlib.Path('/tmp/.cache/trireme/engines/cpu').glob('*'))))"
    # Without instructions for a reduced precision there is nothing to try, and so nothing to keep.
    is_tried = len(candidates(Wanted(), processor_flags(), versions())) > 1
    assert (int(demo_container.python(code)) > 0) is is_tried
    # The stand-in has CUDA's version and no driver.
    assert len([line for line in demo_container.records("warning") if "13.3.1.014" in line["message"]]) == 1


def test_pip_in_a_derived_image_does_not_see_the_boxs_packages(gpu_image: str) -> None:
    listed = podman("run", "--rm", "--entrypoint", "pip3", gpu_image, "list", "--format=freeze")
    names = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert "numpy" in names
    assert not names & {"flask", "onnxruntime", "gunicorn"}


def test_an_archive_is_fetched_and_its_models_find_the_boxs_packages_last(
    gpu_image: str, tmp_path: Path
) -> None:
    repository = write_team_repository(tmp_path / "repository")
    BORROWING.write(repository / "borrowing")
    (repository / "borrowing" / "1" / "flask.py").write_text("WHOSE = 'the model'\n")
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as archive:
        archive.add(repository, ".")
    (tmp_path / "m.tar.gz").chmod(0o644)
    mount = ("-v", f"{tmp_path / 'm.tar.gz'}:/m.tar.gz:ro")
    with running_container(gpu_image, None, *mount, arguments=("serve", "/m.tar.gz")) as box:
        assert box.python("import os; print(os.getuid())") == "1000"
        facts = box.infer("borrowing")
    assert facts["engine"] and facts["flask"] == "the model" and "/opt/trireme" not in facts["numpy"]


@pytest.mark.timeout(1200)
def test_the_cpu_flavour_answers_with_the_other_images_triton(stand_in: str, demo: Path, cat: bytes) -> None:
    build_image(f"TRITON={stand_in}", f"BASE_IMAGE={CPU_BASE}", f"IMAGE={CPU_TRITON}")
    with running_container(CPU_TRITON, demo, "--read-only", wait_until_ready=False) as box:
        # The build itself fails if a library is missing. The wheel's server is not installed, and no part for GPUs.
        code = (
            "import importlib.util, json, pathlib\n"
            "root = pathlib.Path('/opt/tritonserver')\n"
            "print(json.dumps([importlib.util.find_spec('pytriton') is None, sorted(p.name for p in root.iterdir()),"
            " sorted(p.name for p in (root / 'backends').iterdir())]))"
        )
        parts = ["TRITON_VERSION", "backends", "bin", "lib", "system"]
        assert json.loads(box.python(code)) == [True, parts, ["python"]]  # the stand-in has no other backends
        box.wait_ready(START_TIMEOUT_S)
        assert "cat" in box.send(cat, "image/png", "resnet").json()["result"][0]
    podman("rmi", "--force", CPU_TRITON)

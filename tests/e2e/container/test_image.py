"""The image: its labels, its commands, its size and its contents."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from sm import __version__
from sm.settings import HERE
from tests.support.containers import PAGE, PYTHON, Container, build_flags, podman


def test_the_labels_describe_the_image_and_what_the_platform_may_use(image: str) -> None:
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", image))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    )
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
    assert labels["com.amazonaws.sagemaker.capabilities.bidirectional-streaming"] == "true"
    assert labels["com.amazonaws.sagemaker.capabilities.multi-models"] == "true"
    assert labels["org.opencontainers.image.revision"] == commit.stdout.strip()
    assert labels["org.opencontainers.image.title"] == "trireme-serving"
    assert labels["org.opencontainers.image.version"] == __version__
    assert "org.opencontainers.image.source" in labels


@pytest.mark.exhaustive
def test_sm_test_passes_for_mounted_models(image: str, demo: Path) -> None:
    report = podman(
        "run", "--rm", "--read-only", "--tmpfs", "/tmp", *mount_flags(demo), image, "test", timeout=120
    )
    rows = [line.split()[:2] for line in report.splitlines()]
    assert rows == [["bert_base", "equal"], ["resnet", "equal"], ["yolov5", "equal"]]


def test_the_image_builds_and_inspects_a_model(image: str, demo: Path, tmp_path: Path) -> None:
    # With --user, as on the page: the written files belong to the caller.
    flags = [*mount_flags(demo), "-v", f"{tmp_path}:/out", "--user", f"{os.getuid()}:{os.getgid()}"]
    source = "/opt/ml/model/resnet/1/model.onnx"
    words = ["build-model", "resnet", "--target", "cpu", "--source", source, "--out", "/out"]
    podman("run", "--rm", "--network", "none", *flags, image, *words, timeout=120)
    row = podman("run", "--rm", *flags, image, "inspect", "/out").splitlines()[1].split()
    assert row[:3] == ["resnet", "python", "1"]


def mount_flags(repository: Path) -> list[str]:
    return ["-v", f"{repository}:/opt/ml/model:ro"]


def test_the_image_adds_less_than_840_mb_to_its_base(image: str) -> None:
    # About 790 MB with the published debian:bookworm-slim, which has 75 MB. A base that is built locally is larger.
    sizes = [int(podman("image", "inspect", "--format", "{{.Size}}", name)) for name in (image, BASE)]
    assert sizes[0] - sizes[1] < 840e6


#: Megabytes of the image's Python: installed packages, and ``sm`` with its bytecode. Measured; 3 % may be added.
PYTHON_MB = {"site-packages": 755.0, "sm": 5.79}
#: The commands of ``docker run IMAGE …`` on ``docs/run/image.md``.
PAGE_COMMANDS = set(re.findall(r"^\| `([\w-]+)[^|]*` \|", PAGE.partition("## Models")[0], re.M))


def test_the_python_part_has_its_recorded_size(shared_container: Container) -> None:
    code = (
        "import json, pathlib, sysconfig\n"
        "folders = {'site-packages': sysconfig.get_path('purelib'), 'sm': '/opt/trireme/sm'}\n"
        "sizes = lambda folder: (path.lstat().st_size for path in pathlib.Path(folder).rglob('*') if path.is_file())\n"
        "print(json.dumps({name: sum(sizes(folder)) / 1e6 for name, folder in folders.items()}))"
    )
    megabytes = json.loads(shared_container.python(code))
    for name, recorded in PYTHON_MB.items():
        assert megabytes[name] <= 1.03 * recorded, f"{name} has grown: {megabytes[name]:.2f} MB"
        assert megabytes[name] >= 0.9 * recorded, f"{name} has shrunk: write {megabytes[name]:.2f} MB here"


def test_the_image_has_exactly_the_commands_of_its_page(shared_container: Container) -> None:
    code = (
        "from sm import cli\n"
        "here = cli.installed()\n"
        "[cli.load(place) for command in here.values() for place in (command.arguments, command.run)]\n"
        "print(*here)"
    )
    assert len(PAGE_COMMANDS) == 9
    assert set(shared_container.python(code).split()) == PAGE_COMMANDS


def test_the_image_has_no_build_tools_and_no_caches(image: str) -> None:
    code = (
        "import importlib.util as i, pathlib, shutil\n"
        "print([m for m in ('pip', 'setuptools', 'torch', 'hf_xet', 'pytest') if i.find_spec(m)],"
        " [p for p in ('gcc', 'make', 'git', 'pip3') if shutil.which(p)],"
        " [str(p) for p in (pathlib.Path.home() / '.cache', pathlib.Path('/tmp')) if p.exists() and any(p.iterdir())])"
    )
    # As root, who may read everything.
    assert podman("run", "--rm", "--user", "0", "--entrypoint", PYTHON, image, "-c", code) == "[] [] []"


BASE = "docker.io/library/debian:bookworm-slim"


@pytest.mark.exhaustive
def test_a_base_with_triton_gets_all_packages_but_tritons_wheel(image: str, tmp_path: Path) -> None:
    """NVIDIA's base is not available here. This one has only the folder that the Dockerfile looks for."""
    name = "localhost/trireme-test:base-with-triton"
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN mkdir /opt/tritonserver\n")
    podman("build", "--network", "none", "--tag", name, str(tmp_path))
    try:
        flags = [f"--build-arg=BASE_IMAGE={name}", "--target=packages", *build_flags().split()]
        built_image = podman("build", "--quiet", *flags, str(HERE), timeout=250)
        code = "import importlib.util as i; print([m for m in ('pytriton', 'tritonclient', 'flask', 'onnx') if i.find_spec(m)])"
        assert podman("run", "--rm", built_image, PYTHON, "-c", code) == "['tritonclient', 'flask', 'onnx']"
        podman("rmi", "--force", built_image)
    finally:
        podman("rmi", "--force", name)

"""What the image says of itself, what is in it and what is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from sm import __version__
from sm.cli import DEVELOPER_MACHINE
from sm.settings import HERE
from tests.support.containers import PAGE, PYTHON, build_flags, podman


def test_the_labels_tell_the_platform_and_people_what_it_is(image: str) -> None:
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


def test_settings_are_shown_as_they_are_inside(image: str) -> None:
    shown = podman("run", "--rm", "-e", "SAGEMAKER_BIND_TO_PORT=9000", image, "settings")
    assert "9000                     (environment: SAGEMAKER_BIND_TO_PORT)" in shown


def test_the_image_tests_itself_on_the_models_it_is_given(image: str, demo: Path) -> None:
    said = podman("run", "--rm", "--read-only", "--tmpfs", "/tmp", *mounted(demo), image, "test", timeout=120)
    rows = [line.split()[:2] for line in said.splitlines()]
    assert rows == [["bert_base", "equal"], ["resnet", "equal"], ["yolov5", "equal"]]


def test_it_builds_a_model_from_a_graph_and_inspects_it(image: str, demo: Path, tmp_path: Path) -> None:
    # As the page says: what it writes shall be the caller's.
    flags = [*mounted(demo), "-v", f"{tmp_path}:/out", "--user", f"{os.getuid()}:{os.getgid()}"]
    source = "/opt/ml/model/resnet/1/model.onnx"
    words = ["build-model", "resnet", "--target", "cpu", "--source", source, "--out", "/out"]
    podman("run", "--rm", "--network", "none", *flags, image, *words, timeout=120)
    row = podman("run", "--rm", *flags, image, "inspect", "/out").splitlines()[1].split()
    assert row[:3] == ["resnet", "python", "1"]


def mounted(repository: Path) -> list[str]:
    return ["-v", f"{repository}:/opt/ml/model:ro"]


def test_it_adds_less_than_740_mb_to_its_base(image: str) -> None:
    # About 790 MB with the published debian:bookworm-slim, which has 75; one made here is larger.
    sizes = [int(podman("image", "inspect", "--format", "{{.Size}}", name)) for name in (image, BASE)]
    assert sizes[0] - sizes[1] < 740e6


#: Megabytes of the image's Python: installed packages, and ``sm`` with its bytecode. Measured; 3 % may be added.
PYTHON_MB = {"site-packages": 640.0, "sm": 4.2}
#: What ``docs/run/image.md`` says that ``docker run IMAGE …`` does.
PROMISED = set(re.findall(r"^\| `([\w-]+)[^|]*` \|", PAGE.partition("## Models")[0], re.M))


def test_its_python_part_is_as_large_as_is_written_here(image: str) -> None:
    code = (
        "import json, pathlib, sysconfig\n"
        "folders = {'site-packages': sysconfig.get_path('purelib'), 'sm': '/opt/trireme/sm'}\n"
        "sizes = lambda folder: (path.lstat().st_size for path in pathlib.Path(folder).rglob('*') if path.is_file())\n"
        "print(json.dumps({name: sum(sizes(folder)) / 1e6 for name, folder in folders.items()}))"
    )
    found = json.loads(podman("run", "--rm", "--entrypoint", PYTHON, image, "-c", code))
    for name, kept in PYTHON_MB.items():
        assert found[name] <= 1.03 * kept, f"{name} has grown: {found[name]:.2f} MB"
        assert found[name] >= 0.9 * kept, f"{name} has shrunk: write {found[name]:.2f} MB here"


def test_the_commands_of_the_page_are_in_it_and_no_others(image: str) -> None:
    code = (
        "from sm import cli\n"
        "here = {name: command for name, command in cli.COMMANDS.items() if command.is_shipped}\n"
        "[cli.load(place) for command in here.values() for place in (command.arguments, command.run)]\n"
        "print(*here)"
    )
    assert len(PROMISED) == 7
    assert set(podman("run", "--rm", "--entrypoint", PYTHON, image, "-c", code).split()) == PROMISED


def test_a_command_for_a_developers_machine_says_where_to_run_it(image: str) -> None:
    command = ["podman", "run", "--rm", image, "deploy", "pets"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"sm: 'sm deploy' is not in this image. {DEVELOPER_MACHINE}\n"


def test_nothing_that_only_builds_is_left_in_it(image: str) -> None:
    code = (
        "import importlib.util as i, pathlib, shutil\n"
        "print([m for m in ('pip', 'setuptools', 'torch', 'hf_xet', 'pytest') if i.find_spec(m)],"
        " [p for p in ('gcc', 'make', 'git', 'pip3') if shutil.which(p)],"
        " [str(p) for p in (pathlib.Path('/root/.cache'), pathlib.Path('/tmp')) if p.exists() and any(p.iterdir())])"
    )
    # As root, who may look everywhere.
    assert podman("run", "--rm", "--user", "0", "--entrypoint", PYTHON, image, "-c", code) == "[] [] []"


BASE = "docker.io/library/debian:bookworm-slim"


@pytest.mark.exhaustive
def test_a_base_that_has_triton_gets_no_wheel_and_everything_else_alike(image: str, tmp_path: Path) -> None:
    """NVIDIA's base cannot be had here; this one has a Triton as far as the Dockerfile looks."""
    name = "localhost/trireme-test:base-with-triton"
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN mkdir /opt/tritonserver\n")
    podman("build", "--network", "none", "--tag", name, str(tmp_path))
    try:
        flags = [f"--build-arg=BASE_IMAGE={name}", "--target=packages", *build_flags().split()]
        made = podman("build", "--quiet", *flags, str(HERE), timeout=250)
        code = "import importlib.util as i; print([m for m in ('pytriton', 'tritonclient', 'flask', 'onnx') if i.find_spec(m)])"
        assert podman("run", "--rm", made, PYTHON, "-c", code) == "['tritonclient', 'flask', 'onnx']"
        podman("rmi", "--force", made)
    finally:
        podman("rmi", "--force", name)

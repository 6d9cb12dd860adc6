"""The GPU flavour on a stand-in for NVIDIA's image: users, folders, Python packages; nothing runs on a GPU."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from sm.triton.onnx_cpu.engines import Wanted, candidates, processor_flags, versions
from tests.e2e.container.promises import make_readable, promises_by_state, write_models
from tests.support.boxes import wait_until
from tests.support.containers import Container, podman, running_container, write_team_repository
from tests.support.model_archives import ArchiveFolder
from tests.support.tritons import HEAD, Model

#: A user that /etc/passwd does not list, on a file system that is read-only but for /tmp.
NOBODY = ("--read-only", "--tmpfs", "/tmp", "--user", "12345:12345", "--cap-drop", "ALL")
SINGLE = ("-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo", "-e", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true")
#: A team's model that uses an engine of the box, the system's NumPy, and a module beside it. The box has a package
#: of that name, too.
BORROWING = Model(
    answer="""
facts = {
    "engine": metadata.version("onnxruntime") == onnxruntime.__version__,
    "numpy": np.__file__,
    "flask": flask.WHOSE,
}
return {"y": np.array([json.dumps(facts).encode()], np.object_)}
""",
    inputs={"x": ("FP32", [1])},
    outputs={"y": ("STRING", [1])},
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
        wait_until(lambda: box.ping() == 200, 280, description="/ping 200")
        yield box


def best(box: Container, picture: bytes) -> str:
    answer = box.send(picture, "image/png", "resnet")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["result"][0]).rpartition(":")[2]


def test_models_of_the_cpu_target_answer_for_any_user_on_a_read_only_root(
    demo_container: Container, cat: bytes
) -> None:
    assert "cat" in best(demo_container, cat)
    masked = json.dumps({"modelname": "bert_base", "payload": {"text": "The world has [MASK] people."}})
    assert len(demo_container.send(masked.encode()).json()["result"]) == 5


def test_choices_of_engines_are_kept_for_a_user_without_a_home(demo_container: Container) -> None:
    code = "import pathlib; print(len(list(pathlib.Path('/tmp/.cache/trireme/engines/cpu').glob('*'))))"
    # Without instructions for a reduced precision there is nothing to try, and so nothing to keep.
    is_tried = len(candidates(Wanted(), processor_flags(), versions())) > 1
    assert (int(demo_container.python(code)) > 0) is is_tried


def test_the_start_says_which_driver_and_which_cuda(demo_container: Container) -> None:
    lines = [json.loads(line) for line in demo_container.logs().splitlines() if line.startswith("{")]
    said = [line for line in lines if "13.3.1.014" in line["message"]]
    # The stand-in has CUDA's version and no driver.
    assert [(line["process"], line["level"]) for line in said] == [("serve", "warning")]


def test_a_killed_triton_answers_again(demo_container: Container, cat: bytes) -> None:
    expected = best(demo_container, cat)
    code = (
        "import os, pathlib, signal\n"
        "[os.kill(int(path.parent.name), signal.SIGKILL) for path in pathlib.Path('/proc').glob('[0-9]*/comm')"
        " if path.read_text().strip() == 'tritonserver']"
    )
    demo_container.python(code)
    wait_until(lambda: demo_container.ping() == 200, 100, description="/ping 200")
    assert best(demo_container, cat) == expected


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
        body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]})
        (output,) = box.send(body.encode(), model="borrowing").json()["outputs"]
        facts = json.loads(output["data"][0])
    assert facts["engine"]
    assert facts["flask"] == "the model"
    assert "/opt/trireme" not in facts["numpy"]


def test_pip_in_a_derived_image_does_not_see_the_boxs_packages(gpu_image: str) -> None:
    listed = podman("run", "--rm", "--entrypoint", "pip3", gpu_image, "list", "--format=freeze")
    names = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert "numpy" in names
    assert not names & {"flask", "onnxruntime", "gunicorn"}


def test_a_multi_model_container_loads_and_unloads(gpu_image: str, tmp_path: Path) -> None:
    archives = ArchiveFolder(tmp_path / "archives")
    archives.write_flat("borrowing", BORROWING)
    (archives.home / "borrowing" / "model" / "1" / "flask.py").write_text("WHOSE = 'the archive'\n")
    make_readable(tmp_path)
    flags = ("-e", "SAGEMAKER_MULTI_MODEL=true", "-v", f"{archives.home}:/opt/ml/models:ro")
    with running_container(gpu_image, None, *NOBODY, *flags) as box:
        loaded = {"model_name": "team", "url": "/opt/ml/models/borrowing/model"}
        assert requests.post(f"{box.url}/models", json=loaded, timeout=60).status_code == 200
        body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
        answer = requests.post(f"{box.url}/models/team/invoke", json=body, timeout=60)
        assert json.loads(answer.json()["outputs"][0]["data"][0])["flask"] == "the archive"
        assert requests.delete(f"{box.url}/models/team", timeout=60).status_code == 200
        assert requests.get(f"{box.url}/models/team", timeout=60).status_code == 404


@pytest.mark.exhaustive
def test_the_contract_is_kept(gpu_image: str, tmp_path: Path) -> None:
    with running_container(gpu_image, write_models(tmp_path), *SINGLE) as box:
        promises = promises_by_state(tmp_path, box.url, "--mode", "single")
    assert set(promises) <= {"has", "not asked"}, promises
    assert len(promises["has"]) > 5

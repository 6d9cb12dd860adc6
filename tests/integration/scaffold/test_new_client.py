"""A client written by ``sm new-client`` passes ``sm check-client``, its own tests, ruff and mypy unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm.errors import CommandError
from sm.settings import HERE
from tests.support.check_client import check_client
from tests.support.pages import code_blocks
from tests.support.sm_command import run_sm
from trireme_tools.scaffold.arguments import KINDS
from trireme_tools.scaffold.writing import NewClient, class_name


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new client of each kind."""
    folder = tmp_path_factory.mktemp("team")
    for kind in KINDS:
        NewClient(f"my_{kind}", kind).write(folder)
    return folder


def run_module(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module in the repository, so that it finds the project's settings."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=HERE, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.parametrize(
    "kind", [kind if kind == "image" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS]
)
def test_a_new_client_passes_check_client(home: Path, kind: str) -> None:
    report = check_client(home, f"my_{kind}")
    assert report.status == 0, report.failed


def test_a_new_clients_own_tests_pass(home: Path) -> None:
    completed = run_module(
        home, "pytest", "-q", "-p", "no:cacheprovider", str(home / "clients" / "my_pipeline")
    )
    assert completed.returncode == 0, completed.stdout
    assert "2 passed" in completed.stdout


def test_the_tests_of_all_new_clients_are_collected_together(home: Path) -> None:
    completed = run_module(
        home, "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", str(home / "clients")
    )
    assert completed.returncode == 0, completed.stdout
    assert f"{2 * len(KINDS)} tests collected" in completed.stdout


def test_a_new_client_passes_ruff_and_mypy(home: Path) -> None:
    config = str(HERE / "pyproject.toml")
    assert run_module(home, "ruff", "check", "--config", config, str(home)).stdout.startswith(
        "All checks passed"
    )
    formatted = run_module(home, "ruff", "format", "--check", "--config", config, str(home))
    assert formatted.returncode == 0, formatted.stdout
    files = [str(file) for kind in KINDS for file in (home / "clients" / f"my_{kind}").glob("*.py")]
    for client_and_test in zip(files[::2], files[1::2], strict=True):
        checked = run_module(home, "mypy", *client_and_test)
        assert checked.returncode == 0, checked.stdout


def test_new_client_prints_what_it_wrote_and_the_next_step(tmp_path: Path) -> None:
    completed = run_sm("new-client", "street_signs", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == [
        "wrote clients/street_signs",
        "wrote model/street_signs",
        "next: sm check-client street_signs",
    ]
    assert "class StreetSigns(TensorClient):" in (tmp_path / "clients/street_signs/client.py").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("has_hypothesis", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_check_client_prints_what_the_page_shows(tmp_path: Path, has_hypothesis: bool) -> None:
    findings, unchecked = code_blocks("start/bring-your-client.md", "text")
    expected = findings.splitlines()
    if not has_hypothesis:
        # As after ``make serve``, which installs what the box needs and no development tool.
        (tmp_path / "hypothesis.py").write_text("raise ImportError\n")
        expected = [unchecked.rstrip() if "mutated payloads" in line else line for line in expected]
    NewClient("street_signs", "image").write(tmp_path)
    completed = run_sm("check-client", "street_signs", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[: len(expected)] == expected
    last = completed.stdout.splitlines()[-1]
    assert last == "street_signs passes" + ("" if has_hypothesis else " (not checked: mutated payloads)")
    assert has_hypothesis or f"`{last}`" in (HERE / "docs/start/bring-your-client.md").read_text()


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model" / "mine").mkdir(parents=True)
    with pytest.raises(CommandError, match="mine"):
        NewClient("mine", "text").write(tmp_path)
    assert not (tmp_path / "clients").exists()


@pytest.mark.parametrize("name", ["Mine", "my-client", "../mine", "1st", "class", ""])
def test_a_name_that_python_or_triton_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandError):
        NewClient(name, "text").write(tmp_path)


def test_the_name_of_a_built_in_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="'resnet'"):
        NewClient("resnet", "image").write(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError):
        NewClient("mine", "text").write(tmp_path / "file")


def test_a_class_is_named_after_its_client() -> None:
    assert class_name("street_signs2") == "StreetSigns2"

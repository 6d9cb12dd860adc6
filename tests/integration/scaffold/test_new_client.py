"""A client written by ``sm new-client`` passes ``sm check-client``, its own tests, ruff and mypy unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm.errors import CommandError
from sm.settings import HERE
from tests.integration.scaffold.linting import assert_clean
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


def run_pytest(*arguments: object) -> str:
    """Run pytest in the repository, so that it finds the project's settings, and return its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    completed = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


@pytest.mark.parametrize(
    "kind", [kind if kind == "image" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS]
)
def test_a_new_client_passes_check_client_ruff_and_mypy(home: Path, kind: str) -> None:
    report = check_client(home, f"my_{kind}")
    assert report.status == 0, report.failed
    folder = home / "clients" / f"my_{kind}"
    assert_clean(folder, *folder.glob("*.py"))


def test_a_new_clients_own_tests_pass_and_those_of_all_are_collected_together(home: Path) -> None:
    assert "2 passed" in run_pytest(home / "clients" / "my_pipeline")
    assert f"{2 * len(KINDS)} tests collected" in run_pytest("--collect-only", home / "clients")


@pytest.mark.exhaustive
def test_new_client_and_check_client_print_what_the_page_shows(tmp_path: Path) -> None:
    expected = code_blocks("start/bring-your-client.md", "text")[0].splitlines()
    written = run_sm("new-client", "street_signs", cwd=tmp_path)
    assert written.stdout.splitlines() == [
        "wrote clients/street_signs",
        "wrote model/street_signs",
        "next: sm check-client street_signs",
    ]
    completed = run_sm("check-client", "street_signs", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[: len(expected)] == expected
    assert completed.stdout.splitlines()[-1] == "street_signs passes"


@pytest.mark.parametrize("name", ["Mine", "my-client", "../mine", "1st", "class", "", "mine", "resnet"])
def test_a_name_that_is_taken_or_that_python_or_triton_cannot_use_is_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "model" / "mine").mkdir(parents=True)
    with pytest.raises(CommandError):
        NewClient(name, "text").write(tmp_path)
    assert not (tmp_path / "clients").exists()


def test_a_folder_that_cannot_be_written_to_is_a_command_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError):
        NewClient("mine", "text").write(tmp_path / "file")


def test_a_class_is_named_after_its_client() -> None:
    assert class_name("street_signs2") == "StreetSigns2"

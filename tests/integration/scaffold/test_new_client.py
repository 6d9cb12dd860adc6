"""A client that ``sm new-client`` writes passes what every client is asked, before a line of it is changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.settings import HERE
from sm.tools.scaffold.new_client import KINDS
from sm.tools.scaffold.writing import NewClient, class_name
from tests.support.check_client import check, sm


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new client of each kind."""
    folder = tmp_path_factory.mktemp("team")
    for kind in KINDS:
        NewClient(f"my_{kind}", kind).write(folder)
    return folder


def tool(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A tool of the project's, with its settings."""
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=HERE, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive) if kind == "bytes" else kind for kind in KINDS]
)
def test_it_passes_check_client_at_once(home: Path, kind: str) -> None:
    report = check(home, f"my_{kind}")
    assert report.status == 0, report.failed


def test_its_own_test_passes(home: Path) -> None:
    done = tool(home, "pytest", "-q", "-p", "no:cacheprovider", str(home / "clients" / "my_pipeline"))
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_tests_of_all_clients_are_found_together(home: Path) -> None:
    done = tool(home, "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", str(home / "clients"))
    assert done.returncode == 0, done.stdout
    assert f"{2 * len(KINDS)} tests collected" in done.stdout


def test_what_is_written_is_clean(home: Path) -> None:
    config = str(HERE / "pyproject.toml")
    assert tool(home, "ruff", "check", "--config", config, str(home)).stdout.startswith("All checks passed")
    formatted = tool(home, "ruff", "format", "--check", "--config", config, str(home))
    assert formatted.returncode == 0, formatted.stdout
    files = [str(file) for kind in KINDS for file in (home / "clients" / f"my_{kind}").glob("*.py")]
    for pair in zip(files[::2], files[1::2], strict=True):
        typed = tool(home, "mypy", *pair)
        assert typed.returncode == 0, typed.stdout


def test_the_command_says_what_it_wrote_and_what_is_next(tmp_path: Path) -> None:
    done = sm(tmp_path, "new-client", "street_signs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "wrote clients/street_signs",
        "wrote model/street_signs",
        "next: sm check-client street_signs",
    ]
    assert "class StreetSigns(TensorClient):" in (tmp_path / "clients/street_signs/client.py").read_text()


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "model" / "mine").mkdir(parents=True)
    with pytest.raises(StartError, match="is there already; nothing was written"):
        NewClient("mine", "text").write(tmp_path)
    assert not (tmp_path / "clients").exists()


@pytest.mark.parametrize("name", ["Mine", "my-client", "../mine", "1st", "class", ""])
def test_a_name_that_python_or_triton_would_not_take_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartError, match="is no name for a client"):
        NewClient(name, "text").write(tmp_path)


def test_the_name_of_a_client_of_the_box_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="the box comes with a client 'resnet'"):
        NewClient("resnet", "image").write(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot be written to"):
        NewClient("mine", "text").write(tmp_path / "file")


def test_a_class_is_named_after_its_client() -> None:
    assert class_name("street_signs2") == "StreetSigns2"

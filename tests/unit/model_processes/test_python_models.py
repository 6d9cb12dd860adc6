"""Which Python models may answer in a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.model_processes.python_models import PythonModels
from sm.run_state import Box
from tests.support.model_archives import multiplying_model

ENSEMBLE = """platform: "ensemble"
ensemble_scheduling { step [{ model_name: "second" }, { model_name: "first" }, { model_name: "second" }, { model_name: "both" }] }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        multiplying_model().write(tmp_path / "models" / name)
    return tmp_path / "models"


def find(repository: Path, has_versions: bool = False) -> PythonModels:
    box = Box("id", repository.parent, repository, 1, 2, 3, "nginx", 0, has_versions=has_versions)
    return PythonModels(box)


def test_a_model_whose_files_are_being_replaced_is_still_known(repository: Path) -> None:
    script = repository / "first" / "1" / "model.py"
    assert find(repository, has_versions=True).of("first").python == ("first",)
    script.unlink()
    script.symlink_to(repository / "removed.py")
    assert set(find(repository, has_versions=True).of("first").python) == {"first", "second"}


def test_an_ensemble_consists_of_its_steps_and_has_the_state_of_what_they_call(repository: Path) -> None:
    (repository / "both").mkdir()
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    reach = find(repository).of("both")
    assert (reach.parts, set(reach.python)) == (("second", "first"), {"first", "second"})
    assert not reach.is_decoupled and not reach.has_state
    assert find(repository).of("no_such_model").python == ()
    state = 'backend: "python" sequence_batching { } model_transaction_policy { decoupled: true }'
    (repository / "second" / "config.pbtxt").write_text(state)
    reach = find(repository).of("both")
    assert reach.is_decoupled and reach.has_state

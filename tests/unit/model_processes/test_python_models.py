"""Which Python models may answer in a call."""

from __future__ import annotations

from pathlib import Path

from sm.model_processes.python_models import PythonModels
from sm.run_state import Box
from tests.support.model_archives import multiplying_model


def test_a_model_whose_files_are_being_replaced_is_still_known(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        multiplying_model().write(tmp_path / "repository" / name)
    box = Box("id", tmp_path, tmp_path / "repository", 1, 2, 3, "nginx", 0, has_versions=True)
    script = tmp_path / "repository" / "cats" / "1" / "model.py"
    assert PythonModels(box).of("cats").python == ("cats",)
    script.unlink()
    script.symlink_to(tmp_path / "removed.py")
    assert set(PythonModels(box).of("cats").python) == {"cats", "dogs"}


def test_an_ensemble_consists_of_its_steps_and_has_the_state_of_what_they_call(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for name in ("first", "second"):
        multiplying_model().write(repository / name)
    (repository / "both").mkdir()
    (repository / "both" / "config.pbtxt").write_text(
        'platform: "ensemble" ensemble_scheduling { step [{ model_name: "second" }, { model_name: "first" }, '
        '{ model_name: "second" }, { model_name: "both" }] }'
    )
    models = PythonModels(Box("id", tmp_path, repository, 1, 2, 3, "nginx", 0))
    reach = models.of("both")
    assert reach.parts == ("second", "first")
    assert set(reach.python) == {"first", "second"}
    assert not reach.is_decoupled
    assert not reach.has_state
    (repository / "second" / "config.pbtxt").write_text(
        'backend: "python" sequence_batching { } model_transaction_policy { decoupled: true }'
    )
    reach = PythonModels(Box("id", tmp_path, repository, 1, 2, 3, "nginx", 0)).of("both")
    assert reach.is_decoupled
    assert reach.has_state
    assert models.of("no_such_model").python == ()

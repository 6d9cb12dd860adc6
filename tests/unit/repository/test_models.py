"""What counts as a model of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.repository import models, overlay
from sm.repository.machine import Machine

#: Folders that file systems, tools and Kubernetes' volumes make beside the models.
LEFT = (
    *("lost+found", ".Trash-1000", "..data", ".ipynb_checkpoints", ".git"),
    *("System Volume Information", "$RECYCLE.BIN", "@eaDir", "__MACOSX", "__pycache__", "code"),
)


@pytest.mark.parametrize("name", LEFT)
def test_what_others_leave_in_a_repository_is_not_a_model(tmp_path: Path, name: str) -> None:
    repository = tmp_path / "models"
    for folder in ("cats", name):
        (repository / folder / "1").mkdir(parents=True)
        (repository / folder / "1" / "model.py").touch()
    assert models.names(repository) == ["cats"]
    assert [model.name for model in models.read(repository)] == ["cats"]
    served = overlay.for_triton(repository, tmp_path / "served", Machine())
    assert [path.name for path in served.iterdir()] == ["cats"]

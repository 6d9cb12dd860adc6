"""The small files that lie beside a model in the bucket: labels, ``preprocess.json``, a tokenizer."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from .repository import Shelf


class ModelFiles:
    """Copies below ``folder``, one folder for each model."""

    def __init__(self, shelf: Shelf, folder: Path) -> None:
        self._shelf, self.folder = shelf, folder

    def fetch(self, model: str) -> Path:
        """The model's folder. All of the files or none: a folder that is there is taken for whole."""
        place = self.folder / model
        if place.is_dir():
            return place
        staged = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            self._shelf.fetch(model, self._shelf.list_small_files(model), staged)
            # Another thread may have been first.
            with contextlib.suppress(OSError):
                staged.rename(place)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return place

    def forget(self, model: str) -> None:
        """The model has been loaded anew."""
        shutil.rmtree(self.folder / model, ignore_errors=True)


def read_labels(folder: Path) -> list[str]:
    """The lines of the model's labels: ``<model>_labels.txt``, else another ``*label*.txt``; none without."""
    named_file = folder / f"{folder.name}_labels.txt"
    files = [named_file] if named_file.is_file() else sorted(folder.glob("*label*.txt"))
    return files[0].read_text(encoding="utf-8", errors="replace").splitlines() if files else []

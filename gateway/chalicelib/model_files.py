"""The small files that lie beside a model in the bucket: labels, ``preprocess.json``, a tokenizer."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from .repository import ModelBucket


class ModelFiles:
    """Copies the files into ``folder``, with a folder for each model."""

    def __init__(self, bucket: ModelBucket, folder: Path) -> None:
        self._bucket, self.folder = bucket, folder

    def fetch(self, model: str) -> Path:
        """Return the model's folder, after fetching it if needed. A folder is always complete."""
        place = self.folder / model
        if place.is_dir():
            return place
        staged = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            self._bucket.fetch(model, self._bucket.list_small_files(model), staged)
            # Another thread may have created it meanwhile.
            with contextlib.suppress(OSError):
                staged.rename(place)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return place

    def forget(self, model: str) -> None:
        """Remove the files of a model that has been loaded again."""
        shutil.rmtree(self.folder / model, ignore_errors=True)


def read_labels(folder: Path) -> list[str]:
    """Read the labels from ``<model>_labels.txt`` or another ``*label*.txt``; none without a file."""
    named_file = folder / f"{folder.name}_labels.txt"
    files = [named_file] if named_file.is_file() else sorted(folder.glob("*label*.txt"))
    return files[0].read_text(encoding="utf-8", errors="replace").splitlines() if files else []

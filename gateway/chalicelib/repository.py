"""Copy models from the bucket into Triton's repository, a folder that gateway and Triton share."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sm.errors import BadInput, Conflict, NotReady, OutOfMemory

from .failures import NoSuchModel
from .storage import Storage

MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
#: Bytes of the largest file that is copied from beside a configuration: larger ones are weights.
SMALL_FILE_BYTES = 32 * 2**20


def check_name(model: str) -> str:
    """Return the name if it names exactly one folder. Raises :class:`BadInput`."""
    if not MODEL.fullmatch(model):
        raise BadInput("a model's name is made of letters, digits, dots, dashes and underscores")
    return model


class ModelBucket:
    """The models of the bucket, each a folder below ``prefix``."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        self._storage, self._prefix = storage, prefix

    def names(self) -> list[str]:
        return sorted(filter(MODEL.fullmatch, self._storage.folders(self._prefix)))

    def files(self, model: str) -> list[str]:
        """Return the paths in the model's folder. Raises :class:`NoSuchModel` with the models that exist."""
        sizes = self._storage.list_below(f"{self._prefix}{model}/")
        if not sizes:
            names = self.names()
            listed = ", ".join(names) or "none"
            raise NoSuchModel(f"the bucket has no model {model!r}; there are: {listed}", models=names)
        for name in sizes:
            if not _is_within(name):
                raise BadInput(f"the model {model!r} has an object {name[:200]!r}, which is not a path")
        return sorted(sizes)

    def list_small_files(self, model: str) -> list[str]:
        """Return the small files beside the configuration, such as labels; none without the model."""
        sizes = self._storage.list_below(f"{self._prefix}{model}/")
        return sorted(name for name, size in sizes.items() if "/" not in name and size <= SMALL_FILE_BYTES)

    def fetch(self, model: str, files: list[str], folder: Path) -> None:
        """Write ``files`` of the model below ``folder``. Raises :class:`OutOfMemory` if the disk is full."""
        try:
            for name in files:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._storage.download(f"{self._prefix}{model}/{name}", path)
        except OSError as error:
            raise _explain(error, model) from None


class Repository:
    """Triton's repository, a folder. A model in it is always complete: the old one or the new one."""

    def __init__(self, folder: Path, bucket: ModelBucket) -> None:
        self._folder, self._bucket = folder, bucket

    def has(self, model: str) -> bool:
        """True if the repository has the model."""
        return (self._folder / model).is_dir()

    def claim_and_copy(self, model: str) -> None:
        """Copy the model from the bucket. Raises :class:`Conflict` while another process does."""
        self._bucket.files(model)
        with self.claim(model):
            self.copy(model)

    def copy(self, model: str) -> None:
        """Copy the model from the bucket; the caller has claimed it."""
        files = self._bucket.files(model)
        # Left by a process that died during a copy. Nobody asks Triton for a model of such a name.
        for leftover in self._folder.glob(f".{model}@*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staged = self._folder / f".{model}@{uuid.uuid4().hex}"
        try:
            self._bucket.fetch(model, files, staged)
            self._replace(model, staged)
        except OSError as error:
            raise _explain(error, model) from None
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _replace(self, model: str, staged: Path) -> None:
        place, old = self._folder / model, staged.with_name(f"{staged.name}.old")
        if place.exists():
            place.rename(old)
        staged.rename(place)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def claim(self, model: str) -> Iterator[None]:
        """Lock the model against every other process and machine. Raises :class:`Conflict` if it is locked.

        The lock is a file lock, which ends with its process.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / f".{model}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _explain(error, model) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise Conflict(f"the model {model!r} is being loaded by another request") from None
        finally:
            os.close(lock)


def _is_within(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name


def _explain(error: OSError, model: str) -> OutOfMemory | NotReady:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemory(f"there is no room for the files of {model!r}")
    return NotReady(f"the files of {model!r} cannot be written: {error.strerror}")

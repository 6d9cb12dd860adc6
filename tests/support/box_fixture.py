"""The fixture ``boxes``: a test says what its box must have, and tests that say the same share a box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.support.boxes import CLIENT_FOLDERS, WAIT_TIMEOUT_S, RunningBox, start_box
from tests.support.tritons import MODELS, Model

#: Shared boxes that run at once in a process of tests; the one used longest ago is stopped for the next.
MAX_SHARED = 3
#: A repository; names of :data:`tests.support.tritons.MODELS`; models, or ensembles' configurations, by name; or the
#: box's default repository.
ModelSource = Path | Iterable[str] | Mapping[str, Model | str] | None
#: Names of folders in ``client_folders``, other folders, and the text of files by their path.
ClientSource = str | Path | Mapping[str, str]
Mode = Literal["single", "multi-model"]


class Boxes:
    """Starts boxes, each in a folder of its own, and keeps those that tests share."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._new_folder = tmp_path_factory.mktemp
        self._shared: dict[str, RunningBox] = {}  # the one used last is the last

    def __call__(
        self,
        models: ModelSource = None,
        clients: Iterable[ClientSource] = (),
        *,
        mode: Mode = "single",
        arguments: str = "",
        **settings: str,
    ) -> RunningBox:
        """Return a running box, which all tests of this process that ask for the same share.

        Call this in each test, or in a fixture of its scope: the box may be stopped when others were asked for since.
        No test may break it, or rely on what its counters and its log begin with.

        Args:
            models: The models in ``model`` of the box's folder, or a repository.
            clients: What is served besides the built-in clients.
            mode: ``multi-model``: without models, and with archives in ``models`` of the box's folder.
            arguments: The command-line arguments of ``serve``.
            settings: Environment variables.
        """
        key = repr((models, clients, mode, arguments, sorted(settings.items())))
        box = self._shared.pop(key, None)
        if box is None or box.process.poll() is not None:
            while len(self._shared) >= MAX_SHARED:
                self._shared.pop(next(iter(self._shared))).stop()
            box = self._start(models, clients, settings, mode, arguments)
        self._shared[key] = box
        box.wait_ready()
        return box

    @contextmanager
    def own(
        self,
        models: ModelSource = None,
        clients: Iterable[ClientSource] = (),
        *,
        mode: Mode = "single",
        arguments: str = "",
        command_prefix: str = "",
        folder: Path | None = None,
        ready_within_s: float = WAIT_TIMEOUT_S,
        **settings: str,
    ) -> Iterator[RunningBox]:
        """Run a box of the caller's own, which may break it. The block stops it.

        Args:
            command_prefix: A command that ends by running ``serve`` in its place, such as ``prlimit --nofile=64``.
            folder: The box's folder, if what it reads is there already.
            ready_within_s: How long to wait until ``/ping`` is 200; 0: do not wait.

        The others are those of a shared box.
        """
        box = self._start(models, clients, settings, mode, arguments, command_prefix, folder)
        try:
            if ready_within_s:
                box.wait_ready(ready_within_s)
            yield box
        finally:
            box.stop()

    def failed_start(self, models: ModelSource = None, **settings: str) -> str:
        """Start a box that must end with status 1, and return its log."""
        box = self._start(models, (), settings)
        try:
            assert box.process.wait(WAIT_TIMEOUT_S) == 1, box.log.read_text()[-4000:]
        finally:
            box.stop()
        return box.log.read_text()

    def stop(self) -> None:
        for box in self._shared.values():
            box.stop()

    def _start(
        self,
        models: ModelSource,
        clients: Iterable[ClientSource],
        settings: Mapping[str, str],
        mode: Mode = "single",
        arguments: str = "",
        command_prefix: str = "",
        folder: Path | None = None,
    ) -> RunningBox:
        folder = folder or self._new_folder("box")
        (folder / "notes").mkdir(exist_ok=True)  # of the models that leave notes
        folders = tuple(self._client_folder(folder, source) for source in clients)
        if mode == "multi-model":
            archives = folder / "models"
            archives.mkdir(exist_ok=True)
            own = {"SAGEMAKER_MULTI_MODEL": "true", "TRIREME_MODEL_ARCHIVES": str(archives)}
            settings = {**own, **settings}
        repository = write_models(models, folder / "model")
        return start_box(folder, repository, folders, command_prefix, arguments, **settings)

    @staticmethod
    def _client_folder(folder: Path, source: ClientSource) -> Path:
        if isinstance(source, str):
            return CLIENT_FOLDERS / source
        if isinstance(source, Path):
            return source
        for path, text in source.items():
            file = folder / "clients" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return folder / "clients"


def write_models(models: ModelSource, repository: Path) -> Path | None:
    """Write models into a repository, and return the one that has them."""
    if models is None or isinstance(models, Path):
        return models
    by_name = models if isinstance(models, Mapping) else {name: MODELS[name] for name in models}
    for name, model in by_name.items():
        if isinstance(model, Model):
            model.write(repository / name)
        else:
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "config.pbtxt").write_text(model)
    return repository


@pytest.fixture(scope="session")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxes]:
    made = Boxes(tmp_path_factory)
    yield made
    made.stop()

"""The source of clients without code: a ``task.json`` in a model's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sm.plugins.sources import ClientClass, ClientSource, SourceKind, derive


class Tasks(SourceKind):
    """Models whose ``task.json`` names their task; the class of the task is the client."""

    name = "task"
    has_folder = True

    def find_in_repository(self, repository: Path) -> Iterator[ClientSource]:
        for file in sorted(repository.glob("*/task.json")):
            yield ClientSource(file.parent.name, file, self.name)

    def client_class(self, source: ClientSource) -> ClientClass:
        from trireme_extensions.tasks.task_file import task_class  # the control plane makes no client

        # The model may have the name of a client that comes with the box.
        return derive(task_class(source.file), model=source.name, replaces=source.name)


TASKS = Tasks()

"""Find what changed between two looks at a box: processes started again or stopped, models loaded or gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sm.server.history.box_processes import ProcessGroup

#: The groups whose children are gunicorn's workers. nginx and Triton end and start children as usual work.
WITH_WORKERS = ("data", "control")


class Changes:
    """Remembers the last look. The first look finds nothing, as everything in it is new."""

    def __init__(self) -> None:
        self._groups: dict[str, ProcessGroup] = {}
        self._restarts: dict[str, int] = {}
        self._replaced_workers: dict[str, int] = {}
        self._models: dict[str, str] | None = None
        self._ready: bool | None = None

    def restarts(self, group: ProcessGroup) -> int:
        """Return how often a group's process or one of its workers was started again.

        The supervisor does not count the ends that it ordered itself, and two quick ends are one change here.
        """
        seen = max(group.restarts, self._restarts.get(group.name, 0))
        return seen + self._replaced_workers.get(group.name, 0)

    def of_box(self, ready: bool, reason: str) -> Iterator[str]:
        if self._ready is not None and ready != self._ready:
            yield "the box is ready" if ready else f"the box is not ready: {reason}"
        self._ready = ready

    def of_processes(self, groups: Iterable[ProcessGroup]) -> Iterator[str]:
        for group in groups:
            if group.pid is None:
                continue
            before = self._groups.get(group.name)
            self._groups[group.name] = group
            if before is None:
                continue
            if before.pid != group.pid:
                self._restarts[group.name] = self._restarts.get(group.name, 0) + 1
                yield f"{group.name} was started again"
            elif group.name in WITH_WORKERS and (gone := len(before.children - group.children)):
                self._replaced_workers[group.name] = self._replaced_workers.get(group.name, 0) + gone
                yield f"{gone} {'worker' if gone == 1 else 'workers'} of {group.name} ended"
            if group.stopped and not before.stopped:
                yield f"{group.stopped} of {group.processes} processes of {group.name} do not run: stopped"
            elif before.stopped and not group.stopped:
                yield f"all processes of {group.name} run again"

    def of_models(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        models = {row["name"]: row["state"] for row in rows}
        before, self._models = self._models, models
        if before is None:
            return
        for name in sorted(models.keys() | before.keys()):
            if name not in models:
                yield f"the model {name} was unloaded"
            elif before.get(name) != models[name]:
                yield f"the model {name} is {models[name]}"

"""Find what changed in a box: processes restarted or stopped, models loaded or unloaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sm.control.history.box_processes import ProcessGroup

#: The groups whose children are gunicorn's workers. nginx and Triton start and end children all the time.
WITH_WORKERS = ("data", "control")


class Changes:
    """Compares each state of the box with the last one. The first comparison yields nothing."""

    def __init__(self) -> None:
        self._groups: dict[str, ProcessGroup] = {}
        self._restarts: dict[str, int] = {}
        self._replaced_workers: dict[str, int] = {}
        self._models: dict[str, str] | None = None
        self._ready: bool | None = None

    def restarts(self, group: ProcessGroup) -> int:
        """Return how often a group's process or one of its workers was started again.

        This is the higher of two counts: the supervisor counts unexpected exits only, and this class sees two
        quick ones as one.
        """
        own_restarts = max(group.restarts, self._restarts.get(group.name, 0))
        return own_restarts + self._replaced_workers.get(group.name, 0)

    def compare_box(self, ready: bool, reason: str) -> Iterator[str]:
        """Yield a sentence if the readiness changed."""
        if self._ready is not None and ready != self._ready:
            yield "the box is ready" if ready else f"the box is not ready: {reason}"
        self._ready = ready

    def compare_processes(self, groups: Iterable[ProcessGroup]) -> Iterator[str]:
        """Yield a sentence for each group that was restarted, stopped or lost workers."""
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
            elif group.name in WITH_WORKERS and (ended := len(before.children - group.children)):
                self._replaced_workers[group.name] = self._replaced_workers.get(group.name, 0) + ended
                yield f"{ended} {'worker' if ended == 1 else 'workers'} of {group.name} ended"
            if group.stopped and not before.stopped:
                yield f"{group.stopped} of {group.processes} processes of {group.name} do not run: stopped"
            elif before.stopped and not group.stopped:
                yield f"all processes of {group.name} run again"

    def compare_models(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield a sentence for each model whose state changed."""
        models = {row["name"]: row["state"] for row in rows}
        before, self._models = self._models, models
        if before is None:
            return
        for name in sorted(models.keys() | before.keys()):
            if name not in models:
                yield f"the model {name} was unloaded"
            elif before.get(name) != models[name]:
                yield f"the model {name} is {models[name]}"

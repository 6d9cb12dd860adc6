"""The public address of the tasks' classes, which an extension has: clients that people ejected import it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sm.entry_points import moved

_tasks = moved(__name__)
__path__ = []


class _Submodules(MetaPathFinder, Loader):
    """Finds ``sm.client.tasks.image`` and the like: the extension's own modules, not second copies."""

    def find_spec(self, fullname: str, _: Sequence[str] | None, __: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.rpartition(".")[0] == __name__ else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{_tasks.__name__}.{spec.name.rpartition('.')[2]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__ and module.__spec__.loader_state


sys.meta_path.append(_Submodules())


def __getattr__(name: str) -> Any:
    return getattr(_tasks, name)

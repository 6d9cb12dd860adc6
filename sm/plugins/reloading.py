"""Reload clients when their files change, for development.

Each worker checks the files and replaces changed clients between two requests. No process ends, and a
running request keeps its client.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from sm.client.base import Client
from sm.errors import ClientFailed, StartError, TriremeError
from sm.plugins.loading import ClientSource
from sm.plugins.registry import Registry
from sm.polling import WATCH_S, Poll

log = logging.getLogger(__name__)
#: Seconds between two checks. A change must be complete for one of them: an editor may write in parts.
POLL_INTERVAL_S = 0.2

#: Files by path: modification time in ns, and size in bytes.
Files = Mapping[Path, tuple[int, int]]


class Build(Protocol):
    """Builds a registry for the folders of this box, without clients that cannot load."""

    def __call__(
        self, *, reusable: dict[Path, Client], report: Callable[[ClientSource, StartError], None]
    ) -> Registry: ...


class LiveClients(Mapping[str, Client]):
    """The current registry. A client that cannot load raises :class:`ClientFailed` with the reason.

    ``folders``: where clients are. ``log_marks``: a folder that all workers share, to log each change once.
    """

    def __init__(self, build: Build, folders: tuple[Path, ...], log_marks: Path) -> None:
        self._build, self._folders, self._log_marks = build, folders, log_marks
        #: The reasons why clients cannot serve, by name.
        self.load_errors: Mapping[str, str] = {}
        #: The reasons why clients still run their old version, by name.
        self.reload_errors: Mapping[str, str] = {}
        self._clients: dict[Path, Client] = {}
        #: When to ask Triton next for models that clients miss.
        self._next_question = 0.0
        self.registry = Registry({})
        self._scanned = self._loaded_files = scan(folders)
        self._load_changed(self._scanned, {})

    def __getitem__(self, name: str) -> Client:
        if name in self.load_errors:
            raise ClientFailed(f"the client of {name!r} is broken: {self.load_errors[name]}")
        return self.registry.clients[name]

    def __contains__(self, name: object) -> bool:
        return name in self.load_errors or name in self.registry.clients

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.registry.clients if name not in self.load_errors])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Check at intervals, in a thread; ``on_change`` is called after each change."""

        def check() -> None:
            if self.check_files():
                on_change()

        Poll("client-reload", POLL_INTERVAL_S, check).start()

    def check_files(self) -> bool:
        """Load changed clients once two checks see the same files. Returns True if there was a change."""
        scanned, before = scan(self._folders), self._scanned
        self._scanned = scanned
        if scanned != before or (scanned == self._loaded_files and not self._has_late_model()):
            return False
        old_clients, before = self._clients, self._loaded_files
        try:
            self._load_changed(scanned, before)
        except TriremeError:
            # Triton is restarting: retry at the next check.
            return False
        except BaseException as error:
            reason = str(error) if isinstance(error, StartError) else repr(error)
            self._log_once(
                logging.ERROR, f"nothing is reloaded, the old versions serve: {reason}", repr(scanned)
            )
            changed = {
                client.name: reason
                for file, client in old_clients.items()
                if changed_files(scanned, before, file.parent)
            }
            self.reload_errors = {**self.reload_errors, **changed}
        self._loaded_files = scanned
        self._publish(old_clients, repr((before, scanned)))
        return True

    def _has_late_model(self) -> bool:
        """True if Triton serves a model now that a client was missing."""
        if not self.registry.unserved or time.monotonic() < self._next_question:
            return False
        self._next_question = time.monotonic() + WATCH_S
        return any(waiting.has_models() for waiting in self.registry.unserved.values())

    def _load_changed(self, scanned: Files, before: Files) -> None:
        """Load the clients whose files differ from ``before``."""
        importlib.invalidate_caches()
        names = {file: client.name for file, client in self._clients.items()}
        reusable = {
            file: client
            for file, client in self._clients.items()
            if not changed_files(scanned, before, file.parent)
        }
        load_errors: dict[str, str] = {}

        def report(source: ClientSource, error: StartError) -> None:
            changes = repr((source.file, files_below(scanned, source.file.parent)))
            for name in {source.name, names.get(source.file, source.name)}:
                load_errors[name] = str(error)
            self._log_once(logging.ERROR, describe_change(source, error), changes)

        self.registry = self._build(reusable=reusable, report=report)
        for client in reusable.values():
            client.is_edited = True
        self._clients, self.load_errors, self.reload_errors = reusable, load_errors, {}

    def _publish(self, before: Mapping[Path, Client], changes: str) -> None:
        for file, client in self._clients.items():
            if before.get(file) is not client:
                self._log_once(logging.INFO, f"the client {client.name!r} is live", changes)
        for file, client in before.items():
            if not file.exists():
                self._log_once(logging.INFO, f"the client {client.name!r} is gone", changes)

    def _log_once(self, level: int, sentence: str, changes: str) -> None:
        """Log a change, unless another worker has logged the same one."""
        mark = self._log_marks / sha256(f"{sentence}{changes}".encode()).hexdigest()
        try:
            self._log_marks.mkdir(exist_ok=True)
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:
            # The disk is full: logging twice is better than not at all.
            pass
        log.log(level, sentence)


@dataclass(frozen=True)
class LiveRegistry(Registry):
    """The registry of a box that reloads."""

    clients: LiveClients

    def get(self, name: str) -> Client:
        client = self.clients.get(name)
        return replace(self.clients.registry, models=self.models).get(name) if client is None else client

    @property
    def load_errors(self) -> Mapping[str, str]:
        return self.clients.load_errors

    @property
    def reload_errors(self) -> Mapping[str, str]:
        return self.clients.reload_errors

    def default(self, requested: str) -> str:
        """Return the default also if it is a client that cannot load now."""
        return requested if requested in self.clients else super().default(requested)


def scan(folders: tuple[Path, ...]) -> Files:
    """Return every file below ``folders``, without caches and hidden files."""
    states = {}
    for folder in folders:
        for folder_path, subfolders, names in os.walk(folder, followlinks=True):
            subfolders[:] = [name for name in subfolders if not name.startswith(("__pycache__", "."))]
            for path in (Path(folder_path, name) for name in names if not name.startswith(".")):
                try:
                    state = path.stat()
                except OSError:
                    continue
                states[path] = (state.st_mtime_ns, state.st_size)
    return states


def files_below(scanned: Files, folder: Path) -> Files:
    """Return those of the files that are in ``folder`` or below it."""
    return {path: state for path, state in scanned.items() if folder in path.parents}


def changed_files(scanned: Files, before: Files, folder: Path) -> bool:
    """True if any file in ``folder`` has changed."""
    return files_below(scanned, folder) != files_below(before, folder)


def describe_change(source: ClientSource, error: StartError) -> str:
    """Format the error for a terminal: a sentence, and the client's own lines of the traceback."""
    sentence = "is broken, and its callers get this error until it is fixed"
    lines = [f"the client {source.name!r} {sentence}: {error}"]
    if error.__cause__ is not None:
        own_frames = [
            frame
            for frame in traceback.extract_tb(error.__cause__.__traceback__)
            if source.file.parent in Path(frame.filename).parents
        ]
        lines += [*traceback.format_list(own_frames), *traceback.format_exception_only(error.__cause__)]
    return "\n".join(line.rstrip() for line in lines)
